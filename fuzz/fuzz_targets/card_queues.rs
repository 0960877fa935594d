//! A hostile guest of the emulated card: work requests, doorbells, contexts, frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile_card::queues(bytes);
});
