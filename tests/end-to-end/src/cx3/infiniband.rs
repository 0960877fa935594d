//! Tests of InfiniBand: a subnet manager in the first machine brings all ports up; then IP over InfiniBand,
//! the tools for a subnet, and RDMA by LID.

use super::{Step, messages, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::lab::{Port, SOON};
use lab::cx3::{Lab, Plan};
use qemu::cx3::CardConfig;
use qemu::linux::{Listens, Release};

/// Returns the path of a port in a machine.
fn path(port: Port) -> String {
    format!("/sys/class/infiniband/mlx4_0/ports/{}", port.0)
}

/// Returns shell code for the interface of IP over a port.
fn interface(port: Port) -> String {
    format!(
        "$(for path in /sys/class/net/*; do \
         [ \"$(cat $path/type $path/dev_port | tr '\\n' ' ')\" != '32 {} ' ] || echo ${{path##*/}}; done)",
        port.0 - 1
    )
}

pub(super) fn cases() -> Vec<Case> {
    let plan = |machines| Plan { cards: vec![CardConfig::profile("ib"); machines], ..Plan::default() };
    vec![
        session("infiniband", plan(2), || {
            let mut steps = subnet(Port::FIRST);
            steps.push(Step::new("discovery over a cable", |lab| discovery(lab, 0)));
            steps.extend(connected(Port::FIRST));
            steps.push(Step::new("rping", rping));
            steps
        })
        .full_if(true),
        session("infiniband 6.12", Plan { release: Release::Trixie, ..plan(2) }, || {
            let mut steps = vec![Step::new("messages", |lab| messages::as_recorded_of(lab, 0, "ib"))];
            steps.extend(subnet(Port::FIRST));
            steps.extend(connected(Port::FIRST));
            steps.push(Step::new("rping", rping));
            steps
        })
        .full_if(true),
        // With more than two ports the switch of `cx3` is an InfiniBand switch with its own agent.
        session("infiniband switch", plan(3), || {
            let mut steps = subnet(Port::FIRST);
            steps.push(Step::new("discovery through a switch", |lab| discovery(lab, 1)));
            steps.push(Step::new("trace of the route", trace));
            steps.push(Step::new("ibping", ibping));
            for command in ["ib_write_bw -s 65536", "ib_send_bw -c UD -s 1024", "ib_atomic_lat"] {
                steps.push(perftest(command, Port::FIRST));
            }
            steps.push(pingpong("ibv_ud_pingpong -n 100", Port::FIRST));
            steps.push(pingpong("ibv_srq_pingpong -n 100", Port::FIRST));
            steps.push(pingpong("ibv_xsrq_pingpong -n 100", Port::FIRST));
            steps
        })
        .full_if(true),
    ]
}

/// Returns the first steps of all sessions: a subnet of the port of each machine.
pub(super) fn subnet(port: Port) -> Vec<Step> {
    vec![
        Step::new("opensm brings the ports up", move |lab| ports_up(lab, port)),
        Step::new("the subnet manager's records", move |lab| records(lab, port)),
        Step::new("IP over InfiniBand", move |lab| ip(lab, port)),
    ]
}

/// Returns steps of RDMA by LID.
pub(super) fn connected(port: Port) -> Vec<Step> {
    let commands =
        ["ib_write_lat", "ib_read_bw -s 65536", "ib_send_bw", "ib_atomic_lat", "ib_send_lat -c UD -s 1024"];
    let mut steps: Vec<Step> = commands.into_iter().map(|command| perftest(command, port)).collect();
    steps.push(pingpong("ibv_rc_pingpong -n 100", port));
    steps
}

/// Ends the subnet manager.
pub(super) fn end_subnet(lab: &mut Lab) -> Result<()> {
    lab.check(0, "killall opensm; while pidof opensm; do usleep 20000; done").map(drop)
}

/// Waits in a machine until a command succeeds.
fn wait(lab: &mut Lab, machine: usize, command: &str) -> Result<()> {
    lab.check(machine, &format!("until {{ {command}; }} 2>/dev/null; do usleep 100000; done")).map(drop)
}

fn ports_up(lab: &mut Lab, port: Port) -> Result<()> {
    let path = path(port);
    for machine in 0..lab.machines() {
        wait(lab, machine, &format!("grep -q LinkUp {path}/phys_state"))?;
    }
    let start = format!(
        "mkdir -p /var/log /var/cache/opensm; \
         opensm -B -f /var/log/opensm.log -g 0x$(cut -d: -f5- {path}/gids/0 | tr -d :)"
    );
    lab.check(0, &start)?;
    let mut lids = Vec::new();
    for machine in 0..lab.machines() {
        wait(lab, machine, &format!("grep -q ACTIVE {path}/state"))?;
        let said = lab.check(machine, &format!("ibstat mlx4_0 {}", port.0))?;
        for part in ["State: Active", "Physical state: LinkUp", "Rate: 40", "Link layer: InfiniBand"] {
            ensure!(said.contains(part), "machine {machine}: ibstat lacks {part:?}: {said}");
        }
        lids.push(lid(lab, machine, port)?);
    }
    let mut distinct = lids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    ensure!(distinct.len() == lab.machines() && !lids.contains(&0), "LIDs {lids:?}");
    Ok(())
}

fn lid(lab: &mut Lab, machine: usize, port: Port) -> Result<u16> {
    let said = lab.check(machine, &format!("cat {}/lid", path(port)))?;
    let digits = said.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).with_context(|| format!("machine {machine} has LID {said:?}"))
}

