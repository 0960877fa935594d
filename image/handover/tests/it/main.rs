//! Formats of loaders, and the search for free memory.

mod support;

use handover::{
    BootParams, ElfError, Entry, Kernel, Map, PARAMS_LEN, Place, RAM, RESERVED, Screen, SetupData, Span,
    Tables, from_efi, name_of_loader, value_of_loader, without_words_of_loaders,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{Elf, kernel};

fn filtered(line: &str) -> String {
    let mut into = [0; 64];
    let len = without_words_of_loaders(line.as_bytes(), &mut into);
    String::from_utf8(into[..len].to_vec()).expect("the line is text")
}

#[test]
fn words_of_loaders_are_left_out() {
    assert_eq!(filtered("BOOT_IMAGE=/boot/f node=a  initrd=x\0junk"), "node=a");
    assert_eq!(filtered("\\EFI\\BOOT\\BOOTX64.EFI manager=10.0.0.1:1 node=b"), "manager=10.0.0.1:1 node=b");
    // The kernel reports a word that is no pair.
    assert_eq!(filtered("node=a quiet"), "node=a quiet");
    assert_eq!(filtered(""), "");
    assert_eq!(filtered(&"a=b ".repeat(40)).len(), 64, "cut at the length of the copy");
}

#[test]
fn the_value_of_a_word_of_loaders_is_found() {
    assert_eq!(value_of_loader(b"ferrolite.efi initrd=a/key initrd=b x=y", b"initrd"), Some(&b"a/key"[..]));
    assert_eq!(value_of_loader(b"xinitrd=a\0initrd=b", b"initrd"), None);
    assert_eq!(
        [0x72, 0xb0, 0xd0, 0x30, 0xff].map(name_of_loader),
        ["GRUB", "QEMU", "kexec", "Syslinux", "an unregistered loader"]
    );
}

#[test]
fn the_stubs_own_fields_of_boot_parameters_are_kept() {
    let mut params = [0; PARAMS_LEN];
    assert_eq!((BootParams::new(&params).setup_data(), BootParams::new(&params).entry()), (None, None));
    BootParams::set_setup_data(&mut params, 0x1234_0000);
    BootParams::set_entry(&mut params, 64);
    let read = BootParams::new(&params);
    assert_eq!((read.setup_data(), read.entry()), (Some(0x1234_0000), Some(64)));
    BootParams::set_entry(&mut params, 3);
    assert_eq!(BootParams::new(&params).entry(), None, "no width of an entry");
}

#[test]
fn the_screen_of_boot_parameters_is_read() {
    let mut params = [0; PARAMS_LEN];
    assert_eq!(BootParams::new(&params).screen(), None);
    params[0x0f] = 0x70;
    params[0x12..0x18].copy_from_slice(&[0, 5, 0x20, 3, 32, 0]);
    params[0x18..0x1c].copy_from_slice(&0x8000_0000_u32.to_le_bytes());
    params[0x24..0x26].copy_from_slice(&5120_u16.to_le_bytes());
    let screen = Screen { address: 0x8000_0000, width: 1280, height: 800, pitch: 5120, bits: 32 };
    assert_eq!(BootParams::new(&params).screen(), Some(screen));
    params[0x36] = 2;
    params[0x3a] = 1;
    assert_eq!(BootParams::new(&params).screen().map(|s| s.address), Some(0x1_8000_0000));
    params[0x0f] = 1;
    assert_eq!(BootParams::new(&params).screen(), None, "a screen of text");
}

#[test]
fn a_map_with_more_than_128_entries_continues_in_setup_data() {
    // Every other MiB is RAM, so that no entries are merged.
    let entry = |index: u64| {
        [(index << 21).to_le_bytes().as_slice(), &(1_u64 << 20).to_le_bytes(), &RAM.to_le_bytes()].concat()
    };
    let entries: Vec<_> = (0..300).map(entry).collect();
    let mut params = [0; PARAMS_LEN];
    params[0x1e8] = 128;
    params[0x2d0..0x2d0 + 128 * 20].copy_from_slice(&entries[..128].concat());
    let further = entries[128..].concat();
    let header = SetupData::read(&SetupData::further_entries(further.len() as u32));
    assert!(header.has_entries() && header.next == 0 && header.len as usize == further.len());
    let mut map = Map::default();
    BootParams::new(&params).read_map(&mut map);
    assert_eq!(map.entries().len(), 128);
    SetupData::read_map(&further, &mut map);
    assert_eq!(map.entries().len(), 300);
    assert_eq!(map.entries()[299], Entry::new(299 << 21, 1 << 20, RAM));
}

#[test]
fn a_full_map_takes_memory_that_is_no_ram() {
    let mut map = Map::default();
    // Every other MiB is RAM, so that no entries are merged.
    (0..512).for_each(|n| map.push(Entry::new(n << 21, 1 << 20, RAM)));
    map.push(Entry::new(600 << 21, 1 << 20, RAM));
    assert_eq!((map.dropped(), map.entries().len()), (1, 512));
    map.push(Entry::new(510 << 21, 1 << 20, RESERVED));
    let place = Place { len: 1 << 20, align: 1 << 20, from: 0, below: 1 << 32 };
    let found = place.find(map.entries(), &[]).map(|span| span.start);
    assert_eq!((found, map.dropped()), (Some(509 << 21), 2), "510 is reserved, and 511 is forgotten");
}

#[test]
fn a_kernel_is_put_where_it_is_linked_for_or_to_the_highest_free_place() {
    let file = kernel();
    let kernel = Kernel::parse(&file).unwrap();
    let all = [Entry::new(0, 64 << 20, RAM)];
    assert_eq!(kernel.distance(&all, &[]), Some(0));
    // The boot file lies there: the highest free multiple of 2 MiB is taken.
    assert_eq!(kernel.distance(&all, &[Span::new(1 << 20, 3 << 20)]), Some((62 - 2) << 20));
    let reserved = [all[0], Entry::new(0x20_0000, 0x1000, RESERVED)];
    assert_eq!(kernel.distance(&reserved, &[]), Some((62 - 2) << 20));
    assert_eq!(kernel.distance(&[Entry::new(0, 2 << 20, RAM)], &[]), None);
    assert_eq!(kernel.distance(&[Entry::new(1 << 32, 1 << 30, RAM)], &[]), None, "above 4 GiB");
}

#[test]
fn page_tables_of_a_loader_are_found_where_something_else_would_go() {
    // The top level at 1 MiB, and below it: a table of the third level at 3 MiB, of the second at 5 MiB, of
    // the first at 7 MiB, whose entries are pages.
    const MIB: u64 = 1 << 20;
    let words = BTreeMap::from([
        (MIB + 8, (3 * MIB) | 0x63),
        (3 * MIB, (5 * MIB) | 3),
        (3 * MIB + 8, (9 * MIB) | 0x83),
        (3 * MIB + 16, 11 * MIB),
        (5 * MIB + 4088, (7 * MIB) | (1 << 63) | 3),
        (7 * MIB, (13 * MIB) | 3),
    ]);
    let within = |levels, at: u64| {
        let tables = Tables { root: MIB | 0x18, levels };
        tables.within(&Span::new(at, 2 * MIB), |at| words.get(&at).copied().unwrap_or(0))
    };
    for at in [1, 3, 5, 7] {
        assert_eq!(within(4, at * MIB - MIB / 2), Some(Span::new(at * MIB, 4096)), "{at} MiB");
    }
    // A large page, an absent table, a page.
    for at in [9, 11, 13] {
        assert_eq!(within(4, at * MIB - MIB / 2), None, "{at} MiB");
    }
    // With five levels the page is a table.
    assert_eq!(within(5, 13 * MIB), Some(Span::new(13 * MIB, 4096)));
}

#[test]
fn boot_parameters_are_read() {
    let mut params = [0; PARAMS_LEN];
    params[0x1e8] = 2;
    for (index, (start, len, kind)) in
        [(0_u64, 0x9fc00_u64, RAM), (0x10_0000, 0x700_0000, RAM)].iter().enumerate()
    {
        let at = 0x2d0 + 20 * index;
        params[at..at + 8].copy_from_slice(&start.to_le_bytes());
        params[at + 8..at + 16].copy_from_slice(&len.to_le_bytes());
        params[at + 16..at + 20].copy_from_slice(&kind.to_le_bytes());
    }
    params[0x228..0x22c].copy_from_slice(&0x9_0000_u32.to_le_bytes());
    params[0x218..0x21c].copy_from_slice(&0x700_0000_u32.to_le_bytes());
    params[0x21c..0x220].copy_from_slice(&64_u32.to_le_bytes());
    params[0xc0] = 1;
    let read = BootParams::new(&params);
    let mut map = Map::default();
    read.read_map(&mut map);
    assert_eq!(map.entries(), [Entry::new(0, 0x9fc00, RAM), Entry::new(0x10_0000, 0x700_0000, RAM)]);
    assert_eq!((read.cmdline(), read.ramdisk()), (Some(0x9_0000), Some((0x1_0700_0000, 64))));
    assert_eq!((read.rsdp(), read.efi_system_table()), (None, None));
    let mut moved = params;
    BootParams::set_cmdline(&mut moved, 0x1234_5000);
    assert_eq!(BootParams::new(&moved).cmdline(), Some(0x1234_5000));
}

#[test]
fn adjoining_memory_of_efi_is_merged_and_what_has_a_purpose_stays_reserved() {
    let descriptor = |kind: u32, start: u64, pages: u64, attributes: u64| {
        let mut bytes = vec![0; 48];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&start.to_le_bytes());
        bytes[24..32].copy_from_slice(&pages.to_le_bytes());
        bytes[32..40].copy_from_slice(&attributes.to_le_bytes());
        bytes
    };
    let all = [
        descriptor(7, 0, 16, 0),
        descriptor(4, 0x1_0000, 16, 0),
        descriptor(2, 0x2_0000, 16, 0),
        descriptor(7, 0x3_0000, 16, 1 << 18),
        descriptor(9, 0x4_0000, 1, 0),
        descriptor(15, 0x5_0000, 1, 0),
    ];
    let mut map = Map::default();
    from_efi(&all.concat(), 48, &mut map);
    let expected = [
        Entry::new(0, 0x3_0000, RAM),
        Entry::new(0x3_0000, 0x1_0000, RESERVED),
        Entry::new(0x4_0000, 0x1000, 3),
        Entry::new(0x5_0000, 0x1000, RESERVED),
    ];
    assert_eq!(map.entries(), expected);
}

