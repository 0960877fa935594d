//! Tests of Linux's mlx4_en: offloads, MTU, VLANs, filters, rings, moderation. Files must arrive unchanged.

use super::{Step, session};
use crate::runner::Case;
use anyhow::{Context, Result, ensure};
use lab::cx3::lab::{SOON, address};
use lab::cx3::{Lab, Plan};
use qemu::linux::Listens;
use std::time::Duration;

/// The time limit of a transfer.
const TRANSFER: Duration = Duration::from_secs(120);
/// The port on which files are received.
const PORT: u16 = 7000;
/// The number of frames that test whether a filter passes them.
const PROBES: u64 = 20;
/// An address that no machine has.
const NOBODY: &str = "10.9.0.99";

pub(super) fn cases() -> Vec<Case> {
    let plan = Plan { cpus: 2, mtu: 1500, ..Plan::default() };
    vec![
        session("ethernet", plan.clone(), || {
            vec![
                Step::new("features", features),
                Step::new("a file, large sends", |lab| transfer(lab, "")),
                Step::new("counters", counters),
                Step::new("MTU 9000", large_frames),
                Step::new("VLAN", vlan),
                Step::new("promiscuous", promiscuous),
                Step::new("groups", groups),
            ]
        })
        .full_if(true),
        session("ethernet settings", plan, || {
            vec![
                with("no large sends", "tso off", "tso on"),
                with("no checksum offload", "rx off tx off", "rx on tx on tso on"),
                Step::new("hash by exclusive or", |lab| transfer(lab, "ethtool -X mlx0 hfunc xor")),
                Step::new("one ring", |lab| transfer(lab, "ethtool -L mlx0 rx 1 tx 1")),
                Step::new("moderated", |lab| {
                    transfer(lab, "ethtool -C mlx0 adaptive-rx off rx-usecs 100 rx-frames 200")
                }),
                Step::new("not moderated", |lab| transfer(lab, "ethtool -C mlx0 rx-usecs 0 rx-frames 0")),
                Step::new("self-test", |lab| lab.check(0, "ethtool -t mlx0").map(drop)),
                Step::new("down and up", |lab| {
                    lab.check(0, "ip link set mlx0 down; ip link set mlx0 up")?;
                    transfer(lab, "")
                }),
            ]
        })
        .full_if(true),
        session(
            "ethernet by INTx",
            Plan { module_parameters: vec!["mlx4_core.msi_x=0".into()], mtu: 1500, ..Plan::default() },
            || {
                vec![
                    Step::new("no MSI-X", |lab| {
                        let lines = lab.check(0, "grep mlx4 /proc/interrupts")?;
                        ensure!(!lines.contains("MSI"), "interrupts come by {lines}");
                        Ok(())
                    }),
                    Step::new("a file", |lab| transfer(lab, "")),
                ]
            },
        )
        .full_if(true),
    ]
}

/// Returns a transfer with features of `ethtool -K` set in both machines.
fn with(name: &str, set: &'static str, reset: &'static str) -> Step {
    Step::new(name, move |lab| {
        transfer(lab, &format!("ethtool -K mlx0 {set}"))?;
        both(lab, &format!("ethtool -K mlx0 {reset}"))
    })
}

fn both(lab: &mut Lab, command: &str) -> Result<()> {
    (0..2).try_for_each(|machine| lab.check(machine, command).map(drop))
}

/// Runs `first` in both machines, then sends a file of a few megabytes from the second to the first.
fn transfer(lab: &mut Lab, first: &str) -> Result<()> {
    transfer_to(lab, first, "SERVER")
}

fn transfer_to(lab: &mut Lab, first: &str, server: &str) -> Result<()> {
    if !first.is_empty() {
        both(lab, first)?;
        // A change of rings restarts the interface.
        lab.check(1, &format!("until ping -c 1 -W 1 {}; do :; done", address(0)))?;
    }
    let sent = lab.check(1, "cat /modules/*.ko | md5sum")?;
    // The pipe stays open: nc would close its half of the connection at the end of its input, and the other
    // nc would then end too.
    let serve = format!("[ -p /tmp/held ] || mkfifo /tmp/held; nc -l -p {PORT} <>/tmp/held | md5sum");
    let ask = format!("cat /modules/*.ko | nc {server} {PORT}");
    let received = lab.exchange(&serve, Listens::Tcp(PORT), &ask, TRANSFER)?.server;
    ensure!(received == sent, "{sent} was sent and {received} received");
    Ok(())
}

