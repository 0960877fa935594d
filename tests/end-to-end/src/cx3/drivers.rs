//! Tests that Linux's drivers bind to the card, find its features, and can be unloaded and loaded.

use super::{Step, messages, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::lab::{SOON, address};
use lab::cx3::{Lab, Plan};
use qemu::linux::Release;
use std::time::Duration;

/// The longest time for a machine to come back from a reboot.
const REBOOT: Duration = Duration::from_secs(180);

pub(super) fn cases() -> Vec<Case> {
    let plan = |release| Plan { release, reboots: true, ..Plan::default() };
    let steps = || {
        vec![
            Step::new("messages", messages),
            Step::new("devices", devices),
            Step::new("ping", ping),
            Step::new("ten reloads", |lab| reload(lab, 10)),
            Step::new("ping after that", ping),
            Step::new("reboot", reboot),
            Step::new("messages after that", messages),
            Step::new("ping after that", ping),
        ]
    };
    vec![
        session("drivers-6.1", plan(Release::Host), steps).full_if(true),
        session("drivers-6.12", plan(Release::Trixie), steps).full_if(true),
    ]
}

/// Checks that the first machine's drivers have logged exactly the recorded messages.
pub(super) fn messages(lab: &mut Lab) -> Result<()> {
    messages::as_recorded(lab, 0)
}

/// Reboots the first machine while the other stays up.
fn reboot(lab: &mut Lab) -> Result<()> {
    lab.guest(0)?.reboot(REBOOT)
}

/// Checks that each machine has the device, its port and its interface, as the tools of rdma-core and ethtool
/// show them.
pub(super) fn devices(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.machines() {
        let info = lab.check(machine, "ibv_devinfo -v -d mlx4_0")?;
        for part in ["transport:\t\t\tInfiniBand (0)", "PORT_ACTIVE", "link_layer:\t\tEthernet"] {
            ensure!(info.contains(part), "machine {machine}: ibv_devinfo lacks {part:?}: {info}");
        }
        let stat = lab.check(machine, "ibstat mlx4_0")?;
        ensure!(stat.contains("State: Active"), "machine {machine}: ibstat says {stat}");
        let driver = lab.check(machine, "ethtool -i mlx0")?;
        ensure!(driver.starts_with("driver: mlx4_en\n"), "machine {machine}: ethtool says {driver}");
    }
    Ok(())
}

pub(super) fn ping(lab: &mut Lab) -> Result<()> {
    lab.check(1, &format!("ping -c 3 -W 5 {}", address(0))).map(drop)
}

/// Unloads and loads the drivers in all machines, `times` times.
pub(super) fn reload(lab: &mut Lab, times: u32) -> Result<()> {
    for _ in 0..times {
        for machine in 0..lab.machines() {
            lab.guest(machine)?.check("mlx4 again", SOON)?;
        }
    }
    Ok(())
}
