//! What is beside reliable connections: datagrams, unreliable connections, shared receive queues, completion events, the
//! connection manager, multicast groups, and traffic within one card.

use super::rdma::{perftest, ping_pong};
use super::{Step, session};
use crate::cx3::lab::{SOON, Wire, address};
use crate::cx3::{Lab, Plan};
use crate::test::cases::Case;
use anyhow::{Result, bail, ensure};
use qemu::linux::Listens;

const WIRES: [Wire; 2] = [Wire::V1, Wire::V2];
/// Where the setting of the connection manager is, which says by which wire it connects.
const CM_SETTING: &str = "/sys/kernel/config/rdma_cm/mlx4_0";
/// Messages of the group test.
const TO_GROUP: u32 = 10;

pub fn cases() -> Vec<Case> {
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

/// A server and a client that find each other by the connection manager.
pub fn managed(name: impl Into<String>, serve: &'static str, ask: &'static str) -> Step {
    Step::new(name, move |lab| lab.exchange(serve, Listens::RdmaCm, ask, SOON).map(drop))
}

/// The connection manager uses a wire from here on. The machines get IPv6 addresses, if they have none.
fn set_wire(lab: &mut Lab, wire: Wire) -> Result<()> {
    for machine in 0..lab.len() {
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
    // An address is of use when no other machine has answered to it.
    lab.check(1, "until ping -c 1 -W 1 fd09::1 >/dev/null; do usleep 100000; done").map(drop)
}

/// One machine sends to a group that the other joins. Nothing tells when it has joined, so the first sends again until the
/// member has had its messages.
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

/// Server and client in one machine: the wire does not bring frames back, so the card does.
fn within(lab: &mut Lab, program: &str) -> Result<()> {
    let command = format!("{program} -d {} -g {} -n 50", lab.device(0), lab.gid(0, Wire::V2));
    let both = format!(
        "{command} >/tmp/server 2>&1 </dev/null & until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do \
         usleep 10000; done; {command} 127.0.0.1 && wait $!"
    );
    lab.check(0, &both).map(drop)
}
