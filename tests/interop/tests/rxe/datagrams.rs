//! Datagrams between Ferrolite and Linux in both directions: contents, immediate data, the header before
//! them, and Q_Keys.

use super::{MIB, WC_RECV};
use anyhow::{Result, bail, ensure};
use interop::{Host, Linux, Peer, Session, UdTarget};
use verbs::{GRH_LEN, Gid, QKey, QpNum, Sge, UdQp, WorkKind};

/// The Q_Key that each end expects, and one that neither expects.
const OURS: QKey = QKey(0x1111_0042);
const THEIRS: QKey = QKey(0x2222_0007);
const WRONG: QKey = QKey(0x3333_0001);
/// Lengths of datagrams. A datagram is one packet; the last length is the maximum of the guest's port.
const SIZES: [usize; 8] = [0, 1, 2, 3, 64, 1023, 1024, 4096];
const BEFORE: usize = GRH_LEN as usize;

/// A queue pair for datagrams at each end.
struct Pair {
    ours: UdQp,
    theirs: QpNum,
    to_linux: UdTarget,
    /// Our GID and the guest's.
    gids: [Gid; 2],
}

pub(crate) fn both_ways(linux: &mut Linux) -> Result<()> {
    let mut peer = linux.session(Session::CLEAN)?;
    let host = &linux.host;
    let [gid_index, high, low] = linux.way_to_us();
    let opened = peer.tell(host, &format!("ud_open {} {gid_index} {high} {low}", THEIRS.0))?;
    let [theirs] = opened[..] else { bail!("no queue pair: {opened:?}") };
    let theirs = QpNum::new(u32::try_from(theirs)?);
    let address = linux.address();
    let pair = Pair {
        ours: host.create_ud(OURS)?,
        theirs,
        to_linux: UdTarget { address, qp: theirs, qkey: THEIRS },
        gids: [host.gid(), address.peer.gid],
    };
    pair.ours_to_linux(host, &mut peer)?;
    pair.linux_to_ours(host, &mut peer)?;
    host.destroy(pair.ours.number())?;
    linux.end(peer)
}

impl Pair {
    fn ours_to_linux(&self, host: &Host, peer: &mut Peer) -> Result<()> {
        let before = peer.tell(host, "qkey_violations")?;
        for (n, len) in SIZES.into_iter().enumerate() {
            let (id, seed, imm) = (n as u64, n as u8 ^ 0x21, (n % 2 == 1).then_some(0xfeed_0000 + n as u32));
            host.put(0, &interop::pattern(len, seed))?;
            let from = Sge { addr: host.at(0), len: len as u32 };
            peer.tell(host, "fill 0 8192 255")?;
            peer.tell(host, &format!("ud_recv {id} 0 8192"))?;
            // A dropped datagram uses no receive.
            host.send_ud(self.ours, 99, from, &UdTarget { qkey: WRONG, ..self.to_linux }, Some(666))?;
            host.done(99)?;
            host.send_ud(self.ours, id, from, &self.to_linux, imm)?;
            host.done(id)?;
            let wc = peer.done(host, id)?;
            let got = (wc.opcode, wc.bytes as usize, wc.imm, wc.src_qp);
            let expected = (WC_RECV, BEFORE + len, imm.unwrap_or(0), self.ours.number().get());
            ensure!(got == expected, "{len} bytes: {wc:?}, not {expected:?}");
            peer.tell(host, &format!("check {BEFORE} {len} {seed}"))?;
            let header: Vec<u8> =
                peer.tell(host, &format!("bytes 0 {BEFORE}"))?.into_iter().map(|byte| byte as u8).collect();
            let [from, to] = self.gids;
            check_header(&header, len, imm, from, to)?;
        }
        let after = peer.tell(host, "qkey_violations")?;
        let ([before], [after]) = (&before[..], &after[..]) else { bail!("{before:?}, {after:?}") };
        ensure!(after - before == SIZES.len() as u64, "Q_Key violations went from {before} to {after}");
        Ok(())
    }

    fn linux_to_ours(&self, host: &Host, peer: &mut Peer) -> Result<()> {
        let (qp, before) = (self.ours.number(), host.counter("rx_bad_qkey")?);
        for (n, len) in (0..).zip(SIZES) {
            let (id, seed, imm) = (u64::from(n), n as u8 ^ 0x43, (n % 2 == 0).then_some(0xdada_0000 + n));
            peer.tell(host, &format!("fill {MIB} {len} {seed}"))?;
            host.put(0, &[0xff; 8192])?;
            host.recv(qp, id, 0, 8192)?;
            let send = |name: &str, id: u64, qkey: QKey, imm: u32| {
                format!("{name} {id} {MIB} {len} {} {} {imm}", qp.get(), qkey.0)
            };
            peer.tell(host, &send("ud_send_imm", 99, WRONG, 666))?;
            peer.done(host, 99)?;
            let name = if imm.is_some() { "ud_send_imm" } else { "ud_send" };
            peer.tell(host, &send(name, id, OURS, imm.unwrap_or(0)))?;
            peer.done(host, id)?;
            let done = host.done(id)?;
            let got = (done.kind, done.byte_len as usize, done.imm, done.src_qp);
            let expected = (WorkKind::Recv, BEFORE + len, imm, Some(self.theirs));
            ensure!(got == expected, "{len} bytes: {done:?}, not {expected:?}");
            host.check(GRH_LEN.into(), len, seed)?;
            let [to, from] = self.gids;
            check_header(&host.bytes(0, BEFORE)?, len, imm, from, to)?;
        }
        // Each dropped datagram came before a valid one, so all have arrived.
        let dropped = host.counter("rx_bad_qkey")? - before;
        ensure!(dropped == SIZES.len() as u64, "{dropped} datagrams were dropped for their Q_Key");
        Ok(())
    }
}

/// Checks the header before a datagram (annex A17.4.5.2): the IPv6 header, or 20 undefined bytes and the IPv4
/// header.
fn check_header(header: &[u8], len: usize, imm: Option<u32>, from: Gid, to: Gid) -> Result<()> {
    // UDP, BTH, DETH, immediate data, message and padding, ICRC.
    let datagram = 8 + 12 + 8 + if imm.is_some() { 4 } else { 0 } + len.next_multiple_of(4) + 4;
    let (version, total, addresses, at) = match (from.ipv4(), to.ipv4()) {
        (Some(from), Some(to)) => (4, 20 + datagram, [from, to].concat(), [20, 22, 29, 32]),
        _ => (6, datagram, [from.0, to.0].concat(), [0, 4, 6, 8]),
    };
    ensure!(header.len() == BEFORE, "{} bytes go before", header.len());
    let [version_at, length_at, protocol_at, addresses_at] = at;
    let is = (
        header[version_at] >> 4,
        usize::from(u16::from_be_bytes([header[length_at], header[length_at + 1]])),
        header[protocol_at],
        &header[addresses_at..],
    );
    let should = (version, total, 17, &addresses[..]);
    ensure!(
        is == should,
        "before {len} bytes go version, length, protocol, addresses {is:?}, not {should:?}"
    );
    Ok(())
}
