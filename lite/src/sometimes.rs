//! Rare states that tests must reach. They are counted in debug builds with the feature `testing` only.

/// Counts that the code around it was reached, under a name: `sometimes!("a queue was full")`. The
/// simulation's test lists all names in this crate, and fails if none of many runs reaches one of them.
macro_rules! sometimes {
    ($what:literal) => {
        #[cfg(all(feature = "testing", debug_assertions))]
        $crate::testing::count_state($what);
    };
}
pub(crate) use sometimes;
