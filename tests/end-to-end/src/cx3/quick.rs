//! The session that CI runs: one pair of machines, and a short test of everything.

use super::drivers::{devices, messages, ping, reload};
use super::iperf::iperf;
use super::rdma::{perftest, ping_pong};
use super::services::managed;
use super::verbs::extended;
use super::{Step, session};
use crate::runner::Case;
use lab::cx3::Plan;
use lab::cx3::lab::Wire;

pub(super) fn cases() -> Vec<Case> {
    vec![session("quick", Plan::default(), || {
        vec![
            Step::new("messages", messages),
            Step::new("devices", devices),
            Step::new("ping", ping),
            perftest("ib_write_lat", Wire::V1, "-s 8 -n 100"),
            perftest("ib_write_bw", Wire::V2, "-s 1048576 -n 10"),
            perftest("ib_read_bw", Wire::V2, "-s 65536 -n 50"),
            perftest("ib_send_lat", Wire::V2, "-s 1 -n 100"),
            perftest("ib_atomic_lat", Wire::V2, "-n 100"),
            ping_pong("ibv_rc_pingpong", Wire::V2, ""),
            ping_pong("ibv_uc_pingpong", Wire::V1, "-n 200"),
            ping_pong("ibv_ud_pingpong", Wire::V1, "-n 200"),
            ping_pong("ibv_srq_pingpong", Wire::V2, "-n 200"),
            extended(Wire::V2, ""),
            managed("rping", "rping -s -a 0.0.0.0 -C 10 -v", "rping -c -a SERVER -C 10 -v"),
            managed("udaddy", "udaddy", "udaddy -s SERVER"),
            Step::new("iperf3 TCP", |lab| iperf(lab, "-t 2")),
            Step::new("reload", |lab| reload(lab, 1)),
            Step::new("ping after that", ping),
        ]
    })]
}
