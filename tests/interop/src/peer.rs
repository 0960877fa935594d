//! The Linux end: a guest with `rxe0`, and a program in it that executes commands.

use crate::host::{Host, SOON};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig};
use netfault::Faults;
use platform::IoAddr;
use qemu::Qemu;
use qemu::linux::{Guest, GuestConfig, Image, Input, Network, RunError, Status, compile};
use std::collections::BTreeMap;
use std::io::{PipeWriter, Write};
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use verbs::{
    AddressVector, Gid, LinkKind, MacAddr, PathMtu, PortAddress, Psn, QpConnect, QpNum, RemoteAddr, RemoteKey,
};

/// The time limit of a session, which normally takes seconds.
const SESSION: Duration = Duration::from_secs(600);
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
/// Waits until the link-local address is valid: until the kernel has found it to be unique (flag 0x40,
/// tentative) there may be no route from it.
const LINK_LOCAL: &str = "until grep -q '^fe80.* 80 *eth0$' /proc/net/if_inet6; do sleep 0.1; done";
/// First PSNs. The guest's soon wraps.
const OUR_PSN: u32 = 0x0a_0b0c;
const PEER_PSN: u32 = 0xff_fff0;

/// A guest on a fabric, and our RNIC on the fabric's other port.
pub struct Linux {
    /// Our end.
    pub host: Host,
    /// The guest; `None` while a session is open.
    guest: Option<Guest>,
    fabric: Fabric,
    mtu: PathMtu,
    ipv6: bool,
    // The last field, so that it is dropped after the fabric with its sockets.
    _dir: TempDir,
}

/// The retry parameters of a session's queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The acknowledgement timeout of our end, and Linux's as n in 4.096 us * 2^n.
    pub ack_timeout: (Duration, u8),
    /// The number of retries after a timeout, at both ends.
    pub retries: u8,
    /// The number of retries when no receive is posted; 7 means no limit.
    pub rnr_retries: u8,
}

impl Session {
    /// Parameters for a clean fabric: no timeout expires, so that any retransmission has a reason other than
    /// a slow host.
    pub const CLEAN: Self = Self { ack_timeout: (Duration::from_secs(8), 21), retries: 7, rnr_retries: 7 };
    /// Parameters for a lossy fabric.
    pub const LOSSY: Self = Self { ack_timeout: (Duration::from_millis(60), 14), retries: 7, rnr_retries: 7 };
}

/// A queue pair in the guest, connected to one of ours. The program ends when this value is dropped.
pub struct Peer {
    commands: Option<PipeWriter>,
    lines: Receiver<String>,
    thread: Option<JoinHandle<Ended>>,
    /// Our queue pair.
    pub qp: QpNum,
    /// The address and key of the guest's memory.
    memory: RemoteAddr,
}

/// The guest, the program's exit status, and its error messages.
type Ended = (Guest, Result<Status, RunError>, Vec<u8>);

/// A completion in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The work request's identifier.
    pub id: u64,
    /// The status (`enum ibv_wc_status`).
    pub status: u32,
    /// The opcode (`enum ibv_wc_opcode`).
    pub opcode: u32,
    /// The number of bytes received.
    pub bytes: u32,
    /// The received immediate data, or 0.
    pub imm: u32,
    /// The queue pair that sent a received datagram.
    pub src_qp: u32,
}

