//! The PCI function: configuration space, and the card behind its BARs.

use crate::device::{BAR0_LEN, Card, Function as Presence, Host};
use crate::vfio::{Client, Function, Region, RegionIndex, VECTORS};

/// The length of the configuration space, in bytes.
const CONFIG_LEN: u64 = 4096;
const VENDOR: u16 = 0x15b3;
/// Offsets of capabilities. The dwords at 0x58 and 0x5c are the card's window to its flash: drivers leave
/// them alone.
const CAP_PM: usize = 0x40;
const CAP_PCIE: usize = 0x60;
const CAP_MSIX: usize = 0x9c;
/// Offset of the upper byte of the PCI Express capability's device control register, and its bit that resets
/// the function.
const DEVICE_CONTROL_HIGH: u64 = 0x09;
const FUNCTION_LEVEL_RESET: u8 = 0x80;
/// MSI-X table and pending bits: the offset and, in the low bits, the BAR. In a physical function both are in
/// an unused part of BAR 0. In a virtual function they are in pages of BAR 2 whose doorbells belong to none
/// of its event queues.
const MSIX_PHYSICAL: [u32; 2] = [0x7c000, 0x7d000];
const MSIX_VIRTUAL: [u32; 2] = [0x2002, 0x3002];

/// A card as a PCI function.
pub struct PciCard {
    card: Card,
    config: Box<[u8; CONFIG_LEN as usize]>,
    writable: Box<[u8; CONFIG_LEN as usize]>,
}

impl PciCard {
    /// Creates the PCI function of a card.
    #[must_use]
    pub fn new(card: Card) -> Self {
        let mut config = Box::new([0; CONFIG_LEN as usize]);
        let mut writable = Box::new([0; CONFIG_LEN as usize]);
        let mut put = |at: usize, data: &[u8], mask: &[u8]| {
            config[at..at + data.len()].copy_from_slice(data);
            writable[at..at + mask.len()].copy_from_slice(mask);
        };
        const NETWORK_CONTROLLER: [u8; 4] = [0, 0, 0x80, 0x02];
        put(0x00, &VENDOR.to_le_bytes(), &[]);
        put(0x02, &card.profile().device_id.to_le_bytes(), &[]);
        put(0x04, &[0, 0, 0x10, 0], &[0x47, 0x05]);
        put(0x08, &NETWORK_CONTROLLER, &[]);
        put(0x0c, &[0x10], &[0xff]);
        let physical = card.profile().function == Presence::Physical;
        // Both are 64-bit memory; the second is prefetchable. QEMU learns the lengths from the regions.
        if physical {
            put(0x10, &[0x04], &[0, 0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff]);
        }
        put(0x18, &[0x0c], &card.bar2_len().wrapping_neg().to_le_bytes());
        put(0x2c, &VENDOR.to_le_bytes(), &[]);
        put(0x2e, &[0x50, 0x00], &[]);
        put(0x34, &[CAP_PM as u8], &[]);
        // A virtual function has no INTx.
        put(0x3c, &[0, u8::from(physical)], &[0xff]);
        put(CAP_PM, &[0x01, CAP_PCIE as u8, 0x03, 0x00, 0x08], &[0, 0, 0, 0, 0x03]);
        // PCI Express endpoint, version 2: 256-byte payloads, 8 lanes at 8 GT/s.
        put(CAP_PCIE, &[0x10, CAP_MSIX as u8, 0x02, 0x00, 0x01, 0x80, 0x00, 0x10], &[]);
        put(CAP_PCIE + 0x08, &[0x30, 0x20], &[0xff, 0x7f]);
        put(CAP_PCIE + 0x0c, &[0x83, 0x04], &[]);
        put(CAP_PCIE + 0x10, &[0x00, 0x00, 0x83, 0x00], &[0xff, 0x0f]);
        put(CAP_PCIE + 0x2c, &[0x0e], &[]);
        put(CAP_MSIX, &[0x11, 0x00], &[]);
        put(CAP_MSIX + 2, &(VECTORS as u16 - 1).to_le_bytes(), &[0x00, 0xc0]);
        let [table, pending] = if physical { MSIX_PHYSICAL } else { MSIX_VIRTUAL };
        put(CAP_MSIX + 4, &table.to_le_bytes(), &[]);
        put(CAP_MSIX + 8, &pending.to_le_bytes(), &[]);
        Self { card, config, writable }
    }

    /// Returns the card.
    pub const fn card(&mut self) -> &mut Card {
        &mut self.card
    }
}

impl Function for PciCard {
    fn region(&self, index: RegionIndex) -> Region {
        let len = match index {
            RegionIndex::Bar(0) if self.card.profile().function == Presence::Physical => BAR0_LEN,
            RegionIndex::Bar(2) => self.card.bar2_len(),
            RegionIndex::Config => CONFIG_LEN,
            RegionIndex::Bar(_) => 0,
        };
        Region { len }
    }

    fn read(&mut self, index: RegionIndex, offset: u64, buf: &mut [u8], client: &Client) {
        if self.card.in_reset(client.now()) {
            buf.fill(0xff);
            return;
        }
        match index {
            RegionIndex::Config => {
                if let Some(from) = self.config.get(offset as usize..offset as usize + buf.len()) {
                    buf.copy_from_slice(from);
                }
            }
            RegionIndex::Bar(0) => self.card.read_bar0(offset, buf, client),
            RegionIndex::Bar(2) => self.card.read_bar2(offset, buf),
            RegionIndex::Bar(_) => {}
        }
    }

    fn write(&mut self, index: RegionIndex, offset: u64, data: &[u8], client: &Client) {
        if self.card.in_reset(client.now()) {
            return;
        }
        match index {
            RegionIndex::Config => {
                let places = self.config.iter_mut().zip(self.writable.iter()).skip(offset as usize);
                for ((place, mask), byte) in places.zip(data) {
                    *place = *place & !mask | byte & mask;
                }
                let at = (CAP_PCIE as u64 + DEVICE_CONTROL_HIGH).checked_sub(offset);
                let control = at.and_then(|at| data.get(usize::try_from(at).ok()?));
                if control.is_some_and(|byte| byte & FUNCTION_LEVEL_RESET != 0) {
                    self.card.reset(client);
                }
            }
            RegionIndex::Bar(0) => self.card.write_bar0(offset, data, client),
            RegionIndex::Bar(2) => self.card.write_bar2(offset, data, client),
            RegionIndex::Bar(_) => {}
        }
    }

    fn reset(&mut self, client: &Client) {
        self.card.reset(client);
    }
}
