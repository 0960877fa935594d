//! Ferrolite's end: the software RNIC in this process.

use anyhow::{Result, anyhow, bail, ensure};
use fabricport::{FabricPort, Handle, RoceFrames};
use platform::{Arena, Instant, IoAddr, Memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softroce::{Config, SoftRoce};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as Time};
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, MacAddr, Payload, QKey, QpConnect, QpNum, QpOptions,
    RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, UdOptions, UdQp, UdSendWr, WrId,
};

/// The length of memory, in bytes.
pub(crate) const MEMORY: u64 = 4 << 20;
const BASE: u64 = 0x5_0000_0000;
const DEPTH: u32 = 256;
/// The time limit for actions that take milliseconds, on a busy host.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// The longest sleep while waiting, so that messages of other threads are noticed.
const NAP: Duration = Duration::from_millis(2);
const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 9]);

/// The RNIC and its memory.
pub struct Host {
    rnic: Arc<dyn Rnic>,
    memory: Arc<Arena>,
    port: Handle,
    cq: CqId,
    started: Time,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct UdTarget {
    /// The address of the port.
    pub address: AddressVector,
    /// The queue pair.
    pub qp: QpNum,
    /// The Q_Key that the queue pair expects.
    pub qkey: QKey,
}

/// Returns bytes that depend on their position and the seed; `peer.c` generates the same.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(7).wrapping_add((i >> 8) * 13)) as u8 ^ seed).collect()
}

impl Host {
    /// Creates the host 10.0.0.9, or fe80::5054:ff:fe00:9, on a fabric's port.
    pub fn new(socket: &Path, ipv6: bool, seed: u64) -> Result<Self> {
        let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe00, 9);
        let v4 = Ipv4Addr::new(10, 0, 0, 9);
        let (port, handle) = FabricPort::connect(socket, MAC, 4200)?;
        for address in [IpAddr::V4(v4), IpAddr::V6(v6)] {
            ensure!(handle.add_address(address), "no room for {address}");
        }
        let gid = if ipv6 { Gid(v6.octets()) } else { Gid::from_ipv4(v4.octets()) };
        let mut random = [0; 16];
        for (byte, n) in random.iter_mut().zip(0u64..) {
            *byte = (seed.wrapping_add(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        let memory = Arc::new(Arena::new(IoAddr(BASE), MEMORY));
        let rnic: Arc<dyn Rnic> =
            Arc::new(SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), Config::new(gid, random)));
        let cq = rnic.create_cq(CqOptions { depth: 64 * DEPTH })?;
        Ok(Self { rnic, memory, port: handle, cq, started: Time::now() })
    }

    /// Returns the port's GID.
    pub fn gid(&self) -> Gid {
        self.rnic.attributes().port.gid
    }

    /// Creates a queue pair.
    pub fn create(&self) -> Result<QpNum> {
        let (send_cq, recv_cq) = (self.cq, self.cq);
        Ok(self.rnic.create_qp(QpOptions { send_cq, recv_cq, send_depth: DEPTH, recv_depth: DEPTH })?)
    }

    /// Connects a queue pair.
    pub fn connect(&self, qp: QpNum, connect: &QpConnect) -> Result<()> {
        Ok(self.rnic.connect_qp(qp, connect)?)
    }

    /// Destroys a queue pair.
    pub fn destroy(&self, qp: QpNum) -> Result<()> {
        self.rnic.destroy_qp(qp)?;
        let mut rest = [Completion::BLANK; 64];
        while self.rnic.poll_cq(self.cq, &mut rest) > 0 {}
        Ok(())
    }

    /// Creates a queue pair for datagrams.
    pub fn create_ud(&self, qkey: QKey) -> Result<UdQp> {
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let options = UdOptions { send_cq, recv_cq, send_depth: DEPTH, recv_depth: DEPTH, qkey };
        Ok(self.rnic.create_ud_qp(options)?)
    }

    /// Posts a datagram from memory.
    pub fn send_ud(&self, qp: UdQp, id: u64, from: Sge, to: &UdTarget, imm: Option<u32>) -> Result<()> {
        let UdTarget { address, qp: remote_qp, qkey } = *to;
        let list = [from];
        let data = Payload::Gather(&list);
        let (signaled, solicited) = (true, false);
        let wr = UdSendWr { id: WrId(id), to: address, remote_qp, qkey, data, imm, signaled, solicited };
        self.rnic.post_send_ud(qp, &[wr]).map_err(|(_, e)| anyhow!("post_send_ud: {e}"))
    }

