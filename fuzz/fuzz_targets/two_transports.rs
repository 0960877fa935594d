//! Two transports over a network that the bytes control.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile_transport::two_transports(bytes);
});
