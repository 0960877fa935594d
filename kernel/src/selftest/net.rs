//! `selftest=net`: two machines on one fabric resolve each other and exchange full frames. `selftest=tcp`:
//! reads from a host's TCP server, then echoes with it. `selftest=join`: joins a cluster.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::task::{Poll, Waker};
use core::time::Duration;
use platform::Instant;
use softroce::EthernetPort;
use verbs::MacAddr;

use super::Outcome;
use crate::exec::{self, Poller};
use crate::net;
use crate::net::port::RocePort;
use crate::net::stack::Buffers;
use crate::node::control_link;
use crate::sync::IrqMutex;
use crate::{chart, cmdline, time};

/// The Ethertype of RoCE v1: these frames take the RNIC's path.
const ETHERTYPE: [u8; 2] = [0x89, 0x15];
const HEADER: usize = 14;
const ASK: u8 = 1;
const ANSWER: u8 = 2;
const PINGS: u32 = 200;
/// Frames of a burst: fewer than the transmit ring holds, so that one doorbell sends them all.
const BURST: u32 = 48;
const BURSTS: u32 = 50;

/// Returns the time in `ms` milliseconds from now.
fn in_ms(ms: u64) -> Instant {
    time::now() + Duration::from_millis(ms)
}

struct Shared {
    port: RocePort,
    /// The number of answers, and the sequence number of the last.
    answers: u32,
    last: u32,
    bad: u32,
    asked: u32,
    waker: Option<Waker>,
}

/// Answers requests from the poller, and counts answers.
struct Echo(Arc<IrqMutex<Shared>>);

/// The most frames that are answered in one poll.
const SCRATCH: usize = 64;

impl Echo {
    fn send(port: &mut RocePort, to: MacAddr, kind: u8, seq: u32, len: usize) -> bool {
        let from = port.mac();
        port.transmit(len, &mut |out| {
            let (head, body) = out.split_at_mut(HEADER);
            head[..6].copy_from_slice(&to.0);
            head[6..12].copy_from_slice(&from.0);
            head[12..].copy_from_slice(&ETHERTYPE);
            body[0] = kind;
            body[1..5].copy_from_slice(&seq.to_be_bytes());
            for (i, b) in body.iter_mut().enumerate().skip(5) {
                *b = (i as u32).wrapping_add(seq) as u8;
            }
            len
        })
    }
}

impl Poller for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn poll(&mut self, _: Instant, budget: u32) -> bool {
        let mut shared = self.0.lock();
        let Shared { port, answers, last, bad, asked, waker } = &mut *shared;
        let mut to_answer = [(MacAddr([0; 6]), 0u32, 0usize); SCRATCH];
        let mut count = 0;
        let taken = port.receive((budget as usize).min(SCRATCH), &mut |frame| {
            let Some((head, [kind, a, b, c, d, rest @ ..])) = frame.split_at_checked(HEADER) else {
                *bad += 1;
                return;
            };
            let seq = u32::from_be_bytes([*a, *b, *c, *d]);
            let right = rest.iter().zip(5u32..).all(|(byte, i)| *byte == i.wrapping_add(seq) as u8);
            *bad += u32::from(!right);
            if *kind == ASK {
                *asked += 1;
                if let (Some(slot), Some(from)) = (to_answer.get_mut(count), head[6..12].first_chunk()) {
                    *slot = (MacAddr(*from), seq, frame.len());
                    count += 1;
                }
            } else {
                *answers += 1;
                *last = seq;
            }
        });
        for (to, seq, len) in &to_answer[..count] {
            Self::send(port, *to, ANSWER, *seq, *len);
        }
        if count > 0 {
            port.flush();
        }
        if taken > 0
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
        taken > 0
    }

    fn next_deadline(&self) -> Instant {
        Instant::MAX
    }

    fn arm(&mut self) -> bool {
        self.0.lock().port.arm()
    }
}

