//! A PCI function as sysfs shows it.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;

/// Offsets, bits and ids of the configuration space.
pub(super) const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u16 = 1 << 4;
pub(super) const CAPABILITIES: usize = 0x34;
pub(super) const PCI_EXPRESS: u8 = 0x10;
pub(super) const MSIX: u8 = 0x11;
/// The most capabilities that are followed, so that the walk along a list that is a circle ends.
const MOST_CAPABILITIES: usize = 48;

/// Returns a PCI address with its domain.
pub(super) fn address(text: &str) -> Result<String> {
    let hex =
        |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split(':').collect();
    let (domain, bus, rest) = match parts[..] {
        [bus, rest] => ("0000", bus, rest),
        [domain, bus, rest] => (domain, bus, rest),
        _ => ("", "", ""),
    };
    let good = rest.split_once('.').is_some_and(|(device, function)| {
        hex(device, 2)
            && u8::from_str_radix(device, 16).is_ok_and(|device| device < 32)
            && function.len() == 1
            && function.bytes().all(|byte| (b'0'..=b'7').contains(&byte))
    });
    ensure!(
        hex(domain, 4) && hex(bus, 2) && good,
        "--pci {text}: want [DOMAIN:]BUS:DEVICE.FUNCTION, as in 0000:03:00.0"
    );
    Ok(format!("{domain}:{bus}:{rest}").to_lowercase())
}

/// A PCI function in sysfs.
pub(super) struct Function {
    pub(super) dir: PathBuf,
    pub(super) address: String,
}

impl Function {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok().map(|text| text.trim().to_owned())
    }

    pub(super) fn number(&self, name: &str) -> Result<u16> {
        let text = self.text(name).with_context(|| format!("{}: sysfs has no `{name}`", self.address))?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16)
            .with_context(|| format!("{}: `{name}` is `{text}`", self.address))
    }

    /// Returns the last component of a symbolic link's target.
    pub(super) fn link(&self, name: &str) -> Option<String> {
        Some(fs::read_link(self.dir.join(name)).ok()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the names in a directory, sorted.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the bytes of a memory window; 0 if it is absent.
    pub(super) fn window(&self, bar: usize) -> u64 {
        let all = self.text("resource").unwrap_or_default();
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let sized = || {
            let mut words = all.lines().nth(bar)?.split_whitespace();
            let (start, end) = (number(words.next()?)?, number(words.next()?)?);
            (start != 0).then(|| end.checked_sub(start)?.checked_add(1))?
        };
        sized().unwrap_or(0)
    }
}

/// Returns the bytes at a capability of the configuration space. Only root sees more than its first 64 bytes.
pub(super) fn capability(config: &[u8], id: u8) -> Option<&[u8]> {
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    if word(STATUS)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = usize::from(*config.get(CAPABILITIES)?);
    for _ in 0..MOST_CAPABILITIES {
        let here = config.get(at & !3..).filter(|_| at >= 0x40)?;
        match here {
            [found, _, ..] if *found == id => return Some(here),
            [_, next, ..] => at = usize::from(*next),
            _ => return None,
        }
    }
    None
}
