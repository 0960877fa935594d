//! A node whose manager is silent, in a program.

use crate::programs::{python, source};
use crate::proxy::{Proxy, Way};
use crate::support::Cluster;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(1500);

/// A deadline that passes because the manager is silent says so. The node keeps its memory and goes on when
/// the manager answers.
#[test]
fn a_program_learns_that_the_manager_is_silent() {
    let cluster = Cluster::with_lease(1, LEASE);
    let proxy = Proxy::start(&cluster.address);
    let mut program = python(&source("tests/it/silence.py"));
    program.arg(&proxy.address).arg(cluster.key_file()).arg("silence").arg(cluster.fabric.socket(0));
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("joined"));
    proxy.silent(Way::ToNodes, true);
    assert_eq!(lines.next().as_deref(), Some("suspended"));
    proxy.silent(Way::ToNodes, false);
    assert_eq!(lines.next().as_deref(), Some("all is well"));
    assert!(program.wait().unwrap().success());
}
