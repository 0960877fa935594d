//! The emulated card over plain memory, with the parts of a machine that its driver needs, all in this
//! process.
//!
//! # Neighbours
//! [`connectx3`] is the card and [`mlx4`] the driver; `tests/sim` has clusters of such machines.
#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::unwrap_used, reason = "for tests, which may fail by panic")]

mod memory;

pub use memory::{Piece, Pool};

use connectx3::device::{Card, DmaError, Host, Observation, Profile};
use connectx3::trace::{Observer, Record, Watch};
use mlx4::{Config, Hardware, Mlx4};
use platform::{Arena, Instant, IoAddr, Memory};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The driver in these tests.
pub type Driver = Mlx4<Plug, spin::Mutex<()>>;

/// The address at which memory for data begins. Memory for driver and card is below it.
pub const DATA: u64 = 0x1_0000_0000;
/// The address at which the memory shared by driver and card begins, which also contains the card's tables.
pub const SHARED: u64 = 0x1000_0000;
/// The address of a page of another device's registers, which any device can access.
pub const REGISTERS: u64 = 0xfee0_0000;
const REGISTERS_LEN: u64 = 4096;
const SHARED_LEN: u64 = 16 << 20;

/// The card's view of its machine.
pub struct Bus {
    pub data: Arc<Arena>,
    pub shared: Arc<Pool>,
    /// Registers of another device: words that store what is written.
    pub registers: Arc<Pool>,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    /// Time in nanoseconds that passes only on this machine, while it waits.
    waited: AtomicU64,
    pub interrupts: Mutex<Vec<u16>>,
    /// The number of the card's writes to memory.
    pub writes: AtomicU64,
    /// The seed of wrong data in the output of commands; 0 for correct data.
    pub lies: AtomicU64,
    /// True while the card is a bus master and can access memory.
    masters: AtomicBool,
    /// The number of bytes of shared memory that were allocated when the card last ceased to be a bus master.
    pub in_use_at_cut_off: AtomicU64,
    /// The address at which the card last wrote the end of a queue's entry.
    pub published: AtomicU64,
    observer: Observer,
}

/// A machine with a card.
pub struct Machine {
    pub bus: Bus,
    pub card: Mutex<Card>,
    config: Mutex<[u32; 64]>,
    /// The value that all registers in BAR 0 return, unless it is 0.
    pub broken: AtomicU32,
    /// True if a reset repairs the card.
    heals: AtomicBool,
    /// True if the card ignores commands: they neither end nor have an effect.
    pub deaf: AtomicBool,
    /// True if the card stays a bus master despite its command register.
    pub stubborn: AtomicBool,
    /// The number of register accesses after which the card leaves the bus.
    accesses_left: AtomicU64,
    pub record: Arc<Mutex<Record>>,
}

impl Machine {
    /// Creates a machine at time zero.
    pub fn new(profile: Profile, data: Arc<Arena>) -> Arc<Self> {
        Self::with_clock(profile, data, Box::new(|| Instant::ZERO))
    }

    /// Creates a machine with the given clock.
    pub fn with_clock(
        profile: Profile,
        data: Arc<Arena>,
        clock: Box<dyn Fn() -> Instant + Send + Sync>,
    ) -> Arc<Self> {
        const VENDOR: u32 = 0x15b3;
        let mut config = [0; 64];
        config[0] = u32::from(profile.device_id) << 16 | VENDOR;
        // Memory and bus mastering are enabled; the list of capabilities has one, PCI Express.
        config[1] = 0x0010_0006;
        config[0x34 / 4] = 0x60;
        config[0x60 / 4] = 0x0002_0010;
        let record = Arc::new(Mutex::new(Record::default()));
        let watch = Watch { trace: None, record: Some(record.clone()) };
        let bus = Bus {
            data,
            shared: Pool::new(IoAddr(SHARED), SHARED_LEN),
            registers: Pool::new(IoAddr(REGISTERS), REGISTERS_LEN),
            clock,
            waited: AtomicU64::new(0),
            interrupts: Mutex::default(),
            writes: AtomicU64::new(0),
            lies: AtomicU64::new(0),
            masters: AtomicBool::new(true),
            in_use_at_cut_off: AtomicU64::new(0),
            published: AtomicU64::new(0),
            observer: Observer::new("card".to_owned(), watch),
        };
        let card = Mutex::new(Card::new(profile));
        Arc::new(Self {
            bus,
            card,
            config: Mutex::new(config),
            broken: AtomicU32::new(0),
            heals: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            stubborn: AtomicBool::new(false),
            accesses_left: AtomicU64::new(u64::MAX),
            record,
        })
    }

