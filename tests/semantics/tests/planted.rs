//! The cases are checked: bugs put into LITE on purpose fail those that they concern.
//!
//! One test, because a planted bug is the whole process's.
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
