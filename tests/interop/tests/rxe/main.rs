//! Ferrolite's transport against Linux's rxe, live: `cargo test -p interop -- --ignored`. Needs QEMU and
//! Debian's packages.

mod datagrams;

use anyhow::{Result, bail, ensure};
use interop::{Linux, Peer, Session, pattern};
use std::collections::BTreeMap;
use verbs::{PathMtu, Payload, RemoteAddr, RemoteKey, SendOp, Sge, Status, WorkKind};

/// Values of `enum ibv_wc_opcode` and `enum ibv_wc_status`.
const WC_RECV: u32 = 128;
const WC_RECV_WITH_IMM: u32 = 129;
const WC_REM_ACCESS_ERR: u32 = 10;
/// Counters of rxe that do not change on a clean fabric.
const CLEAN: [&str; 7] = [
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
    "ack_deferred",
];
/// Our counters that stay zero on a clean fabric.
const OURS_CLEAN: [&str; 12] = [
    "rx_icrc_errors",
    "rx_malformed",
    "rx_not_ours",
    "rx_unknown_qp",
    "rx_duplicates",
    "rx_out_of_sequence",
    "access_errors",
    "invalid_requests",
    "tx_naks",
    "rx_naks",
    "timeouts",
    "qp_errors",
];
const MIB: u64 = 1 << 20;

fn sizes(mtu: PathMtu) -> Vec<usize> {
    let mtu = mtu.bytes();
    vec![0, 1, 2, 3, 5, 8, 64, mtu - 1, mtu, mtu + 1, 3 * mtu + 17, 65_536, 300_001]
}

/// Every operation of our requester on Linux.
fn ours_to_linux(linux: &Linux, peer: &mut Peer, mtu: PathMtu) -> Result<()> {
    let (host, qp) = (&linux.host, peer.qp);
    for (n, size) in sizes(mtu).into_iter().enumerate() {
        let (id, seed, at) = (n as u64, n as u8, n as u64 * 3);
        let sge = [Sge { addr: host.at(at), len: size as u32 }];
        host.put(at, &pattern(size, seed))?;
        host.send(
            qp,
            id,
            SendOp::Write { data: Payload::Gather(&sge), remote: peer.remote(at + 1), imm: None },
        )?;
        host.done(id)?;
        peer.tell(host, &format!("check {} {size} {seed}", at + 1))?;

        let into = [Sge { addr: host.at(MIB + at), len: size as u32 }];
        peer.tell(host, &format!("fill {MIB} {size} {}", seed ^ 0x55))?;
        host.send(qp, id, SendOp::Read { into: &into, remote: peer.remote(MIB) })?;
        let done = host.done(id)?;
        ensure!(done.kind == WorkKind::Read && done.byte_len as usize == size, "{done:?}");
        host.check(MIB + at, size, seed ^ 0x55)?;

        for imm in [None, Some(0xcafe_0000 + n as u32)] {
            peer.tell(host, &format!("recv {id} {} 400000", 2 * MIB))?;
            host.send(qp, id, SendOp::Send { data: Payload::Gather(&sge), imm })?;
            let wc = peer.done(host, id)?;
            ensure!((wc.opcode, wc.bytes as usize, wc.imm) == (WC_RECV, size, imm.unwrap_or(0)), "{wc:?}");
            host.done(id)?;
            peer.tell(host, &format!("check {} {size} {seed}", 2 * MIB))?;
        }

        peer.tell(host, &format!("recv {id} 0 0"))?;
        let (remote, imm) = (peer.remote(3 * MIB), Some(id as u32));
        host.send(qp, id, SendOp::Write { data: Payload::Gather(&sge), remote, imm })?;
        let wc = peer.done(host, id)?;
        ensure!((wc.opcode, wc.bytes as usize, wc.imm) == (WC_RECV_WITH_IMM, size, id as u32), "{wc:?}");
        host.done(id)?;
        peer.tell(host, &format!("check {} {size} {seed}", 3 * MIB))?;
    }
    peer.tell(host, "set 64 41")?;
    let (result, remote) = (host.at(64), peer.remote(64));
    for (id, op, before, after) in [
        (1, SendOp::FetchAdd { result, remote, add: 1 }, 41, 42),
        (2, SendOp::CompareSwap { result, remote, compare: 42, swap: u64::MAX - 1 }, 42, u64::MAX - 1),
        (3, SendOp::CompareSwap { result, remote, compare: 42, swap: 7 }, u64::MAX - 1, u64::MAX - 1),
        (4, SendOp::FetchAdd { result, remote, add: 3 }, u64::MAX - 1, 1),
    ] {
        host.send(qp, id, op)?;
        host.done(id)?;
        ensure!(host.word(64)? == before, "atomic {id} gave {}, not {before}", host.word(64)?);
        ensure!(peer.tell(host, "get 64")? == [after], "after atomic {id}");
    }
    Ok(())
}