    /// Returns the address of an offset in memory.
    pub fn at(&self, offset: u64) -> IoAddr {
        IoAddr(BASE + offset)
    }

    /// Returns the address and key of an offset in memory, for a peer.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.at(offset), key: self.rnic.memory_key().rkey }
    }

    /// Writes to memory.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write(self.at(offset), bytes)?)
    }

    /// Reads from memory.
    pub fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.memory.read(self.at(offset), &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that memory contains the pattern.
    pub fn check(&self, offset: u64, len: usize, seed: u8) -> Result<()> {
        let wrong = self.bytes(offset, len)?.into_iter().zip(pattern(len, seed)).position(|(a, b)| a != b);
        match wrong {
            Some(at) => bail!("our byte {at} of {len} at {offset:#x} is wrong"),
            None => Ok(()),
        }
    }

    /// Returns the 8-byte word at an offset.
    pub fn word(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read(self.at(offset), &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Posts a send work request.
    pub fn send(&self, qp: QpNum, id: u64, op: SendOp<'_>) -> Result<()> {
        let wr = SendWr { id: WrId(id), op, signaled: true, solicited: false, fence: false };
        self.rnic.post_send(qp, &[wr]).map_err(|(_, e)| anyhow!("post_send: {e}"))
    }

    /// Posts a receive.
    pub fn recv(&self, qp: QpNum, id: u64, offset: u64, len: u32) -> Result<()> {
        let sge = [Sge { addr: self.at(offset), len }];
        let scatter = if len == 0 { &[][..] } else { &sge };
        self.rnic
            .post_recv(qp, &[RecvWr { id: WrId(id), scatter }])
            .map_err(|(_, e)| anyhow!("post_recv: {e}"))
    }

    /// Runs the RNIC once, and sleeps briefly if there is nothing to do.
    pub fn turn(&self) -> Result<()> {
        let now =
            || Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if self.rnic.progress(now(), 64) || self.rnic.arm() {
            return Ok(());
        }
        let due = self
            .rnic
            .next_deadline()
            .map_or(NAP, |at| Duration::from_nanos(at.as_nanos().saturating_sub(now().as_nanos())).min(NAP));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(due.subsec_nanos()) };
        let watch = self.port.watch();
        if let Some(why) = watch.closed() {
            bail!("the connection to the fabric is lost: {why}");
        }
        let flags = if watch.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match poll(&mut [PollFd::new(watch, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Runs the RNIC until `count` completions have come.
    pub fn completions(&self, count: usize) -> Result<Vec<Completion>> {
        let deadline = Time::now() + SOON;
        let mut all = Vec::new();
        while all.len() < count {
            ensure!(Time::now() < deadline, "only {} of {count} completions: {all:?}", all.len());
            self.turn()?;
            let mut some = [Completion::BLANK; 64];
            let room = (count - all.len()).min(some.len());
            let taken = self.rnic.poll_cq(self.cq, &mut some[..room]);
            all.extend_from_slice(&some[..taken]);
        }
        Ok(all)
    }

    /// Returns the next completion, which must be a success.
    pub fn done(&self, id: u64) -> Result<Completion> {
        let [done] = self.completions(1)?[..] else { bail!("not one completion") };
        ensure!(done.id == WrId(id) && done.status == Status::Success, "not the success of {id}: {done:?}");
        Ok(done)
    }

    /// Returns the numbers of RoCE frames received and sent so far.
    pub fn frames(&self) -> RoceFrames {
        self.port.roce_frames()
    }

    /// Returns a counter of the RNIC.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let counters = self.counters();
        let found = counters.iter().find(|(n, _)| *n == name);
        found.map(|(_, count)| *count).ok_or_else(|| anyhow!("the RNIC has no counter {name}"))
    }

    /// Runs the RNIC until a counter is not zero.
    pub fn until_counted(&self, name: &str) -> Result<()> {
        let deadline = Time::now() + SOON;
        while self.counter(name)? == 0 {
            ensure!(Time::now() < deadline, "{name} stays 0");
            self.turn()?;
        }
        Ok(())
    }

    /// Returns the counters of the RNIC.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.rnic.counters(&mut |counter| all.push(counter));
        all
    }
}
