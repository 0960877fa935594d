//! The switch shared by the cards of one process. It learns addresses and injects the configured faults.
//!
//! InfiniBand frames have no addresses that it could learn. Between two ports the switch acts as a cable for
//! them; with more ports it is an InfiniBand switch, which a subnet manager discovers and configures.

use crate::subnet;
use netfault::pcap::PcapWriter;
use netfault::switch::{MacTable, Verdict};
use netfault::{FaultQueue, Faults};
use platform::Instant;
use roce::wire::{ETHERTYPE_INFINIBAND, Ethernet};
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of frames that wait for cards before further ones are dropped.
const QUEUE: usize = 1 << 16;

/// The GUID of the InfiniBand switch.
const GUID: u64 = 0x0002_c9ff_fe53_0001;
/// The number of ports that a cable connects.
const CABLE: usize = 2;

/// The options of the switch.
#[derive(Default)]
pub struct Network {
    /// The faults injected into frames.
    pub faults: Option<Faults>,
    /// The seed of the generator that selects the frames to be faulted.
    pub seed: u64,
    /// The file to which every frame is written when it arrives at the switch.
    pub capture: Option<PcapWriter<BufWriter<File>>>,
}

/// A port of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The index of the card.
    pub card: usize,
    /// The card's port, counted from 0.
    pub port: usize,
}

/// The switch.
pub(super) struct Switch {
    network: Network,
    table: MacTable,
    ends: Vec<End>,
    /// The faulty link from each end to the switch.
    links: Vec<FaultQueue<()>>,
    /// The InfiniBand switch, if there are more ends than a cable has.
    infiniband: Option<subnet::Switch>,
    /// Frames to be delivered to ends.
    waiting: VecDeque<(usize, Vec<u8>)>,
}

impl Switch {
    /// Creates a switch without ends.
    pub(super) fn new(network: Network) -> Self {
        Self {
            network,
            table: MacTable::default(),
            ends: Vec::new(),
            links: Vec::new(),
            infiniband: None,
            waiting: VecDeque::new(),
        }
    }

    /// Connects a port of a card to the switch. Returns the index of the connection.
    pub(super) fn plug(&mut self, card: usize, port: usize) -> usize {
        let end = self.ends.len();
        self.ends.push(End { card, port });
        if let Some(faults) = self.network.faults {
            self.links.push(FaultQueue::new(faults, self.network.seed.wrapping_add(end as u64)));
        }
        end
    }

    /// Accepts a frame from an end at the time `now`, in nanoseconds.
    pub(super) fn take(&mut self, from: usize, frame: Vec<u8>, now: u64) {
        match self.links.get_mut(from) {
            Some(link) => link.push((), frame, now),
            None => self.forward(from, frame, now),
        }
    }

    fn forward(&mut self, from: usize, frame: Vec<u8>, now: u64) {
        if let Some(capture) = &mut self.network.capture {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            if let Err(e) = capture.frame(u64::try_from(now).unwrap_or(u64::MAX), &frame) {
                log::error!("the capture ends: {e}");
                self.network.capture = None;
            }
        }
        let is_infiniband =
            Ethernet::parse(&frame).is_ok_and(|(header, _)| header.ethertype == ETHERTYPE_INFINIBAND);
        if is_infiniband && self.ends.len() > CABLE {
            let ends = self.ends.len();
            let switch = self.infiniband.get_or_insert_with(|| subnet::Switch::new(ends, GUID));
            let mut leaving = Vec::new();
            switch.receive(from, &frame, Instant::from_nanos(now), &mut leaving);
            self.queue_all(leaving);
            return;
        }
        match self.table.switch(&frame, from) {
            Verdict::Drop => {}
            Verdict::Port(to) => self.queue(to, frame),
            Verdict::Flood => {
                for to in (0..self.ends.len()).filter(|to| *to != from) {
                    self.queue(to, frame.clone());
                }
            }
        }
    }