#[test]
fn a_kernel_is_read_and_others_are_refused() {
    let file = kernel();
    let kernel = Kernel::parse(&file).unwrap();
    assert_eq!((kernel.span(), kernel.entry()), (Span { start: 0x20_0000, end: 0x20_3000 }, 0x20_0010));
    let segments: Vec<_> = kernel.segments().map(|s| (s.at, s.bytes.len(), s.zeros)).collect();
    assert_eq!(segments, [(0x20_0000, 64, 0), (0x20_1000, 32, 0x1fe0)]);
    assert_eq!(Kernel::parse(b"#!/bin/sh").unwrap_err(), ElfError::NotElf);
    assert_eq!(Kernel::parse(&file[..file.len() / 2]).unwrap_err(), ElfError::NotElf);
    assert_eq!(Kernel::parse(&Elf::default().bytes()).unwrap_err(), ElfError::NoSegment);
}

proptest! {
    /// Any boot parameters and any further entries are read, and the kernel is put into RAM that is free, or
    /// nowhere.
    #[test]
    fn any_boot_parameters_harm_nothing(
        seed in prop::collection::vec(any::<u8>(), PARAMS_LEN),
        count: u8,
        further in prop::collection::vec(any::<u8>(), 0..400),
        taken in prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
    ) {
        let mut params: [u8; PARAMS_LEN] = seed.try_into().expect("the length is that of boot parameters");
        params[0x1e8] = count;
        // Entries in the first 8 GiB, of which every other one is RAM: random ones would hardly ever fit.
        for (index, entry) in params[0x2d0..0x2d0 + 128 * 20].chunks_exact_mut(20).enumerate() {
            entry[5..8].fill(0);
            entry[4] &= 1;
            entry[12..16].fill(0);
            entry[16..20].copy_from_slice(&(1 + index as u32 % 2).to_le_bytes());
        }
        let read = BootParams::new(&params);
        let mut map = Map::default();
        read.read_map(&mut map);
        SetupData::read_map(&further, &mut map);
        let _ = (read.cmdline(), read.ramdisk(), read.rsdp(), read.efi_system_table(), read.loader());
        let taken: Vec<_> = taken.iter().map(|(at, len)| Span::new(u64::from(*at), u64::from(*len))).collect();
        let file = kernel();
        let kernel = Kernel::parse(&file).unwrap();
        if let Some(distance) = kernel.distance(map.entries(), &taken) {
            let span = Span::new(kernel.span().start + u64::from(distance), kernel.place().len);
            prop_assert!(distance.is_multiple_of(2 << 20) && span.end <= 1 << 32);
            prop_assert!(Place::is_ram(&span, map.entries()) && !taken.iter().any(|t| t.overlaps(&span)));
        }
    }

    /// A place in a map of more entries than fit is RAM by all of them.
    #[test]
    fn a_full_map_lacks_ram_and_no_other_memory(
        entries in prop::collection::vec((0_u64..4096, 1_u64..64, 1_u32..4), 400..800),
        len in 1_u64..8,
    ) {
        let all: Vec<_> = entries.iter().map(|&(start, len, kind)| Entry::new(start, len, kind)).collect();
        let mut map = Map::default();
        // All RAM first: the other memory lies in it, and finds a full map.
        for kind in [RAM, RESERVED, 3] {
            all.iter().filter(|entry| entry.kind == kind).for_each(|entry| map.push(*entry));
        }
        let place = Place { len, align: 1, from: 0, below: 1 << 32 };
        if let Some(found) = place.find(map.entries(), &[]) {
            let hits = |entry: &&Entry| Span::new(entry.start, entry.len).overlaps(&found);
            prop_assert!(all.iter().filter(hits).all(|entry| entry.kind == RAM));
        }
    }

    /// Any memory map of EFI is read, with any length of descriptors.
    #[test]
    fn any_map_of_efi_harms_nothing(bytes in prop::collection::vec(any::<u8>(), 0..2000), stride in 0_usize..100) {
        let mut map = Map::default();
        from_efi(&bytes, stride, &mut map);
        prop_assert!(map.entries().iter().all(|entry| entry.len > 0));
    }

    /// Damaged files are refused or read, and never end the program.
    #[test]
    fn a_damaged_kernel_harms_nothing(at in 0_usize..400, byte: u8) {
        let mut file = kernel();
        let at = at % file.len();
        file[at] = byte;
        if let Ok(kernel) = Kernel::parse(&file) {
            prop_assert!(kernel.segments().all(|s| s.at >= kernel.span().start));
            prop_assert!(kernel.loaded_len() <= file.len());
        }
    }

    /// A place that is found is aligned RAM below the limit and overlaps nothing; if none is found,
    /// none of the aligned places is free.
    #[test]
    fn a_place_is_free_memory(
        entries in prop::collection::vec((0_u64..64, 1_u64..20, prop::sample::select(vec![RAM, RAM, RESERVED])), 1..8),
        taken in prop::collection::vec((0_u64..64, 0_u64..8), 0..4),
        len in 1_u64..12,
        align in 0_u32..3,
    ) {
        let map: Vec<_> = entries.iter().map(|&(start, len, kind)| Entry::new(start, len, kind)).collect();
        let taken: Vec<_> = taken.iter().map(|&(start, len)| Span::new(start, len)).collect();
        let place = Place { len, align: 1 << align, from: 2, below: 60 };
        let is_free = |start: u64| {
            let span = Span::new(start, len);
            let in_ram = map.iter().any(|e| e.kind == RAM && e.start <= start && span.end <= e.end());
            let hits = map.iter().any(|e| e.kind != RAM && Span::new(e.start, e.len).overlaps(&span));
            let fits = start >= 2 && span.end <= 60;
            fits && in_ram && !hits && !taken.iter().any(|t| t.overlaps(&span))
        };
        let highest = (0..60).filter(|start| start % (1 << align) == 0).rfind(|start| is_free(*start));
        prop_assert_eq!(place.find(&map, &taken).map(|span| span.start), highest);
    }
}
