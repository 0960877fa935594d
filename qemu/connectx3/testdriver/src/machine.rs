//! The memory and interrupts of a machine, in which a test's card is plugged.

use connectx3::device::{DmaError, Host};
use platform::Instant;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The memory and interrupts of a machine without processor.
pub struct Machine {
    ram: Mutex<Vec<u8>>,
    now_ns: AtomicU64,
    accesses: AtomicU64,
    /// The raised MSI-X vectors, in order.
    pub interrupts: Mutex<Vec<u16>>,
    /// The level of INTx, which is used without MSI-X.
    pub intx: AtomicBool,
    pub msix: AtomicBool,
}

impl Machine {
    pub fn new(bytes: usize) -> Self {
        Self {
            ram: Mutex::new(vec![0; bytes]),
            now_ns: AtomicU64::new(1),
            accesses: AtomicU64::new(0),
            interrupts: Mutex::new(Vec::new()),
            intx: AtomicBool::new(false),
            msix: AtomicBool::new(true),
        }
    }

    /// Returns the number of the card's memory accesses and interrupts.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.accesses.fetch_add(1, Ordering::Relaxed);
    }

    pub fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn with<T>(&self, addr: u64, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> Result<T, DmaError> {
        let error = DmaError { addr, len };
        let start = usize::try_from(addr).map_err(|_| error)?;
        let end = start.checked_add(len).ok_or(error)?;
        let mut ram = self.ram.lock().unwrap();
        ram.get_mut(start..end).map(f).ok_or(error)
    }

    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        self.with(addr, len, |bytes| bytes.to_vec()).unwrap()
    }

    pub fn put(&self, addr: u64, data: &[u8]) {
        self.with(addr, data.len(), |bytes| bytes.copy_from_slice(data)).unwrap();
    }

    pub fn be32(&self, addr: u64) -> u32 {
        u32::from_be_bytes(self.bytes(addr, 4).try_into().unwrap())
    }

    /// Returns the length of memory in bytes.
    pub fn len(&self) -> usize {
        self.ram.lock().unwrap().len()
    }

    /// Calls `f` with all memory.
    pub fn look<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        f(&self.ram.lock().unwrap())
    }

    /// Returns a copy of all memory, for comparison.
    pub fn snapshot(&self) -> Vec<u8> {
        self.ram.lock().unwrap().clone()
    }
}

impl Host for Machine {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.count();
        self.with(addr, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.count();
        self.with(addr, data.len(), |bytes| bytes.copy_from_slice(data))
    }
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError> {
        self.write(addr, &word)
    }
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError> {
        self.count();
        self.with(addr, 8, |bytes| {
            let before = u64::from_ne_bytes(bytes.try_into().unwrap());
            bytes.copy_from_slice(&before.wrapping_add(add).to_ne_bytes());
            before
        })
    }
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError> {
        self.count();
        self.with(addr, 8, |bytes| {
            let before = u64::from_ne_bytes(bytes.try_into().unwrap());
            if before == compare {
                bytes.copy_from_slice(&swap.to_ne_bytes());
            }
            before
        })
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }
    fn msix_enabled(&self) -> bool {
        self.msix.load(Ordering::Relaxed)
    }
    fn message(&self, vector: u16) {
        self.count();
        self.interrupts.lock().unwrap().push(vector);
    }
    fn set_intx(&self, asserted: bool) {
        self.intx.store(asserted, Ordering::Relaxed);
    }
}
