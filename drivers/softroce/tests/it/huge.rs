//! The longest message, 2^31 bytes, in the smallest packets: 2^23 sequence numbers each.

use crate::common::{drain, mac, wr};
use platform::{Instant, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use softroce::{Config, EthernetPort, SoftRoce};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verbs::{
    AddressVector, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, Psn, QpConnect, QpOptions,
    RemoteAddr, Rnic, SendOp, Sge, Status,
};

const MESSAGE: u64 = 1 << 31;

/// Memory of three ranges with the length of the longest message. Data read begins with its first offset in
/// its range and ends with its last; data written must do so too, and is counted.
#[derive(Default)]
struct Ruler {
    written: AtomicU64,
}

impl Memory for Ruler {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(0), 3 * MESSAGE)
    }
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        let end = addr.0.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        if end > 3 * MESSAGE { Err(MemoryError::OutOfRange) } else { Ok(()) }
    }
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        *buf.first_chunk_mut().unwrap() = (addr.0 % MESSAGE).to_le_bytes();
        let end = (addr.0 + buf.len() as u64) % MESSAGE;
        *buf.last_chunk_mut().unwrap() = end.to_le_bytes();
        Ok(())
    }
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(data.first_chunk(), Some(&(addr.0 % MESSAGE).to_le_bytes()));
        assert_eq!(data.last_chunk(), Some(&((addr.0 + data.len() as u64) % MESSAGE).to_le_bytes()));
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }
    fn fill(&self, _: IoAddr, _: u64, _: u8) -> Result<(), MemoryError> {
        Err(MemoryError::OutOfRange)
    }
    fn copy(&self, _: IoAddr, _: IoAddr, _: u64) -> Result<(), MemoryError> {
        Err(MemoryError::OutOfRange)
    }
    fn fetch_add(&self, _: IoAddr, _: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::OutOfRange)
    }
    fn compare_swap(&self, _: IoAddr, _: u64, _: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::OutOfRange)
    }
    fn lend(&self, _: u64) -> Option<Box<dyn Lent>> {
        None
    }
    fn stats(&self) -> MemoryStats {
        MemoryStats::default()
    }
    fn largest_free(&self) -> u64 {
        0
    }
}

/// A port without a network: the queue pair is connected to itself.
struct Nowhere;

impl EthernetPort for Nowhere {
    fn mac(&self) -> MacAddr {
        mac(0)
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&[u8])) -> usize {
        0
    }
    fn transmit(&mut self, _: usize, _: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        panic!("a local packet went to the wire")
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> bool {
        false
    }
}

#[test]
fn the_longest_message_in_the_smallest_packets() {
    let memory = Arc::new(Ruler::default());
    let config = Config::new(Gid::from_ipv4([10, 0, 0, 1]), [7; 16]);
    let rnic = SoftRoce::<_, spin::Mutex<()>>::new(Nowhere, memory.clone(), config);
    let cq = rnic.create_cq(CqOptions { depth: 16 }).unwrap();
    let qp = rnic.create_qp(QpOptions { send_cq: cq, recv_cq: cq, send_depth: 8, recv_depth: 1 }).unwrap();
    let address = AddressVector {
        link: LinkKind::RoceV2,
        peer: rnic.attributes().port,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
    };
    let connect = QpConnect {
        address,
        remote_qp: qp,
        send_psn: Psn::new(0xff_fff0),
        recv_psn: Psn::new(0xff_fff0),
        mtu: PathMtu::B256,
        max_rd_atomic: 16,
        ack_timeout: Duration::from_secs(1),
        retries: 0,
        rnr_retries: 0,
        min_rnr_delay: Duration::ZERO,
    };
    rnic.connect_qp(qp, &connect).unwrap();
    let key = rnic.memory_key().rkey;
    let list = [Sge { addr: IoAddr(0), len: MESSAGE as u32 }];
    let into = [Sge { addr: IoAddr(2 * MESSAGE), len: MESSAGE as u32 }];
    let remote = RemoteAddr { addr: IoAddr(MESSAGE), key };
    let work = [
        wr(1, SendOp::Write { data: Payload::Gather(&list), remote, imm: None }),
        wr(2, SendOp::Read { into: &into, remote }),
    ];
    rnic.post_send(qp, &work).unwrap();
    let longer = [Sge { addr: IoAddr(0), len: MESSAGE as u32 }, Sge { addr: IoAddr(0), len: 1 }];
    let refused = wr(3, SendOp::Write { data: Payload::Gather(&longer), remote, imm: None });
    assert_eq!(rnic.post_send(qp, &[refused]), Err((0, verbs::VerbsError::InvalidArgument)));
    while rnic.progress(Instant::ZERO, 4096) {}
    let ended: Vec<_> = drain(&rnic, cq).iter().map(|c| (c.id.0, c.status, c.byte_len)).collect();
    assert_eq!(ended, [(1, Status::Success, 1 << 31), (2, Status::Success, 1 << 31)]);
    assert_eq!(memory.written.load(Ordering::Relaxed), 2 * MESSAGE);
}
