//! The wire between cards: each frame goes to all the others.

use super::Machine;
use std::sync::Arc;

/// One who sends and takes frames.
pub trait Station {
    /// Does what is due.
    fn progress(&self);
    /// What it has sent.
    fn sent(&self) -> Vec<Vec<u8>>;
    /// A frame has arrived.
    fn receive(&self, frame: &[u8]);
}

impl Station for Arc<Machine> {
    fn progress(&self) {
        self.card.lock().unwrap().progress(&self.bus);
    }
    fn sent(&self) -> Vec<Vec<u8>> {
        self.card.lock().unwrap().take_outbox().into_iter().map(|(_, frame)| frame).collect()
    }
    fn receive(&self, frame: &[u8]) {
        self.card.lock().unwrap().receive(0, frame, &self.bus);
    }
}

/// Carries frames until there are none, but those that `lost` says. Gives how many were sent.
pub fn exchange_lossy(stations: &[&dyn Station], mut lost: impl FnMut(&[u8]) -> bool) -> usize {
    let mut count = 0;
    loop {
        let before = count;
        for (from, station) in stations.iter().enumerate() {
            station.progress();
            for frame in station.sent() {
                count += 1;
                if lost(&frame) {
                    continue;
                }
                let others = stations.iter().enumerate().filter(|(to, _)| *to != from);
                others.for_each(|(_, other)| other.receive(&frame));
            }
        }
        if count == before {
            return count;
        }
    }
}

/// Carries frames until there are none.
pub fn exchange(stations: &[&dyn Station]) -> usize {
    exchange_lossy(stations, |_| false)
}
