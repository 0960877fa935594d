//! The manager's disk: one file. Its calls take time, it may be full or fail, and a crash loses what was not
//! synced.
//!
//! The manager's own store works on it. Its calls return at once, and the disk adds up the time that they
//! would have taken. Their effects are a journal until that time has passed: a crash cuts the journal at the
//! time of the crash.

use crate::Trace;
use crate::random::Random;
use manager::daemon::Medium;
use redb::{Database, DatabaseError, StorageBackend};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The number of bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;
/// The maximum time of a write to the cache and of a sync, in microseconds.
const WRITE_US: u64 = 20;
const SYNC_US: u64 = 4_000;
/// The maximum time of a sync of a slow disk, in microseconds.
const SLOW_US: u64 = 4_000_000;
/// The memory that the database may use for its own cache, in bytes.
const CACHE: usize = 64 << 10;

/// The faults of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// A sync may take seconds.
    pub slow: bool,
    /// The disk has no room for another byte.
    pub full: bool,
    /// About every second call fails.
    pub failing: bool,
}

#[derive(Debug)]
enum Op {
    Write(usize, Vec<u8>),
    Len(usize),
    Sync,
}

#[derive(Debug)]
struct State {
    /// The content that a crash leaves, without the journal.
    durable: Vec<u8>,
    /// The content that reads return.
    cache: Vec<u8>,
    /// The writes that have ended since the last sync.
    dirty: Vec<Op>,
    /// The operations since the disk [settled](Disk::settle), each with the time at which it ends.
    journal: Vec<(Duration, Op)>,
    /// The time that the disk calls since the last look have taken.
    taken: Duration,
    faults: DiskFaults,
    /// The number of the present opening of the file. Only that opening may use it.
    session: u64,
    random: Random,
    torn: u64,
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    state: Mutex<State>,
    trace: Arc<Trace>,
}

fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(at, data) => {
            if bytes.len() < at + data.len() {
                bytes.resize(at + data.len(), 0);
            }
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        Op::Len(len) => bytes.resize(*len, 0),
        Op::Sync => {}
    }
}

impl State {
    /// Ends the first `count` operations of the journal. A sync among them makes the writes before it
    /// durable.
    fn commit(&mut self, count: usize) {
        for (_, op) in self.journal.drain(..count) {
            match op {
                Op::Sync => self.dirty.drain(..).for_each(|op| apply(&mut self.durable, &op)),
                op => self.dirty.push(op),
            }
        }
    }

    fn takes(&mut self, most_us: u64) {
        self.taken += Duration::from_micros(1 + self.random.below(most_us));
    }

    /// Begins a call. Fails if the disk does, or if the file was opened again since.
    fn call(&mut self, session: u64) -> io::Result<()> {
        if session != self.session {
            return Err(io::Error::other("the file is closed"));
        }
        if self.faults.failing && self.random.one_in(2) {
            // A disk retries for a while before it reports a failure.
            self.takes(SYNC_US);
            return Err(io::Error::other("input/output error"));
        }
        Ok(())
    }

    fn change(&mut self, op: Op) {
        apply(&mut self.cache, &op);
        self.journal.push((self.taken, op));
    }
}

impl Disk {
    pub(super) fn new(random: Random, trace: Arc<Trace>) -> Arc<Self> {
        let state = State {
            durable: Vec::new(),
            cache: Vec::new(),
            dirty: Vec::new(),
            journal: Vec::new(),
            taken: Duration::ZERO,
            faults: DiskFaults::default(),
            session: 0,
            random,
            torn: 0,
        };
        Arc::new(Self { state: Mutex::new(state), trace })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    /// Sets the faults of the disk from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// Returns the number of writes that crashes have torn so far.
    #[must_use]
    pub fn torn(&self) -> u64 {
        self.lock().torn
    }

    /// Returns the time that the operations in the journal take.
    pub(super) fn taken(&self) -> Duration {
        self.lock().taken
    }

    /// Ends all operations of the journal: their time has passed.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        let all = state.journal.len();
        state.commit(all);
        state.taken = Duration::ZERO;
    }

    /// Ends the use of the disk by the process, `passed` after the disk has settled last. If the machine
    /// `fails`, each write that was not synced by then is on the disk, is lost, or is on the disk in part.
    pub(super) fn crash(&self, passed: Duration, fails: bool) {
        let mut state = self.lock();
        let done = state.journal.iter().take_while(|(at, _)| *at <= passed).count();
        state.commit(done);
        for mut op in std::mem::take(&mut state.dirty) {
            if fails && state.random.one_in(2) {
                continue;
            }
            if fails
                && let Op::Write(_, data) = &mut op
                && state.random.one_in(3)
            {
                let sectors = data.len().div_ceil(SECTOR) as u64;
                data.truncate(state.random.below(sectors) as usize * SECTOR);
                state.torn += 1;
            }
            apply(&mut state.durable, &op);
        }
        state.journal.clear();
        state.taken = Duration::ZERO;
        state.session += 1;
        state.cache = state.durable.clone();
    }

    /// Returns the file.
    pub(super) fn file(self: &Arc<Self>) -> File {
        File(self.clone())
    }
}

/// The file on the disk.
#[derive(Debug)]
pub(super) struct File(Arc<Disk>);

impl Medium for File {
    fn path(&self) -> &Path {
        Path::new("simulated")
    }

    fn database(&self) -> Result<Database, DatabaseError> {
        let session = {
            let mut state = self.0.lock();
            state.session += 1;
            state.session
        };
        let open = Open { disk: self.0.clone(), session };
        Database::builder().set_cache_size(CACHE).create_with_backend(open)
    }
}

/// The file while it is open.
#[derive(Debug)]
struct Open {
    disk: Arc<Disk>,
    session: u64,
}

impl StorageBackend for Open {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.disk.lock();
        state.call(self.session)?;
        Ok(state.cache.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.call(self.session)?;
        let at = offset as usize;
        let bytes = state.cache.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.call(self.session)?;
        let len = len as usize;
        if len > state.cache.len() && state.faults.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.takes(WRITE_US);
        state.change(Op::Len(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.call(self.session)?;
        let slow = state.faults.slow && state.random.one_in(2);
        state.takes(if slow { SLOW_US } else { SYNC_US });
        state.change(Op::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.call(self.session)?;
        // A file system that never overwrites in place needs room for each write.
        if state.faults.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.takes(WRITE_US);
        self.disk.trace.event(state.taken.as_nanos() as u64, 3 << 32 | offset, data);
        state.change(Op::Write(offset as usize, data.to_vec()));
        Ok(())
    }
}