impl Linux {
    /// Boots the guest. `mtu` determines the Ethernet MTU of its port.
    pub fn boot(mtu: PathMtu, ipv6: bool) -> Result<Self> {
        let qemu = Qemu::find()?.context("QEMU is not installed")?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
            || {
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .ancestors()
                    .nth(2)
                    .unwrap_or(Path::new("."))
                    .join("target")
            },
            PathBuf::from,
        );
        let cache = target.join("linux-guest");
        let image = Image::build(&cache)?;
        let dir = TempDir::with_prefix("interop-")?;
        let program = dir.path().join("peer");
        compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/peer.c"), &program, &cache)?;
        let fabric = Fabric::start(&FabricConfig {
            ports: 2,
            dir: dir.path().to_owned(),
            faults: Faults::default(),
            seed: 11,
            pcap: std::env::var_os("INTEROP_PCAP").map(PathBuf::from),
        })?;
        let network = Network { mac: MAC, ..Network::numbered(1, fabric.plug(0)) };
        let files = vec![("/usr/bin/peer".to_owned(), program)];
        let config = GuestConfig { network: Some(network), files, ..GuestConfig::default() };
        let mut guest = Guest::boot(&qemu, &image, &config)?;
        if ipv6 {
            guest.check(LINK_LOCAL, SOON)?;
        }
        let host = Host::new(fabric.socket(1), ipv6, 5)?;
        Ok(Self { host, guest: Some(guest), fabric, mtu, ipv6, _dir: dir })
    }

    /// Changes the faults of the fabric.
    pub fn faults(&self, faults: &str) -> Result<()> {
        let faults = faults.parse().map_err(|e| anyhow::anyhow!("{faults}: {e}"))?;
        self.fabric.set_faults(faults)
    }

    /// Returns the number of frames that the fabric has lost.
    pub fn lost(&self) -> Result<u64> {
        Ok(self.fabric.counters()?.faults.lost)
    }

    /// Returns rxe's counters (`hw_counters`). Fails while a session is open.
    pub fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        let guest = self.guest.as_mut().context("a session is open")?;
        let listed = guest.check("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *", SOON)?;
        let pairs = listed.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(name, count)| Ok((name.to_owned(), count.trim().parse()?))).collect()
    }

    /// Starts the program and connects its queue pair to a new one of ours.
    pub fn session(&mut self, session: Session) -> Result<Peer> {
        let mut guest = self.guest.take().context("a session is open")?;
        let (input, commands) = std::io::pipe()?;
        let (sender, lines) = channel();
        let thread = std::thread::spawn(move || {
            let mut stderr = Vec::new();
            let input = Input::File(input.as_fd());
            let mut lines = Lines { sender, partial: Vec::new() };
            let ended = guest.stream("exec peer", SESSION, input, &mut lines, &mut stderr);
            (guest, ended, stderr)
        });
        let qp = self.host.create()?;
        let blank = RemoteAddr { addr: IoAddr(0), key: RemoteKey(0) };
        let mut peer = Peer { commands: Some(commands), lines, thread: Some(thread), qp, memory: blank };
        if let Err(e) = self.connect(&mut peer, session) {
            let why = self.end(peer).err();
            return Err(why.map_or(e, |why| why.context("the session did not begin")));
        }
        Ok(peer)
    }

    /// Returns the address of the guest's port.
    pub fn address(&self) -> AddressVector {
        let gid = match self.ipv6 {
            true => Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe00, 1).octets()),
            false => Gid::from_ipv4([10, 0, 0, 1]),
        };
        AddressVector {
            link: LinkKind::RoceV2,
            peer: PortAddress { mac: MacAddr(MAC), gid, lid: 0 },
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        }
    }

    /// Returns the address of our port for the guest's program: the index of its own GID, and the halves of
    /// our GID.
    pub fn way_to_us(&self) -> [u64; 3] {
        let ours = u128::from_be_bytes(self.host.gid().0);
        [u64::from(!self.ipv6), (ours >> 64) as u64, ours as u64]
    }

    fn connect(&self, peer: &mut Peer, session: Session) -> Result<()> {
        let ready = peer.line(&self.host)?;
        let numbers: Vec<u64> = ready.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [qpn, rkey, addr, _] = numbers[..] else { bail!("the peer said `{ready}`") };
        peer.memory = RemoteAddr { addr: IoAddr(addr), key: RemoteKey(u32::try_from(rkey)?) };
        let Session { ack_timeout, retries, rnr_retries } = session;
        self.host.connect(
            peer.qp,
            &QpConnect {
                address: self.address(),
                remote_qp: QpNum::new(u32::try_from(qpn)?),
                send_psn: Psn::new(OUR_PSN),
                recv_psn: Psn::new(PEER_PSN),
                mtu: self.mtu,
                max_rd_atomic: 16,
                ack_timeout: ack_timeout.0,
                retries,
                rnr_retries,
                min_rnr_delay: Duration::from_millis(1),
            },
        )?;
        // ibv_mtu: 1 is 256.
        let mtu = self.mtu as u32 + 1;
        let (qp, timeout) = (peer.qp.get(), ack_timeout.1);
        let [gid_index, high, low] = self.way_to_us();
        peer.tell(
            &self.host,
            &format!(
                "connect {mtu} {gid_index} {qp} {PEER_PSN} {OUR_PSN} {timeout} {retries} {rnr_retries} 14 {high} {low}"
            ),
        )?;
        Ok(())
    }

    /// Ends a session. The program must have succeeded.
    pub fn end(&mut self, mut peer: Peer) -> Result<()> {
        peer.commands = None;
        let thread = peer.thread.take().context("a session ended twice")?;
        let deadline = Instant::now() + SOON;
        while !thread.is_finished() {
            ensure!(Instant::now() < deadline, "the peer does not end");
            self.host.turn()?;
        }
        let (guest, ended, stderr) = thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        self.guest = Some(guest);
        self.host.destroy(peer.qp)?;
        let status = ended?;
        ensure!(
            status.success(),
            "the peer ended with {}: {}",
            status.0,
            String::from_utf8_lossy(&stderr).trim()
        );
        Ok(())
    }
}

