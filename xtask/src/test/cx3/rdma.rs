//! RDMA between two machines, by perftest and by the ping-pongs of rdma-core.

use super::{Step, session};
use crate::cx3::Plan;
use crate::cx3::lab::{SOON, Wire};
use crate::test::cases::Case;

/// The programs of perftest.
const PERFTEST: [&str; 8] = [
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_send_lat",
    "ib_send_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];

pub fn cases() -> Vec<Case> {
    vec![session("rdma", Plan::default(), || {
        let mut steps: Vec<Step> =
            PERFTEST.iter().map(|program| perftest(program, Wire::V2, 4096, 100)).collect();
        steps.push(perftest("ib_write_lat", Wire::V1, 8, 100));
        steps
    })]
}

/// One program, reliable connection, one size.
fn perftest(program: &'static str, wire: Wire, bytes: u32, iterations: u32) -> Step {
    // An atomic has a size of its own.
    let atomic = program.starts_with("ib_atomic");
    let size = if atomic { String::new() } else { format!("-s {bytes} ") };
    Step::new(format!("{program} {size}{wire:?}"), move |lab| {
        lab.perftest(wire, program, &format!("{size}-n {iterations}"), SOON).map(drop)
    })
}