/// Returns a counter of `ethtool -S`.
fn counter(lab: &mut Lab, machine: usize, name: &str) -> Result<u64> {
    let said = lab.check(machine, &format!("ethtool -S mlx0 | sed -n 's/^ *{name}: //p'"))?;
    said.trim().parse().with_context(|| format!("machine {machine} has no counter {name}: {said:?}"))
}

fn features(lab: &mut Lab) -> Result<()> {
    let said = lab.check(0, "ethtool -k mlx0")?;
    for feature in [
        "rx-checksumming",
        "tx-checksum-ipv4",
        "tx-checksum-ipv6",
        "tx-tcp-segmentation",
        "tx-tcp6-segmentation",
        "rx-vlan-offload",
        "tx-vlan-offload",
        "receive-hashing",
    ] {
        ensure!(said.contains(&format!("{feature}: on")), "{feature} is not on: {said}");
    }
    let info = lab.check(0, "ethtool -T mlx0")?;
    for feature in ["hardware-transmit", "hardware-receive", "hardware-raw-clock", "PTP Hardware Clock: 0"] {
        ensure!(info.contains(feature), "{feature} is missing: {info}");
    }
    let rings = lab.check(0, "ethtool -x mlx0")?;
    ensure!(rings.contains("with 2 RX ring") && rings.contains("toeplitz: on"), "spreading: {rings}");
    Ok(())
}

/// Checks that the card's counters agree with the driver's after the file: checksums were verified, and both
/// sides counted the same frames.
fn counters(lab: &mut Lab) -> Result<()> {
    // The driver reads the counters four times a second.
    lab.check(0, "usleep 600000")?;
    let good = counter(lab, 0, "rx_csum_good")?;
    let none = counter(lab, 0, "rx_csum_none")?;
    ensure!(good > 1000 && none < good / 10, "{good} frames with good checksums and {none} without");
    ensure!(counter(lab, 1, "tso_packets")? > 0, "no large sends");
    let (frames, bytes) = (counter(lab, 0, "rx_packets_phy")?, counter(lab, 0, "rx_bytes_phy")?);
    let (driver_frames, driver_bytes) = (counter(lab, 0, "rx_packets")?, counter(lab, 0, "rx_bytes")?);
    let lost = counter(lab, 0, "rx_fifo_errors")?;
    // Frames may arrive between the two reads.
    ensure!(frames.abs_diff(driver_frames + lost) < 50, "the card {frames}, the driver {driver_frames}");
    ensure!(bytes >= driver_bytes + 4 * driver_frames, "the card {bytes}, the driver {driver_bytes}");
    let novlan = counter(lab, 0, "rx_novlan_packets")?;
    ensure!(novlan + counter(lab, 0, "rx_prio_0_packets")? >= driver_frames, "by priority {novlan}");
    let shown = lab.check(0, "cat /sys/class/net/mlx0/statistics/rx_packets")?;
    let shown: u64 = shown.trim().parse().context("rx_packets is no number")?;
    ensure!(shown.abs_diff(driver_frames) < 50, "the interface {shown}, the driver {driver_frames}");
    Ok(())
}

fn large_frames(lab: &mut Lab) -> Result<()> {
    both(lab, "ip link set mlx0 mtu 9000")?;
    lab.check(1, &format!("until ping -c 1 -W 1 {}; do :; done", address(0)))?;
    lab.check(1, &format!("ping -c 3 -W 5 -s 8972 {}", address(0)))?;
    transfer(lab, "")?;
    both(lab, "ip link set mlx0 mtu 1500")?;
    lab.check(1, &format!("until ping -c 1 -W 1 {}; do :; done", address(0))).map(drop)
}