async fn until(shared: &IrqMutex<Shared>, ms: u64, done: impl Fn(&Shared) -> bool) -> bool {
    let wait = poll_fn(|cx| {
        let mut s = shared.lock();
        if done(&s) {
            return Poll::Ready(());
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    });
    net::with_deadline(in_ms(ms), wait).await.is_some()
}

/// Runs between two machines whose fabric addresses end in 0 and 1. The first sends requests; both end with
/// success.
pub(super) async fn fabric() -> Outcome {
    let port = net::init(false)?.fabric.ok_or("no fabric port")?;
    let me = port.mac().0[5];
    let ip = |d: u8| IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1 + d));
    port.add_address(ip(me));
    let frame = HEADER + port.mtu();
    let shared = Arc::new(IrqMutex::new(Shared {
        port: port.attach_rnic(),
        answers: 0,
        last: 0,
        bad: 0,
        asked: 0,
        waker: None,
    }));
    exec::register_poller(0, Box::new(Echo(shared.clone())));
    let asked_at = time::now();
    let peer = port.resolve(ip(me ^ 1), in_ms(10_000)).await.ok_or("the peer does not answer ARP")?;
    let took = (time::now() - asked_at).as_micros();
    crate::println!("selftest net: {} is at {peer}, {took} us; MTU {}", ip(me ^ 1), port.mtu());
    if me & 1 != 0 {
        let all = PINGS + BURSTS * BURST;
        if !until(&shared, 20_000, |s| s.asked >= all).await {
            let asked = shared.lock().asked;
            return Err(format!("asked {asked} times of {all}"));
        }
        // The last answers must leave before the machine ends.
        exec::sleep(Duration::from_millis(100)).await;
    } else {
        ask(&shared, peer, frame).await?;
    }
    let (bad, counters) = (shared.lock().bad, port.counters());
    let net::port::Counters { received, sent, dropped } = counters;
    crate::println!(
        "selftest net: {received} frames received, {sent} sent, {dropped} dropped, {bad} changed"
    );
    if bad == 0 { Ok(String::new()) } else { Err(format!("{bad} frames changed on the way")) }
}

async fn ask(shared: &IrqMutex<Shared>, peer: MacAddr, frame: usize) -> Result<(), String> {
    let mut times = Vec::new();
    for seq in 1..=PINGS {
        let start = time::now();
        {
            let mut s = shared.lock();
            Echo::send(&mut s.port, peer, ASK, seq, frame);
            s.port.flush();
        }
        if !until(shared, 2000, |s| s.answers == seq && s.last == seq).await {
            return Err(format!("no answer to frame {seq}"));
        }
        times.push((time::now() - start).as_nanos() as u64);
    }
    times.sort_unstable();
    let at = |p: usize| times.get(times.len() * p / 100).copied().unwrap_or(0) / 1000;
    crate::println!(
        "selftest net: {PINGS} round trips of {frame} bytes: p50 {} us, p99 {} us",
        at(50),
        at(99)
    );
    let start = time::now();
    for burst in 1..=BURSTS {
        {
            let mut s = shared.lock();
            for i in 0..BURST {
                if !Echo::send(&mut s.port, peer, ASK, PINGS + (burst - 1) * BURST + i + 1, frame) {
                    return Err("the transmit ring is full too early".into());
                }
            }
            s.port.flush();
        }
        let want = PINGS + burst * BURST;
        if !until(shared, 2000, |s| s.answers >= want).await {
            let have = shared.lock().answers;
            return Err(format!("{have} answers of {want}: frames were lost"));
        }
    }
    let (bytes, took) = (u64::from(BURSTS * BURST) * frame as u64 * 2, time::now() - start);
    let rate = bytes as f64 / took.as_secs_f64() / 1e6;
    crate::println!("selftest net: bursts of {BURST}: {rate:.0} MB/s both ways together");
    Ok(())
}

fn manager() -> Result<SocketAddrV4, String> {
    let text = cmdline::get("manager").ok_or("manager=ADDRESS:PORT is missing")?;
    text.parse().map_err(|_| format!("manager={text}: not an IPv4 address and port"))
}

