//! Tests of RDMA between two machines, by perftest and the test programs of rdma-core.

use super::{Step, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::Plan;
use lab::cx3::lab::{Lab, SOON, Wire};
use netfault::Faults;
use qemu::linux::Listens;
use std::time::Duration;

/// The programs of perftest.
pub(super) const PERFTEST: [&str; 8] = [
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_send_lat",
    "ib_send_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];
/// The directory with the setting of the connection manager that selects the RoCE version.
pub(super) const CM_SETTING: &str = "/sys/kernel/config/rdma_cm/mlx4_0";
/// The time limit of a program for all sizes on a busy host.
pub(super) const ALL_SIZES: Duration = Duration::from_secs(180);

pub(super) fn cases() -> Vec<Case> {
    let lossy = Plan { faults: Faults { loss: 0.01, ..Faults::default() }, ..Plan::default() };
    vec![
        session("rdma-in-full", Plan::default(), full).full_if(true),
        session("rdma-loss", lossy.clone(), || {
            vec![
                ping_pong("ibv_rc_pingpong", Wire::V2, "-s 4096 -n 500"),
                ping_pong("ibv_rc_pingpong", Wire::V2, "-s 65536 -n 50"),
                Step::new("something was lost", lost),
                Step::new("content of READ and WRITE", |lab| validated(lab, 100)),
                perftest("ib_atomic_bw", Wire::V2, "-n 500"),
            ]
        })
        .full_if(true),
        session("rdma-loss-with-rxe", Plan { cards: vec![Default::default()], rxe: 1, ..lossy }, || {
            vec![
                ping_pong("ibv_rc_pingpong", Wire::V2, "-s 4096 -n 200"),
                Step::new("content of READ and WRITE", |lab| validated(lab, 30)),
                Step::new("something was lost", lost),
            ]
        })
        .full_if(true),
        session("rdma-with-rxe", Plan { cards: vec![Default::default()], rxe: 1, ..Plan::default() }, || {
            // rdma_rxe would have 128 READs outstanding, of which the card accepts 16. The programs negotiate
            // the number only for bandwidth.
            let of = |program: &'static str| {
                let options = match program {
                    atomic if is_atomic(atomic) => "-o 16 -n 50",
                    read if read.starts_with("ib_read") => "-o 16 -s 65536 -n 50",
                    _ => "-s 65536 -n 50",
                };
                perftest(program, Wire::V2, options)
            };
            let mut steps: Vec<Step> = PERFTEST.into_iter().map(of).collect();
            steps.push(ping_pong("ibv_rc_pingpong", Wire::V2, ""));
            steps
        })
        .full_if(true),
    ]
}

/// Runs each program with sizes from 1 byte to 8 MiB, over both RoCE versions.
fn full() -> Vec<Step> {
    let mut steps = Vec::new();
    for program in PERFTEST {
        if is_atomic(program) {
            // Atomics have a fixed size.
            steps.push(perftest(program, Wire::V2, "-n 500"));
            steps.push(perftest(program, Wire::V1, "-n 100"));
        } else {
            steps.push(perftest(program, Wire::V2, "-s 1 -n 100"));
            steps.push(perftest(program, Wire::V2, "-a -n 10"));
            steps.push(perftest(program, Wire::V1, "-s 65536 -n 50"));
        }
    }
    steps.push(ping_pong("ibv_rc_pingpong", Wire::V2, ""));
    steps.push(ping_pong("ibv_rc_pingpong", Wire::V2, "-e -s 65536 -n 100"));
    steps
}

fn is_atomic(program: &str) -> bool {
    program.starts_with("ib_atomic")
}

/// Returns a step that runs one program of perftest.
pub(super) fn perftest(program: &'static str, wire: Wire, options: &'static str) -> Step {
    Step::new(format!("{program} {options} {wire:?}"), move |lab| {
        lab.perftest(wire, program, options, ALL_SIZES).map(drop)
    })
}

/// Returns a step that runs a ping-pong of rdma-core, in which each side validates the received bytes. `-e`
/// sleeps until there are completion events.
pub(super) fn ping_pong(program: &'static str, wire: Wire, options: &'static str) -> Step {
    Step::new(format!("{program} {options} {wire:?}"), move |lab| {
        let command = format!("{program} -d DEVICE -g GID -c {options}");
        let said = lab.both(wire, &command, Listens::PERFTEST, SOON)?;
        for (side, said) in [("server", said.server), ("client", said.client)] {
            ensure!(said.contains("iters in") && !said.contains("invalid"), "the {side} says: {said}");
        }
        Ok(())
    })
}

/// Checks that the driver has no RoCE v2 on these cards: no GID uses it, and the connection manager refuses
/// it.
pub(super) fn only_v1(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.cards() {
        let types = lab
            .check(machine, "cat /sys/class/infiniband/mlx4_0/ports/1/gid_attrs/types/* 2>/dev/null; true")?;
        let only_v1 = types.contains(Wire::V1.name()) && !types.contains(Wire::V2.name());
        ensure!(only_v1, "machine {machine}: its GIDs are of {types}");
        let refused = format!(
            "mount -t configfs none /sys/kernel/config 2>/dev/null; mkdir -p {CM_SETTING}; \
             ! echo '{}' >{CM_SETTING}/ports/1/default_roce_mode; status=$?; rmdir {CM_SETTING}; exit $status",
            Wire::V2.name()
        );
        lab.check(machine, &refused)?;
    }
    Ok(())
}

/// Validates READ and WRITE: the client fills a buffer of about 64 KB with new bytes; the server fetches it
/// by READ and writes it into another buffer of the client by WRITE; the client compares the two and fails if
/// they differ.
pub(super) fn validated(lab: &mut Lab, times: u32) -> Result<()> {
    let options = format!("-V -S 65000 -C {times}");
    let (serve, ask) = (format!("rping -s -a 0.0.0.0 {options}"), format!("rping -c -a SERVER {options}"));
    lab.exchange(&serve, Listens::RdmaCm, &ask, ALL_SIZES).map(drop)
}

/// Checks that the card has counted packets that arrived out of order.
fn lost(lab: &mut Lab) -> Result<()> {
    let counters = "cat /sys/class/infiniband/mlx4_0/hw_counters/rq_num_oos /sys/class/infiniband/mlx4_0/hw_counters/sq_num_oos";
    let mut sum = 0;
    for machine in 0..lab.cards() {
        for number in lab.check(machine, counters)?.split_whitespace() {
            sum += number.parse::<u64>().with_context(|| format!("a counter says {number}"))?;
        }
    }
    ensure!(sum > 0, "no card has met a gap");
    Ok(())
}