/// Checks that tags are inserted and removed, by the card and without it, and that frames of a VLAN that the
/// first machine does not have are dropped.
fn vlan(lab: &mut Lab) -> Result<()> {
    for machine in 0..2 {
        let address = format!("10.5.0.{}/24", machine + 1);
        lab.check(
            machine,
            &format!(
                "ip link add link mlx0 name v5 type vlan id 5 && ip addr add {address} dev v5 && ip link set v5 up"
            ),
        )?;
    }
    lab.check(1, "ping -c 3 -W 5 10.5.0.1")?;
    transfer_to(lab, "", "10.5.0.1")?;
    ensure!(counter(lab, 0, "rx_prio_0_packets")? > 1000, "the card saw no tags");
    for (off, on) in [("rxvlan off", "rxvlan on"), ("txvlan off", "txvlan on")] {
        both(lab, &format!("ethtool -K mlx0 {off}"))?;
        lab.check(1, "until ping -c 1 -W 1 10.5.0.1; do :; done; ping -c 2 -W 5 10.5.0.1")?;
        both(lab, &format!("ethtool -K mlx0 {on}"))?;
        lab.check(1, "until ping -c 1 -W 1 10.5.0.1; do :; done")?;
    }
    lab.check(
        1,
        "arp -s 10.5.0.9 \"$(cat /proc/net/arp | sed -n 's/^10.5.0.1 .* \\(..:..:..:..:..:..\\) .*/\\1/p')\"",
    )?;
    lab.check(0, "ip link del v5")?;
    let came = probe(lab, "10.5.0.9")?;
    ensure!(came < PROBES / 2, "{came} of {PROBES} frames of a VLAN that is not here came in");
    lab.check(1, "ip link del v5").map(drop)
}

/// Returns the number of frames that the first machine's driver receives while the second sends probes to an
/// address.
fn probe(lab: &mut Lab, to: &str) -> Result<u64> {
    let before = counter(lab, 0, "rx_packets")?;
    // No machine answers.
    lab.check(1, &format!("ping -c {PROBES} -i 0.05 -W 1 {to}; true"))?;
    Ok(counter(lab, 0, "rx_packets")? - before)
}

fn promiscuous(lab: &mut Lab) -> Result<()> {
    lab.check(1, &format!("arp -s {NOBODY} 02:00:00:00:00:99"))?;
    let came = probe(lab, NOBODY)?;
    ensure!(came < PROBES / 2, "{came} of {PROBES} frames for another came in");
    lab.check(0, "ip link set mlx0 promisc on")?;
    let came = probe(lab, NOBODY)?;
    ensure!(came >= PROBES, "only {came} of {PROBES} frames came in, promiscuous");
    lab.check(0, "ip link set mlx0 promisc off")?;
    let came = probe(lab, NOBODY)?;
    ensure!(came < PROBES / 2, "{came} of {PROBES} frames for another came in again");
    Ok(())
}

/// Checks that frames to a group are received only while the machine listens: to the group's address, or to
/// all groups.
fn groups(lab: &mut Lab) -> Result<()> {
    // The group in which neighbours ask for addresses that end in 02:00:03 (RFC 4291, 2.7.1).
    const GROUP: &str = "33:33:ff:02:00:03";
    const MEMBER: &str = "fd00::1:2:3/64";
    lab.check(1, &format!("arp -s {NOBODY} {GROUP}"))?;
    for (listen, leave) in [
        (format!("ip addr add {MEMBER} dev mlx0"), format!("ip addr del {MEMBER} dev mlx0")),
        ("ifconfig mlx0 allmulti".into(), "ifconfig mlx0 -allmulti".into()),
    ] {
        let came = probe(lab, NOBODY)?;
        ensure!(came < PROBES / 2, "{came} of {PROBES} frames of a group came in");
        lab.check(0, &listen)?;
        // The driver changes its filter a little later.
        lab.check(0, "usleep 500000")?;
        let came = probe(lab, NOBODY)?;
        ensure!(came >= PROBES, "only {came} of {PROBES} frames of a group came in after `{listen}`");
        lab.check(0, &format!("{leave}; usleep 500000"))?;
    }
    lab.check(1, "ping -6 -c 2 -W 5 ff02::1%mlx0").map(drop)?;
    lab.check(1, &format!("arp -d {NOBODY}")).map(drop).with_context(|| format!("within {SOON:?}"))
}
