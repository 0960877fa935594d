//! The agent for subnet management of an InfiniBand port. It receives the subnet manager's datagrams on queue
//! pair 0, lets the firmware respond, and sends the responses (Linux `mlx4/mad.c`, `core/smi.c`; iPXE
//! `ib_mi.c`).

use crate::command::Commands;
use crate::datapath::wqe::{ManagementPath, PERMISSIVE_LID};
use crate::hardware::{Block, Hardware};
use crate::management::mad::{LEN, Mad, Origin, class, method};
use crate::objects::packets::{Arrival, Packets, Room};
use core::sync::atomic::Ordering;

/// Bytes that the card reserves for a global header before each datagram.
const GRH: usize = 40;

/// The memory for datagrams.
pub(crate) const ROOM: Room = Room { receives: 16, receive_len: 512, sends: 16, send_len: LEN as u32 };

/// The length of the headers of a response in bytes: routing, transport, datagram.
const HEADERS: usize = 8 + 12 + 8;

/// Answers up to `budget` datagrams. Returns true if there were any.
pub(crate) fn serve<H: Hardware>(
    commands: &mut Commands<'_, H>,
    packets: &mut Packets<H::Block>,
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
        let Some(answer) = answer(commands, request, port, Origin { lid, service_level }) else {
            continue;
        };
        let headers = headers(lid, service_level);
        let sent = packets.send(
            commands.hw,
            |buffer| {
                for (target, bytes) in buffer.iter().zip(answer.0.as_chunks().0) {
                    target.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
            },
            |wqe, key, addr| {
                wqe.management(key, &headers, addr, LEN as u32, ManagementPath { lid, service_level })
            },
        );
        if !sent {
            // The sender repeats its request.
            log::debug!("mlx4: a response to the subnet manager is lost");
        }
    }
    any
}

/// Reads a received datagram.
fn read<B: Block>(packets: &Packets<B>, arrival: &Arrival) -> Option<Mad> {
    if arrival.len != GRH + LEN {
        return None;
    }
    let mut bytes = [0; LEN];
    for (target, word) in bytes.as_chunks_mut().0.iter_mut().zip(packets.words(arrival).iter().skip(GRH / 8))
    {
        *target = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    Some(Mad(bytes))
}

/// Returns the agent's response to a request, if the request requires one.
fn answer(
    commands: &mut Commands<'_, impl Hardware>,
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
    let mut answer = request.answered(commands, port, Some(origin)).ok()?;
    if request.method() == method::TRAP_REPRESS {
        return None;
    }
    if directed {
        answer.turn_back();
    }
    Some(answer)
}

/// Makes the headers of a response (specification 7.7, 9.2, 9.3.1): on the management lane, from queue pair 0
/// to queue pair 0.
fn headers(lid: u16, service_level: u8) -> [u8; HEADERS] {
    const LANE: u8 = 15 << 4;
    /// A transport header follows the routing header.
    const LOCAL: u8 = 2;
    const SEND_ONLY: u8 = 0x64;
    const DEFAULT_PARTITION: [u8; 2] = [0xff, 0xff];
    /// The length from the first header to the check after the datagram, in 32-bit words.
    const WORDS: u16 = ((HEADERS + LEN + 4) / 4) as u16;
    // The card inserts its own LID, except on a directed route.
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
