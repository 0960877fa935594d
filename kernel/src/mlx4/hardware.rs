//! The machine, in the form that the driver of a ConnectX-3 requires.

use core::time::Duration;
use mlx4::{Block, Hardware};
use platform::{Instant, IoAddr, Memory};

use crate::mm::dma::Dma;
use crate::mm::memory::LentMemory;
use crate::pci::{BarError, Function, Window};
use crate::{random, time};

/// The BARs of a ConnectX-3: registers and doorbells.
const REGISTERS: usize = 0;
const DOORBELLS: usize = 2;

/// A card on the PCI bus.
pub(crate) struct PciCard {
    function: Function,
    /// The registers. A virtual function has none.
    registers: Option<Window>,
    doorbells: Window,
}

impl PciCard {
    /// Maps a card's windows and lets the card access memory.
    pub(crate) fn new(function: Function) -> Result<Self, BarError> {
        let registers = match Window::map(&function, REGISTERS) {
            Err(BarError::Absent) => None,
            other => Some(other?),
        };
        let doorbells = Window::map(&function, DOORBELLS)?;
        function.enable();
        Ok(Self { function, registers, doorbells })
    }
}

impl Hardware for PciCard {
    type Block = Dma;

    fn config(&self, offset: u16) -> u32 {
        self.function.read(offset)
    }

    fn set_config(&self, offset: u16, value: u32) {
        self.function.write(offset, value);
    }

    fn register(&self, offset: u32) -> u32 {
        self.registers.as_ref().map_or(u32::MAX, |registers| registers.read32(offset.into()))
    }

    fn set_register(&self, offset: u32, value: u32) {
        if let Some(registers) = &self.registers {
            registers.write32(offset.into(), value);
        }
    }

    fn doorbells_len(&self) -> u64 {
        self.doorbells.len()
    }

    fn doorbell(&self, offset: u64) -> u32 {
        self.doorbells.read32(offset)
    }

    fn ring(&self, offset: u64, value: u32) {
        self.doorbells.write32(offset, value);
    }

    fn ring_wide(&self, offset: u64, value: u64) {
        self.doorbells.write64(offset, value);
    }

    fn combine_writes(&self, offset: u64) -> bool {
        self.doorbells.combine_from(offset).inspect_err(|why| log::warn!("no BlueFlame: {why}")).is_ok()
    }

    fn blue_flame(&self, offset: u64, words: &[u64]) {
        self.doorbells.copy(offset, words);
    }

    fn allocate(&self, len: u64) -> Option<Dma> {
        Dma::zeroed(len)
    }

    fn memory(&self) -> &dyn Memory {
        &LentMemory
    }

    fn now(&self) -> Instant {
        time::now()
    }

    fn wait(&self, time: Duration) {
        time::spin_for(time);
    }

    fn fill_random(&self, buf: &mut [u8]) {
        random::fill(buf);
    }
}

impl Block for Dma {
    fn addr(&self) -> IoAddr {
        IoAddr(Self::addr(self).as_u64())
    }
}