    /// Advances this machine's time.
    pub fn advance(&self, time: Duration) {
        self.bus.waited.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the time that passed only on this machine.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.bus.waited.load(Ordering::Relaxed))
    }

    /// Starts a driver on the machine's card.
    pub fn start(self: &Arc<Self>, config: &Config) -> Result<Driver, mlx4::Error> {
        Mlx4::start(self.plug(), config)
    }

    /// Makes the card leave the bus after `accesses` more register accesses.
    pub fn die_at(&self, accesses: u64) {
        self.accesses_left.store(accesses, Ordering::Relaxed);
    }

    /// Makes registers read as `registers` until the card is reset.
    pub fn fail_until_reset(&self, registers: u32) {
        self.heals.store(true, Ordering::Relaxed);
        self.broken.store(registers, Ordering::Relaxed);
    }

    /// Counts an access to a register.
    fn touch(&self) {
        let left = self.accesses_left.load(Ordering::Relaxed).saturating_sub(1);
        self.accesses_left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.broken.store(u32::MAX, Ordering::Relaxed);
        }
    }

    /// Returns the machine as a driver sees it.
    pub fn plug(self: &Arc<Self>) -> Plug {
        Plug(self.clone())
    }

    fn in_reset(&self) -> bool {
        self.card.lock().unwrap().in_reset(self.bus.now())
    }
}

/// The register that is not 0 while the flash is in use, and the reset register.
const SEMAPHORE: u32 = 0xf03fc;
const RESET: u32 = 0xf0010;
/// The command registers; writing the last one issues a command, and its GO bit is set until the command
/// ends.
const HCR: u32 = 0x80680;
const CONTROL: u32 = HCR + 0x18;
const GO: u32 = 1 << 23;
/// The command register of the configuration space, and its bus master bit.
const COMMAND: u16 = 4;
const BUS_MASTER: u32 = 1 << 2;
/// Lengths in bytes of the output mailboxes of commands: of most commands, and of those that fill a page.
const OUTPUTS: [usize; 2] = [1024, 4096];

impl Bus {
    /// Returns the machine's time.
    pub fn clock(&self) -> Instant {
        Host::now(self)
    }

    /// Returns a card's output with some words changed.
    fn lie(&self, said: &[u8]) -> Vec<u8> {
        let mut said = said.to_vec();
        let step = |n: u64| n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut seed = self.lies.load(Ordering::Relaxed);
        for _ in 0..1 + (seed >> 60) {
            seed = step(seed);
            let at = (seed >> 40) as usize % 64 * 4;
            seed = step(seed);
            let (word, kind) = ((seed >> 20) as u32, seed >> 62);
            let word = if kind == 0 { word } else { [0, u32::MAX, 1 << (word % 32)][kind as usize - 1] };
            said[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        self.lies.store(seed | 1, Ordering::Relaxed);
        said
    }

    fn space(&self, addr: u64, len: usize) -> Result<&dyn Memory, DmaError> {
        if !self.masters.load(Ordering::Relaxed) {
            return Err(DmaError { addr, len });
        }
        Ok(match addr {
            DATA.. => &*self.data,
            REGISTERS.. => &*self.registers,
            _ => &*self.shared,
        })
    }
}

impl Host for Bus {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        self.space(addr, len)?.read(IoAddr(addr), buf).map_err(|_| DmaError { addr, len })
    }
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let lies = self.lies.load(Ordering::Relaxed);
        let lie = if lies != 0 && OUTPUTS.contains(&data.len()) { Some(self.lie(data)) } else { None };
        let data = lie.as_deref().unwrap_or(data);
        self.space(addr, data.len())?
            .write(IoAddr(addr), data)
            .map_err(|_| DmaError { addr, len: data.len() })
    }
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError> {
        self.published.store(addr, Ordering::Relaxed);
        self.write(addr, &word)
    }
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError> {
        self.space(addr, 8)?.fetch_add(IoAddr(addr), add).map_err(|_| DmaError { addr, len: 8 })
    }
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError> {
        self.space(addr, 8)?.compare_swap(IoAddr(addr), compare, swap).map_err(|_| DmaError { addr, len: 8 })
    }
    fn now(&self) -> Instant {
        (self.clock)() + Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
    fn msix_enabled(&self) -> bool {
        true
    }
    fn message(&self, vector: u16) {
        self.interrupts.lock().unwrap().push(vector);
    }
    fn set_intx(&self, _: bool) {}
    fn observe(&self, what: &Observation<'_>) {
        self.observer.observe(what, Instant::ZERO, |addr, buf| self.read(addr, buf).is_ok());
    }
}

/// A machine as the driver sees it.
pub struct Plug(pub Arc<Machine>);

impl Hardware for Plug {
    type Block = Piece;

