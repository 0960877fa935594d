//! What verbs have beside queue pairs of two peers: extended reliable connections, receive queues with an indirection table,
//! and completion timestamps. For what no program of Debian does, there are small ones in C in `programs/`.

use super::services::within;
use super::{Step, programs, session};
use crate::cx3::Plan;
use crate::cx3::lab::{Lab, SOON, Wire, address};
use crate::test::cases::Case;
use anyhow::{Context, Result, ensure};
use qemu::linux::Listens;

/// Frames that the receive queues share.
const FRAMES: u32 = 120;

pub fn cases() -> Vec<Case> {
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
        // Programs can have frames only where drivers steer by rules.
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

/// rdma-core's ping-pong over extended reliable connections: both sides have a shared receive queue, which the other names.
pub fn extended(wire: Wire, options: &'static str) -> Step {
    Step::new(format!("ibv_xsrq_pingpong {options} {wire:?}"), move |lab| {
        let command = format!("ibv_xsrq_pingpong -d DEVICE -g GID {options}");
        let said = lab.both(wire, &command, Listens::PERFTEST, SOON)?;
        for (side, said) in [("server", said.server), ("client", said.client)] {
            ensure!(said.contains("remote: "), "the {side} says: {said}");
        }
        Ok(())
    })
}

/// One server and two clients, which are processes of one machine and share an XRC domain: the server sends to the shared
/// receive queue of each over the queue pairs of both.
fn of_two(lab: &mut Lab) -> Result<()> {
    let of =
        |lab: &Lab, machine| format!("ibv_xsrq_pingpong -d mlx4_0 -g {} -n 50", lab.gid(machine, Wire::V2));
    let (serve, ask) = (of(lab, 0), of(lab, 1));
    let ask = format!("{ask} SERVER & {ask} SERVER && wait $!");
    lab.exchange(&format!("{serve} -c 2"), Listens::PERFTEST, &ask, SOON).map(drop)
}

/// Frames of many addresses to one queue pair: each of the four queues of its table gets some, and those that its hash says.
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

/// Timestamps grow, and lie between what the card's clock says before and after.
fn timestamps(lab: &mut Lab) -> Result<()> {
    let gid = lab.gid(0, Wire::V2);
    let said = lab.check(0, &format!("timestamps mlx4_0 {gid}"))?;
    ensure!(said.starts_with("core clock 427000 kHz"), "it says: {said}");
    Ok(())
}

/// The driver of the network device has a clock by the card's, and takes timestamps of frames by it.
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