impl Peer {
    /// Returns the address and key of an offset in the guest's memory.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: IoAddr(self.memory.addr.0 + offset), ..self.memory }
    }

    /// Makes the program execute a command and returns the numbers of its answer. Our RNIC runs in the
    /// meantime.
    pub fn tell(&mut self, host: &Host, command: &str) -> Result<Vec<u64>> {
        let answer = self.ask(host, command)?.1;
        Ok(answer)
    }

    /// Waits for completions in the guest.
    pub fn wait(&mut self, host: &Host, count: usize) -> Result<Vec<Wc>> {
        Ok(self.ask(host, &format!("wait {count} {}", SOON.as_millis()))?.0)
    }

    /// Waits for one completion, which must be a success of work request `id`.
    pub fn done(&mut self, host: &Host, id: u64) -> Result<Wc> {
        let [wc] = self.wait(host, 1)?[..] else { bail!("not one completion") };
        ensure!(wc.id == id && wc.status == 0, "not the success of {id} in the guest: {wc:?}");
        Ok(wc)
    }

    fn ask(&mut self, host: &Host, command: &str) -> Result<(Vec<Wc>, Vec<u64>)> {
        let commands = self.commands.as_mut().context("the session has ended")?;
        commands.write_all(format!("{command}\n").as_bytes())?;
        let mut wcs = Vec::new();
        loop {
            let line = self.line(host)?;
            let mut words = line.split(' ');
            let kind = words.next();
            let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            match kind {
                Some("ok") => return Ok((wcs, numbers)),
                Some("wc") => {
                    let [id, rest @ ..] = &numbers[..] else { bail!("the peer said `{line}`") };
                    let mut rest = rest.iter().map(|n| u32::try_from(*n).unwrap_or(u32::MAX));
                    let mut next = || rest.next().context("a completion is cut short");
                    wcs.push(Wc {
                        id: *id,
                        status: next()?,
                        opcode: next()?,
                        bytes: next()?,
                        imm: next()?,
                        src_qp: next()?,
                    });
                }
                _ => bail!("to `{command}` the peer said `{line}` {wcs:?}"),
            }
        }
    }

    /// Returns the program's next line.
    fn line(&self, host: &Host) -> Result<String> {
        let deadline = Instant::now() + 2 * SOON;
        loop {
            host.turn()?;
            match self.lines.recv_timeout(Duration::ZERO) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(Instant::now() < deadline, "the peer prints nothing");
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the peer has ended"),
            }
        }
    }
}

/// Splits the output into lines.
struct Lines {
    sender: Sender<String>,
    partial: Vec<u8>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).take(end).collect();
            // The receiver may have been dropped.
            let _ = self.sender.send(String::from_utf8_lossy(&line).into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