/// Reads everything that the server at `manager=` sends, then echoes small messages until the server closes
/// the connection.
pub(super) async fn tcp() -> Outcome {
    let stack = net::init(true)?.management()?;
    chart::mark("net");
    let config = net::with_deadline(in_ms(5000), stack.configured()).await.ok_or("no DHCP answer")?;
    chart::mark("address");
    crate::println!("selftest tcp: {config:?}");
    let buffers = Buffers { receive: cmdline::number("tcp_kb", 256) as usize * 1024, send: 64 * 1024 };
    let to_err = |e: platform::NetworkError| format!("{e}");
    let stream = stack.connect(manager()?.into(), buffers, in_ms(5000)).await.map_err(to_err)?;
    chart::mark("tcp");
    // The server sends a length, then that many bytes: byte i is i mod 251.
    let mut buf = vec![0u8; 64 * 1024];
    let mut head = [0u8; 8];
    let mut have = 0;
    while have < 8 {
        have += stream.read(&mut head[have..], in_ms(5000)).await.map_err(to_err)?.max(1);
    }
    let total = u64::from_be_bytes(head);
    let (start, mut got, mut wrong) = (time::now(), 0u64, 0u64);
    while got < total {
        let n = stream.read(&mut buf, in_ms(5000)).await.map_err(to_err)?;
        if n == 0 {
            return Err(format!("ended after {got} bytes of {total}"));
        }
        // Only one byte of each piece is compared: comparing all would measure this loop.
        wrong += u64::from(u64::from(buf[0]) != got % 251)
            + u64::from(u64::from(buf[n - 1]) != (got + n as u64 - 1) % 251);
        got += n as u64;
    }
    let took = time::now() - start;
    crate::println!("selftest tcp: {got} bytes in {} us, {wrong} wrong", took.as_micros());
    let mut times = Vec::new();
    for _ in 0..100 {
        let start = time::now();
        stream.write_all(&[7; 64], in_ms(5000)).await.map_err(to_err)?;
        let mut back = 0;
        while back < 64 {
            back += stream.read(&mut buf[back..64], in_ms(5000)).await.map_err(to_err)?.max(1);
        }
        times.push((time::now() - start).as_nanos() as u64 / 1000);
    }
    times.sort_unstable();
    crate::println!("selftest tcp: 64-byte round trip p50 {} us, p99 {} us", times[50], times[98]);
    chart::print();
    if wrong == 0 { Ok(String::new()) } else { Err("bytes changed on the way".into()) }
}

/// Joins the cluster of `manager=` and stays for `selftest_s` seconds (default 0). With `app=hog` it computes
/// meanwhile for 10 s at a time, twice its lease. With `app=panic` it dies at the first message.
pub(super) async fn join() -> Outcome {
    let net = net::init(true)?;
    let stack = net.management()?;
    let fabric = net.fabric.ok_or("no fabric port")?;
    chart::mark("net");
    let key = control_link::cluster_key()?;
    let mac = fabric.mac();
    let (total, free) = crate::mm::frames::totals();
    let wish = || proto::Join {
        version: proto::PROTOCOL_VERSION,
        name: cmdline::get("node").unwrap_or("selftest").into(),
        keep_id: false,
        rnic: proto::RnicOffer {
            driver: "softroce".into(),
            links: vec![verbs::LinkKind::RoceV2],
            mac,
            gid: None,
            lid: 0,
            mtu: verbs::PathMtu::fitting(fabric.mtu()).unwrap_or(verbs::PathMtu::B256),
            max_rd_atomic: 16,
            key: verbs::MemoryKey { rkey: verbs::RemoteKey(1), base: platform::IoAddr(0), len: total },
            physical: true,
        },
        memory: total,
        memory_free: free,
        cpus: 1,
        apps: Vec::new(),
        boot: proto::BootReport { stages: Vec::new() },
        boot_id: 0,
    };
    let buffers = Buffers { receive: 64 * 1024, send: 64 * 1024 };
    let (link, welcome) = control_link::join(stack, key, buffers, None, &wish).await?;
    crate::println!("joined as {}, lease {} ms", welcome.node, welcome.lease_ms);
    chart::print();
    let end = in_ms(1000 * cmdline::number("selftest_s", 0));
    let mut acknowledged = 0;
    while time::now() < end {
        let next = poll_fn(|cx| platform::ControlLink::poll_recv(&*link, cx));
        match net::with_deadline(end, next).await {
            None => break,
            Some(Err(e)) => return Err(format!("{e}")),
            Some(Ok(message)) => match proto::decode::<proto::ToNode>(&message) {
                Ok(proto::ToNode::HeartbeatAck { .. }) => acknowledged += 1,
                other => crate::println!("selftest join: {other:?}"),
            },
        }
        if cmdline::get("app") == Some("panic") {
            panic!("asked for by app=panic, after {acknowledged} heartbeats");
        }
        // The task computes without yielding: the heartbeats must continue.
        if cmdline::get("app") == Some("hog") {
            let busy_until = time::now() + Duration::from_secs(10);
            while time::now() < busy_until {
                core::hint::spin_loop();
            }
        }
    }
    crate::println!("selftest join: {acknowledged} heartbeats acknowledged");
    let leave = proto::encode(&proto::ToManager::Leave);
    let sent = poll_fn(|cx| platform::ControlLink::poll_send(&*link, cx, &leave));
    if net::with_deadline(in_ms(1000), sent).await != Some(Ok(())) {
        return Err("the farewell could not be sent".into());
    }
    exec::sleep(Duration::from_millis(20)).await;
    Ok(String::new())
}
