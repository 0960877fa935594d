//! A hostile guest of the emulated card: registers, commands, tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile_card::commands(bytes);
});
