//! QEMU's ramfb: a screen of pixels in RAM, which tests compare with the font.

use alloc::vec::Vec;

use crate::boot::{Framebuffer, fw_cfg};
use crate::mm::{self, frames};

const WIDTH: u32 = 800;
const HEIGHT: u32 = 600;
/// The format "XR24" of DRM: 32 bits, blue lowest.
const FORMAT: u32 = u32::from_le_bytes(*b"XR24");

/// Makes QEMU show a screen. Returns `None` without the device.
pub(super) fn start() -> Option<Framebuffer> {
    let pitch = WIDTH * 4;
    let address = frames::alloc_zeroed(u64::from(pitch * HEIGHT))?.as_u64();
    let mut config: Vec<u8> = address.to_be_bytes().into();
    for word in [FORMAT, 0, WIDTH, HEIGHT, pitch] {
        config.extend_from_slice(&word.to_be_bytes());
    }
    let access = frames::alloc_zeroed(mm::PAGE)?;
    fw_cfg::write("etc/ramfb", &config, mm::phys_to_virt(access), access).then_some(())?;
    Some(Framebuffer { address, width: WIDTH, height: HEIGHT, pitch, bits: 32 })
}