/// Queries by queue pair 1: a record for each port, and a path between the first two.
fn records(lab: &mut Lab, port: Port) -> Result<()> {
    let nodes = lab.check(0, "saquery -N")?;
    let adapters = nodes.matches("Channel Adapter").count();
    ensure!(adapters == lab.machines(), "saquery knows {adapters} adapters: {nodes}");
    let (from, to) = (lid(lab, 0, port)?, lid(lab, 1, port)?);
    let path = lab.check(1, &format!("saquery -p --src-to-dst {from}:{to}"))?;
    ensure!(path.contains(&format!("dlid....................{to}")), "saquery's path: {path}");
    Ok(())
}

/// Checks that every machine reaches every other by an address that is resolved by multicast.
fn ip(lab: &mut Lab, port: Port) -> Result<()> {
    let interface = interface(port);
    for machine in 0..lab.machines() {
        lab.check(
            machine,
            &format!(
                "card={interface}; ip addr add {}/24 dev $card; ip link set $card up",
                port.address(machine)
            ),
        )?;
    }
    for machine in 0..lab.machines() {
        wait(lab, machine, &format!("[ \"$(cat /sys/class/net/{interface}/operstate)\" = up ]"))?;
        for other in 0..lab.machines() {
            // The other machine may still be joining the broadcast group.
            wait(lab, machine, &format!("ping -c 1 -W 5 {} >/dev/null", port.address(other)))?;
        }
    }
    Ok(())
}

/// Discovers the subnet by directed routes: all adapters, and `switches` switches.
fn discovery(lab: &mut Lab, switches: usize) -> Result<()> {
    let map = lab.check(0, "ibnetdiscover")?;
    let count = |kind: &str| map.lines().filter(|line| line.starts_with(kind)).count();
    ensure!((count("Ca\t"), count("Switch\t")) == (lab.machines(), switches), "ibnetdiscover says {map}");
    Ok(())
}

/// Traces the route from the second machine over the switch to the third.
fn trace(lab: &mut Lab) -> Result<()> {
    let (from, to) = (lid(lab, 1, Port::FIRST)?, lid(lab, 2, Port::FIRST)?);
    let route = lab.check(1, &format!("ibtracert {from} {to}"))?;
    let through = route.lines().filter(|line| line.contains("switch port")).count();
    ensure!(through == 1 && route.lines().last().is_some_and(|line| line.starts_with("To ca")), "{route}");
    Ok(())
}

fn ibping(lab: &mut Lab) -> Result<()> {
    let to = lid(lab, 0, Port::FIRST)?;
    let server = lab.guest(0)?.background("ibping -S")?;
    // Nothing answers until the server listens.
    let answered = wait(lab, 1, &format!("ibping -c 1 -t 1000 {to} | grep -q ' 1 received'"));
    lab.guest(0)?.signal(&server, "KILL")?;
    answered
}

fn perftest(command: &'static str, port: Port) -> Step {
    Step::new(command, move |lab| {
        exchange(lab, port, &format!("{command} -d mlx4_0 -i {} -F -n 100", port.0))
    })
}

fn pingpong(command: &'static str, port: Port) -> Step {
    Step::new(command, move |lab| exchange(lab, port, &format!("{command} -d mlx4_0 -i {}", port.0)))
}

fn exchange(lab: &mut Lab, port: Port, command: &str) -> Result<()> {
    lab.exchange_on(port, command, Listens::PERFTEST, &format!("{command} SERVER"), SOON).map(drop)
}

/// Tests the connection manager over IP over InfiniBand.
fn rping(lab: &mut Lab) -> Result<()> {
    let (serve, ask) = ("rping -s -a SERVER -C 10", "rping -c -a SERVER -C 10");
    lab.exchange(serve, Listens::RdmaCm, ask, SOON).map(drop)
}
