//! Addresses by DHCP, and the settings that a server passes with them.

use alloc::boxed::Box;
use core::net::Ipv4Addr;
use heapless::Vec;
use smoltcp::socket::dhcpv4::{Event, Socket};
use smoltcp::time::Duration;

use crate::net::addressing::Ipv4Config;

/// The option with settings of an appliance: words `key=value`, separated by blanks. The number is free for
/// private use (RFC 3942).
const SETTINGS: u8 = 224;
/// The options that are asked for: subnet mask, router, DNS servers, settings.
const WANTED: &[u8] = &[1, 3, 6, SETTINGS];
/// The longest answer of a server, in bytes: a frame.
const LONGEST: usize = 1500;
/// The interval between two questions as long as no server answers.
const INTERVAL: Duration = Duration::from_secs(1);

/// The part of a lease that is not an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// The DNS servers.
    pub dns: Vec<Ipv4Addr, 3>,
    /// The settings.
    pub settings: Vec<u8, 255>,
}

/// Returns a client.
pub(super) fn client() -> Socket<'static> {
    let mut socket = Socket::new();
    let mut retry = socket.get_retry_config();
    retry.discover_timeout = INTERVAL;
    retry.initial_request_timeout = INTERVAL;
    socket.set_retry_config(retry);
    socket.set_parameter_request_list(WANTED);
    socket.set_receive_packet_buffer(Box::leak(Box::new([0; LONGEST])));
    socket
}

/// Returns the change of the lease, if there is one. Does not allocate.
pub(super) fn poll(socket: &mut Socket<'_>) -> Option<(Option<Ipv4Config>, Extras)> {
    let lease = match socket.poll()? {
        Event::Deconfigured => return Some((None, Extras::default())),
        Event::Configured(lease) => lease,
    };
    let config = Ipv4Config {
        address: lease.address.address(),
        prefix: lease.address.prefix_len(),
        gateway: lease.router,
    };
    let mut extras = Extras { dns: lease.dns_servers.iter().copied().collect(), ..Extras::default() };
    let options = lease.packet.as_ref().map(|packet| packet.options());
    if let Some(option) = options.into_iter().flatten().find(|option| option.kind == SETTINGS) {
        // A server that ends the text with a zero means the text.
        let text = option.data.strip_suffix(b"\0").unwrap_or(option.data);
        // An option has at most 255 bytes, so there is room.
        let _ = extras.settings.extend_from_slice(text);
    }
    Some((Some(config), extras))
}
