//! Tests of a Linux process's raw Ethernet queue pairs and flow rules: frames between queue pairs of one
//! port, and a group that the network device has not joined.

use super::{Step, programs, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;

/// The program's path in the machines.
const PROGRAM: &str = "/usr/bin/raw-frames";

pub(super) fn cases() -> Vec<Case> {
    let plan = Plan {
        cards: vec![CardConfig::profile("pro"); 2],
        // Flow rules need device-managed steering.
        module_parameters: vec!["mlx4_core.log_num_mgm_entry_size=-1".into()],
        ..Plan::default()
    };
    vec![
        session("raw frames", plan, || {
            vec![
                programs::built(&["raw-frames"]),
                Step::new("between queue pairs of one port", |lab| {
                    let said = lab.check(0, &format!("{PROGRAM} inside"))?;
                    ensure!(said.contains("all frames came where rules say"), "it says: {said}");
                    Ok(())
                }),
                Step::new("a group that is not joined", group),
            ]
        })
        .full_if(true),
    ]
}

/// The first machine has a rule for a group and nothing else that would accept the group's frames; the second
/// machine sends to the group.
fn group(lab: &mut Lab) -> Result<()> {
    let joined = lab.check(0, "cat /proc/net/dev_mcast")?;
    ensure!(!joined.contains("01005e123456"), "the network device has joined the group: {joined}");
    let listen = format!("({PROGRAM} listen; echo status $?) >/tmp/told 2>&1 &");
    let ready = "until [ -e /tmp/listens ] || grep -q status /tmp/told; do usleep 20000; done";
    lab.check(0, &format!("rm -f /tmp/listens; {listen} {ready}"))?;
    lab.check(1, &format!("{PROGRAM} send"))?;
    let told = lab.check(0, "until grep -q status /tmp/told; do usleep 20000; done; cat /tmp/told")?;
    ensure!(told.contains("all frames of the group came\nstatus 0"), "the first machine says: {told}");
    Ok(())
}
