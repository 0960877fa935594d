//! The drivers bind to the card, find what is on a card, and come and go.

use super::{Step, session};
use crate::cx3::lab::{SOON, address};
use crate::cx3::{Lab, Plan};
use crate::test::cases::Case;
use anyhow::{Result, ensure};

pub fn cases() -> Vec<Case> {
    vec![session("drivers", Plan::default(), || {
        vec![
            Step::new("devices", devices),
            Step::new("ping", ping),
            Step::new("reload twice", |lab| reload(lab, 2)),
            Step::new("ping after reload", ping),
        ]
    })]
}

/// Each machine has the device, its port and its interface, as the tools of rdma-core and ethtool see them.
fn devices(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.len() {
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

fn ping(lab: &mut Lab) -> Result<()> {
    lab.check(1, &format!("ping -c 3 -W 5 {}", address(0))).map(drop)
}

/// The drivers are unloaded and loaded again so many times, in all machines.
fn reload(lab: &mut Lab, times: u32) -> Result<()> {
    for _ in 0..times {
        for machine in 0..lab.len() {
            lab.guest(machine)?.check("mlx4 again", SOON)?;
        }
    }
    Ok(())
}
