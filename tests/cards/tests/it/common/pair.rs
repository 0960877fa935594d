//! Two RNICs with a connection between them.

use super::wire::{Station, exchange};
use platform::{Arena, IoAddr, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, PathMtu, Payload, Psn, QKey, QpConnect, QpNum,
    QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, UdOptions, UdQp, UdSendWr, VerbsError,
    WorkKind, WrId,
};

pub(crate) const DEPTH: u32 = 16;

/// One end: an RNIC, its memory, a completion queue and a queue pair.
pub(crate) struct End<'a> {
    pub rnic: &'a dyn Rnic,
    pub memory: Arc<Arena>,
    pub cq: CqId,
    pub qp: QpNum,
}

impl<'a> End<'a> {
    pub(crate) fn new(rnic: &'a dyn Rnic, memory: &Arc<Arena>) -> Self {
        let cq = rnic.create_cq(CqOptions { depth: 4 * DEPTH }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: DEPTH, recv_depth: DEPTH };
        Self { rnic, memory: memory.clone(), cq, qp: rnic.create_qp(options).unwrap() }
    }

    pub(crate) fn connect(&self, peer: &End<'_>, link: LinkKind) {
        self.rnic.connect_qp(self.qp, &to(peer, self.qp, link)).unwrap();
    }

    /// Allocates memory with these bytes.
    pub(crate) fn put(&self, bytes: &[u8]) -> IoAddr {
        let at = self.memory.alloc(bytes.len() as u64).unwrap();
        self.memory.write(at, bytes).unwrap();
        at
    }

    pub(crate) fn bytes(&self, at: IoAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Returns the remote address of this end's memory.
    pub(crate) fn remote(&self, addr: IoAddr) -> RemoteAddr {
        RemoteAddr { addr, key: self.rnic.memory_key().rkey }
    }

    pub(crate) fn post(&self, id: u64, op: SendOp<'_>) {
        let wr = SendWr { id: WrId(id), op, signaled: true, solicited: false, fence: false };
        self.rnic.post_send(self.qp, &[wr]).unwrap();
    }

    pub(crate) fn receive(&self, id: u64, scatter: &[Sge]) {
        self.rnic.post_recv(self.qp, &[RecvWr { id: WrId(id), scatter }]).unwrap();
    }

    /// Returns all completions.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 8];
        let mut all = Vec::new();
        loop {
            let n = self.rnic.poll_cq(self.cq, &mut out);
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&out[..n]);
        }
    }

    /// Returns the only completion.
    pub(crate) fn one(&self) -> Completion {
        let all = self.poll();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }
}

/// Returns the parameters of a connection to `peer`.
pub(crate) fn to(peer: &End<'_>, own: QpNum, link: LinkKind) -> QpConnect {
    let mut peer_port = peer.rnic.attributes().port;
    if link == LinkKind::InfiniBand {
        // As in LITE, the peer's GID is the one that the manager has assigned, so the path uses the LID.
        peer_port.gid = Gid::from_ipv4([10, 9, 0, 99]);
    }
    let address = AddressVector { link, peer: peer_port, traffic_class: 2, hop_limit: 64, service_level: 0 };
    QpConnect {
        address,
        remote_qp: peer.qp,
        send_psn: Psn::new(own.get()),
        recv_psn: Psn::new(peer.qp.get()),
        mtu: PathMtu::B1024,
        max_rd_atomic: 16,
        ack_timeout: Duration::from_millis(10),
        retries: 7,
        rnr_retries: 3,
        min_rnr_delay: Duration::from_millis(1),
    }
}

/// One end of a datagram service.
pub(crate) struct Post<'a> {
    pub rnic: &'a dyn Rnic,
    pub memory: &'a Arc<Arena>,
    pub cq: CqId,
    pub qp: UdQp,
    place: AtomicU64,
}

pub(crate) const Q_KEY: QKey = QKey(0x1234_5678);

impl<'a> Post<'a> {
    pub(crate) fn new(rnic: &'a dyn Rnic, memory: &'a Arc<Arena>) -> Self {
        let cq = rnic.create_cq(CqOptions { depth: 4 * DEPTH }).unwrap();
        let options =
            UdOptions { send_cq: cq, recv_cq: cq, send_depth: DEPTH, recv_depth: DEPTH, qkey: Q_KEY };
        Self { rnic, memory, cq, qp: rnic.create_ud_qp(options).unwrap(), place: AtomicU64::new(0) }
    }

