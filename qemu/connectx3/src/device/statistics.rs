//! Counts of ports and counters: DUMP_ETH_STATS, QUERY_IF_STAT (Linux `en_port.h`, `mlx4_counter`).

use super::ethernet::headers::{Headers, VlanKind};
use super::mailbox::Mailbox;
use std::collections::BTreeMap;

/// The number of frame classes: the eight priorities of a VLAN tag, and untagged frames.
const CLASSES: usize = 9;
const UNTAGGED: usize = 8;
/// The longest frame of each size bucket but the last two, in bytes with the check sequence.
const BUCKETS: [usize; 8] = [64, 127, 255, 511, 1023, 1518, 1522, 1548];
/// The number of buckets: those of [`BUCKETS`], one up to the MTU, and one beyond.
const ALL_BUCKETS: usize = BUCKETS.len() + 2;
/// The length of the frame check sequence, which counts on the wire, in bytes.
pub(super) const FCS: usize = 4;

/// Counts of received frames that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Frames that matched no steering entry.
    pub rx_unsteered: u64,
    /// Frames for which no receive buffer was posted.
    pub rx_no_buffer: u64,
}

/// The counts of one direction of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct Direction {
    by_size: [[u64; CLASSES]; ALL_BUCKETS],
    broadcast: [u64; CLASSES],
    multicast: [u64; CLASSES],
    octets: [u64; CLASSES],
    frames: [u64; CLASSES],
    tagged: [u64; CLASSES],
}

impl Direction {
    /// Counts a frame. `max` is the longest frame that the port accepts, including the check sequence.
    pub(super) fn count(&mut self, frame: &[u8], headers: &Headers, max: usize) {
        let class = match headers.vlan {
            Some(vlan) if vlan.kind == VlanKind::Customer => usize::from(vlan.priority()),
            _ => UNTAGGED,
        };
        let len = frame.len() + FCS;
        let bucket = match BUCKETS.iter().position(|longest| len <= *longest) {
            _ if len > max => ALL_BUCKETS - 1,
            Some(bucket) => bucket,
            None => ALL_BUCKETS - 2,
        };
        let add = |counts: &mut [u64; CLASSES], by: u64| {
            if let Some(count) = counts.get_mut(class) {
                *count += by;
            }
        };
        if let Some(counts) = self.by_size.get_mut(bucket) {
            add(counts, 1);
        }
        if frame.starts_with(&[0xff; 6]) {
            add(&mut self.broadcast, 1);
        } else if frame.first().is_some_and(|first| first & 1 != 0) {
            add(&mut self.multicast, 1);
        }
        add(&mut self.octets, len as u64);
        add(&mut self.frames, 1);
        if headers.vlan.is_some() {
            add(&mut self.tagged, 1);
        }
    }

    /// Writes the counts. The offsets differ between the directions.
    fn put(&self, out: &mut Mailbox, offsets: &Offsets) {
        let mut row = |at: usize, counts: &[u64; CLASSES], step: usize| {
            for (class, count) in counts.iter().enumerate() {
                out.put_u64(at + step * class, *count);
            }
        };
        for (bucket, counts) in self.by_size.iter().enumerate() {
            row(offsets.sizes + offsets.row * bucket, counts, 8);
        }
        row(offsets.broadcast, &self.broadcast, 8);
        row(offsets.multicast, &self.multicast, 8);
        row(offsets.good, &self.frames, 8);
        for column in 0..3 {
            // With and without framing, and of frames without errors: no frame here has any.
            row(offsets.octets + 8 * column, &self.octets, 24);
        }
        row(offsets.frames, &self.frames, 24);
        row(offsets.frames + 8, &self.tagged, 24);
    }
}

/// Offsets in the mailbox of DUMP_ETH_STATS.
struct Offsets {
    sizes: usize,
    row: usize,
    broadcast: usize,
    multicast: usize,
    good: usize,
    octets: usize,
    frames: usize,
}

const RECEIVED: Offsets = Offsets {
    sizes: 0x000,
    row: 0x48,
    broadcast: 0x2d0,
    multicast: 0x318,
    good: 0x360,
    octets: 0x3a8,
    frames: 0x480,
};
const SENT: Offsets = Offsets {
    sizes: 0x598,
    row: 0x50,
    broadcast: 0x8b8,
    multicast: 0x908,
    good: 0x958,
    octets: 0x9a8,
    frames: 0xa98,
};

/// The counts of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct PortStatistics {
    /// Frames from the cable.
    pub received: Direction,
    /// Frames to the cable.
    pub sent: Direction,
    /// Frames for which no receive buffer was posted.
    pub no_buffer: u32,
    /// Frames that were too long for the port.
    pub too_long: u32,
    /// Frames not sent because the port was closed or the link was down.
    pub not_sent: u32,
}

impl PortStatistics {
    /// DUMP_ETH_STATS: writes the counts to `out`.
    pub(super) fn dump(&self, out: &mut Mailbox) {
        self.received.put(out, &RECEIVED);
        self.sent.put(out, &SENT);
        const DROPPED: usize = 0xb98;
        const DROPPED_OVERFLOW: usize = 0xb9c;
        const DROPPED_LENGTH: usize = 0xba0;
        const FRAMES: usize = 0xba4;
        const SEND_DROPPED: usize = 0xba8;
        out.put_u32(DROPPED, self.no_buffer.wrapping_add(self.too_long));
        out.put_u32(DROPPED_OVERFLOW, self.no_buffer);
        out.put_u32(DROPPED_LENGTH, self.too_long);
        out.put_u32(FRAMES, self.received.frames.iter().sum::<u64>() as u32);
        out.put_u32(SEND_DROPPED, self.not_sent);
    }
}

/// The counts of a counter: frames of the queue pairs whose path names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceCounter {
    received: [u64; 2],
    sent: [u64; 2],
}

/// Counters by index.
#[derive(Debug, Default)]
pub(super) struct InterfaceCounters(BTreeMap<u8, InterfaceCounter>);

impl InterfaceCounters {
    /// The number of counters. Linux uses the last one for queue pairs without a counter of their own.
    pub(super) const COUNT: u32 = 128;

    /// Counts a frame that a queue pair has received.
    pub(super) fn received(&mut self, index: u8, bytes: usize) {
        self.add(index, bytes, |counter| &mut counter.received);
    }

    /// Counts a frame that a queue pair has sent.
    pub(super) fn sent(&mut self, index: u8, bytes: usize) {
        self.add(index, bytes, |counter| &mut counter.sent);
    }

    fn add(&mut self, index: u8, bytes: usize, which: fn(&mut InterfaceCounter) -> &mut [u64; 2]) {
        if u32::from(index) < Self::COUNT {
            let [frames, octets] = which(self.0.entry(index).or_default());
            *frames += 1;
            *octets += bytes as u64;
        }
    }

    /// QUERY_IF_STAT: writes the basic counts of a counter to `out`, and resets them if `reset` is set.
    pub(super) fn query(&mut self, index: u8, reset: bool, out: &mut Mailbox) {
        let InterfaceCounter { received, sent } = self.0.get(&index).copied().unwrap_or_default();
        out.put_u32(0x04, 1);
        for (place, value) in received.into_iter().chain(sent).enumerate() {
            out.put_u64(0x10 + 8 * place, value);
        }
        if reset {
            self.0.remove(&index);
        }
    }
}