/// Every operation of Linux on our responder that must succeed.
fn linux_to_ours(linux: &Linux, peer: &mut Peer, mtu: PathMtu) -> Result<()> {
    let (host, qp) = (&linux.host, peer.qp);
    let named = |remote: RemoteAddr| format!("{} {}", remote.addr.0, remote.key.0);
    for (n, size) in sizes(mtu).into_iter().enumerate() {
        let (id, seed, at) = (n as u64, n as u8 ^ 0x33, n as u64 * 5);
        peer.tell(host, &format!("fill 0 {size} {seed}"))?;
        peer.tell(host, &format!("write {id} 0 {size} {}", named(host.remote(at))))?;
        peer.done(host, id)?;
        host.check(at, size, seed)?;

        host.put(MIB + at, &pattern(size, seed ^ 0x55))?;
        peer.tell(host, &format!("read {id} {MIB} {size} {}", named(host.remote(MIB + at))))?;
        peer.done(host, id)?;
        peer.tell(host, &format!("check {MIB} {size} {}", seed ^ 0x55))?;

        for (op, imm) in [("send", None), ("send_imm", Some(0xbeef_0000 + n as u32))] {
            host.recv(qp, id, 2 * MIB, 400_000)?;
            peer.tell(host, &format!("{op} {id} 0 {size} 0 0 {}", imm.unwrap_or(0)))?;
            peer.done(host, id)?;
            let done = host.done(id)?;
            ensure!((done.kind, done.byte_len as usize, done.imm) == (WorkKind::Recv, size, imm), "{done:?}");
            host.check(2 * MIB, size, seed)?;
        }

        host.recv(qp, id, 0, 0)?;
        peer.tell(host, &format!("write_imm {id} 0 {size} {} {id}", named(host.remote(3 * MIB))))?;
        peer.done(host, id)?;
        let done = host.done(id)?;
        ensure!((done.kind, done.imm) == (WorkKind::RecvWriteImm, Some(id as u32)), "{done:?}");
        host.check(3 * MIB, size, seed)?;
    }
    host.put(128, &41u64.to_ne_bytes())?;
    let there = named(host.remote(128));
    for (id, op, before, after) in [
        (1, format!("fetch_add 1 64 8 {there} 1"), 41, 42),
        (2, format!("compare_swap 2 64 8 {there} 42 {}", u64::MAX - 1), 42, u64::MAX - 1),
        (3, format!("compare_swap 3 64 8 {there} 42 7"), u64::MAX - 1, u64::MAX - 1),
        (4, format!("fetch_add 4 64 8 {there} 3"), u64::MAX - 1, 1),
    ] {
        peer.tell(host, &op)?;
        peer.done(host, id)?;
        ensure!(peer.tell(host, "get 64")? == [before], "atomic {id} gave another value");
        ensure!(host.word(128)? == after, "after atomic {id}: {}", host.word(128)?);
    }
    Ok(())
}