    /// Returns the header of the last datagram.
    pub(crate) fn last_header(&self) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        self.memory.read(IoAddr(self.place.load(Ordering::Relaxed)), &mut bytes).unwrap();
        bytes
    }

    fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 8];
        let n = self.rnic.poll_cq(self.cq, &mut out);
        out[..n].to_vec()
    }
}

/// Sends datagrams from `a` to `b`, which accepts those with its key.
pub(crate) fn datagrams(a: &Post<'_>, b: &Post<'_>, link: LinkKind, stations: &[&dyn Station]) {
    let bytes: Vec<u8> = (0..1024u32).map(|i| (i % 251) as u8).collect();
    let (here, there) = (a.memory.alloc(1024).unwrap(), b.memory.alloc(2048).unwrap());
    a.memory.write(here, &bytes).unwrap();
    b.place.store(there.0, Ordering::Relaxed);
    let scatter = [Sge { addr: there, len: 2048 }];
    let peer = b.rnic.attributes().port;
    let to = AddressVector { link, peer, traffic_class: 0, hop_limit: 64, service_level: 0 };
    let list = [Sge { addr: here, len: 1000 }, Sge { addr: here, len: 24 }];
    let inline = |len| Payload::Inline(&bytes[..len]);
    for (id, data, imm) in [
        (1, gather(&list), None),
        (2, inline(0), Some(9)),
        (3, inline(61), None),
        (4, inline(a.rnic.attributes().max_inline as usize), None),
    ] {
        b.rnic.post_recv(b.qp.number(), &[RecvWr { id: WrId(50 + id), scatter: &scatter }]).unwrap();
        let wr = |qkey| UdSendWr {
            id: WrId(id),
            to,
            remote_qp: b.qp.number(),
            qkey,
            data,
            imm,
            signaled: true,
            solicited: false,
        };
        // A datagram with another key is dropped.
        a.rnic.post_send_ud(a.qp, &[wr(QKey(1)), wr(Q_KEY)]).unwrap();
        exchange(stations);
        let left: Vec<_> = a.poll().iter().map(|c| (c.id.0, c.status)).collect();
        assert_eq!(left, [(id, Status::Success), (id, Status::Success)]);
        let taken = b.poll();
        let [received] = taken[..] else { panic!("{taken:?}") };
        let len = match data {
            Payload::Inline(bytes) => bytes.len(),
            Payload::Gather(_) => 1024,
        };
        assert_eq!((received.id.0, received.byte_len as usize, received.imm), (50 + id, 40 + len, imm));
        assert_eq!((received.src_qp, received.kind), (Some(a.qp.number()), WorkKind::Recv));
        let mut got = vec![0; len];
        b.memory.read(there.checked_add(40).unwrap(), &mut got).unwrap();
        let sent = if len == 1024 { [&bytes[..1000], &bytes[..24]].concat() } else { bytes[..len].to_vec() };
        assert_eq!(got, sent);
    }
    let most = a.rnic.attributes().max_mtu.bytes() as u32;
    let long = [Sge { addr: a.memory.alloc(8192).unwrap(), len: most }, Sge { addr: here, len: 1 }];
    let wr = UdSendWr {
        id: WrId(9),
        to,
        remote_qp: b.qp.number(),
        qkey: Q_KEY,
        data: gather(&long),
        imm: None,
        signaled: true,
        solicited: false,
    };
    assert_eq!(a.rnic.post_send_ud(a.qp, &[wr]), Err((0, VerbsError::InvalidArgument)));
}

pub(crate) const fn gather(list: &[Sge]) -> Payload<'_> {
    Payload::Gather(list)
}

