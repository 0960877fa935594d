//! The resources that a job uses on this node, for its report.

use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use lite::Lite;

/// The counters of LITE that are reported, each with its name in the report. A message is counted as a call
/// too, and is taken off there.
const COUNTERS: [(&str, &str); 9] = [
    ("lite_reads", "reads"),
    ("lite_writes", "writes"),
    ("lite_atomics", "atomics"),
    ("lite_memsets", "memsets"),
    ("lite_calls", "calls"),
    ("lite_sends", "messages"),
    ("lite_served", "served"),
    ("lite_bytes_read", "bytes_read"),
    ("lite_bytes_written", "bytes_written"),
];
/// The places of calls and messages among the counters.
const CALLS: usize = 4;
const MESSAGES: usize = 5;

/// The counters when a job began.
pub(crate) struct Usage([u64; COUNTERS.len()]);

impl Usage {
    /// Starts to count.
    pub(crate) fn begin(lite: &Lite) -> Self {
        lite.platform().memory().take_least_free();
        Self(now(lite))
    }

    /// Returns what has been used since the start.
    pub(crate) fn end(&self, lite: &Lite) -> Vec<(String, u64)> {
        let mut used = now(lite);
        used.iter_mut().zip(self.0).for_each(|(now, before)| *now = now.saturating_sub(before));
        let messages = used.get(MESSAGES).copied().unwrap_or_default();
        if let Some(calls) = used.get_mut(CALLS) {
            *calls = calls.saturating_sub(messages);
        }
        let memory = lite.platform().memory();
        let peak = memory.stats().total.saturating_sub(memory.take_least_free());
        let counted = COUNTERS.iter().zip(used).map(|((_, name), count)| (name.to_string(), count));
        counted.chain([("peak_memory".to_string(), peak)]).collect()
    }
}

/// Returns the present counts.
fn now(lite: &Lite) -> [u64; COUNTERS.len()] {
    let mut counts = [0; COUNTERS.len()];
    lite.counters(&mut |(counter, count)| {
        for (into, _) in counts.iter_mut().zip(COUNTERS).filter(|(_, (name, _))| *name == counter) {
            *into = count;
        }
    });
    counts
}