/// A window of type 2 in the guest: a WRITE through it succeeds, a SEND invalidates it, and then a WRITE is
/// refused.
fn window(linux: &mut Linux) -> Result<()> {
    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    let [rkey] = peer.tell(host, "bind 0 8192")?[..] else { bail!("no key") };
    peer.done(host, 0)?;
    let remote = RemoteAddr { key: RemoteKey(u32::try_from(rkey)?), ..peer.remote(0) };
    let data = pattern(64, 9);
    host.send(peer.qp, 1, SendOp::Write { data: Payload::Inline(&data), remote, imm: None })?;
    host.done(1)?;
    peer.tell(host, "check 0 64 9")?;
    peer.tell(host, "recv 2 4096 64")?;
    host.send(
        peer.qp,
        2,
        SendOp::SendInvalidate { data: Payload::Inline(&pattern(64, 8)), key: remote.key },
    )?;
    let wc = peer.done(host, 2)?;
    ensure!((wc.opcode, wc.bytes) == (WC_RECV, 64), "{wc:?}");
    host.done(2)?;
    peer.tell(host, "check 4096 64 8")?;
    host.send(peer.qp, 3, SendOp::Write { data: Payload::Inline(&pattern(64, 7)), remote, imm: None })?;
    let done = host.completions(1)?;
    ensure!(done[0].status == Status::RemoteAccessError, "{done:?}");
    peer.tell(host, "check 0 64 9")?;
    linux.end(peer)
}

/// A message that comes before its receive is delayed and then received, in both directions.
fn receiver_not_ready(linux: &Linux, peer: &mut Peer) -> Result<()> {
    let (host, qp) = (&linux.host, peer.qp);
    let data = pattern(100, 3);
    host.send(qp, 1, SendOp::Send { data: Payload::Inline(&data), imm: None })?;
    host.until_counted("rx_rnr_naks")?;
    peer.tell(host, "recv 7 0 4096")?;
    peer.done(host, 7)?;
    host.done(1)?;
    peer.tell(host, "check 0 100 3")?;

    peer.tell(host, "fill 0 100 4")?;
    peer.tell(host, "send 2 0 100")?;
    host.until_counted("tx_rnr_naks")?;
    host.recv(qp, 8, 0, 4096)?;
    host.done(8)?;
    host.check(0, 100, 4)?;
    peer.done(host, 2)?;
    Ok(())
}

/// An invalid key is refused with the same error in both directions, and nothing changes. Each refusal ends
/// its queue pairs.
fn bad_keys(linux: &mut Linux) -> Result<()> {
    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    let RemoteAddr { addr, key } = peer.remote(0);
    peer.tell(host, "fill 0 64 1")?;
    let (data, remote) = (pattern(64, 2), RemoteAddr { addr, key: RemoteKey(key.0 ^ 0x5a00) });
    host.send(peer.qp, 1, SendOp::Write { data: Payload::Inline(&data), remote, imm: None })?;
    let done = host.completions(1)?;
    ensure!(done[0].status == Status::RemoteAccessError, "{done:?}");
    peer.tell(host, "check 0 64 1")?;
    linux.end(peer)?;

    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    host.put(0, &pattern(64, 5))?;
    let RemoteAddr { addr, key } = host.remote(0);
    peer.tell(host, "fill 0 64 6")?;
    peer.tell(host, &format!("write 1 0 64 {} {}", addr.0, key.0 ^ 0x5a00))?;
    let wcs = peer.wait(host, 1)?;
    ensure!((wcs[0].id, wcs[0].status) == (1, WC_REM_ACCESS_ERR), "{wcs:?}");
    host.check(0, 64, 5)?;
    linux.end(peer)
}

/// The only key of our memory cannot be invalidated: the attempt is refused at both ends, and the key stays
/// valid.
fn our_key_stays(linux: &mut Linux) -> Result<()> {
    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    let (remote, refused) = (host.remote(4096), host.counter("access_errors")?);
    host.recv(peer.qp, 1, 0, 64)?;
    peer.tell(host, &format!("send_inv 2 0 64 0 0 {}", remote.key.0))?;
    let wcs = peer.wait(host, 1)?;
    ensure!((wcs[0].id, wcs[0].status) == (2, WC_REM_ACCESS_ERR), "{wcs:?}");
    let done = host.completions(1)?[0];
    ensure!((done.id.0, done.status) == (1, Status::RemoteInvalidRequest), "{done:?}");
    ensure!(host.counter("access_errors")? == refused + 1, "not counted: {:?}", host.counters());
    linux.end(peer)?;

    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    peer.tell(host, "fill 0 64 12")?;
    peer.tell(host, &format!("write 3 0 64 {} {}", remote.addr.0, remote.key.0))?;
    peer.done(host, 3)?;
    host.check(4096, 64, 12)?;
    linux.end(peer)
}

