//! Tests of RDMA in a VLAN: by the GID of an interface for it, over both RoCE versions, and by the connection
//! manager.

use super::{Step, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::lab::{SOON, Wire};
use lab::cx3::{Lab, Plan};
use qemu::linux::Listens;
use std::net::Ipv4Addr;

/// The VLAN of both machines.
pub(super) const VLAN: u16 = 5;

pub(super) fn cases() -> Vec<Case> {
    vec![
        session("rdma in a VLAN", Plan::default(), || {
            let mut steps = vec![
                Step::new("interfaces", interfaces),
                Step::new("ping", |lab| lab.check(1, &format!("ping -c 3 -W 5 {}", address(0))).map(drop)),
            ];
            for wire in [Wire::V1, Wire::V2] {
                for command in [
                    "ib_write_lat -s 8 -n 100 -F",
                    "ib_read_bw -s 65536 -n 20 -F",
                    "ib_send_lat -c UD -s 1024 -n 100 -F",
                    "ib_atomic_lat -n 50 -F",
                ] {
                    steps.push(Step::new(format!("{command} {wire:?}"), move |lab| {
                        tagged(lab, wire, command)
                    }));
                }
            }
            for (serve, ask) in [
                ("rping -s -a SERVER -V -S 65000 -C 10", "rping -c -a SERVER -V -S 65000 -C 10"),
                ("udaddy -b SERVER", "udaddy -s SERVER"),
            ] {
                steps.push(Step::new(ask, move |lab| {
                    let server = address(0).to_string();
                    let [serve, ask] = [serve, ask].map(|command| command.replace("SERVER", &server));
                    lab.exchange(&serve, Listens::RdmaCm, &ask, SOON).map(drop)
                }));
            }
            steps
        })
        .full_if(true),
    ]
}

/// Returns a machine's address in the VLAN.
pub(super) fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 5, 0, u8::try_from(number + 1).unwrap_or(u8::MAX))
}

/// Adds an interface with an address in the VLAN to each machine.
pub(super) fn interfaces(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.machines() {
        let address = address(machine);
        let add = format!(
            "ip link add link mlx0 name vlan type vlan id {VLAN} && ip addr add {address}/24 dev vlan && ip link set vlan up"
        );
        lab.check(machine, &add)?;
    }
    Ok(())
}

/// Returns shell code for the index of a machine's GID that is its address in the VLAN.
pub(super) fn gid(number: usize, wire: Wire) -> String {
    let [a, b, c, d] = address(number).octets();
    format!(
        "$(cd /sys/class/infiniband/mlx4_0/ports/1; for n in $(grep -l ffff:{a:02x}{b:02x}:{c:02x}{d:02x} gids/*); do \
         grep -q -x vlan gid_attrs/ndevs/${{n##*/}} && grep -q -x '{}' gid_attrs/types/${{n##*/}} && echo ${{n##*/}}; done)",
        wire.name()
    )
}

/// Runs a program of perftest between the machines, during which the card must receive tagged frames.
fn tagged(lab: &mut Lab, wire: Wire, command: &str) -> Result<()> {
    let before = tagged_frames(lab)?;
    let [serve, ask] = [0, 1].map(|number| format!("{command} -d mlx4_0 -x {}", gid(number, wire)));
    lab.exchange(&serve, Listens::PERFTEST, &format!("{ask} SERVER"), SOON)?;
    let tagged = tagged_frames(lab)? - before;
    ensure!(tagged >= 20, "the card has taken in {tagged} frames with a tag");
    Ok(())
}

/// Returns the number of frames with a tag of priority 0 that the first machine's card has received.
fn tagged_frames(lab: &mut Lab) -> Result<u64> {
    // The driver reads the card's counters four times a second.
    let said = lab.check(0, "usleep 600000; ethtool -S mlx0 | sed -n 's/^ *rx_prio_0_packets: //p'")?;
    said.trim().parse().with_context(|| format!("rx_prio_0_packets is {said:?}"))
}
