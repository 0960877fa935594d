//! InfiniBand: a subnet manager in the first machine brings all ports up; then IP over InfiniBand, the tools for a subnet,
//! and RDMA by LID.

use super::{Step, session};
use crate::cx3::lab::{SOON, address};
use crate::cx3::{Lab, Plan};
use crate::test::cases::Case;
use anyhow::{Context, Result, ensure};
use qemu::cx3::CardConfig;
use qemu::linux::Listens;

/// The port in a machine.
const PORT: &str = "/sys/class/infiniband/mlx4_0/ports/1";

pub fn cases() -> Vec<Case> {
    let plan = |machines| Plan { cards: vec![CardConfig::profile("ib"); machines], ..Plan::default() };
    vec![
        session("infiniband", plan(2), || {
            let mut steps = subnet();
            steps.push(Step::new("discovery over a cable", |lab| discovery(lab, 0)));
            for command in ["ib_write_lat", "ib_read_bw -s 65536", "ib_send_bw", "ib_send_lat -c UD -s 1024"]
            {
                steps.push(perftest(command));
            }
            steps.push(pingpong("ibv_rc_pingpong -n 100"));
            steps.push(Step::new("rping", rping));
            steps
        })
        .full_if(true),
        // Of more than two ports the switch of `cx3` is an InfiniBand switch, with an agent of its own.
        session("infiniband switch", plan(3), || {
            let mut steps = subnet();
            steps.push(Step::new("discovery through a switch", |lab| discovery(lab, 1)));
            steps.push(Step::new("trace of the route", trace));
            steps.push(Step::new("ibping", ibping));
            for command in ["ib_write_bw -s 65536", "ib_send_bw -c UD -s 1024", "ib_atomic_lat"] {
                steps.push(perftest(command));
            }
            steps.push(pingpong("ibv_ud_pingpong -n 100"));
            steps.push(pingpong("ibv_srq_pingpong -n 100"));
            steps
        })
        .full_if(true),
    ]
}

/// What all sessions begin with.
fn subnet() -> Vec<Step> {
    vec![
        Step::new("opensm brings the ports up", ports_up),
        Step::new("the subnet manager's records", records),
        Step::new("IP over InfiniBand", ip),
    ]
}

/// Waits in a machine until a command succeeds.
fn wait(lab: &mut Lab, machine: usize, command: &str) -> Result<()> {
    lab.check(machine, &format!("until {{ {command}; }} 2>/dev/null; do usleep 100000; done")).map(drop)
}

fn ports_up(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.len() {
        wait(lab, machine, &format!("grep -q LinkUp {PORT}/phys_state"))?;
    }
    lab.check(0, "mkdir -p /var/log /var/cache/opensm; opensm -B -f /var/log/opensm.log")?;
    let mut lids = Vec::new();
    for machine in 0..lab.len() {
        wait(lab, machine, &format!("grep -q ACTIVE {PORT}/state"))?;
        let said = lab.check(machine, "ibstat mlx4_0 1")?;
        for part in ["State: Active", "Physical state: LinkUp", "Rate: 40", "Link layer: InfiniBand"] {
            ensure!(said.contains(part), "machine {machine}: ibstat lacks {part:?}: {said}");
        }
        lids.push(lid(lab, machine)?);
    }
    let mut distinct = lids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    ensure!(distinct.len() == lab.len() && !lids.contains(&0), "LIDs {lids:?}");
    Ok(())
}

fn lid(lab: &mut Lab, machine: usize) -> Result<u16> {
    let said = lab.check(machine, &format!("cat {PORT}/lid"))?;
    let digits = said.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).with_context(|| format!("machine {machine} has LID {said:?}"))
}

/// By queue pair 1: a record for each port, and a path between the first two.
fn records(lab: &mut Lab) -> Result<()> {
    let nodes = lab.check(0, "saquery -N")?;
    let adapters = nodes.matches("Channel Adapter").count();
    ensure!(adapters == lab.len(), "saquery knows {adapters} adapters: {nodes}");
    let (from, to) = (lid(lab, 0)?, lid(lab, 1)?);
    let path = lab.check(1, &format!("saquery -p --src-to-dst {from}:{to}"))?;
    ensure!(path.contains(&format!("dlid....................{to}")), "saquery's path: {path}");
    Ok(())
}

/// Every machine reaches every other by an address that is resolved by multicast.
fn ip(lab: &mut Lab) -> Result<()> {
    for machine in 0..lab.len() {
        lab.check(machine, &format!("ip addr add {}/24 dev ib0; ip link set ib0 up", address(machine)))?;
    }
    for machine in 0..lab.len() {
        wait(lab, machine, "[ \"$(cat /sys/class/net/ib0/operstate)\" = up ]")?;
        for other in 0..lab.len() {
            // The other may still be joining the group of all.
            wait(lab, machine, &format!("ping -c 1 -W 5 {} >/dev/null", address(other)))?;
        }
    }
    Ok(())
}

/// By directed routes: all adapters, and so many switches.
fn discovery(lab: &mut Lab, switches: usize) -> Result<()> {
    let map = lab.check(0, "ibnetdiscover")?;
    let count = |kind: &str| map.lines().filter(|line| line.starts_with(kind)).count();
    ensure!((count("Ca\t"), count("Switch\t")) == (lab.len(), switches), "ibnetdiscover says {map}");
    Ok(())
}

/// From the second machine over the switch to the third.
fn trace(lab: &mut Lab) -> Result<()> {
    let (from, to) = (lid(lab, 1)?, lid(lab, 2)?);
    let route = lab.check(1, &format!("ibtracert {from} {to}"))?;
    let through = route.lines().filter(|line| line.contains("switch port")).count();
    ensure!(through == 1 && route.lines().last().is_some_and(|line| line.starts_with("To ca")), "{route}");
    Ok(())
}

fn ibping(lab: &mut Lab) -> Result<()> {
    let to = lid(lab, 0)?;
    let server = lab.guest(0)?.background("ibping -S")?;
    // Until the server listens, nobody answers.
    let answered = wait(lab, 1, &format!("ibping -c 1 -t 1000 {to} | grep -q ' 1 received'"));
    lab.guest(0)?.signal(&server, "KILL")?;
    answered
}

fn perftest(command: &'static str) -> Step {
    Step::new(command, move |lab| exchange(lab, &format!("{command} -d mlx4_0 -F -n 100"), Listens::PERFTEST))
}

fn pingpong(command: &'static str) -> Step {
    Step::new(command, move |lab| exchange(lab, &format!("{command} -d mlx4_0"), Listens::PERFTEST))
}

fn exchange(lab: &mut Lab, command: &str, listens: Listens) -> Result<()> {
    lab.exchange(command, listens, &format!("{command} SERVER"), SOON).map(drop)
}

/// The connection manager, over IP over InfiniBand.
fn rping(lab: &mut Lab) -> Result<()> {
    let (serve, ask) = ("rping -s -a SERVER -C 10", "rping -c -a SERVER -C 10");
    lab.exchange(serve, Listens::RdmaCm, ask, SOON).map(drop)
}
