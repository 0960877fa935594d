//! The layer between the driver and the emulated card: it passes the card's data on, except where the bytes
//! decide otherwise.

use crate::input::Input;
use cards::{Machine, Piece, Plug, Pool};
use mlx4::Hardware;
use platform::{Instant, IoAddr, Memory};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The maximum virtual time of a driver's call: some commands, each with a timeout of up to 10 s.
pub const MAX_TIME: Duration = Duration::from_secs(60);
/// The maximum number of accesses of registers, doorbells and configuration space per call.
pub const MAX_ACCESSES: u64 = 2_000_000;
/// The maximum number of accesses between two lies.
const MAX_ACCESSES_BETWEEN_LIES: u32 = 200;
/// The length of an entry in completion and event queues, in bytes.
const ENTRY: u64 = 32;
/// The maximum distance of a forged entry's index from the true one.
const NEAR: u8 = 8;
/// Opcodes of forged entries: sends of some kinds, receives, errors of both.
const OPCODES: [u8; 8] = [0x48, 0x4a, 0x50, 0x52, 0x01, 0x02, 0x5e, 0x1e];

/// The layer that lies to the driver.
#[derive(Clone)]
pub(crate) struct Liar {
    pub machine: Arc<Machine>,
    state: Arc<Mutex<State>>,
}

/// The state of the lies.
pub(crate) struct State {
    pub input: Input,
    /// The queue pairs of the driver so far, each with the number of its sends, so that forged entries can
    /// name them.
    pub numbers: Vec<(u32, u16)>,
    /// The number of lies told.
    pub lies: u64,
    /// The number of accesses until the next lie; 0: no more lies.
    until_next: u32,
    /// The value that replaces the true one in reads, and the number of such reads left.
    instead: (u32, u32),
    accesses: u64,
    /// Time passed by a lie.
    passed: Duration,
}

impl Liar {
    pub(crate) fn new(machine: Arc<Machine>, input: Input) -> Self {
        let state = State {
            input,
            numbers: Vec::new(),
            lies: 0,
            until_next: 0,
            instead: (0, 0),
            accesses: 0,
            passed: Duration::ZERO,
        };
        let liar = Self { machine, state: Arc::new(Mutex::new(state)) };
        liar.state().schedule();
        liar
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread has panicked")
    }

    /// Runs a call of the driver, which must end within the limits.
    pub(crate) fn timed<T>(&self, what: &str, call: impl FnOnce() -> T) -> T {
        {
            let mut state = self.state();
            (state.accesses, state.passed) = (0, Duration::ZERO);
        }
        let begun = self.machine.waited();
        let result = call();
        let state = self.state();
        let took = (self.machine.waited() - begun).saturating_sub(state.passed);
        assert!(took <= MAX_TIME, "{what} took {took:?}");
        result
    }

    /// Returns the value of an access that the card answers with `truth`.
    fn access(&self, truth: u32) -> u32 {
        let mut state = self.state();
        state.accesses += 1;
        assert!(state.accesses <= MAX_ACCESSES, "a call does not end");
        let (instead, left) = state.instead;
        if left > 0 {
            state.instead.1 = left - 1;
            return instead;
        }
        if state.until_next == 0 {
            return truth;
        }
        state.until_next -= 1;
        if state.until_next > 0 { truth } else { self.lie(&mut state, truth) }
    }

