//! Tests of Linux on cards of every profile: the drivers bind and log what the record contains; frames and
//! RDMA pass over every port; the drivers can be unloaded and loaded. Their actions are compared with the
//! record in `qemu/connectx3/tests/linux-traces`.

use super::infiniband::{self, subnet};
use super::ports::{configure_second, ethernet, ping};
use super::rdma::only_v1;
use super::{Step, drivers, messages, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::lab::{Port, SOON, Wire};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;

/// The use that a test makes of a profile's cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Ethernet and RoCE over one port.
    OnePort(Wire),
    /// Ethernet and RoCE over two ports.
    TwoPorts(Wire),
    /// InfiniBand over one port.
    InfiniBand,
}

/// The profiles, each with a flag for the quick set.
const PROFILES: [(&str, Use, bool); 15] = [
    ("pro", Use::OnePort(Wire::V2), false),
    ("pro-2port", Use::TwoPorts(Wire::V2), false),
    ("cx3", Use::OnePort(Wire::V1), false),
    ("ib", Use::InfiniBand, false),
    ("vpi", Use::OnePort(Wire::V2), false),
    ("vpi-2port", Use::TwoPorts(Wire::V2), false),
    ("sys-eqs", Use::OnePort(Wire::V2), false),
    ("vf", Use::OnePort(Wire::V1), false),
    ("sw-cq-init", Use::OnePort(Wire::V2), false),
    ("large-entries", Use::OnePort(Wire::V2), true),
    ("blueflame", Use::OnePort(Wire::V2), false),
    ("slow", Use::OnePort(Wire::V2), false),
    ("torn-atomics", Use::OnePort(Wire::V2), false),
    ("a0", Use::OnePort(Wire::V2), false),
    // This is not a profile: the driver requests the mode, which the usual card supports.
    (DMFS, Use::OnePort(Wire::V2), false),
];

/// Device-managed flow steering, under the name of its record.
const DMFS: &str = "pro.dmfs";

pub(super) fn cases() -> Vec<Case> {
    let cases = PROFILES.into_iter().map(|(name, used, quick)| {
        let profile = name.split('.').next().unwrap_or(name);
        let mut plan =
            Plan { cards: vec![CardConfig::profile(profile); 2], record: Some(name), ..Plan::default() };
        if name == DMFS {
            plan.module_parameters = vec!["mlx4_core.log_num_mgm_entry_size=-1".into()];
        }
        session(&format!("profile {name}"), plan, move || steps(name, used)).full_if(!quick)
    });
    cases.collect()
}

fn steps(name: &'static str, used: Use) -> Vec<Step> {
    let mut steps = vec![Step::new("messages", move |lab| {
        (0..lab.machines()).try_for_each(|machine| messages::as_recorded_of(lab, machine, name))
    })];
    match used {
        Use::OnePort(wire) => {
            steps.extend(ethernet(Port::FIRST, wire));
            if wire == Wire::V1 {
                steps.push(Step::new("RoCE v2 is refused", only_v1));
            }
            steps.push(Step::new("reload", |lab| drivers::reload(lab, 1)));
            steps.push(Step::new("ping after that", |lab| ping(lab, Port::FIRST)));
        }
        Use::TwoPorts(wire) => {
            steps.extend(ethernet(Port::FIRST, wire));
            steps.push(Step::new("second port", configure_second));
            steps.extend(ethernet(Port::SECOND, wire));
            steps.push(Step::new("reload", |lab| drivers::reload(lab, 1)));
            steps.push(Step::new("second port after that", configure_second));
            for port in [Port::FIRST, Port::SECOND] {
                steps
                    .push(Step::new(format!("ping after that, port {}", port.0), move |lab| ping(lab, port)));
            }
        }
        Use::InfiniBand => {
            steps.extend(subnet(Port::FIRST));
            steps.extend(infiniband::connected(Port::FIRST));
            steps.push(Step::new("opensm ends", infiniband::end_subnet));
            steps.push(Step::new("reload", |lab| drivers::reload(lab, 1)));
            steps.extend(subnet(Port::FIRST));
            steps.push(Step::new("opensm ends again", infiniband::end_subnet));
        }
    }
    steps.push(Step::new("unload", unload));
    steps
}

fn unload(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.machines() {
        lab.guest(machine)?.check("mlx4 unload", SOON)?;
        let left = lab.check(machine, "lsmod")?;
        ensure!(!left.contains("mlx4"), "machine {machine} still has {left}");
    }
    Ok(())
}
