//! The Ethernet between the nodes: a switch whose one queue has faults.

use crate::Trace;
use crate::forger::{Forger, Forgery, is_datagram};
use crate::random::Random;
use crate::shadow::{Sender, Serial};
use lite::testing::{Device, Host};
use netfault::{Counters, FaultQueue, Faults};
use platform::Instant;
use softroce::EthernetPort;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use verbs::MacAddr;

/// The Ethernet MTU of all ports.
const MTU: usize = 1500;

/// The delay of frames that come much later than any transport waits for them, when their connection or node
/// may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// One frame in `one_in` is late.
    pub one_in: u64,
    /// The maximum delay.
    pub by: Duration,
}

struct State {
    queue: FaultQueue<Serial>,
    /// The frames that have come to each port, each with the machine that sent it.
    inboxes: BTreeMap<[u8; 6], VecDeque<(Serial, Vec<u8>)>>,
    /// Pairs of ports: frames from the first to the second are dropped.
    unheard: BTreeSet<([u8; 6], [u8; 6])>,
    /// Pairs of ports, each with the additional delay of frames from the first to the second.
    slow: BTreeMap<([u8; 6], [u8; 6]), Duration>,
    /// The present delay, and the frames that are delayed.
    late: Option<Late>,
    detour: FaultQueue<Serial>,
    /// The frames between each pair of ports.
    paths: FaultQueue<Serial>,
    delayed: u64,
    random: Random,
    /// The intruder, and its random decisions.
    forger: Forger,
    forgeries: Random,
    /// True if all datagrams are lost.
    loses_datagrams: bool,
    /// The datagrams that were sent, while they are recorded.
    recorded: Option<Vec<Vec<u8>>>,
}

/// The switch.
pub struct Wire {
    state: Mutex<State>,
    trace: Arc<Trace>,
}

impl Wire {
    /// Makes a switch with the given faults.
    #[must_use]
    pub fn new(faults: Faults, seed: u64, trace: Arc<Trace>) -> Arc<Self> {
        let state = State {
            queue: FaultQueue::new(faults, seed),
            inboxes: BTreeMap::new(),
            unheard: BTreeSet::new(),
            slow: BTreeMap::new(),
            late: None,
            detour: FaultQueue::new(Faults::NONE, seed),
            paths: FaultQueue::new(Faults::NONE, seed),
            delayed: 0,
            random: Random::new(seed),
            forger: Forger::default(),
            forgeries: Random::new(!seed),
            loses_datagrams: false,
            recorded: None,
        };
        Arc::new(Self { state: Mutex::new(state), trace })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    /// Makes a port of the switch for `host`, which is machine `serial`.
    pub(crate) fn port(self: &Arc<Self>, mac: MacAddr, host: Arc<Host>, serial: Serial) -> SimPort {
        self.lock().inboxes.insert(mac.0, VecDeque::new());
        SimPort { wire: self.clone(), mac, host, serial, sender: Arc::default() }
    }

    /// Separates two ports, or connects them again.
    pub fn part(&self, a: MacAddr, b: MacAddr, apart: bool) {
        self.deafen(a, b, apart);
        self.deafen(b, a, apart);
    }

    /// Drops all frames from port `from` to port `to`, or no longer. The opposite direction is not affected.
    pub fn deafen(&self, from: MacAddr, to: MacAddr, deaf: bool) {
        let mut state = self.lock();
        if deaf {
            state.unheard.insert((from.0, to.0))
        } else {
            state.unheard.remove(&(from.0, to.0))
        };
    }

    /// Delays all frames from port `from` to port `to` from now on, or no longer.
    pub fn slow(&self, from: MacAddr, to: MacAddr, by: Option<Duration>) {
        let mut state = self.lock();
        match by {
            Some(by) => drop(state.slow.insert((from.0, to.0), by)),
            None => drop(state.slow.remove(&(from.0, to.0))),
        }
    }

    /// Sets the delay of frames from now on, or removes it.
    pub fn set_late(&self, late: Option<Late>) {
        let mut state = self.lock();
        let by = late.map_or(0, |late| late.by.as_nanos() as u64);
        state.detour.set_faults(Faults { reorder: 1.0, reorder_ns: by, ..Faults::NONE });
        state.late = late;
    }

    /// Lets an intruder send datagrams from now on, or no longer.
    pub fn set_forger(&self, habits: Option<Forgery>) {
        self.lock().forger.habits = habits;
    }

    /// Returns the number of datagrams that an intruder has sent.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.lock().forger.sent
    }

