//! Opening without an RDMA device, as on most machines: one clear error names what is missing.
#![cfg(feature = "libibverbs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use ibverbs::{OpenError, Options, open};
use std::process::Command;

/// Set for the copy of this test program that must not find the library.
const ALONE: &str = "FERROLITE_TEST_WITHOUT_LIBRARY";

#[test]
fn a_library_that_is_missing_is_named() {
    if std::env::var_os(ALONE).is_some() {
        let error = open(&Options::new(4096)).unwrap_err();
        assert!(matches!(error, OpenError::NoLibrary), "{error}");
        let text = error.to_string();
        assert!(text.contains("libibverbs.so.1") && text.contains("ibverbs-providers"), "{text}");
        return;
    }
    // The first file that the loader finds is not a library, and the loader then searches no further.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libibverbs.so.1"), "").unwrap();
    let mut copy = Command::new(std::env::current_exe().unwrap());
    copy.args(["--exact", "a_library_that_is_missing_is_named"]);
    let output = copy.env("LD_LIBRARY_PATH", dir.path()).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_device_that_is_not_there_is_no_device() {
    let options = Options { device: Some("no-such-device".into()), ..Options::new(4096) };
    let error = open(&options).unwrap_err();
    // The missing part depends on this machine.
    let missing = matches!(
        error,
        OpenError::NoLibrary
            | OpenError::NoKernelSupport
            | OpenError::NoDevice
            | OpenError::NoSuchDevice { .. }
    );
    assert!(missing, "{error:?}");
    assert_eq!(error.to_string().lines().count(), 1);
}
