//! The table has each application once, and what the manager accepts of each.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::{Join, check_text};
use runtime::testing::Cluster;
use std::collections::BTreeSet;

#[test]
fn each_application_has_a_name_of_its_own() {
    let mut names = BTreeSet::new();
    for app in applications::all() {
        let manifest = app.manifest();
        check_text("the name of an application", &manifest.name, Join::MAX_TEXT).unwrap();
        check_text("the text about an application", &manifest.about, Join::MAX_ABOUT).unwrap();
        assert!(names.insert(manifest.name.clone()), "two applications are called {}", manifest.name);
    }
    assert!(names.len() >= 11 && names.len() <= Join::MAX_APPS, "{names:?}");
}

#[test]
fn the_table_runs_on_a_simulated_cluster() {
    let mut cluster = Cluster::new(1, 2, 1, applications::all);
    let (output, _) = cluster.run("wordcount", &[], &[("text", b"to be or not to be")]).unwrap();
    assert_eq!(output, b"be\t2\nto\t2\nnot\t1\nor\t1\n");
}
