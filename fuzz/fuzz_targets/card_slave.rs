//! A hostile guest of the emulated card with a virtual function: channel, resources, queues.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile_card::slave(bytes);
});
