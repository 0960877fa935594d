//! Hostile members and clients of the manager's core.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = hostile_manager::drive(bytes);
});
