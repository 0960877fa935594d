//! A hostile or dying ConnectX-3 under the driver.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile_device::device(bytes);
});
