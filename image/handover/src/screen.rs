//! The screen of pixels that firmware or a loader has set up.

use crate::bytes::{u16_at, u32_at};

/// Offsets in the boot parameters of Linux (`struct screen_info`).
mod offset {
    pub(super) const KIND: usize = 0x0f;
    pub(super) const WIDTH: usize = 0x12;
    pub(super) const HEIGHT: usize = 0x14;
    pub(super) const DEPTH: usize = 0x16;
    pub(super) const BASE: usize = 0x18;
    pub(super) const PITCH: usize = 0x24;
    pub(super) const CAPABILITIES: usize = 0x36;
    pub(super) const BASE_HIGH: usize = 0x3a;
}

/// The kinds of screens with a linear buffer: of VESA's BIOS extension, and of EFI.
const LINEAR: [u8; 2] = [0x23, 0x70];
/// The capability that says that the address has 64 bits.
const HAS_HIGH: u32 = 1 << 1;

/// A screen, in the form in which the kernel takes it: the module `framebuffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// The physical address of the first pixel.
    pub address: u64,
    /// The pixels in a line.
    pub width: u32,
    /// The number of lines.
    pub height: u32,
    /// The bytes from one line to the next.
    pub pitch: u32,
    /// The bits of a pixel.
    pub bits: u32,
}

impl Screen {
    /// Reads the description in the boot parameters, if there is a screen of pixels.
    pub(crate) fn of_params(params: &[u8]) -> Option<Self> {
        let kind = params.get(offset::KIND)?;
        let half = |at| u16_at(params, at).map(u32::from);
        let has_high = u32_at(params, offset::CAPABILITIES)? & HAS_HIGH != 0;
        let high = if has_high { u32_at(params, offset::BASE_HIGH)? } else { 0 };
        let screen = Self {
            address: u64::from(u32_at(params, offset::BASE)?) | u64::from(high) << 32,
            width: half(offset::WIDTH)?,
            height: half(offset::HEIGHT)?,
            pitch: half(offset::PITCH)?,
            bits: half(offset::DEPTH)?,
        };
        (LINEAR.iter().any(|linear| linear == kind) && screen.is_usable()).then_some(screen)
    }

    /// Returns true if the description is one of a screen.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        self.address != 0 && self.width != 0 && self.height != 0 && self.pitch != 0 && self.bits != 0
    }
}
