//! Datagrams of a virtual function's special queue pair, which its master forwards.

use super::datagram::{Destination, Outgoing};
use super::gather;
use super::unfit::Unfit;
use super::wqe::Segments;
use crate::device::master::gsi::{GSI, Outbound, is_tunnel};
use crate::device::memory::{Domain, Keyed};
use crate::device::port::Port;

/// The maximum length of a message in bytes: header and management datagram.
const MAX_MESSAGE: usize = 512;

/// The handling of a work request by the master.
pub(super) enum Forwarded {
    /// The request is not for the master.
    Not,
    /// The master has consumed the request. The sender is not told if the master drops the datagram.
    Taken(Option<Outgoing>),
}

/// Forwards the work request at `index` in the ring of queue pair `number`, if it is for the master. `gids`
/// is the first row of the sender's GIDs.
pub(super) fn forward(
    number: u32,
    index: u16,
    wqe: &[u8],
    gids: usize,
    who: Domain,
    keyed: Keyed<'_>,
    ports: &[Port],
) -> Result<Forwarded, Unfit> {
    let mut segments = Segments::new(wqe)?;
    let tunnel = Destination::parse(segments.datagram()?, 0);
    if !is_tunnel(number, tunnel.qpn) {
        return Ok(Forwarded::Not);
    }
    let message = gather(segments, MAX_MESSAGE, who, keyed)?;
    let sent = Outbound::parse(&message).and_then(|outbound| {
        let to = Destination::parse(outbound.segment, gids);
        let (port, _, headers) = to.route(GSI, ports)?;
        let mut frame = outbound.frame(&headers, to.qpn, to.qkey, u32::from(index))?;
        if let Some(vlan) = to.vlan {
            crate::device::vlan::insert(&mut frame, vlan);
        }
        Some(Outgoing { port, frame, inside: false })
    });
    if sent.is_none() {
        log::warn!("queue pair {number:#x}: the master does not forward datagram {index}");
    }
    Ok(Forwarded::Taken(sent))
}
