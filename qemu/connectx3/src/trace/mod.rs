//! The observation of drivers: traces of every command, doorbell, event and completion, records of their
//! kinds, and counts.

mod entry;
mod layout;
pub mod names;
mod record;

pub use entry::Entry;
pub use record::{Line, ParseError, Record, Value};

use crate::device::{Doorbell, Mailbox, Observation};
use platform::Instant;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The destination of traces: a file that all cards share.
pub type Sink = Arc<Mutex<dyn Write + Send>>;

/// The destinations of observations, in addition to counters.
#[derive(Clone, Default)]
pub struct Watch {
    /// The file to which every line is written.
    pub trace: Option<Sink>,
    /// The record to which every kind is added.
    pub record: Option<Arc<Mutex<Record>>>,
}

/// The observer of a card.
pub struct Observer {
    name: String,
    watch: Watch,
    counts: Mutex<BTreeMap<Counted, u64>>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A class of observations that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    /// A command by opcode, and whether it failed.
    Command(u16, bool),
    Doorbell(&'static str),
    Event(u8),
    /// A completion: whether it is a send, and whether it is an error.
    Completion(bool, bool),
    Register,
}

impl Counted {
    const fn of(what: &Observation<'_>) -> Self {
        match what {
            Observation::Command { command, status } => Self::Command(command.opcode, *status != 0),
            Observation::Doorbell(doorbell) => Self::Doorbell(match doorbell {
                Doorbell::Send { .. } => "send",
                Doorbell::BlueFlame { .. } => "blueflame",
                Doorbell::Arm { .. } => "arm",
                Doorbell::Event { .. } => "events",
                Doorbell::Unknown { .. } => "unknown",
            }),
            Observation::Event { entry, .. } => Self::Event(entry[1]),
            Observation::Completion { entry, .. } => {
                let last = entry[0x1f];
                Self::Completion(last & 0x40 != 0, last & 0x1f == 0x1e)
            }
            Observation::Register(_) => Self::Register,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Command(opcode, failed) => {
                let name = names::command(opcode)
                    .map_or_else(|| format!("{opcode:#05x}"), |known| known.name.to_owned());
                format!("command {name}{}", if failed { " failed" } else { "" })
            }
            Self::Doorbell(name) => format!("doorbell {name}"),
            Self::Event(kind) => {
                format!("event {}", names::event(kind).map_or_else(|| format!("{kind:#04x}"), str::to_owned))
            }
            Self::Completion(send, failed) => {
                let (side, failed) =
                    (if send { "send" } else { "receive" }, if failed { " failed" } else { "" });
                format!("completion {side}{failed}")
            }
            Self::Register => "register writes".to_owned(),
        }
    }
}

impl Observer {
    /// Creates the observer of the card called `name`.
    #[must_use]
    pub fn new(name: String, watch: Watch) -> Self {
        Self { name, watch, counts: Mutex::default() }
    }

    /// Records an observation at `now`. `read` reads the machine's memory.
    pub fn observe(&self, what: &Observation<'_>, now: Instant, read: impl FnOnce(u64, &mut [u8]) -> bool) {
        *lock(&self.counts).entry(Counted::of(what)).or_default() += 1;
        if self.watch.trace.is_none() && self.watch.record.is_none() {
            return;
        }
        let entry = Entry::of(what, |addr| {
            let mut mailbox = Mailbox::default();
            read(addr, mailbox.bytes_mut()).then_some(mailbox)
        });
        if let Some(record) = &self.watch.record {
            lock(record).add(&entry);
        }
        if let Some(trace) = &self.watch.trace {
            let mut trace = lock(trace);
            let ns = now.as_nanos();
            let written =
                writeln!(trace, "{}.{:09} {} {entry}", ns / 1_000_000_000, ns % 1_000_000_000, self.name);
            if let Err(e) = written {
                log::error!("the trace cannot be written: {e}");
            }
        }
    }

    /// Returns the count of each class: the card, the class, and the count.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, String, u64)> {
        let counts = lock(&self.counts);
        counts.iter().map(|(what, count)| (self.name.clone(), what.name(), *count)).collect()
    }
}

fn lock<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
