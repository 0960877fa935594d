//! The routes of packets of InfiniBand ports, and packets that the guest builds itself.

use super::cable;
use crate::device::port::Port;
use crate::device::qp::Context;
use roce::wire::{Error, Headers, Ipv6, Lrh, Net, Packet};
use verbs::Gid;

/// The addressing of a queue pair's packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The destination LID.
    pub dlid: u16,
    /// The path bits that select the source among the port's LIDs.
    pub path_bits: u8,
    /// Service level.
    pub service_level: u8,
    /// The fields of the GRH, if packets have one.
    pub global: Option<GlobalRoute>,
}

/// The global part of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalRoute {
    /// The index of the source in the port's GID table.
    pub source: usize,
    /// The destination GID.
    pub to: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// Returns the route of a connection.
    #[must_use]
    pub(crate) fn of(context: &Context) -> Self {
        let (hop_limit, traffic_class) = context.hop_and_class();
        Self {
            dlid: context.remote_lid(),
            path_bits: context.path_bits(),
            service_level: context.service_level(),
            global: context.has_global_route().then(|| GlobalRoute {
                source: context.source_gid(),
                to: context.remote_gid(),
                traffic_class,
                flow_label: context.flow_label(),
                hop_limit,
            }),
        }
    }

    /// Returns the headers of packets from a port, or `None` if the port lacks the source GID.
    #[must_use]
    pub(crate) fn headers(&self, port: &Port) -> Option<Headers> {
        let managed = &port.ib.managed;
        let lrh = Lrh {
            lane: managed.lane(self.service_level),
            service_level: self.service_level,
            dlid: self.dlid,
            slid: source_lid(port, self.path_bits),
        };
        let grh = match &self.global {
            None => None,
            Some(global) => Some(Ipv6 {
                traffic_class: global.traffic_class,
                flow_label: global.flow_label,
                next_header: Ipv6::NEXT_IBA,
                hop_limit: global.hop_limit,
                src: managed.gid(global.source)?.0,
                dst: global.to.0,
            }),
        };
        Some(Headers { ethernet: cable(port.mac()), net: Net::InfiniBand(lrh, grh) })
    }
}

/// Returns the LID of a port with given path bits.
fn source_lid(port: &Port, path_bits: u8) -> u16 {
    let info = &port.ib.managed.info;
    info.lid() | u16::from(path_bits) & ((1 << info.lmc()) - 1)
}

/// Returns the frame of a packet that the guest has built from the local route header up to, and without, the
/// ICRC. Fills in lengths, checks and, unless `source_given`, the source.
pub(crate) fn special_frame(made: &[u8], port: &Port, source_given: bool) -> Result<Vec<u8>, Error> {
    let (mut lrh, global, _) = Lrh::parse(made)?;
    if !source_given {
        lrh.slid = source_lid(port, lrh.slid as u8);
    }
    let rest = made.get(Lrh::LEN..).ok_or(Error::Truncated)?;
    let (grh, rest) = if global {
        let (grh, rest) = Ipv6::parse(rest)?;
        (Some(grh), rest)
    } else {
        (None, rest)
    };
    let (body, _icrc) = rest.split_last_chunk::<4>().ok_or(Error::Truncated)?;
    let Packet { bth, ext, payload } = Packet::parse(body)?;
    let headers = Headers { ethernet: cable(port.mac()), net: Net::InfiniBand(lrh, grh) };
    let mut frame = vec![0; headers.frame_len(&ext, payload.len())];
    headers
        .emit(&bth, &ext, payload.len(), &mut frame, |to| to.copy_from_slice(payload))
        .ok_or(Error::Truncated)?;
    Ok(frame)
}
