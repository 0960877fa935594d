//! The network between the two nodes. The input decides its treatment of each frame.

use crate::input::Input;
use softroce::EthernetPort;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use verbs::MacAddr;

/// The delay from one end to the other, in nanoseconds.
const DELAY: u64 = 2_000;
/// The number of frames that are kept for replay and forgery.
const KEPT: usize = 32;

/// The counts of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub dropped: u32,
    pub duplicated: u32,
    pub delayed: u32,
    pub corrupted: u32,
}

/// The network between the two nodes: input chooses the delay, the loss and the damage of each frame.
pub(crate) struct Wire {
    pub input: Input,
    /// The time in nanoseconds.
    pub now: u64,
    /// The cut directions, by sender.
    pub cut: [bool; 2],
    pub faults: Faults,
    /// Frames as they were sent, with their senders; the newest is last.
    pub kept: VecDeque<(usize, Vec<u8>)>,
    /// Frames in flight, by sender and time of arrival.
    lanes: [BTreeMap<(u64, u64), Vec<u8>>; 2],
    sequence: u64,
}

impl Wire {
    pub(crate) fn new(input: Input) -> Self {
        Self {
            input,
            now: 1_000,
            cut: [false; 2],
            faults: Faults::default(),
            kept: VecDeque::new(),
            lanes: Default::default(),
            sequence: 0,
        }
    }

    /// Accepts a frame from `side`.
    fn carry(&mut self, side: usize, frame: &[u8]) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((side, frame.to_vec()));
        if self.cut[side] {
            self.faults.dropped += 1;
            return;
        }
        let mut frame = frame.to_vec();
        match self.input.byte() {
            0..=159 => {}
            160..=183 => {
                self.faults.dropped += 1;
                return;
            }
            184..=199 => {
                self.faults.duplicated += 1;
                let later = self.input.below(20) as u64 * 1_000;
                self.put(side, later, frame.clone());
            }
            200..=223 => {
                self.faults.delayed += 1;
                let later = 1_000 + self.input.below(100) as u64 * 500;
                self.put(side, later, frame);
                return;
            }
            224..=255 => {
                self.faults.corrupted += 1;
                let at = self.input.below(frame.len());
                let bit = self.input.below(8);
                frame[at] ^= 1 << bit;
            }
        }
        self.put(side, 0, frame);
    }

    /// Makes a frame arrive at the other end as if `side` had sent it.
    pub(crate) fn put(&mut self, side: usize, later: u64, frame: Vec<u8>) {
        self.sequence += 1;
        self.lanes[side].insert((self.now + DELAY + later, self.sequence), frame);
    }

    /// Returns the time of the next arrival at either end.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.first_key_value()).map(|(&(at, _), _)| at).min()
    }

    fn arrived(&mut self, side: usize) -> Option<Vec<u8>> {
        let now = self.now;
        let first = self.lanes[1 - side].first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}

/// The network, shared by both ends and the driver.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Wire>>);

impl Shared {
    pub(crate) fn new(wire: Wire) -> Self {
        Self(Arc::new(Mutex::new(wire)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().expect("one thread")
    }
}

/// Returns the address of a side's port.
pub(crate) const fn mac(side: usize) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, 1 + side as u8])
}

/// The port of one node, which sends to the network.
pub(crate) struct Port {
    pub wire: Shared,
    pub side: usize,
    pub buffer: Vec<u8>,
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        mac(self.side)
    }

    fn mtu(&self) -> usize {
        4200
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut n = 0;
        while n < budget {
            let Some(frame) = self.wire.lock().arrived(self.side) else { break };
            each(&frame);
            n += 1;
        }
        n
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        assert!(max_len <= self.mtu() + 14, "a frame of {max_len} bytes");
        self.buffer.clear();
        self.buffer.resize(max_len, 0xee);
        let len = fill(&mut self.buffer);
        self.wire.lock().carry(self.side, &self.buffer[..len]);
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}
