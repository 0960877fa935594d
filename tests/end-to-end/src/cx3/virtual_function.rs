//! Tests of virtual functions: the driver binds as slave of the master that the emulated card contains, and
//! works as on a card, with RoCE v1 only.

use super::drivers::{ping, reload};
use super::rdma::{PERFTEST, only_v1, perftest, validated};
use super::services::set_wire;
use super::{Step, messages, session};
use crate::runner::Case;
use anyhow::{Result, ensure};
use lab::cx3::lab::{SOON, Wire};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;
use qemu::linux::{Listens, Release};

pub(super) fn cases() -> Vec<Case> {
    let functions = Plan { cards: vec![CardConfig::profile("vf"); 2], ..Plan::default() };
    let with_physical =
        Plan { cards: vec![CardConfig::profile("vf"), CardConfig::profile("pro")], ..Plan::default() };
    vec![
        session("virtual functions", functions.clone(), || {
            let mut steps = vec![Step::new("slaves", slaves), Step::new("ping", ping)];
            steps.extend(
                ["ib_write_lat", "ib_read_bw", "ib_send_bw", "ib_atomic_lat"]
                    .map(|program| perftest(program, Wire::V1, "-n 100")),
            );
            steps.push(Step::new("rping", rping));
            steps
        }),
        session("virtual functions, all", functions.clone(), || {
            let mut steps: Vec<Step> =
                PERFTEST.iter().map(|program| perftest(program, Wire::V1, "-n 100")).collect();
            steps.extend(
                [
                    ("ib_send_lat", "-c UD -n 100"),
                    ("ib_send_bw", "-c UD -n 100"),
                    ("ib_write_bw", "-c UC -n 100"),
                ]
                .map(|(program, options)| perftest(program, Wire::V1, options)),
            );
            steps.extend(["rc", "uc", "ud", "srq"].map(pingpong));
            steps.push(Step::new("ib_write_lat by rdma_cm", by_rdma_cm));
            steps.push(Step::new("udaddy", udaddy));
            steps.push(Step::new("reload ten times", |lab| reload(lab, 10)));
            steps.push(Step::new("ping after reload", ping));
            steps
        })
        .full_if(true),
        session("virtual and physical function", with_physical, || {
            let mut steps: Vec<Step> =
                PERFTEST.iter().map(|program| perftest(program, Wire::V1, "-n 100")).collect();
            // The physical function's connection manager would use RoCE v2, which the virtual function does
            // not support.
            steps.push(Step::new("connection manager set to V1", |lab| set_wire(lab, Wire::V1)));
            steps.push(Step::new("rping", rping));
            steps.push(Step::new("content of READ and WRITE", |lab| validated(lab, 20)));
            steps.push(Step::new("udaddy", udaddy));
            steps.push(Step::new("ib_write_lat by rdma_cm", by_rdma_cm));
            steps
        })
        .full_if(true),
        session("virtual functions 6.12", Plan { release: Release::Trixie, ..functions }, || {
            vec![
                Step::new("messages", |lab| messages::as_recorded_of(lab, 0, "vf")),
                Step::new("slaves", slaves),
                Step::new("ping", ping),
                perftest("ib_write_lat", Wire::V1, "-s 8 -n 100"),
                perftest("ib_read_bw", Wire::V1, "-s 65536 -n 50"),
                perftest("ib_send_lat", Wire::V1, "-c UD -s 1024 -n 100"),
                perftest("ib_atomic_lat", Wire::V1, "-n 50"),
                Step::new("rping", rping),
                Step::new("reload", |lab| reload(lab, 1)),
                Step::new("ping after that", ping),
            ]
        })
        .full_if(true),
    ]
}

/// Checks that both drivers run as slaves and have no RoCE v2.
fn slaves(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.machines() {
        let said = lab.check(machine, "dmesg | grep mlx4")?;
        for part in ["running in slave mode", "operating in qp1 tunnel mode"] {
            ensure!(said.contains(part), "machine {machine}: the kernel does not say {part:?}: {said}");
        }
        let info = lab.check(machine, "ibv_devinfo -d mlx4_0")?;
        ensure!(info.contains("vendor_part_id:\t\t\t4100"), "machine {machine}: ibv_devinfo says {info}");
    }
    only_v1(lab)
}

fn pingpong(service: &'static str) -> Step {
    Step::new(format!("ibv_{service}_pingpong"), move |lab| {
        let command = format!("ibv_{service}_pingpong -d DEVICE -g GID -n 100");
        lab.both(Wire::V1, &command, Listens::PERFTEST, SOON).map(drop)
    })
}

fn rping(lab: &mut Lab) -> Result<()> {
    lab.exchange("rping -s -C 10", Listens::RdmaCm, "rping -c -a SERVER -C 10", SOON).map(drop)
}

fn by_rdma_cm(lab: &mut Lab) -> Result<()> {
    lab.both(Wire::V1, "ib_write_lat -d DEVICE -x GID -F -R -n 100", Listens::RdmaCm, SOON).map(drop)
}

fn udaddy(lab: &mut Lab) -> Result<()> {
    lab.exchange("udaddy", Listens::RdmaCm, "udaddy -s SERVER", SOON).map(drop)
}
