//! The manager as a process of the simulation: the real state machine and the real store, a disk that may
//! fail, and control connections that take time. It can die, be paused and restart.

mod disk;
mod keeper;
mod ledger;
mod link;
mod network;
mod process;

pub use disk::{Disk, DiskFaults};
pub use link::Socket;
pub use network::{ControlLinks, Direction};

pub(crate) use link::{Heart, Link};

use crate::Trace;
use crate::random::Random;
use keeper::Keeper;
use ledger::Ledger;
use lite::testing::{Device, Host};
use manager::core::{Config, ConnId, Saved};
use network::{Item, Network};
use platform::{Instant, LinkDown};
use process::{Incoming, Process, Surroundings};
use proto::{Attempt, NodeId, ToManager};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The pause before another attempt to start the manager after a failed one.
const AGAIN: Duration = Duration::from_millis(300);

/// A way for the manager to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies. Its machine ends the connections at once, and writes all data that the process has
    /// written.
    Process,
    /// The machine fails. No peer is told, and data that is not synced may be lost.
    Machine,
}

/// The far end of a connection: a node's or a client's.
struct End {
    ready: VecDeque<Vec<u8>>,
    closed: bool,
    waker: Option<Waker>,
    /// The number of the manager's process to which it is connected.
    generation: u64,
    /// True if the machine has been told that the manager does not know the connection.
    reset: bool,
}

enum Status {
    Up(Box<Process>),
    /// The manager reads its store until this time, with this result.
    Opening(Instant, Result<Box<(Keeper, Saved)>, String>),
    /// The manager starts at this time. If its machine is down as well, no one answers until then.
    Down(Instant, Crash),
}

struct State {
    status: Status,
    generation: u64,
    crashes: u64,
    config: Config,
    network: Network,
    ends: BTreeMap<ConnId, End>,
    /// The connections of each node that has joined, in all its incarnations, the present one last.
    conns: BTreeMap<NodeId, Vec<ConnId>>,
    ledger: Ledger,
    last: u64,
    log: Vec<String>,
}

/// The manager.
pub struct SimManager {
    state: Mutex<State>,
    disk: Arc<Disk>,
    trace: Arc<Trace>,
    /// The manager's machine, as a clock.
    clock: Arc<Host>,
}

impl End {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl SimManager {
    /// Makes a manager with an empty store at time zero, which uses this lease.
    ///
    /// # Panics
    /// If its store does not open.
    #[must_use]
    pub fn new(
        lease: Duration,
        links: ControlLinks,
        seed: u64,
        trace: Arc<Trace>,
        clock: Arc<Host>,
    ) -> Arc<Self> {
        let mut random = Random::new(seed);
        let disk = Disk::new(random.fork(), trace.clone());
        let (keeper, saved) = Keeper::open(&disk).expect("a new disk");
        let found = saved.clone();
        let mut state = State {
            status: Status::Opening(Instant::ZERO, Ok(Box::new((keeper, saved)))),
            generation: 0,
            crashes: 0,
            config: Config { lease, ..Config::default() },
            network: Network::new(links, random.fork()),
            ends: BTreeMap::new(),
            conns: BTreeMap::new(),
            ledger: Ledger::default(),
            last: 0,
            log: Vec::new(),
        };
        state.ledger.opened(&found);
        state.starts(Instant::ZERO, &disk);
        Arc::new(Self { state: Mutex::new(state), disk, trace, clock })
    }

    fn now(&self) -> Instant {
        self.clock.true_time()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    /// Returns true if a manager has given the voucher for an attempt to set up a connection.
    #[must_use]
    pub fn has_vouched(&self, attempt: &Attempt) -> bool {
        self.lock().ledger.has_vouched(attempt)
    }

    /// Returns the log of the manager.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// Returns the first violation of an invariant, if any: the manager used a number twice, or forgot what
    /// was saved.
    #[must_use]
    pub fn violation(&self) -> Option<String> {
        self.lock().ledger.violation()
    }

    /// Returns the manager's disk.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns whether the manager runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.lock().status, Status::Up(_))
    }

    /// Returns whether the manager's disk works.
    #[must_use]
    pub fn saves(&self) -> bool {
        match &self.lock().status {
            Status::Up(process) => process.keeper.is_writing(),
            Status::Opening(..) => true,
            Status::Down(..) => false,
        }
    }

