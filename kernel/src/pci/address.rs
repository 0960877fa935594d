//! The address of a PCI function.

use core::fmt;
use core::str::FromStr;

/// The address of a function: segment, bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub segment: u16,
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, bus, device, function } = self;
        if *segment != 0 {
            write!(f, "{segment:04x}:")?;
        }
        write!(f, "{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for Address {
    type Err = ();

    /// Parses the format of [`Display`](fmt::Display). The segment may be written even if it is 0.
    fn from_str(text: &str) -> Result<Self, ()> {
        let hex = |text: &str, digits: usize| {
            let right = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            right.then(|| u16::from_str_radix(text, 16).ok()).flatten().ok_or(())
        };
        let (front, function) = text.rsplit_once('.').ok_or(())?;
        let (front, device) = front.rsplit_once(':').ok_or(())?;
        let (segment, bus) = front.rsplit_once(':').unwrap_or(("0000", front));
        let (device, function) = (hex(device, 2)? as u8, hex(function, 1)? as u8);
        if device > 31 || function > 7 {
            return Err(());
        }
        Ok(Self { segment: hex(segment, 4)?, bus: hex(bus, 2)? as u8, device, function })
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