/// Tests every verb from `a` to `b`.
pub(crate) fn every_verb(a: &End<'_>, b: &End<'_>, stations: &[&dyn Station]) {
    let data: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    let (here, there) = (a.put(&data), b.put(&[0; 0x4000]));
    let sge = |at: IoAddr, skip: u64, len| Sge { addr: at.checked_add(skip).unwrap(), len };
    let target = |skip: u64| b.remote(there.checked_add(skip).unwrap());

    // WRITE, gathered; then inline with immediate data.
    let list = [sge(here, 0, 1), sge(here, 1, 0), sge(here, 1, 8999), sge(here, 9000, 1000)];
    a.post(1, SendOp::Write { data: gather(&list), remote: target(3), imm: None });
    exchange(stations);
    let done = a.one();
    assert_eq!((done.id, done.status, done.kind), (WrId(1), verbs::Status::Success, verbs::WorkKind::Write));
    assert_eq!(b.bytes(there.checked_add(3).unwrap(), 10_000), data);
    for (id, len) in [(2, 0), (3, 1), (4, 28), (5, 29), (6, 64), (7, 88), (8, 89), (9, 128)] {
        b.receive(id, &[]);
        let data = Payload::Inline(&data[len..2 * len]);
        a.post(id, SendOp::Write { data, remote: target(0), imm: Some(0xabcd_0000 + len as u32) });
        exchange(stations);
        assert_eq!(a.one().kind, verbs::WorkKind::Write);
        let received = b.one();
        assert_eq!(received.imm, Some(0xabcd_0000 + len as u32));
        assert_eq!(
            (received.id, received.kind, received.byte_len),
            (WrId(id), verbs::WorkKind::RecvWriteImm, len as u32)
        );
        assert_eq!(b.bytes(there, len), (len..2 * len).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    }

    // READ into several buffers.
    b.memory.write(there, &data).unwrap();
    let into = a.put(&[0; 6000]);
    a.post(10, SendOp::Read { into: &[sge(into, 100, 17), sge(into, 200, 4000)], remote: target(5) });
    exchange(stations);
    assert_eq!(
        (a.one().kind, a.bytes(into.checked_add(100).unwrap(), 17)),
        (verbs::WorkKind::Read, data[5..22].to_vec())
    );
    assert_eq!(a.bytes(into.checked_add(200).unwrap(), 4000), data[22..4022]);

    // SEND, with and without immediate data, scattered.
    let place = b.put(&[0; 4096]);
    b.receive(20, &[sge(place, 0, 100), sge(place, 1000, 3000)]);
    b.receive(21, &[sge(place, 3000, 50), sge(place, 3100, 1), sge(place, 3200, 1), sge(place, 3300, 1)]);
    a.post(11, SendOp::Send { data: gather(&[sge(here, 0, 2000)]), imm: None });
    a.post(12, SendOp::Send { data: Payload::Inline(&data[..53]), imm: Some(7) });
    exchange(stations);
    assert_eq!(a.poll().iter().map(|c| c.id.0).collect::<Vec<_>>(), [11, 12]);
    let received = b.poll();
    assert_eq!(
        received.iter().map(|c| (c.id.0, c.byte_len, c.imm)).collect::<Vec<_>>(),
        [(20, 2000, None), (21, 53, Some(7))]
    );
    assert_eq!(b.bytes(place, 100), data[..100]);
    assert_eq!(b.bytes(place.checked_add(1000).unwrap(), 1900), data[100..2000]);
    assert_eq!(b.bytes(place.checked_add(3300).unwrap(), 1), data[52..53]);

    // Both atomics.
    b.memory.write(there, &40u64.to_ne_bytes()).unwrap();
    let result = a.put(&[0; 16]);
    a.post(13, SendOp::FetchAdd { result, remote: target(0), add: 2 });
    let second = result.checked_add(8).unwrap();
    a.post(14, SendOp::CompareSwap { result: second, remote: target(0), compare: 42, swap: 9 });
    exchange(stations);
    let kinds: Vec<_> = a.poll().iter().map(|c| (c.id.0, c.kind, c.byte_len)).collect();
    assert_eq!(kinds, [(13, verbs::WorkKind::FetchAdd, 8), (14, verbs::WorkKind::CompareSwap, 8)]);
    assert_eq!(a.bytes(result, 16), [40u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat());
    assert_eq!(b.bytes(there, 8), 9u64.to_ne_bytes());
    assert!(a.poll().is_empty() && b.poll().is_empty());
}