    fn config(&self, offset: u16) -> u32 {
        if self.0.in_reset() { u32::MAX } else { self.0.config.lock().unwrap()[usize::from(offset) / 4] }
    }
    fn set_config(&self, offset: u16, value: u32) {
        let mut value = value;
        if offset == COMMAND {
            if self.0.stubborn.load(Ordering::Relaxed) {
                value |= BUS_MASTER;
            }
            let bus = &self.0.bus;
            let masters = value & BUS_MASTER != 0;
            if bus.masters.swap(masters, Ordering::Relaxed) && !masters {
                bus.in_use_at_cut_off.store(bus.shared.in_use(), Ordering::Relaxed);
            }
        }
        self.0.config.lock().unwrap()[usize::from(offset) / 4] = value;
    }
    fn register(&self, offset: u32) -> u32 {
        self.0.touch();
        let mut broken = self.0.broken.load(Ordering::Relaxed);
        if offset == SEMAPHORE && self.0.heals.load(Ordering::Relaxed) {
            broken = 0;
        }
        if offset == CONTROL && self.0.deaf.load(Ordering::Relaxed) {
            return GO;
        }
        if broken != 0 || self.0.in_reset() {
            return if broken == 0 { u32::MAX } else { broken };
        }
        let mut word = [0; 4];
        self.0.card.lock().unwrap().read_bar0(offset.into(), &mut word, &self.0.bus);
        u32::from_be_bytes(word)
    }
    fn set_register(&self, offset: u32, value: u32) {
        self.0.touch();
        if (HCR..=CONTROL).contains(&offset) && self.0.deaf.load(Ordering::Relaxed) {
            return;
        }
        if offset == RESET {
            self.0.deaf.store(false, Ordering::Relaxed);
        }
        if offset == RESET && self.0.heals.swap(false, Ordering::Relaxed) {
            self.0.broken.store(0, Ordering::Relaxed);
            self.0.die_at(u64::MAX);
        }
        if !self.0.in_reset() {
            self.0.card.lock().unwrap().write_bar0(offset.into(), &value.to_be_bytes(), &self.0.bus);
        }
    }
    fn doorbells_len(&self) -> u64 {
        self.0.card.lock().unwrap().bar2_len()
    }
    fn doorbell(&self, offset: u64) -> u32 {
        self.0.touch();
        let broken = self.0.broken.load(Ordering::Relaxed);
        if broken != 0 {
            return broken;
        }
        let mut word = [0; 4];
        self.0.card.lock().unwrap().read_bar2(offset, &mut word);
        u32::from_be_bytes(word)
    }
    fn ring(&self, offset: u64, value: u32) {
        self.0.card.lock().unwrap().write_bar2(offset, &value.to_be_bytes(), &self.0.bus);
    }
    fn ring_wide(&self, offset: u64, value: u64) {
        self.0.card.lock().unwrap().write_bar2(offset, &value.to_be_bytes(), &self.0.bus);
    }
    fn combine_writes(&self, _: u64) -> bool {
        true
    }
    fn blue_flame(&self, offset: u64, words: &[u64]) {
        let mut card = self.0.card.lock().unwrap();
        for (n, chunk) in words.chunks(8).enumerate() {
            let bytes: Vec<u8> = chunk.iter().flat_map(|word| word.to_ne_bytes()).collect();
            card.write_bar2(offset + 64 * n as u64, &bytes, &self.0.bus);
        }
    }
    fn allocate(&self, len: u64) -> Option<Piece> {
        Piece::take(&self.0.bus.shared, len)
    }
    fn memory(&self) -> &dyn Memory {
        &*self.0.bus.data
    }
    fn now(&self) -> Instant {
        self.0.bus.now()
    }
    fn wait(&self, time: Duration) {
        self.0.advance(time);
        self.0.card.lock().unwrap().progress(&self.0.bus);
    }
    fn fill_random(&self, buf: &mut [u8]) {
        // The same in each run, and different at each call.
        for byte in buf {
            let n = self.0.bus.waited.fetch_add(1, Ordering::Relaxed) + self.0.bus.data.range().0.0;
            *byte = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        }
    }
}