    /// Returns the number of times that the manager has died.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.lock().crashes
    }

    /// Kills the manager, and restarts it at `back`.
    pub fn crash(&self, crash: Crash, back: Instant) {
        let mut state = self.lock();
        let now = self.now();
        let passed = match &state.status {
            Status::Up(process) => process.keeper.worked(now),
            Status::Opening(until, _) => self.disk.taken().saturating_sub(until.saturating_since(now)),
            Status::Down(..) => return,
        };
        self.disk.crash(passed, crash == Crash::Machine);
        state.status = Status::Down(back, crash);
        state.log.push("the manager dies".into());
        state.crashes += 1;
        let generation = state.generation;
        let State { network, ends, .. } = &mut *state;
        for (conn, end) in ends.iter_mut().filter(|(_, end)| end.generation == generation) {
            network.lose(*conn, Direction::ToManager);
            if crash == Crash::Process {
                end.reset = true;
                network.send(now, *conn, Direction::FromManager, Item::End);
            }
        }
    }

    /// Pauses the manager, or resumes it.
    pub fn pause(&self, still: bool) {
        if let Status::Up(process) = &mut self.lock().status {
            process.resumed |= process.paused && !still;
            process.paused = still;
        }
    }

    /// Makes a new connection, if the manager runs.
    #[must_use]
    pub fn connect(self: &Arc<Self>) -> Option<Socket> {
        let mut state = self.lock();
        let generation = state.generation;
        let conn = ConnId(state.last + 1);
        let Status::Up(process) = &mut state.status else { return None };
        process.arrives(Incoming::Opened(conn));
        state.last = conn.0;
        state.network.open(conn);
        let end = End { ready: VecDeque::new(), closed: false, waker: None, generation, reset: false };
        state.ends.insert(conn, end);
        Some(Socket { manager: self.clone(), conn })
    }

    /// Marks a connection as that of a node.
    pub(crate) fn joined(&self, socket: &Socket, node: NodeId) {
        self.lock().conns.entry(node).or_default().push(socket.conn);
    }

    /// Holds both directions of a node's connection, or releases them: then all held messages arrive. This
    /// includes the connections of the node's former incarnations, whose machines have yet to learn that they
    /// are dead.
    pub fn stall(&self, node: NodeId, stalled: bool) {
        for direction in [Direction::ToManager, Direction::FromManager] {
            self.hold(node, direction, stalled);
        }
    }

    /// Holds one direction of a node's connection, or releases it.
    pub fn hold(&self, node: NodeId, direction: Direction, held: bool) {
        let mut state = self.lock();
        let now = self.now();
        let conns = state.conns.get(&node).cloned().unwrap_or_default();
        let skip = if held { conns.len().saturating_sub(1) } else { 0 };
        for conn in conns.into_iter().skip(skip) {
            state.network.hold(now, conn, direction, held);
        }
    }

    /// Releases all held connections.
    pub fn release_all(&self) {
        let mut state = self.lock();
        let now = self.now();
        state.network.release_all(now);
    }

    /// Tells the manager that a node has died, as the last words of a kernel do.
    pub fn dies(&self, node: NodeId) {
        let mut state = self.lock();
        let now = self.now();
        let Some(conn) = state.conns.get(&node).and_then(|conns| conns.last()).copied() else { return };
        let words = proto::encode(&ToManager::LastWords { reason: "connection lost".into() });
        state.network.send(now, conn, Direction::ToManager, Item::Data(words));
    }

    /// Breaks the connection of a node. Both ends are told, and all messages in transit are lost.
    pub fn sever(&self, node: NodeId) {
        let mut state = self.lock();
        let now = self.now();
        let Some(conn) = state.conns.get(&node).and_then(|conns| conns.last()).copied() else { return };
        for direction in [Direction::ToManager, Direction::FromManager] {
            state.network.lose(conn, direction);
            state.network.send(now, conn, direction, Item::End);
        }
    }

