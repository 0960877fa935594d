//! A test of the cases: each bug that is planted in LITE makes the case for its subject fail.
//!
//! There is only one test, because a planted bug applies to the whole process.
#![cfg(debug_assertions)]

#[path = "it/support/mod.rs"]
mod support;

use lite::testing::{Bug, plant};
use semantics::CASES;

#[test]
fn planted_bugs_are_found() {
    for (bug, name) in [
        (Bug::LostCredit, "calls::any_number_at_once"),
        (Bug::DoubleGrant, "sync::a_lock_has_one_holder"),
        (Bug::NoBoundsCheck, "regions::bounds_are_exact"),
        (Bug::StaleMap, "regions::a_region_moves_while_it_is_in_use"),
    ] {
        let case = *CASES.iter().find(|case| case.name == name).expect("a case of the list");
        let mut cluster = support::cluster(1, 3);
        plant(bug);
        let ended = support::run(&mut cluster, case);
        println!("{bug:?}: {ended:?}");
        assert!(ended.iter().any(Result::is_err), "{name} holds with {bug:?}");
    }
}
