//! An intruder on the fabric, who hears the datagrams that set up connections, and sends them again: as they
//! were, cut short or changed.

use crate::random::Random;
use crate::shadow::Serial;
use roce::wire::{Frame, Service};
use std::collections::VecDeque;
use std::time::Duration;

/// The number of datagrams that the intruder remembers.
const REMEMBERED: usize = 64;
/// The bytes of a datagram that its header has, of which each names something.
const HEADER: u64 = 44;

/// The intruder's habits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgery {
    /// The number of datagrams that the intruder sends for each one that it hears.
    pub each: u64,
    /// The longest time after which it sends one.
    pub within: Duration,
}

/// The intruder.
#[derive(Default)]
pub(crate) struct Forger {
    pub(crate) habits: Option<Forgery>,
    heard: VecDeque<(Serial, Vec<u8>)>,
    /// The number of datagrams sent so far.
    pub(crate) sent: u64,
}

/// Returns true if a frame is an unreliable datagram.
pub(crate) fn is_datagram(frame: &[u8]) -> bool {
    Frame::parse(frame).is_ok_and(|frame| frame.packet.bth.opcode.service == Service::Ud)
}

/// Returns a frame with another payload, and with the checksums that belong to it.
///
/// # Panics
/// If `frame` is no frame of the transport.
#[must_use]
pub fn with_payload(frame: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let parsed = Frame::parse(frame).expect("a frame of the transport");
    let mut payload = parsed.packet.payload.to_vec();
    change(&mut payload);
    let mut bth = parsed.packet.bth;
    bth.pad = (payload.len().next_multiple_of(4) - payload.len()) as u8;
    let mut out = vec![0; frame.len() + payload.len() + 4];
    let ext = &parsed.packet.ext;
    let len = parsed.headers.emit(&bth, ext, payload.len(), &mut out, |to| to.copy_from_slice(&payload));
    let len = len.expect("it has room");
    out.truncate(len);
    out
}

impl Forger {
    /// Hears a datagram of machine `from`. Returns the datagrams that the intruder sends for it, each with
    /// the machine in whose name and the time after which it sends it.
    pub(crate) fn hears(
        &mut self,
        from: Serial,
        frame: &[u8],
        random: &mut Random,
    ) -> Vec<(Serial, Vec<u8>, Duration)> {
        let Some(Forgery { each, within }) = self.habits else { return Vec::new() };
        if self.heard.len() == REMEMBERED {
            self.heard.pop_front();
        }
        self.heard.push_back((from, frame.to_vec()));
        self.sent += each;
        (0..each)
            .map(|_| {
                let (from, frame) = &self.heard[random.below(self.heard.len() as u64) as usize];
                let after = Duration::from_nanos(random.below(within.as_nanos() as u64));
                (*from, forge(frame, random), after)
            })
            .collect()
    }
}

/// Returns a datagram as it is, changed, or cut short.
fn forge(frame: &[u8], random: &mut Random) -> Vec<u8> {
    let kind = random.below(4);
    if kind < 2 {
        return frame.to_vec();
    }
    with_payload(frame, |payload| {
        let len = payload.len() as u64;
        if kind == 2 {
            payload.truncate(random.below(len) as usize);
            return;
        }
        let among = if random.one_in(2) { len.min(HEADER) } else { len };
        payload[random.below(among) as usize] ^= 1 << random.below(8);
    })
}
