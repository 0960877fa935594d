//! The agent of subnet management of an InfiniBand port: it takes what a subnet manager sends to queue pair 0, has the
//! firmware answer it, and sends the answer (Linux `mlx4/mad.c`, `core/smi.c`; iPXE `ib_mi.c`).

use crate::command::Commands;
use crate::hardware::{Block, Hardware};
use crate::mad::{LEN, Mad, Origin, class, method};
use crate::packets::{Arrival, Packets, Room};
use crate::wqe::{PERMISSIVE_LID, Way};
use core::sync::atomic::Ordering;

/// Bytes that the card leaves for a global header before each datagram.
const GRH: usize = 40;

/// Memory for its datagrams.
pub(crate) const ROOM: Room = Room { receives: 16, receive_len: 512, sends: 16, send_len: LEN as u32 };

/// Bytes of the headers of a datagram that it sends: routing, transport, datagram.
const HEADERS: usize = 8 + 12 + 8;

/// Answers up to `budget` datagrams. Gives whether there were any.
pub(crate) fn serve<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    packets: &mut Packets<B>,
    port: u8,
    budget: usize,
) -> bool {
    let mut any = false;
    for _ in 0..budget {
        let Some(arrival) = packets.next() else { break };
        any = true;
        let request = read(packets, &arrival);
        let (lid, service_level) = arrival.cqe.origin();
        packets.give_back(arrival);
        let Some(request) = request else { continue };
        let Some(answer) = answer(hw, commands, request, port, Origin { lid, service_level }) else {
            continue;
        };
        let headers = headers(lid, service_level);
        let sent = packets.send(
            hw,
            |place| {
                for (place, bytes) in place.iter().zip(answer.0.as_chunks().0) {
                    place.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
            },
            |wqe, key, addr| wqe.management(key, &headers, addr, LEN as u32, Way { lid, service_level }),
        );
        if !sent {
            // Whoever has asked asks again.
            log::debug!("mlx4: an answer to the subnet manager is lost");
        }
    }
    any
}

/// A datagram that has arrived.
fn read<B: Block>(packets: &Packets<B>, arrival: &Arrival) -> Option<Mad> {
    if arrival.len != GRH + LEN {
        return None;
    }
    let mut bytes = [0; LEN];
    for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(packets.words(arrival).iter().skip(GRH / 8)) {
        *place = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    Some(Mad(bytes))
}

/// What is answered to a request, if anything.
fn answer<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    mut request: Mad,
    port: u8,
    origin: Origin,
) -> Option<Mad> {
    let directed = match request.class() {
        class::BY_LID => false,
        class::DIRECTED if request.arrives(port) => true,
        _ => return None,
    };
    if !matches!(request.method(), method::GET | method::SET | method::TRAP_REPRESS) {
        return None;
    }
    let mut answer = request.answered(hw, commands, port, Some(origin)).ok()?;
    if request.method() == method::TRAP_REPRESS {
        return None;
    }
    if directed {
        answer.turn_back();
    }
    Some(answer)
}

/// The headers of an answer (specification 7.7, 9.2, 9.3.1): by the lane of management, from queue pair 0 to queue pair 0.
fn headers(lid: u16, service_level: u8) -> [u8; HEADERS] {
    const LANE: u8 = 15 << 4;
    /// A transport header follows the one of routing.
    const LOCAL: u8 = 2;
    const SEND_ONLY: u8 = 0x64;
    const DEFAULT_PARTITION: [u8; 2] = [0xff, 0xff];
    /// Words from the first header through the check behind the datagram.
    const WORDS: u16 = ((HEADERS + LEN + 4) / 4) as u16;
    // The card puts its own LID in, unless a route is by hops.
    let source = if lid == PERMISSIVE_LID { PERMISSIVE_LID } else { 0 };
    let mut headers = [0; HEADERS];
    headers[0] = LANE;
    headers[1] = service_level << 4 | LOCAL;
    headers[2..4].copy_from_slice(&lid.to_be_bytes());
    headers[4..6].copy_from_slice(&WORDS.to_be_bytes());
    headers[6..8].copy_from_slice(&source.to_be_bytes());
    headers[8] = SEND_ONLY;
    headers[10..12].copy_from_slice(&DEFAULT_PARTITION);
    headers
}