    /// Returns a false value for a register, or lets the card fail in another way.
    fn lie(&self, state: &mut State, truth: u32) -> u32 {
        state.lies += 1;
        let said = match state.input.below(8) {
            0 => state.input.word(),
            1 => truth ^ 1 << (state.input.byte() % 32),
            2 => {
                let often = u32::from(state.input.byte()) * 50;
                state.instead = (state.input.word(), often);
                state.instead.0
            }
            3 => {
                let passed = Duration::from_millis(u64::from(state.input.byte()) * 20);
                self.machine.advance(passed);
                state.passed += passed;
                truth
            }
            4 => {
                // The output of commands is wrong from now on, until this choice comes up again.
                let seed = u64::from(state.input.byte()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.machine.bus.lies.store(seed, Ordering::Relaxed);
                truth
            }
            5 => {
                self.forge(state);
                truth
            }
            6 => {
                self.scribble(state);
                truth
            }
            _ => u32::MAX,
        };
        state.schedule();
        said
    }

    fn shared(&self) -> &Pool {
        &self.machine.bus.shared
    }

    /// Writes words anywhere in the memory shared by driver and card.
    pub(crate) fn scribble(&self, state: &mut State) {
        let (base, _) = self.shared().range();
        let words = (self.shared().in_use() / 4).max(1);
        for _ in 0..=state.input.below(16) {
            let place = u64::from(state.input.byte()) << 16
                | u64::from(state.input.byte()) << 8
                | u64::from(state.input.byte());
            let word = state.input.word();
            let at = IoAddr(base.0 + place % words * 4);
            self.shared().write(at, &word.to_be_bytes()).expect("it is in the memory");
        }
    }

    /// Forges entries of events or completions behind the entry that the card published last.
    pub(crate) fn forge(&self, state: &mut State) {
        let published = self.machine.bus.published.load(Ordering::Relaxed);
        let lap = state.input.byte() & 0x80;
        for n in 0..=state.input.below(8) as u64 {
            let mut bytes: Vec<u8> = (0..ENTRY / 4).flat_map(|_| state.input.word().to_be_bytes()).collect();
            // Most of them are nearly correct.
            if !state.numbers.is_empty() && !state.input.one_in(8) {
                let (number, sent) = state.numbers[state.input.below(state.numbers.len())];
                let index =
                    sent.wrapping_add((state.input.byte() % (2 * NEAR)).into()).wrapping_sub(NEAR.into());
                bytes[..4].copy_from_slice(&number.to_be_bytes());
                bytes[0x18..0x1a].copy_from_slice(&index.to_be_bytes());
                bytes[0x1f] = OPCODES[state.input.below(OPCODES.len())];
            }
            bytes[0x1f] = bytes[0x1f] & 0x7f | lap;
            let at = (published & !(ENTRY - 1)) + ENTRY * (n + 1);
            // Behind the end of the memory there is nothing.
            let _ = self.shared().write(IoAddr(at), &bytes);
        }
    }
}

impl State {
    fn schedule(&mut self) {
        self.until_next = match self.input.next() {
            Some(byte) => 1 + u32::from(byte) * u32::from(self.input.byte()) % MAX_ACCESSES_BETWEEN_LIES,
            None => 0,
        };
    }
}

impl Hardware for Liar {
    type Block = Piece;

    fn config(&self, offset: u16) -> u32 {
        self.access(Plug(self.machine.clone()).config(offset))
    }
    fn set_config(&self, offset: u16, value: u32) {
        Plug(self.machine.clone()).set_config(offset, value);
    }
    fn register(&self, offset: u32) -> u32 {
        self.access(Plug(self.machine.clone()).register(offset))
    }
    fn set_register(&self, offset: u32, value: u32) {
        Plug(self.machine.clone()).set_register(offset, value);
    }
    fn doorbells_len(&self) -> u64 {
        Plug(self.machine.clone()).doorbells_len()
    }
    fn doorbell(&self, offset: u64) -> u32 {
        self.access(Plug(self.machine.clone()).doorbell(offset))
    }
    fn ring(&self, offset: u64, value: u32) {
        Plug(self.machine.clone()).ring(offset, value);
    }
    fn ring_wide(&self, offset: u64, value: u64) {
        Plug(self.machine.clone()).ring_wide(offset, value);
    }
    fn combine_writes(&self, offset: u64) -> bool {
        Plug(self.machine.clone()).combine_writes(offset)
    }
    fn blue_flame(&self, offset: u64, words: &[u64]) {
        Plug(self.machine.clone()).blue_flame(offset, words);
    }
    fn allocate(&self, len: u64) -> Option<Piece> {
        Piece::take(&self.machine.bus.shared, len)
    }
    fn memory(&self) -> &dyn Memory {
        &*self.machine.bus.data
    }
    fn now(&self) -> Instant {
        Plug(self.machine.clone()).now()
    }
    fn wait(&self, time: Duration) {
        Plug(self.machine.clone()).wait(time);
    }
    fn fill_random(&self, buf: &mut [u8]) {
        Plug(self.machine.clone()).fill_random(buf);
    }
}