    /// Drops all datagrams from now on, or no longer.
    pub fn lose_datagrams(&self, lost: bool) {
        self.lock().loses_datagrams = lost;
    }

    /// Records the frames of datagrams from now on, including those that are lost.
    pub fn record_datagrams(&self) {
        self.lock().recorded = Some(Vec::new());
    }

    /// Returns the frames that were recorded.
    #[must_use]
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        self.lock().recorded.clone().unwrap_or_default()
    }

    /// Delivers a frame at once, as an intruder's.
    pub fn inject(&self, frame: &[u8]) {
        let mut state = self.lock();
        if let Some(inbox) = frame.first_chunk().and_then(|mac| state.inboxes.get_mut(mac)) {
            inbox.push_back((Serial::MAX, frame.to_vec()));
        }
    }

    /// Returns the number of frames that were delayed, or are.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.lock().delayed
    }

    /// Returns the counters of the faults so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().queue.counters()
    }
}

impl Device for Wire {
    fn poll(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let mut any = false;
        let now = now.as_nanos();
        let due = |State { queue, detour, paths, .. }: &mut State| {
            queue.pop(now).or_else(|| detour.pop(now)).or_else(|| paths.pop(now))
        };
        while let Some((from, frame)) = due(&mut state) {
            any = true;
            // A frame whose target address is damaged is lost.
            if let Some(inbox) = frame.first_chunk().and_then(|mac| state.inboxes.get_mut(mac)) {
                inbox.push_back((from, frame));
            }
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.lock();
        let queues = [&state.queue, &state.detour, &state.paths];
        let due = queues.into_iter().filter_map(FaultQueue::next_deadline).min();
        due.map(Instant::from_nanos)
    }
}

/// A node's Ethernet port.
pub struct SimPort {
    wire: Arc<Wire>,
    mac: MacAddr,
    host: Arc<Host>,
    serial: Serial,
    sender: Arc<Sender>,
}

impl SimPort {
    /// Returns the place that has the sender of the frame that this port delivers at present.
    pub(crate) fn sender(&self) -> Arc<Sender> {
        self.sender.clone()
    }
}

impl EthernetPort for SimPort {
    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let frames: Vec<_> = {
            let mut state = self.wire.lock();
            let Some(inbox) = state.inboxes.get_mut(&self.mac.0) else { return 0 };
            let n = inbox.len().min(budget);
            inbox.drain(..n).collect()
        };
        frames.iter().for_each(|(from, frame)| self.sender.during(*from, frame, &mut *each));
        frames.len()
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; max_len];
        let len = fill(&mut frame);
        frame.truncate(len);
        let now = self.host.true_time().as_nanos();
        let [.., high, low] = self.mac.0;
        self.wire.trace.event(now, u16::from_be_bytes([high, low]).into(), &frame);
        let to: [u8; 6] = frame.first_chunk().copied().unwrap_or_default();
        let mut state = self.wire.lock();
        if state.unheard.contains(&(self.mac.0, to)) {
            return true;
        }
        if is_datagram(&frame) {
            let State { forger, forgeries, paths, recorded, .. } = &mut *state;
            for (from, frame, after) in forger.hears(self.serial, &frame, forgeries) {
                paths.push(from, frame, now + after.as_nanos() as u64);
            }
            if let Some(recorded) = recorded {
                recorded.push(frame.clone());
            }
            if state.loses_datagrams {
                return true;
            }
        }
        if let Some(by) = state.slow.get(&(self.mac.0, to)).copied() {
            state.delayed += 1;
            state.paths.push(self.serial, frame, now + by.as_nanos() as u64);
            return true;
        }
        let late = state.late.is_some_and(|late| state.random.one_in(late.one_in));
        if late {
            state.delayed += 1;
            state.detour.push(self.serial, frame, now);
        } else {
            state.queue.push(self.serial, frame, now);
        }
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        self.wire.lock().inboxes.get(&self.mac.0).is_some_and(|i| !i.is_empty())
    }
}
