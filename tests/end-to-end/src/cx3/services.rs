//! Tests of other services than reliable connections: datagrams, unreliable connections, shared receive
//! queues, completion events, the connection manager, multicast groups, and traffic within one card.

use super::rdma::{ALL_SIZES, CM_SETTING, perftest, ping_pong};
use super::{Step, session};
use crate::runner::Case;
use anyhow::{Result, bail, ensure};
use lab::cx3::lab::{SOON, Wire, address};
use lab::cx3::{Lab, Plan};
use qemu::linux::Listens;

const WIRES: [Wire; 2] = [Wire::V1, Wire::V2];
/// Messages of the group test.
const TO_GROUP: u32 = 10;

pub(super) fn cases() -> Vec<Case> {
    vec![
        session("services", Plan::default(), || {
            let mut steps = Vec::new();
            for wire in WIRES {
                for program in ["ibv_ud_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"] {
                    steps.push(ping_pong(program, wire, "-n 200"));
                }
                steps.push(ping_pong("ibv_rc_pingpong", wire, "-e -n 200"));
                for (program, options) in [
                    ("ib_send_lat", "-c UD -s 1024 -n 100"),
                    ("ib_send_bw", "-c UD -s 1024 -n 1000"),
                    ("ib_send_lat", "-c UC -s 1024 -n 100"),
                    ("ib_send_bw", "-c UC -s 65536 -n 200"),
                    ("ib_write_lat", "-c UC -s 1024 -n 100"),
                    ("ib_write_bw", "-c UC -s 65536 -n 200"),
                ] {
                    steps.push(perftest(program, wire, options));
                }
            }
            steps
        })
        .full_if(true),
        session("services, all sizes", Plan::default(), || {
            let mut steps: Vec<Step> = UNRELIABLE
                .into_iter()
                .flat_map(|(program, service)| {
                    ["-s 1 -n 100", "-a -n 10"].map(|sizes| {
                        Step::new(format!("{program} {service} {sizes}"), move |lab| {
                            unreliable(lab, program, service, sizes)
                        })
                    })
                })
                .collect();
            steps.extend(
                [("ib_send_lat", "-c UD -m 4096 -a -n 20"), ("ib_write_lat", "-c UC -a -n 10")]
                    .map(|(program, options)| perftest(program, Wire::V1, options)),
            );
            steps
        })
        .full_if(true),
        session(
            "services-with-rxe",
            Plan { cards: vec![Default::default()], rxe: 1, ..Plan::default() },
            || {
                vec![
                    ping_pong("ibv_ud_pingpong", Wire::V2, "-n 100 -s 1024"),
                    ping_pong("ibv_uc_pingpong", Wire::V2, "-n 100 -s 65536"),
                    Step::new("ib_send_lat UD", |lab| unreliable(lab, "ib_send_lat", "UD", "-a -n 10")),
                    Step::new("ib_send_bw UD", |lab| unreliable(lab, "ib_send_bw", "UD", "-a -n 10")),
                    perftest("ib_send_lat", Wire::V2, "-c UC -m 4096 -s 1 -n 100"),
                    perftest("ib_send_lat", Wire::V2, "-c UC -m 4096 -s 4096 -n 100"),
                    perftest("ib_send_lat", Wire::V2, "-c UC -m 4096 -s 65536 -n 20"),
                    perftest("ib_write_lat", Wire::V2, "-c UC -m 4096 -s 1 -n 100"),
                    perftest("ib_write_lat", Wire::V2, "-c UC -m 4096 -s 65536 -n 20"),
                ]
            },
        )
        .full_if(true),
        session("connection-manager", Plan::default(), || {
            let mut steps = Vec::new();
            for wire in WIRES {
                steps.push(Step::new(format!("set to {wire:?}"), move |lab| set_wire(lab, wire)));
                for (serve, ask) in [
                    ("rping -s -a 0.0.0.0 -C 10 -v", "rping -c -a SERVER -C 10 -v"),
                    ("rping -s -a :: -C 10 -v", "rping -c -a fd09::1 -C 10 -v"),
                    ("udaddy", "udaddy -s SERVER"),
                    ("udaddy -b fd09::1", "udaddy -b fd09::2 -s fd09::1"),
                    ("ucmatose", "ucmatose -s SERVER"),
                    ("ib_send_bw -R -c UD -n 200 -s 1024", "ib_send_bw -R -c UD -n 200 -s 1024 SERVER"),
                ] {
                    steps.push(managed(format!("{ask} {wire:?}"), serve, ask));
                }
                steps.push(Step::new(format!("mckey {wire:?}"), group));
            }
            for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
                steps.push(Step::new(format!("{program} within a card"), move |lab| within(lab, program)));
            }
            steps
        })
        .full_if(true),
    ]
}

