//! The applications of this image.

use alloc::boxed::Box;
use alloc::vec::Vec;
use runtime::App;

/// Returns all applications: those of the table, and perftest, if built in, which needs more than LITE and is
/// passed by the caller.
pub(super) fn all(perftest: Option<Box<dyn App>>) -> Vec<Box<dyn App>> {
    let mut apps = applications::all();
    #[cfg(feature = "semantics")]
    apps.push(Box::new(semantics::Suite));
    apps.extend(perftest);
    apps
}
