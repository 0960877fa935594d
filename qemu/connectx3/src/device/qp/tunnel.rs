//! Datagrams that a virtual function's special queue pair gives to its master, who sends them on.

use super::connected::Unfit;
use super::datagram::{Destination, Outgoing};
use super::wqe::{Data, Segments};
use crate::device::master::gsi::{GSI, Outbound, is_tunnel};
use crate::device::memory::{Access, Domain, Keyed, Refused};
use crate::device::port::Port;
use verbs::VerbsError;

/// The longest message: header and management datagram.
const MAX_MESSAGE: usize = 512;

/// What becomes of a work request.
pub enum Forwarded {
    /// It is not for the master.
    Not,
    /// The master has it. If nothing goes out, the sender does not hear of that.
    Taken(Option<Outgoing>),
}

/// Looks at a work request of queue pair `number`, of index `index` in its ring; `gids` as for any datagram.
pub fn forward(
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
    let message = gather(segments, who, keyed)?;
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
        log::warn!("queue pair {number:#x}: the master does not pass on datagram {index}");
    }
    Ok(Forwarded::Taken(sent))
}

fn gather(segments: Segments<'_>, who: Domain, keyed: Keyed<'_>) -> Result<Vec<u8>, Unfit> {
    let mut message = Vec::new();
    for data in segments {
        match data {
            Data::Inline(bytes) => message.extend_from_slice(bytes),
            Data::Segment { lkey, va, len } => {
                let start = message.len();
                if start + len as usize > MAX_MESSAGE {
                    return Err(VerbsError::InvalidArgument.into());
                }
                keyed.check(lkey, who, va, u64::from(len), Access::LocalRead)?;
                message.resize(start + len as usize, 0);
                let place = message.get_mut(start..).unwrap_or_default();
                keyed.read(lkey, va, place).map_err(|e: Refused| Unfit::from(e))?;
            }
        }
    }
    Ok(message)
}
