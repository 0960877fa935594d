//! Tests by iperf3 over the cards' Ethernet interfaces.

use super::{Step, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::lab::SOON;
use lab::cx3::{Lab, Plan};
use qemu::linux::Listens;
use serde_json::Value;

/// The port on which iperf3 listens.
const PORT: u16 = 5201;
/// The least number of bytes that must arrive. Any working connection carries more.
const LEAST_BYTES: u64 = 100_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        session("iperf3", Plan::default(), || {
            vec![
                Step::new("TCP", |lab| iperf(lab, "-t 3")),
                Step::new("TCP, back", |lab| iperf(lab, "-t 3 -R")),
                Step::new("TCP, four streams", |lab| iperf(lab, "-t 3 -P 4")),
                Step::new("UDP", |lab| iperf(lab, "-t 3 -u -b 20M")),
            ]
        })
        .full_if(true),
    ]
}

/// Checks that data goes from one end to the other.
pub(super) fn iperf(lab: &mut Lab, options: &str) -> Result<()> {
    let ask = format!("iperf3 -c SERVER -J {options}");
    let said = lab.exchange("iperf3 -s -1", Listens::Tcp(PORT), &ask, SOON)?;
    let report: Value = serde_json::from_str(&said.client).context("iperf3 prints no JSON")?;
    let sums = ["/end/sum_received/bytes", "/end/sum/bytes"];
    let received = sums.iter().find_map(|at| report.pointer(at)?.as_u64());
    ensure!(received > Some(LEAST_BYTES), "iperf3 says {received:?} bytes: {}", said.client);
    Ok(())
}
