//! Compares the complete output of rdma-core's tools and ethtool about a card with committed texts, in which
//! each value that differs from a real card's has its reason.

use super::messages::remarked;
use super::{Step, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;

/// A command in the first machine, and its expected output. A line with `#` is a remark.
struct Snapshot {
    command: &'static str,
    text: &'static str,
}

const SNAPSHOTS: [Snapshot; 3] = [
    Snapshot { command: "ibv_devinfo -v -d mlx4_0", text: include_str!("snapshots/ibv_devinfo.txt") },
    Snapshot { command: "ibstat mlx4_0", text: include_str!("snapshots/ibstat.txt") },
    Snapshot { command: "ethtool -i mlx0", text: include_str!("snapshots/ethtool.txt") },
];

pub(super) fn cases() -> Vec<Case> {
    // Two ports, as the card of the public logs has.
    let plan = Plan { cards: vec![CardConfig::profile("pro-2port")], ..Plan::default() };
    vec![
        session("snapshots", plan, || {
            let step = |snapshot: Snapshot| Step::new(snapshot.command, move |lab| snapshot.holds(lab));
            SNAPSHOTS.into_iter().map(step).collect()
        })
        .full_if(true),
    ]
}

impl Snapshot {
    fn holds(&self, lab: &mut Lab) -> Result<()> {
        let said = lab.check(0, self.command)?;
        let said: Vec<&str> = said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let known: Vec<&str> = remarked(self.text).map(|(line, _)| line.trim_end()).collect();
        let new = said.iter().filter(|line| !known.contains(line)).map(|line| format!("+{line}"));
        let gone = known.iter().filter(|line| !said.contains(line)).map(|line| format!("-{line}"));
        ensure!(
            said == known,
            "{}; in all:\n{}",
            new.chain(gone).collect::<Vec<_>>().join("; "),
            said.join("\n")
        );
        Ok(())
    }
}
