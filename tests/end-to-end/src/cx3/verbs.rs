//! Tests of further verbs: extended reliable connections, receive queues with an indirection table, and
//! completion timestamps. Small programs in C in `programs/` test features that no program of Debian uses.

use super::services::within;
use super::{Step, programs, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::Plan;
use lab::cx3::lab::{Lab, SOON, Wire, address};
use qemu::linux::Listens;

/// Frames that are distributed over the receive queues.
const FRAMES: u32 = 120;

pub(super) fn cases() -> Vec<Case> {
    vec![
        session("extended connections", Plan::default(), || {
            vec![
                extended(Wire::V2, ""),
                extended(Wire::V1, "-s 65536"),
                extended(Wire::V2, "-e -n 200"),
                Step::new("ibv_xsrq_pingpong, two clients", of_two),
                Step::new("ibv_xsrq_pingpong within a card", |lab| within(lab, "ibv_xsrq_pingpong")),
            ]
        })
        .full_if(true),
        // Programs can receive frames only if drivers steer by rules.
        session(
            "verbs",
            Plan { module_parameters: vec!["mlx4_core.log_num_mgm_entry_size=-1".into()], ..Plan::default() },
            || {
                vec![
                    programs::built(&["rss", "timestamps"]),
                    Step::new("receive side scaling over four queues", spread),
                    Step::new("completion timestamps", timestamps),
                    Step::new("the network device's clock", network_clock),
                ]
            },
        )
        .full_if(true),
    ]
}

/// Returns a step with rdma-core's ping-pong over extended reliable connections, in which each side names the
/// other's shared receive queue.
pub(super) fn extended(wire: Wire, options: &'static str) -> Step {
    Step::new(format!("ibv_xsrq_pingpong {options} {wire:?}"), move |lab| {
        let command = format!("ibv_xsrq_pingpong -d DEVICE -g GID {options}");
        let said = lab.both(wire, &command, Listens::PERFTEST, SOON)?;
        for (side, said) in [("server", said.server), ("client", said.client)] {
            ensure!(said.contains("remote: "), "the {side} says: {said}");
        }
        Ok(())
    })
}

/// Runs one server and two clients, which are processes of one machine and share an XRC domain. The server
/// sends to the shared receive queue of each over the queue pairs of both.
fn of_two(lab: &mut Lab) -> Result<()> {
    let of =
        |lab: &Lab, machine| format!("ibv_xsrq_pingpong -d mlx4_0 -g {} -n 50", lab.gid(machine, Wire::V2));
    let (serve, ask) = (of(lab, 0), of(lab, 1));
    let ask = format!("{ask} SERVER & {ask} SERVER && wait $!");
    lab.exchange(&format!("{serve} -c 2"), Listens::PERFTEST, &ask, SOON).map(drop)
}

/// Sends frames of many addresses to one queue pair: each of the four queues of its table must receive
/// exactly those frames that their hash assigns to it.
fn spread(lab: &mut Lab) -> Result<()> {
    let serve = format!("rss receive mlx4_0 {FRAMES}");
    let ask = format!("rss send mlx0 {FRAMES} SERVER");
    let said = lab.exchange(&serve, Listens::PERFTEST, &ask, SOON)?.server;
    let counts: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    ensure!(
        counts.len() == 4 && counts.iter().all(|&count| count > 0) && counts.iter().sum::<u32>() == FRAMES,
        "the server says: {said}"
    );
    Ok(())
}

/// Checks that timestamps grow, and lie between readings of the card's clock before and after.
fn timestamps(lab: &mut Lab) -> Result<()> {
    let gid = lab.gid(0, Wire::V2);
    let said = lab.check(0, &format!("timestamps mlx4_0 {gid}"))?;
    ensure!(said.starts_with("core clock 427000 kHz"), "it says: {said}");
    Ok(())
}

/// Checks that the network device's driver derives a clock from the card's, and stamps frames with it.
fn network_clock(lab: &mut Lab) -> Result<()> {
    let said = lab.check(0, "ethtool -T mlx0")?;
    for part in ["hardware-transmit", "hardware-receive", "hardware-raw-clock", "PTP Hardware Clock: 0"] {
        ensure!(said.contains(part), "ethtool lacks {part:?}: {said}");
    }
    let peer = address(1);
    let said = lab.check(0, &format!("timestamps frames mlx0 {peer}")).context("frames with timestamps")?;
    ensure!(said.starts_with("timestamps of frames"), "it says: {said}");
    Ok(())
}
