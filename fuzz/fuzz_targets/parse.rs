//! The parser on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile_transport::parse(bytes));
