//! The wire between cards: each frame goes to all other stations.

use super::Machine;
use std::sync::Arc;

/// A station, which sends and receives frames.
pub(crate) trait Station {
    /// Makes the station do its pending work.
    fn progress(&self);
    /// Returns the frames that the station has sent since the last call.
    fn sent(&self) -> Vec<Vec<u8>>;
    /// Delivers a frame to the station.
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

/// Carries frames until there are none, and drops those for which `lost` returns true. Returns the number of
/// frames sent.
pub(crate) fn exchange_lossy(stations: &[&dyn Station], mut lost: impl FnMut(&[u8]) -> bool) -> usize {
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
pub(crate) fn exchange(stations: &[&dyn Station]) -> usize {
    exchange_lossy(stations, |_| false)
}
