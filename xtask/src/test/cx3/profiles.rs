//! Linux on cards of every profile that it can use: the drivers bind, frames and RDMA pass, and the drivers leave.
//!
//! Each session leaves a record of what the drivers did beside its log. Those in `qemu/connectx3/tests/linux-traces` are such.

use super::{Step, session};
use crate::cx3::Plan;
use crate::cx3::lab::{SOON, Wire, address};
use crate::test::cases::Case;
use anyhow::ensure;
use qemu::cx3::CardConfig;

/// The profiles, the RoCE version to use, and whether the quick set has them.
const PROFILES: [(&str, Wire, bool); 11] = [
    ("pro", Wire::V2, false),
    ("pro-2port", Wire::V2, false),
    ("cx3", Wire::V1, false),
    ("sys-eqs", Wire::V2, false),
    ("sw-cq-init", Wire::V2, false),
    ("large-entries", Wire::V2, true),
    ("blueflame", Wire::V2, false),
    ("slow", Wire::V2, false),
    ("torn-atomics", Wire::V2, false),
    ("a0", Wire::V2, false),
    ("dmfs", Wire::V2, false),
];

pub fn cases() -> Vec<Case> {
    let cases = PROFILES.into_iter().map(|(name, wire, quick)| {
        let mut plan = Plan { cards: vec![CardConfig::profile(name); 2], record: true, ..Plan::default() };
        if name == "dmfs" {
            // Not a profile: the driver asks for it, and the usual card has it.
            plan.cards = vec![CardConfig::default(); 2];
            plan.module_parameters = vec!["mlx4_core.log_num_mgm_entry_size=-1".into()];
        }
        session(&format!("profile {name}"), plan, move || steps(wire)).full_if(!quick)
    });
    cases.collect()
}

fn steps(wire: Wire) -> Vec<Step> {
    let rdma = |program: &'static str, options: &'static str| {
        Step::new(program, move |lab| lab.perftest(wire, program, options, SOON).map(drop))
    };
    vec![
        Step::new("ping", |lab| lab.check(1, &format!("ping -c 3 -W 5 {}", address(0))).map(drop)),
        rdma("ib_write_lat", "-s 8 -n 100"),
        rdma("ib_read_lat", "-s 4096 -n 50"),
        rdma("ib_send_lat", "-s 64 -n 100"),
        rdma("ib_atomic_lat", "-n 50"),
        Step::new("unload", |lab| {
            for machine in 0..lab.len() {
                lab.guest(machine)?.check("mlx4 unload", SOON)?;
                let left = lab.check(machine, "lsmod")?;
                ensure!(!left.contains("mlx4"), "machine {machine} still has {left}");
            }
            Ok(())
        }),
    ]
}
