//! Service levels on the wire: captures of runs under HW-Sep and without a scheme.

use super::capture;
use super::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cx3::Tools;
use lab::tool;
use roce::wire::{Frame, Net, Operation};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The longest time of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(300);
/// The service level of high priority: another than the default.
const LEVEL: u8 = 5;
/// The least payload of a packet that belongs to a write of the flood, in bytes. Nothing else is as long.
const LARGE: usize = 1000;

pub(crate) fn cases() -> Vec<Case> {
    let on_card = |nic: &'static str| {
        Case::new(format!("cx3::service-levels-{nic}"), move |log| match Tools::get()? {
            Ok(_) => separated(nic, log).map(|()| Outcome::Passed),
            Err(why) => Ok(Outcome::Skipped(why.to_owned())),
        })
    };
    let case = |name: &str, check: fn(&Path) -> Result<()>| {
        Case::new(format!("run::{name}"), move |log| check(log).map(|()| Outcome::Passed))
    };
    vec![
        case("service-levels", |log| separated("softroce", log)),
        case("no-service-levels", |log| {
            let levels = levels("softroce", &["scheme=none", "service-level=5"], log)?;
            ensure!(
                levels.iter().all(|seen| seen.level == 0),
                "without a scheme there are levels: {levels:?}"
            );
            Ok(())
        }),
        on_card("cx3"),
        on_card("cx3:ib"),
    ]
}

/// The class of a request or of a response of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    level: u8,
    /// True for calls, messages, and replies: writes with immediate data.
    rpc: bool,
    /// True for the flood.
    large: bool,
}

/// Checks that calls and messages have the level of high priority, that the flood has level 0, and that there
/// is no other level.
fn separated(nic: &str, log: &Path) -> Result<()> {
    let seen = levels(nic, &["scheme=hw-sep", "service-level=5"], log)?;
    let has = |level, rpc, large| seen.contains(&Seen { level, rpc, large });
    ensure!(has(LEVEL, true, false), "no call has level {LEVEL}: {seen:?}");
    ensure!(has(LEVEL, false, false), "no write of high priority has level {LEVEL}: {seen:?}");
    ensure!(has(0, false, true), "the flood does not have level 0: {seen:?}");
    ensure!(!has(LEVEL, false, true) && !has(0, true, false), "a level of the wrong traffic: {seen:?}");
    ensure!(seen.iter().all(|seen| [0, LEVEL].contains(&seen.level)), "another level: {seen:?}");
    Ok(())
}

/// Returns the classes of all WRITEs in a run of the application `qos` with these settings.
fn levels(nic: &str, settings: &[&str], log: &Path) -> Result<BTreeSet<Seen>> {
    let dir = tempfile::tempdir()?;
    let (input, pcap) = (dir.path().join("in"), dir.path().join("pcap"));
    std::fs::write(&input, "")?;
    let mut run = xtask();
    run.args(["run", "--nodes", "2", "--app", "qos", "--arg", "10", "--nic", nic]);
    run.args(settings.iter().flat_map(|setting| ["--lite", setting]));
    run.arg("--input").arg(&input).arg("--pcap").arg(&pcap);
    tool::run_ok(&mut run, log, LIMIT)?;
    let bytes = std::fs::read(&pcap).context("no capture")?;
    let mut seen = BTreeSet::new();
    for frame in capture::frames(&bytes).context("the capture is cut")? {
        let Ok(frame) = Frame::parse(frame) else { continue };
        let rpc = match frame.packet.bth.opcode.operation {
            Operation::WriteOnlyImm | Operation::WriteLastImm => true,
            Operation::WriteOnly | Operation::WriteFirst | Operation::WriteMiddle | Operation::WriteLast => {
                false
            }
            _ => continue,
        };
        let large = frame.packet.payload.len() >= LARGE;
        seen.insert(Seen { level: level_of(&frame.headers.net), rpc, large });
    }
    Ok(seen)
}

/// Returns the service level of an InfiniBand packet; on RoCE, an eighth of the DSCP.
fn level_of(net: &Net) -> u8 {
    match net {
        Net::InfiniBand(lrh, _) => lrh.service_level,
        Net::V4(..) | Net::V6(..) | Net::Grh(_) => net.traffic_class() >> 5,
    }
}
