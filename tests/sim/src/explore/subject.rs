//! The subjects of runs. A third of all runs is about everything. Each of the others is about one promise of
//! LITE: its tasks take the steps and have the faults that test the promise, use few objects, and so collide
//! more often.

use super::random::Random;
use super::swarm::Kind;
use super::work::Step;
use crate::{ControlLinks, Options};
use lite::{Config, Retransmission};
use netfault::Faults;
use std::time::Duration;

/// The subject of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// All steps, or some that the seed draws, with all kinds of faults.
    Everything,
    /// No fault at all, and connections that are closed when they are idle: every operation succeeds.
    Health,
    /// Writes that come late, while a lock protects their target.
    Locks,
    /// The deaths of nodes that hold locks.
    Holders,
    /// Atomics and calls on connections that break.
    Breaks,
    /// Frames that come after their connection has broken.
    Late,
    /// Regions that are freed while others use them.
    Frees,
    /// Rights that are revoked while others use them.
    Rights,
    /// Nodes that restart at once, while others ask them.
    Lives,
    /// Memsets and copies for nodes that die.
    Errands,
    /// Regions of nodes that die, with bytes on others, while some nodes have not heard of the death.
    Orphans,
    /// A manager that does not hear nodes, or is not heard.
    Silence,
    /// A manager that stands still for longer than a lease.
    Standstill,
    /// A log, whose writers die, are slow, and are cut off from its homes.
    Log,
}

use Subject::{
    Breaks, Errands, Everything, Frees, Health, Holders, Late, Lives, Locks, Log, Orphans, Rights, Silence,
    Standstill,
};

