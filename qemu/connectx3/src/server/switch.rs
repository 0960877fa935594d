//! The switch that the cards of one process share: learns addresses, and does to frames what it is told to.

use netfault::pcap::PcapWriter;
use netfault::switch::{MacTable, Verdict};
use netfault::{FaultQueue, Faults};
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::time::{SystemTime, UNIX_EPOCH};

/// Frames that wait for cards before more are dropped.
const QUEUE: usize = 1 << 16;

/// What the switch does beside switching.
#[derive(Default)]
pub struct Network {
    /// To every frame on its way.
    pub faults: Option<Faults>,
    /// Decides which frames the faults meet.
    pub seed: u64,
    /// Where every frame is written as it comes.
    pub capture: Option<PcapWriter<BufWriter<File>>>,
}

/// A card's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The card.
    pub seat: usize,
    /// Its port, from 0.
    pub port: usize,
}

/// The switch.
pub struct Switch {
    network: Network,
    table: MacTable,
    ends: Vec<End>,
    /// The faulty link that leads away from each end.
    links: Vec<FaultQueue<()>>,
    /// Frames for ends.
    waiting: VecDeque<(usize, Vec<u8>)>,
}

impl Switch {
    /// With nothing plugged in.
    pub fn new(network: Network) -> Self {
        Self {
            network,
            table: MacTable::default(),
            ends: Vec::new(),
            links: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Plugs a card's port in; gives its end.
    pub fn plug(&mut self, seat: usize, port: usize) -> usize {
        let end = self.ends.len();
        self.ends.push(End { seat, port });
        if let Some(faults) = self.network.faults {
            self.links.push(FaultQueue::new(faults, self.network.seed.wrapping_add(end as u64)));
        }
        end
    }

    /// Takes a frame from an end at `now` (nanoseconds).
    pub fn take(&mut self, from: usize, frame: Vec<u8>, now: u64) {
        match self.links.get_mut(from) {
            Some(link) => link.push((), frame, now),
            None => self.forward(from, frame),
        }
    }

    fn forward(&mut self, from: usize, frame: Vec<u8>) {
        if let Some(capture) = &mut self.network.capture {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            if let Err(e) = capture.frame(u64::try_from(now).unwrap_or(u64::MAX), &frame) {
                log::error!("the capture ends here: {e}");
                self.network.capture = None;
            }
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

    /// The next frame that arrives at `now`, and where.
    pub fn give(&mut self, now: u64) -> Option<(End, Vec<u8>)> {
        for from in 0..self.links.len() {
            while let Some(((), frame)) = self.links.get_mut(from)?.pop(now) {
                self.forward(from, frame);
            }
        }
        let (to, frame) = self.waiting.pop_front()?;
        Some((*self.ends.get(to)?, frame))
    }

    /// When the next frame arrives, in nanoseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.links.iter().filter_map(FaultQueue::next_deadline).min()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(capture) = &mut self.network.capture
            && let Err(e) = capture.flush()
        {
            log::error!("the capture is not whole: {e}");
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
            let ends = [End { seat: 0, port: 0 }, End { seat: 0, port: 1 }, End { seat: 1, port: 0 }];
            for (index, end) in ends.iter().enumerate() {
                assert_eq!(switch.plug(end.seat, end.port), index);
            }
            switch.take(0, frame(9, 1), 0);
            assert_eq!(switch.next_deadline(), (delay > 0).then_some(delay));
            assert_eq!(given(&mut switch, delay), ends[1..], "unknown: to all others");
            switch.take(2, frame(1, 9), delay);
            assert_eq!(given(&mut switch, 2 * delay), ends[..1]);
            assert_eq!(given(&mut switch, u64::MAX), []);
        }
    }
}
