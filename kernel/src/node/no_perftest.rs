//! The replacement of perftest in an image that is built without it.

use alloc::boxed::Box;
use alloc::string::String;
use runtime::App;

use super::rnic::NodeRnic;
use crate::cmdline;
use crate::net::Net;

/// Returns no application.
pub(super) fn application(_: &'static Net, _: &NodeRnic) -> Option<Box<dyn App>> {
    None
}

/// Returns the value of `perftest=`.
pub(super) fn words() -> Option<&'static str> {
    cmdline::get("perftest")
}

/// Refuses to run.
///
/// # Errors
/// Returned always: perftest is not in this image.
pub(super) async fn run(words: &str) -> Result<(), String> {
    Err(alloc::format!("perftest={words}: this image is built without perftest"))
}
