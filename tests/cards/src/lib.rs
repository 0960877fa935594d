//! A card in a machine, both in this process: the emulated card over plain memory, and what its driver needs of a machine.
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

/// The driver as tests have it.
pub type Driver = Mlx4<Plug, spin::Mutex<()>>;

/// Where memory for data begins, and before it that for driver and card.
pub const DATA: u64 = 0x1_0000_0000;
/// Where memory that driver and card share begins, the card's tables among it.
pub const SHARED: u64 = 0x1000_0000;
/// Where a page of registers of another device begins, which any device can address.
pub const REGISTERS: u64 = 0xfee0_0000;
const REGISTERS_LEN: u64 = 4096;
const SHARED_LEN: u64 = 16 << 20;

/// What the card sees of its machine.
pub struct Bus {
    pub data: Arc<Arena>,
    pub shared: Arc<Pool>,
    /// Registers of another device, as words that keep what is written.
    pub registers: Arc<Pool>,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    /// Time that only this machine has passed, by waiting.
    waited: AtomicU64,
    pub interrupts: Mutex<Vec<u16>>,
    /// How often the card has written to memory.
    pub writes: AtomicU64,
    /// While not 0, it lies in what commands give back, as this number decides.
    pub lies: AtomicU64,
    /// Whether the card reaches memory: it is a bus master.
    masters: AtomicBool,
    /// Where it last wrote the end of an entry of a queue.
    pub published: AtomicU64,
    observer: Observer,
}

/// A machine with a card.
pub struct Machine {
    pub bus: Bus,
    pub card: Mutex<Card>,
    config: Mutex<[u32; 64]>,
    /// From then on BAR 0 reads so, if it is not 0.
    pub broken: AtomicU32,
    /// A reset heals it.
    heals: AtomicBool,
    /// It takes no commands: one that is given does not end, and nothing comes of it.
    pub deaf: AtomicBool,
    /// It goes on as a bus master, whatever its command register is told.
    pub stubborn: AtomicBool,
    /// Accesses of registers after which the card is gone.
    accesses_left: AtomicU64,
    pub record: Arc<Mutex<Record>>,
}

impl Machine {
    /// A machine at time zero.
    pub fn new(profile: Profile, data: Arc<Arena>) -> Arc<Self> {
        Self::with_clock(profile, data, Box::new(|| Instant::ZERO))
    }

    /// A machine with a clock of one's own.
    pub fn with_clock(
        profile: Profile,
        data: Arc<Arena>,
        clock: Box<dyn Fn() -> Instant + Send + Sync>,
    ) -> Arc<Self> {
        const VENDOR: u32 = 0x15b3;
        let mut config = [0; 64];
        config[0] = u32::from(profile.device_id) << 16 | VENDOR;
        // Memory and bus mastering are on; the list of capabilities has one, PCI Express.
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

    /// Lets time pass here.
    pub fn advance(&self, time: Duration) {
        self.bus.waited.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Time that only this machine has passed.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.bus.waited.load(Ordering::Relaxed))
    }

    /// Starts a driver.
    pub fn start(self: &Arc<Self>, config: &Config) -> Result<Driver, mlx4::Error> {
        Mlx4::start(self.plug(), config)
    }

    /// The card is gone at that many accesses of its registers from now on.
    pub fn die_at(&self, accesses: u64) {
        self.accesses_left.store(accesses, Ordering::Relaxed);
    }

    /// From now on registers read so, until the card is reset.
    pub fn fail_until_reset(&self, registers: u32) {
        self.heals.store(true, Ordering::Relaxed);
        self.broken.store(registers, Ordering::Relaxed);
    }

    /// Counts an access of a register.
    fn touch(&self) {
        let left = self.accesses_left.load(Ordering::Relaxed).saturating_sub(1);
        self.accesses_left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.broken.store(u32::MAX, Ordering::Relaxed);
        }
    }

    /// The machine as a driver has it.
    pub fn plug(self: &Arc<Self>) -> Plug {
        Plug(self.clone())
    }

    fn in_reset(&self) -> bool {
        self.card.lock().unwrap().in_reset(self.bus.now())
    }
}

/// The registers that are not 0 while the flash is worked on, and that reset.
const SEMAPHORE: u32 = 0xf03fc;
const RESET: u32 = 0xf0010;
/// The registers of commands, the last of which begins one, and says that it has not ended.
const HCR: u32 = 0x80680;
const CONTROL: u32 = HCR + 0x18;
const GO: u32 = 1 << 23;
/// Of the configuration space: the command register, and its bit of a bus master.
const COMMAND: u16 = 4;
const BUS_MASTER: u32 = 1 << 2;
/// Lengths, in bytes, of what commands write to their output mailboxes: most of them, and those that fill a page.
const OUTPUTS: [usize; 2] = [1024, 4096];

impl Bus {
    /// The time here.
    pub fn clock(&self) -> Instant {
        Host::now(self)
    }

    /// What a card says, some words of it changed.
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

/// A machine as the driver has it.
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
            self.0.bus.masters.store(value & BUS_MASTER != 0, Ordering::Relaxed);
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
        // The same in each run, and different each time.
        for byte in buf {
            let n = self.0.bus.waited.fetch_add(1, Ordering::Relaxed) + self.0.bus.data.range().0.0;
            *byte = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        }
    }
}
