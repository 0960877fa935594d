//! Boot parameters, memory maps and kernels' files of any content.
#![no_main]

use handover::{BootParams, Kernel, Map, PARAMS_LEN, SetupData, from_efi, without_words_of_loaders};

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
});
