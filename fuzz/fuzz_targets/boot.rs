//! Boot parameters, memory maps and kernels' files of any content.
#![no_main]

use handover::{
    BootParams, Entry, Kernel, Map, PARAMS_LEN, Place, RAM, SetupData, Span, from_efi,
    without_words_of_loaders,
};

/// Searches the memory map that the bytes describe, of up to some 600 entries in any order and with overlaps:
/// a place that is found is RAM by all entries, also by those that do not fit into the map.
fn a_place_is_ram(bytes: &[u8]) {
    let word = |entry: &[u8], at| u64::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
    // Below 8 GiB, in units of 128 KiB.
    let entry = |bytes: &[u8]| {
        let (start, len, kind) = (word(bytes, 0) << 17, word(bytes, 2) << 17, u32::from(bytes[4] & 3));
        Entry::new(start, len, kind)
    };
    let all: Vec<_> = bytes.chunks_exact(5).map(entry).collect();
    let mut map = Map::default();
    all.iter().for_each(|entry| map.push(*entry));
    let taken = all.first().map(|entry| Span::new(entry.start, 1 << 20));
    for (len, align) in [(4 << 10, 4 << 10), (6 << 20, 2 << 20), (40 << 20, 2 << 20)] {
        let place = Place { len, align, from: 1 << 20, below: 1 << 32 };
        let Some(found) = place.find(map.entries(), taken.as_slice()) else { continue };
        assert!(found.start >= 1 << 20 && found.end <= 1 << 32 && found.start.is_multiple_of(align));
        assert!(!taken.is_some_and(|taken| taken.overlaps(&found)));
        let hits = |entry: &&Entry| Span::new(entry.start, entry.len).overlaps(&found);
        assert!(all.iter().filter(hits).all(|entry| entry.kind == RAM));
        // Entries of RAM that adjoin are one in the map, so each page is looked for.
        let is_ram = |at: u64| all.iter().any(|e| e.kind == RAM && e.start <= at && at < e.end());
        assert!((found.start..found.end).step_by(4 << 10).all(is_ram));
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut params = [0; PARAMS_LEN];
    params.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let read = BootParams::new(&params);
    let mut map = Map::default();
    read.read_map(&mut map);
    SetupData::read_map(bytes, &mut map);
    let _ = (read.cmdline(), read.ramdisk(), read.rsdp(), read.efi_system_table(), read.setup_data());
    if let Ok(kernel) = Kernel::parse(bytes)
        && let Some(distance) = kernel.distance(map.entries(), &[])
    {
        let end = kernel.span().end + u64::from(distance);
        assert!(end <= 1 << 32 && distance.is_multiple_of(2 << 20));
    }
    let mut map = Map::default();
    from_efi(bytes, bytes.first().copied().unwrap_or(0).into(), &mut map);
    assert!(map.entries().iter().all(|entry| entry.len > 0));
    without_words_of_loaders(bytes, &mut [0; 64]);
    a_place_is_ram(bytes);
});
