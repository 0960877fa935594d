//! Function names and source lines for the addresses of a kernel's backtrace.

use addr2line::Loader;
use anyhow::{Result, anyhow};
use std::path::Path;

/// The text before the addresses on a console line.
const MARK: &str = "backtrace:";

/// The symbols and line tables of an unstripped kernel.
pub struct Symbols {
    loader: Loader,
}

impl Symbols {
    /// Reads the symbols from the ELF file.
    pub fn load(elf: &Path) -> Result<Self> {
        let loader =
            Loader::new(elf).map_err(|e| anyhow!("cannot read symbols of {}: {e}", elf.display()))?;
        Ok(Self { loader })
    }

    /// Returns one line per frame for each address after `backtrace:` on a console line, innermost first;
    /// none if the line is not part of a backtrace.
    #[must_use]
    pub(crate) fn annotate(&self, line: &str) -> Vec<String> {
        addresses(line).flat_map(|address| self.frames(address)).collect()
    }

    /// Returns the functions that contain an address: the inlined ones, then the outer one. The address is a
    /// return address, so the call is just before it.
    fn frames(&self, address: u64) -> Vec<String> {
        let call = address.saturating_sub(1);
        let mut names = Vec::new();
        if let Ok(mut frames) = self.loader.find_frames(call) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|f| f.demangle().ok().map(|n| n.into_owned()));
                let place = frame.location.and_then(|l| Some(format!("{}:{}", l.file?, l.line?)));
                names.extend(name.map(|name| match place {
                    Some(place) => format!("{address:#x} {name} at {place}"),
                    None => format!("{address:#x} {name}"),
                }));
            }
        }
        if names.is_empty() {
            let symbol = self.loader.find_symbol(call).unwrap_or("?");
            names.push(format!("{address:#x} {}", rustc_demangle::demangle(symbol)));
        }
        names
    }
}

/// Returns the hexadecimal numbers after the mark.
fn addresses(line: &str) -> impl Iterator<Item = u64> {
    let after = line.split_once(MARK).map_or("", |(_, after)| after);
    after.split_whitespace().filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_addresses_only_after_the_mark() {
        assert_eq!(
            addresses("[0.1] panic backtrace: 0x100f 0xffff800000001000 x").collect::<Vec<_>>(),
            [0x100f, 0xffff_8000_0000_1000]
        );
        assert_eq!(addresses("at 0x100").count(), 0);
    }

    #[test]
    fn names_a_function_of_this_program() {
        let symbols = Symbols::load(&std::env::current_exe().unwrap()).unwrap();
        // The function's address in the file, without the offset at which this run was loaded.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let loaded = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let address = names_a_function_of_this_program as *const () as u64 - loaded + 1;
        let lines = symbols.annotate(&format!("backtrace: {address:#x}"));
        let last = lines.last().unwrap();
        assert!(
            last.contains("names_a_function_of_this_program at") && last.contains("symbols.rs:"),
            "{last}"
        );
    }
}
