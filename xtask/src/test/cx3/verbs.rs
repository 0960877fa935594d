//! What verbs have beside queue pairs of two peers: extended reliable connections.

use super::services::within;
use super::{Step, session};
use crate::cx3::Plan;
use crate::cx3::lab::{Lab, SOON, Wire};
use crate::test::cases::Case;
use anyhow::{Result, ensure};
use qemu::linux::Listens;

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