    /// Sends a message, or with `None` asks whether the connection still exists. Returns false if it is known
    /// not to exist.
    fn sends(&self, conn: ConnId, message: Option<&[u8]>) -> bool {
        let now = self.now();
        let mut state = self.lock();
        let State { status, generation, network, ends, .. } = &mut *state;
        let Some(end) = ends.get_mut(&conn).filter(|end| !end.closed) else { return false };
        if end.generation == *generation && matches!(status, Status::Up(_)) {
            if let Some(message) = message {
                self.trace.event(now.as_nanos(), 2 << 32 | conn.0, message);
                network.send(now, conn, Direction::ToManager, Item::Data(message.to_vec()));
            }
        } else if !matches!(status, Status::Down(_, Crash::Machine)) && !end.reset {
            // The machine does not know the connection, and replies with a reset.
            end.reset = true;
            network.send(now, conn, Direction::FromManager, Item::End);
        }
        true
    }

    fn closes(&self, conn: ConnId) {
        let now = self.now();
        let mut state = self.lock();
        if let Some(end) = state.ends.get_mut(&conn).filter(|end| !end.closed) {
            end.closed = true;
            state.network.send(now, conn, Direction::ToManager, Item::End);
        }
    }

    fn receives(&self, conn: ConnId, waker: Option<&Waker>) -> Poll<Result<Vec<u8>, LinkDown>> {
        let mut state = self.lock();
        let Some(end) = state.ends.get_mut(&conn) else { return Poll::Ready(Err(LinkDown)) };
        if let Some(message) = end.ready.pop_front() {
            return Poll::Ready(Ok(message));
        }
        if end.closed {
            return Poll::Ready(Err(LinkDown));
        }
        end.waker = waker.cloned();
        Poll::Pending
    }

    fn has_news(&self, conn: ConnId) -> bool {
        self.lock().ends.get(&conn).is_none_or(|end| end.closed || !end.ready.is_empty())
    }
}

impl State {
    /// Continues the start of the manager, if it is starting.
    fn starts(&mut self, now: Instant, disk: &Arc<Disk>) -> bool {
        match &mut self.status {
            Status::Down(at, _) if *at <= now => {
                let opened = Keeper::open(disk).map(Box::new);
                if let Ok(opened) = &opened {
                    self.ledger.opened(&opened.1);
                }
                self.status = Status::Opening(now + disk.taken(), opened);
                true
            }
            Status::Opening(until, opened) if *until <= now => {
                disk.settle();
                match std::mem::replace(opened, Err(String::new())) {
                    Ok(opened) => {
                        let (keeper, saved) = *opened;
                        self.ledger.saved(saved.reservation().len());
                        self.generation += 1;
                        let process = Process::new(self.config.clone(), saved, keeper, now);
                        self.status = Status::Up(Box::new(process));
                        self.log.push("the manager starts".into());
                    }
                    Err(why) => {
                        self.status = Status::Down(now + AGAIN, Crash::Process);
                        self.log.push(format!("the manager does not start: {why}"));
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// Handles an item that has come out of a pipe.
    fn arrives(&mut self, conn: ConnId, direction: Direction, item: Item) {
        let to_manager = match (direction, item) {
            (Direction::FromManager, Item::Data(bytes)) => {
                if let Some(end) = self.ends.get_mut(&conn).filter(|end| !end.closed) {
                    end.ready.push_back(bytes);
                    end.wake();
                }
                return;
            }
            (Direction::FromManager, Item::End) => {
                if let Some(end) = self.ends.get_mut(&conn) {
                    end.closed = true;
                    end.wake();
                }
                return;
            }
            (_, Item::Left(bulk)) => Incoming::Sent(conn, bulk),
            (Direction::ToManager, Item::Data(bytes)) => Incoming::Received(conn, bytes),
            (Direction::ToManager, Item::End) => Incoming::Closed(conn, "connection lost"),
        };
        let known = self.ends.get(&conn).is_some_and(|end| end.generation == self.generation);
        if let Status::Up(process) = &mut self.status
            && known
        {
            process.arrives(to_manager);
        }
    }
}

impl Device for SimManager {
    fn poll(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let mut any = state.starts(now, &self.disk);
        while let Some((conn, direction, item)) = state.network.pop(now) {
            any = true;
            state.arrives(conn, direction, item);
        }
        let State { status, network, ledger, log, .. } = &mut *state;
        if let Status::Up(process) = status {
            let mut around = Surroundings { network, ledger, log, trace: &self.trace };
            any |= process.poll(now, &mut around);
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.lock();
        let own = match &state.status {
            Status::Up(process) => process.next_deadline(),
            Status::Opening(at, _) | Status::Down(at, _) => Some(*at),
        };
        own.into_iter().chain(state.network.next_deadline()).min()
    }
}