/// All narrow subjects, which are the subjects other than [`Subject::Everything`].
const NARROW: &[Subject] = &[
    Health, Locks, Holders, Breaks, Breaks, Late, Late, Frees, Frees, Rights, Lives, Errands, Errands,
    Orphans, Orphans, Silence, Standstill,
];

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Subject {
    pub(super) fn draw(random: &mut Random) -> Self {
        if random.one_in(3) { Everything } else { random.pick(NARROW) }
    }

    /// Returns the name of the runs, as they are counted.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Everything => "runs about everything",
            Health => "runs about health",
            Locks => "runs about late writes under locks",
            Holders => "runs about holders of locks that die",
            Breaks => "runs about connections that break",
            Late => "runs about frames after their connection",
            Frees => "runs about regions freed in use",
            Rights => "runs about rights",
            Lives => "runs about nodes that restart",
            Errands => "runs about errands of dead nodes",
            Orphans => "runs about regions of dead nodes",
            Silence => "runs about the manager's silence",
            Standstill => "runs about a manager that stands still",
            Log => "runs about a log",
        }
    }

    /// Returns whether no fault happens, so that every operation succeeds.
    pub(super) fn is_calm(self) -> bool {
        self == Health
    }

    /// Returns the steps, each as many times as its weight; none if the seed draws them.
    pub(super) const fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Everything | Log => &[],
            Health => &[
                Write, Read, Queue, Add, Swap, Exclusive, Shared, Call, Call, Call, CallEach, Send, Signal,
                Await, Await, Own, Name, Pool, Settle,
            ],
            Locks => &[Exclusive, Exclusive, Exclusive, Exclusive, Shared],
            Holders => &[Exclusive, Exclusive, Exclusive, Try, Shared, Name],
            Breaks => &[Tally, Tally, Tally, Add, Flag, Call],
            Late => &[Exclusive, Exclusive, Exclusive, Exclusive, Write, Settle, Read],
            Frees => &[Pool],
            Self::Rights => &[Rights, Rights, Rights, Remap],
            Lives => &[Pool, Pool, Pool, Remap, Own, Admin],
            Errands => &[Memset, Memset, Memset, Copy, Read, Read, Read],
            Orphans => &[Pool],
            Silence | Standstill => &[Write, Read, Call, Send, Add, Queue, Memset],
        }
    }

    /// Returns the number of shared objects of each kind that tasks use, if not all.
    pub(super) const fn shared(self) -> Option<usize> {
        match self {
            Everything | Health | Silence | Standstill | Lives | Log => None,
            Locks | Holders | Breaks | Late | Rights | Errands | Frees | Orphans => Some(1),
        }
    }

    /// Returns the kinds of faults, each as many times as its weight, and the number of looks from one fault
    /// to the next, on average; `None` if the seed draws them.
    pub(super) const fn faults(self) -> Option<(&'static [Kind], u64)> {
        use Kind::*;
        match self {
            Everything => None,
            Health => Some((&[], 1000)),
            Locks => Some((&[Part, Part, PartOneWay, Slow], 1)),
            Holders => Some((&[Death, Deaf, Held], 6)),
            Breaks => Some((&[PartOneWay], 1)),
            Late => Some((&[Slow], 1)),
            Frees => Some((&[Part, PartOneWay, Slow], 1)),
            Rights => Some((&[Pause, Part, Held], 8)),
            Lives => Some((&[Death], 12)),
            Errands => Some((&[Part, Part, Part, Death], 3)),
            Orphans => Some((&[Death], 6)),
            Silence => Some((&[Stall, Deaf, Mute, ManagerPause, ManagerPause], 10)),
            Standstill => Some((&[ManagerPause], 20)),
            Log => Some((
                &[Death, Death, Death, Death, Slow, Slow, Slow, Slow, Part, PartOneWay, Held, Pause],
                3,
            )),
        }
    }

    /// Returns the maximum length of a fault, if it is not that of all kinds.
    pub(super) const fn longest(self) -> Option<Duration> {
        match self {
            Everything | Health => None,
            Locks => Some(millis(15)),
            Log => Some(millis(100)),
            Breaks => Some(millis(40)),
            Late => Some(millis(60)),
            Frees => Some(millis(30)),
            Rights | Lives => Some(millis(60)),
            Holders | Errands | Orphans => Some(millis(400)),
            Silence | Standstill => Some(millis(3000)),
        }
    }

    /// Returns whether nodes die in the middle of what the run is about, and others take their place.
    pub(super) fn revives(self) -> bool {
        matches!(self, Holders | Lives | Errands | Orphans | Log)
    }

    /// Returns whether the nodes that die have no part in the shared objects, which so last as long
    /// as the run.
    pub(super) fn spares_homes(self) -> bool {
        matches!(self, Holders | Errands | Log)
    }

    /// Returns the time limits of operations, in milliseconds.
    pub(super) const fn timeout(self) -> &'static [u64] {
        match self {
            Breaks | Lives => &[20, 200, 2000],
            _ => &[2, 20, 200, 2000],
        }
    }

    /// Changes the parameters of the cluster to those with which the promise is the hardest to keep.
    pub(super) fn tune(self, options: &mut Options, random: &mut Random) {
        let config = &mut options.config;
        let wide = Config { peers: 64, operations: 1024, send_depth: 128, ..config.clone() };
        let plain = Faults { delay_ns: 5_000, ..Faults::NONE };
        let slow = [
            ControlLinks { latency: millis(3), rate: 1_000_000 },
            ControlLinks { latency: millis(20), rate: 1_000_000 },
        ];
        match self {
            Everything => {}
            Health => {
                *config = Config { idle: random.pick(&[Some(millis(3)), Some(millis(8)), None]), ..wide };
                options.faults = plain;
            }
            Locks => {
                // A connection outlives the partitions, and an operation does not.
                let repeats = Retransmission { ack_timeout: millis(2), retries: 7, ..wide.retransmission };
                *config = Config { retransmission: repeats, idle: None, ..wide };
                options.faults = plain;
                options.control = ControlLinks::INSTANT;
            }
            Breaks | Late => {
                let ack_timeout = Duration::from_micros(300);
                let repeats = Retransmission { ack_timeout, retries: 2, ..wide.retransmission };
                *config = Config { retransmission: repeats, idle: None, ..wide };
                options.faults = plain;
                if self == Late {
                    options.control = random.pick(&slow);
                }
            }
            Frees | Rights | Log => {
                *config = Config { idle: None, ..wide };
                options.faults = plain;
            }
            Holders | Errands => {
                *config = Config { idle: None, ..wide };
                options.control = random.pick(&slow);
            }
            Lives => {
                // Answers take their time, so tasks wait for them when a node dies.
                let repeats = Retransmission { ack_timeout: millis(30), ..wide.retransmission };
                *config = Config { retransmission: repeats, idle: None, ..wide };
                options.faults = Faults { delay_ns: 2_000_000, ..Faults::NONE };
                options.keep_ids = true;
                options.control = ControlLinks::INSTANT;
            }
            Orphans => {
                *config = Config { idle: None, ..wide };
                options.faults = plain;
                options.keep_ids = true;
                options.control = ControlLinks::INSTANT;
            }
            Silence | Standstill => *config = Config { silence: None, ..wide },
        }
    }
}
