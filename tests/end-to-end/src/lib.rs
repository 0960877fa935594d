//! End-to-end tests: machines boot, whole programs run, and other programs (Linux, coreutils, perftest)
//! judge the results. `cargo xtask test` runs them.
#![forbid(unsafe_code)]

mod appliance;
mod boot;
mod builds;
mod cx3;
mod dashboard;
mod ha;
mod job;
mod linux;
mod packages;
pub mod runner;

pub use boot::GROUP as BOOT_MATRIX;
pub use builds::{cases as builds, missing};
pub use cx3::GROUP as EMULATED_CARDS;

use appliance::{boot as kernel, cluster, consoles, image, machine, perftest, screens, semantics};
use job::{disturbed, graph, limits, log, misuse, on_the_wire, priorities, standing, word_count};
use linux::{ibverbs, node, peer};
use runner::Case;

/// Returns all tests but the [`builds`](builds()). Cheap tests, and those that find most bugs, come first. If
/// `full`, a package that cannot be had is a failure.
#[must_use]
pub fn cases(full: bool) -> Vec<Case> {
    let groups = [
        kernel::cases(),
        machine::cases(),
        consoles::cases(),
        screens::cases(),
        image::cases(),
        boot::cases(full),
        cluster::cases(),
        standing::cases(),
        dashboard::cases(),
        ha::cases(full),
        semantics::cases(),
        disturbed::cases(),
        misuse::cases(),
        ibverbs::cases(),
        node::cases(),
        packages::cases(full),
        peer::cases(),
        perftest::cases(),
        priorities::cases(),
        cx3::cases(),
        graph::cases(),
        limits::cases(),
        log::cases(),
        on_the_wire::cases(),
        word_count::cases(),
    ];
    groups.into_iter().flatten().collect()
}
