//! The Ethernet between the nodes: a switch whose one queue has faults.

use crate::Trace;
use lite::testing::{Device, Host};
use netfault::{Counters, FaultQueue, Faults};
use platform::Instant;
use softroce::EthernetPort;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use verbs::MacAddr;

/// The Ethernet MTU of all ports.
const MTU: usize = 1500;

struct State {
    queue: FaultQueue<()>,
    inboxes: BTreeMap<[u8; 6], VecDeque<Vec<u8>>>,
    /// Pairs of ports, ascending, between which nothing passes.
    apart: BTreeSet<[[u8; 6]; 2]>,
}

/// The switch.
pub struct Wire {
    state: Mutex<State>,
    trace: Arc<Trace>,
}

impl Wire {
    /// A switch with those faults.
    #[must_use]
    pub fn new(faults: Faults, seed: u64, trace: Arc<Trace>) -> Arc<Self> {
        let state =
            State { queue: FaultQueue::new(faults, seed), inboxes: BTreeMap::new(), apart: BTreeSet::new() };
        Arc::new(Self { state: Mutex::new(state), trace })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    /// A port of the switch for `host`.
    #[must_use]
    pub fn port(self: &Arc<Self>, mac: MacAddr, host: Arc<Host>) -> SimPort {
        self.lock().inboxes.insert(mac.0, VecDeque::new());
        SimPort { wire: self.clone(), mac, host }
    }

    /// Parts two ports, or joins them again.
    pub fn part(&self, a: MacAddr, b: MacAddr, apart: bool) {
        let pair = [a.0.min(b.0), a.0.max(b.0)];
        let mut state = self.lock();
        if apart {
            state.apart.insert(pair)
        } else {
            state.apart.remove(&pair)
        };
    }

    /// What the faults have done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().queue.counters()
    }
}

impl Device for Wire {
    fn poll(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let mut any = false;
        while let Some(((), frame)) = state.queue.pop(now.as_nanos()) {
            any = true;
            // A frame whose target address is damaged goes nowhere.
            if let Some(inbox) = frame.first_chunk().and_then(|mac| state.inboxes.get_mut(mac)) {
                inbox.push_back(frame);
            }
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.lock().queue.next_deadline().map(Instant::from_nanos)
    }
}

/// A node's Ethernet port.
pub struct SimPort {
    wire: Arc<Wire>,
    mac: MacAddr,
    host: Arc<Host>,
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
        frames.iter().for_each(|f| each(f));
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
        if !state.apart.contains(&[self.mac.0.min(to), self.mac.0.max(to)]) {
            state.queue.push((), frame, now);
        }
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        self.wire.lock().inboxes.get(&self.mac.0).is_some_and(|i| !i.is_empty())
    }
}