/// All operations while the fabric loses 1 % of the frames.
fn loss(linux: &mut Linux, mtu: PathMtu) -> Result<()> {
    linux.faults("loss=0.01")?;
    let lost = linux.lost()?;
    let mut rounds = 0;
    while rounds < 2 || (linux.lost()? == lost && rounds < 20) {
        let mut peer = linux.session(Session::LOSSY)?;
        ours_to_linux(linux, &mut peer, mtu)?;
        linux_to_ours(linux, &mut peer, mtu)?;
        linux.end(peer)?;
        rounds += 1;
    }
    ensure!(linux.lost()? > lost, "nothing was lost, so nothing was tested");
    linux.faults("")
}

/// Checks by rxe's counters that nothing arrived twice, out of order or damaged.
fn check_clean(
    linux: &Linux,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    sent: u64,
) -> Result<()> {
    let delta = |name: &str| Some(after.get(name)? - before.get(name)?);
    println!("{sent} packets to rxe: {after:?}; ours: {:?}", linux.host.counters());
    for name in CLEAN.into_iter().filter(|name| after.contains_key(*name)) {
        ensure!(delta(name) == Some(0), "{name} of rxe grew by {:?}: {after:?}", delta(name));
    }
    // A slow guest is probed by repeating the packet that it has not acknowledged.
    let probes = linux.host.counter("probes")?;
    let twice = delta("duplicate_request");
    ensure!(twice <= Some(probes), "rxe had {twice:?} requests twice; we have repeated {probes}: {after:?}");
    // rxe counts packets after it has checked the ICRC and the headers.
    ensure!(delta("rcvd_pkts") == Some(sent), "of {sent} packets of ours rxe took {:?}", delta("rcvd_pkts"));
    ensure!(sent > 0);
    for name in OURS_CLEAN {
        ensure!(linux.host.counter(name)? == 0, "{name}: {:?}", linux.host.counters());
    }
    Ok(())
}

fn whole(mtu: PathMtu, ipv6: bool, lossy: bool) -> Result<()> {
    let mut linux = Linux::boot(mtu, ipv6)?;
    let (before, sent) = (linux.counters()?, linux.host.frames().sent);
    let mut peer = linux.session(Session::CLEAN)?;
    ours_to_linux(&linux, &mut peer, mtu)?;
    linux_to_ours(&linux, &mut peer, mtu)?;
    linux.end(peer)?;
    let (after, sent) = (linux.counters()?, linux.host.frames().sent - sent);
    check_clean(&linux, &before, &after, sent)?;

    let mut peer = linux.session(Session::CLEAN)?;
    receiver_not_ready(&linux, &mut peer)?;
    linux.end(peer)?;
    datagrams::both_ways(&mut linux)?;
    window(&mut linux)?;
    bad_keys(&mut linux)?;
    our_key_stays(&mut linux)?;
    if lossy {
        loss(&mut linux, mtu)?;
    }
    Ok(())
}

#[test]
#[ignore = "boots a Linux guest"]
fn quick_ipv4_mtu_4096() -> Result<()> {
    whole(PathMtu::B4096, false, false)
}

#[test]
#[ignore = "boots a Linux guest"]
fn ipv4_mtu_1024_with_loss() -> Result<()> {
    whole(PathMtu::B1024, false, true)
}

#[test]
#[ignore = "boots a Linux guest"]
fn ipv6_mtu_1024() -> Result<()> {
    whole(PathMtu::B1024, true, false)
}

#[test]
#[ignore = "boots a Linux guest"]
fn ipv6_mtu_4096_with_loss() -> Result<()> {
    whole(PathMtu::B4096, true, true)
}