/// The programs of perftest for services without acknowledgement.
const UNRELIABLE: [(&str, &str); 6] = [
    ("ib_send_lat", "UD"),
    ("ib_send_bw", "UD"),
    ("ib_send_lat", "UC"),
    ("ib_send_bw", "UC"),
    ("ib_write_lat", "UC"),
    ("ib_write_bw", "UC"),
];

/// Runs a program with a service over message lengths. `-a` selects all powers of two, from 2 bytes to the
/// MTU for datagrams and otherwise to 8 MiB.
fn unreliable(lab: &mut Lab, program: &str, service: &str, sizes: &str) -> Result<()> {
    // perftest's default MTU with such a card is 2048.
    let options = format!("-c {service} -m 4096 {sizes}");
    let said = lab.perftest(Wire::V2, program, &options, ALL_SIZES)?;
    if sizes.starts_with("-a") {
        let last = if service == "UD" { "4096" } else { "8388608" };
        let lines = said.lines().filter(|line| line.split_whitespace().next() == Some(last)).count();
        ensure!(lines == 1, "there is no line for {last} bytes: {said}");
    }
    Ok(())
}

/// Returns a step with a server and a client that find each other by the connection manager.
pub(super) fn managed(name: impl Into<String>, serve: &'static str, ask: &'static str) -> Step {
    Step::new(name, move |lab| lab.exchange(serve, Listens::RdmaCm, ask, SOON).map(drop))
}

/// Makes the connection manager use a RoCE version from here on. The machines get IPv6 addresses, if they
/// have none.
pub(super) fn set_wire(lab: &mut Lab, wire: Wire) -> Result<()> {
    for machine in 0..lab.machines() {
        let set = format!(
            "ip -6 addr add fd09::{}/64 dev mlx0 2>/dev/null; mount -t configfs none /sys/kernel/config 2>/dev/null; \
             mkdir -p {CM_SETTING} && echo '{}' >{CM_SETTING}/ports/1/default_roce_mode && \
             cat {CM_SETTING}/ports/1/default_roce_mode",
            machine + 1,
            wire.name()
        );
        let now = lab.check(machine, &set)?;
        ensure!(now.trim() == wire.name(), "machine {machine} stays at {now}");
    }
    // An address is usable only once duplicate address detection has ended.
    lab.check(1, "until ping -c 1 -W 1 fd09::1 >/dev/null; do usleep 100000; done").map(drop)
}

/// Checks that one machine's messages reach a group that the other has joined. Nothing announces the join, so
/// the first machine repeats its messages until the member has received them.
fn group(lab: &mut Lab) -> Result<()> {
    const TRIES: usize = 20;
    let mckey = |n| format!("mckey -m 239.1.2.3 -b {} -C {TO_GROUP}", address(n));
    let member = format!(
        "rm -f /tmp/mckey*; ({}; echo $? >/tmp/mckey.status) >/tmp/mckey 2>&1 </dev/null &",
        mckey(0)
    );
    lab.check(0, &member)?;
    for _ in 0..TRIES {
        lab.check(1, &format!("{} -s", mckey(1)))?;
        if lab.check(0, "sleep 1; cat /tmp/mckey.status 2>/dev/null; true")?.trim() == "0" {
            let said = lab.check(0, "cat /tmp/mckey")?;
            ensure!(said.contains("data transfers complete"), "the member says {said}");
            return Ok(());
        }
    }
    let said = lab.check(0, "killall mckey; cat /tmp/mckey")?;
    bail!("the member has not had {TO_GROUP} messages: {said}")
}

/// Runs server and client in one machine: the wire does not return frames, so the card must.
pub(super) fn within(lab: &mut Lab, program: &str) -> Result<()> {
    let command = format!("{program} -d {} -g {} -n 50", lab.device(0), lab.gid(0, Wire::V2));
    let both = format!(
        "{command} >/tmp/server 2>&1 </dev/null & until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do \
         usleep 10000; done; {command} 127.0.0.1 && wait $!"
    );
    lab.check(0, &both).map(drop)
}