    fn queue(&mut self, to: usize, frame: Vec<u8>) {
        if self.waiting.len() < QUEUE {
            self.waiting.push_back((to, frame));
        }
    }

    fn queue_all(&mut self, frames: subnet::switch::Leaving) {
        for (to, frame) in frames {
            self.queue(to, frame);
        }
    }

    /// Returns the next frame that is delivered by the time `now`, and its destination.
    pub(super) fn give(&mut self, now: u64) -> Option<(End, Vec<u8>)> {
        for from in 0..self.links.len() {
            while let Some(((), frame)) = self.links.get_mut(from)?.pop(now) {
                self.forward(from, frame, now);
            }
        }
        if let Some(switch) = &mut self.infiniband {
            let mut leaving = Vec::new();
            switch.on_timer(Instant::from_nanos(now), &mut leaving);
            self.queue_all(leaving);
        }
        let (to, frame) = self.waiting.pop_front()?;
        Some((*self.ends.get(to)?, frame))
    }

    /// Returns the time at which [`give`](Self::give) next has something to do, in nanoseconds.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let notice = self.infiniband.as_ref().and_then(subnet::Switch::deadline).map(Instant::as_nanos);
        self.links.iter().filter_map(FaultQueue::next_deadline).chain(notice).min()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(capture) = &mut self.network.capture
            && let Err(e) = capture.flush()
        {
            log::error!("the capture is incomplete: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        frame
    }

    fn given(switch: &mut Switch, now: u64) -> Vec<End> {
        std::iter::from_fn(|| switch.give(now)).map(|(end, _)| end).collect()
    }

    #[test]
    fn frames_go_where_their_address_is_and_a_faulty_link_holds_them() {
        let faults = Faults::parse("delay_us=3").unwrap();
        for (faults, delay) in [(None, 0), (Some(faults), 3_000)] {
            let mut switch = Switch::new(Network { faults, ..Network::default() });
            let ends = [End { card: 0, port: 0 }, End { card: 0, port: 1 }, End { card: 1, port: 0 }];
            for (index, end) in ends.iter().enumerate() {
                assert_eq!(switch.plug(end.card, end.port), index);
            }
            switch.take(0, frame(9, 1), 0);
            assert_eq!(switch.next_deadline(), (delay > 0).then_some(delay));
            assert_eq!(given(&mut switch, delay), ends[1..], "an unknown address: to all others");
            switch.take(2, frame(1, 9), delay);
            assert_eq!(given(&mut switch, 2 * delay), ends[..1]);
            assert_eq!(given(&mut switch, u64::MAX), []);
        }
    }

    #[test]
    fn infiniband_frames_go_over_a_cable_or_an_infiniband_switch() {
        use roce::wire::{CABLE, Symbol};
        let header = Ethernet { dst: CABLE, src: verbs::MacAddr([2; 6]), ethertype: ETHERTYPE_INFINIBAND };
        let polling = [&header.emit()[..], &(Symbol::Polling as u16).to_be_bytes()].concat();
        for (ends, reached) in [(2, 1), (3, 0)] {
            let mut switch = Switch::new(Network::default());
            for card in 0..ends {
                switch.plug(card, 0);
            }
            switch.take(0, polling.clone(), 0);
            let given: Vec<_> = std::iter::from_fn(|| switch.give(0)).collect();
            assert_eq!(given.len(), 1);
            assert_eq!(given[0].0.card, reached, "the partner on the cable, or an answer of the switch");
            assert_eq!(given[0].1 == polling, ends == 2);
            // The InfiniBand switch has a notice, for which it waits for a manager.
            let due = switch.next_deadline();
            assert_eq!(due.is_some(), ends == 3);
            if let Some(due) = due {
                assert!(switch.give(due).is_none());
                assert!(switch.next_deadline() > Some(due), "the timer has run");
            }
        }
    }
}
