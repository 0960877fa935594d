//! The parts of ELF files that the image builder reads: the libraries that a program needs, and the
//! information in a kernel module.

use anyhow::{Context, Result};
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSection};

/// Returns the names (`DT_NEEDED`) of the shared libraries to which a program or library is linked; none for
/// a static program.
pub(crate) fn needed_libraries(file: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(file).context("not a 64-bit ELF file")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let Some((entries, link)) = sections.dynamic(endian, file)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, file, link)?;
    entries
        .iter()
        .filter(|entry| entry.tag(endian) == DT_NEEDED)
        .map(|entry| {
            let name = entry.string(endian, strings).context("a library's name is missing")?;
            Ok(std::str::from_utf8(name).context("a library's name is not text")?.to_owned())
        })
        .collect()
}

/// Returns the `key=value` pairs of a kernel module's `.modinfo` section.
pub(crate) fn module_info(file: &[u8]) -> Result<Vec<(String, String)>> {
    let elf = ElfFile64::<Endianness>::parse(file).context("a kernel module is not a 64-bit ELF file")?;
    let section = elf.section_by_name(".modinfo").context("a kernel module has no .modinfo")?;
    Ok(parse_modinfo(section.data().context("a kernel module's .modinfo is cut short")?))
}

fn parse_modinfo(section: &[u8]) -> Vec<(String, String)> {
    section
        .split(|&byte| byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_the_c_library() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needed = needed_libraries(&this).unwrap();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
        assert!(module_info(&this).is_err());
    }

    #[test]
    fn anything_else_is_refused() {
        assert!(needed_libraries(b"#!/bin/sh\n").is_err());
        assert!(needed_libraries(b"\x7fELF\x02\x01").is_err());
    }

    #[test]
    fn modinfo_is_pairs_between_zeros() {
        let pairs = parse_modinfo(b"license=GPL\0\0depends=ib_core,udp_tunnel\0noise\0depends=");
        let expected = [("license", "GPL"), ("depends", "ib_core,udp_tunnel"), ("depends", "")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }
}
