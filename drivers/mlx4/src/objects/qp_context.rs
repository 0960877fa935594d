//! The context of a queue pair, as each transition passes it to the card (Linux `include/linux/mlx4/qp.h` and
//! `hw/mlx4/qp.c`, PRM `qpc`, illumos `hermon_hw_qpc_s`).

use crate::config::{FramePort, Layer};
use crate::datapath::ring::Shape;
use crate::datapath::wqe::entry::{LOG_LEN, LOG_RECEIVE_LEN};
use crate::datapath::wqe::has_grh;
use crate::mailbox::{Field, Mailbox};
use crate::objects::port::{Port, VLAN_ROW};
use core::time::Duration;
use verbs::{PathMtu, Psn, QKey, QpConnect, QpNum};

/// The offset of the context in the mailbox, after the mask of optional parameters.
const CONTEXT: usize = 0x08;
/// The offset of the path to the peer in the context.
const PATH: usize = 0x18;

const fn field(word: usize, high: u32, low: u32) -> Field {
    Field::bits(word, high, low).after(CONTEXT)
}

const fn path(word: usize, high: u32, low: u32) -> Field {
    field(PATH + word, high, low)
}

const OPTIONAL: Field = Field::word(0x00);
const STATE: Field = field(0x00, 31, 28);
const SERVICE: Field = field(0x00, 23, 16);
const MIGRATION: Field = field(0x00, 12, 11);
const DOMAIN: Field = field(0x04, 23, 0);
const MTU: Field = field(0x08, 31, 29);
const LOG_MESSAGE: Field = field(0x08, 28, 24);
const LOG_RECEIVES: Field = field(0x08, 22, 19);
const RECEIVE_STRIDE: Field = field(0x08, 18, 16);
const LOG_SENDS: Field = field(0x08, 14, 11);
const SEND_STRIDE: Field = field(0x08, 10, 8);
const ROCE_MODE: Field = field(0x08, 7, 6);
const UAR: Field = field(0x0c, 23, 0);
const LOCAL_QPN: Field = field(0x10, 23, 0);
const REMOTE_QPN: Field = field(0x14, 23, 0);
const PATH_FLAGS: Field = path(0x00, 31, 24);
const PKEY_INDEX: Field = path(0x00, 7, 0);
const COUNTER: Field = path(0x04, 31, 24);
const GRH: Field = path(0x04, 23, 23);
const SOURCE_MAC: Field = path(0x04, 22, 16);
const ACK_TIMEOUT: Field = path(0x08, 31, 27);
const LINK_TYPE: Field = path(0x08, 26, 24);
const SOURCE_GID: Field = path(0x08, 23, 16);
const HOP_LIMIT: Field = path(0x08, 7, 0);
const TRAFFIC_CLASS: Field = path(0x0c, 27, 20);
const REMOTE_LID: Field = path(0x04, 15, 0);
const REMOTE_GID: usize = CONTEXT + PATH + 0x10;
const SCHED_QUEUE: Field = path(0x20, 31, 24);
const VLAN_INDEX: Field = path(0x20, 23, 16);
const FORCES: Field = path(0x20, 15, 8);
const REMOTE_MAC: usize = CONTEXT + PATH + 0x26;
const LOG_ACK_REQUESTS: Field = field(0x70, 31, 28);
const REQUESTER_READS: Field = field(0x70, 23, 21);
const RETRIES: Field = field(0x70, 18, 16);
const RNR_RETRIES: Field = field(0x70, 15, 13);
const SEND_PSN: Field = field(0x78, 23, 0);
const SEND_CQN: Field = field(0x7c, 23, 0);
const UDP_SOURCE: Field = field(0x80, 31, 16);
const RESPONDER_READS: Field = field(0x90, 23, 21);
const PEER_READS: Field = field(0x90, 15, 15);
const PEER_WRITES: Field = field(0x90, 14, 14);
const PEER_ATOMICS: Field = field(0x90, 13, 13);
const RNR_TIMER: Field = field(0x94, 28, 24);
const RECEIVE_PSN: Field = field(0x94, 23, 0);
const RECEIVE_CQN: Field = field(0x9c, 23, 0);
const RECORD: usize = CONTEXT + 0xa0;
const Q_KEY: Field = field(0xa8, 31, 0);
const KEEP_TAGS: Field = field(0xc0, 30, 30);
const MTT: Field = field(0xcc, 31, 0);

/// Bits of the mask of optional parameters.
mod optional {
    pub(super) const PEER_RIGHTS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const Q_KEY: u32 = 1 << 5;
    pub(super) const RNR_TIMER: u32 = 1 << 6;
    pub(super) const PRIMARY_PATH: u32 = 1 << 7;
    pub(super) const REQUESTER_READS: u32 = 1 << 8;
    pub(super) const RESPONDER_READS: u32 = 1 << 9;
    pub(super) const RETRIES: u32 = 1 << 12;
    pub(super) const RNR_RETRIES: u32 = 1 << 13;
    pub(super) const ACK_TIMEOUT: u32 = 1 << 14;
    pub(super) const SCHED_QUEUE: u32 = 1 << 16;
    pub(super) const COUNTER: u32 = 1 << 20;
}

/// Codes of states.
#[derive(Clone, Copy)]
enum QpStateCode {
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
}

/// The code for paths that do not migrate.
const MIGRATED: u32 = 3;
/// log2 of the number of packets after which the card requests an acknowledgement (Linux).
const ACK_REQUESTS: u32 = 8;
const ETHERNET: u32 = 1;
const ROCE_V2: u32 = 2;
/// The priority comes from the path (Linux).
const FORCE_PRIORITY: u32 = 1 << 6;
/// The path is on the VLAN of an index (Linux).
const ON_VLAN: u32 = 1 << 6;
/// The default scheduling queue, and the bit for port 2.
const SCHEDULER: u32 = 0x83;
const SECOND_PORT: u32 = 1 << 6;
/// The scheduling queue of subnet management (Linux).
const MANAGEMENT_SCHEDULER: u32 = 0x3f;

/// The service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Reliable connection.
    Reliable,
    /// Unreliable datagrams that carry this key.
    Datagram(QKey),
    /// Datagrams of subnet management, whose headers the driver makes.
    Management,
    /// Ethernet frames at a port.
    Frames(FramePort),
}

impl Service {
    const fn code(self) -> u32 {
        match self {
            Self::Reliable => 0,
            Self::Datagram(_) => 3,
            Self::Management | Self::Frames(_) => 7,
        }
    }
}

/// The properties of a queue pair that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpAttributes {
    pub(crate) number: QpNum,
    pub(crate) service: Service,
    pub(crate) domain: u32,
    pub(crate) shape: Shape,
    pub(crate) uar: u32,
    pub(crate) send_cqn: u32,
    pub(crate) receive_cqn: u32,
    /// The maximum number of READs and atomics that the queue pair accepts at once.
    pub(crate) responder_reads: u8,
    /// The index of the partition in the port's table of P_Keys.
    pub(crate) partition: u8,
}

/// The addresses of the rings: the byte offset of their page entries, and the address of the doorbell record
/// of the receive ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingAddresses {
    pub(crate) mtt: u64,
    pub(crate) record: u64,
}

/// The path to a peer, relative to a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: Port,
    /// The row of the port's GID table.
    pub(crate) source_gid: u8,
    pub(crate) roce_v2: bool,
    pub(crate) log_message: u32,
}

impl QpAttributes {
    fn mailbox(&self, state: QpStateCode, mask: u32) -> Mailbox {
        let mut mailbox = Mailbox::new();
        for (field, value) in [
            (OPTIONAL, mask),
            (STATE, state as u32),
            (SERVICE, self.service.code()),
            (MIGRATION, MIGRATED),
            (DOMAIN, self.domain),
            (LOG_RECEIVES, self.shape.log_receives),
            (RECEIVE_STRIDE, LOG_RECEIVE_LEN - 4),
            (LOG_SENDS, self.shape.log_sends),
            (SEND_STRIDE, LOG_LEN - 4),
            (LOCAL_QPN, self.number.get()),
            (LOG_ACK_REQUESTS, ACK_REQUESTS),
            (SEND_CQN, self.send_cqn),
            (RECEIVE_CQN, self.receive_cqn),
        ] {
            mailbox.set(field, value);
        }
        // The largest message of datagrams, and of management datagrams (Linux).
        const LOG_DATAGRAM: u32 = 13;
        const LOG_MANAGEMENT: u32 = 11;
        let log_message = match self.service {
            Service::Reliable | Service::Frames(_) => None,
            Service::Datagram(_) => Some(LOG_DATAGRAM),
            Service::Management => Some(LOG_MANAGEMENT),
        };
        if let Some(log_message) = log_message {
            mailbox.set(MTU, mtu_code(PathMtu::B4096));
            mailbox.set(LOG_MESSAGE, log_message);
        }
        mailbox
    }

    fn allow_peers(mailbox: &mut Mailbox) {
        for right in [PEER_READS, PEER_WRITES, PEER_ATOMICS] {
            mailbox.set(right, 1);
        }
    }

    /// Makes the context for RST2INIT, after which receives may be posted.
    pub(crate) fn init(&self, rings: RingAddresses, port: Port) -> Mailbox {
        let mut mailbox = match self.service {
            Service::Reliable => {
                let mut mailbox =
                    self.mailbox(QpStateCode::Init, optional::PEER_RIGHTS | optional::PKEY_INDEX);
                Self::allow_peers(&mut mailbox);
                mailbox
            }
            Service::Datagram(key) => {
                self.mailbox(QpStateCode::Init, optional::PKEY_INDEX | optional::Q_KEY).with(Q_KEY, key.0)
            }
            Service::Management => self.mailbox(QpStateCode::Init, optional::PKEY_INDEX | optional::Q_KEY),
            Service::Frames(_) => return self.frames(QpStateCode::Init, rings, port),
        };
        mailbox.set(UAR, self.uar);
        mailbox.set(MTT, rings.mtt as u32);
        mailbox.set_wide(RECORD, rings.record);
        // Subnet management has no partition: its first entry stands there.
        if self.service != Service::Management {
            mailbox.set(PKEY_INDEX, self.partition.into());
        }
        mailbox
    }

    /// Makes the context of a queue pair for frames, which is the same in each transition (Linux
    /// `en_resources.c`).
    fn frames(&self, state: QpStateCode, rings: RingAddresses, port: Port) -> Mailbox {
        const ANY_MTU: u32 = 7;
        const LOG_MESSAGE_OF_FRAMES: u32 = 31;
        let mut mailbox = self
            .mailbox(state, 0)
            .with(MIGRATION, 0)
            .with(LOG_ACK_REQUESTS, 0)
            .with(MTU, ANY_MTU)
            .with(LOG_MESSAGE, LOG_MESSAGE_OF_FRAMES)
            .with(UAR, self.uar)
            .with(MTT, rings.mtt as u32)
            .with(LINK_TYPE, ETHERNET)
            .with(COUNTER, port.counter.into())
            .with(SOURCE_MAC, port.mac_row.into())
            .with(SCHED_QUEUE, scheduler(port, 0));
        // Tags are kept, so that frames of other VLANs are seen as such.
        mailbox.set(KEEP_TAGS, port.vlan.is_some().into());
        mailbox.set_wide(RECORD, rings.record);
        mailbox
    }

    /// Makes the context for INIT2RTR of a queue pair without a connection.
    pub(crate) fn ready_for_datagrams(&self, rings: RingAddresses, port: Port) -> Mailbox {
        if matches!(self.service, Service::Frames(_)) {
            return self.frames(QpStateCode::ReadyToReceive, rings, port);
        }
        if self.service == Service::Management {
            return self
                .mailbox(QpStateCode::ReadyToReceive, optional::COUNTER)
                .with(SCHED_QUEUE, MANAGEMENT_SCHEDULER | second_port(port));
        }
        let ethernet = port.layer == Layer::Ethernet;
        let counter = if port.shared && ethernet { (optional::COUNTER, port.counter) } else { (0, 0) };
        let mut mailbox = self
            .mailbox(QpStateCode::ReadyToReceive, optional::SCHED_QUEUE | counter.0)
            .with(COUNTER, counter.1.into())
            .with(SCHED_QUEUE, scheduler(port, 0));
        if ethernet {
            mailbox.set(SOURCE_MAC, port.mac_row.into());
            mailbox.set(LINK_TYPE, ETHERNET);
            mailbox.set(FORCES, FORCE_PRIORITY);
        }
        mailbox
    }

    /// Makes the context for RTR2RTS of a queue pair without a connection.
    pub(crate) fn ready_to_send_datagrams(&self, rings: RingAddresses, port: Port, first: Psn) -> Mailbox {
        if matches!(self.service, Service::Frames(_)) {
            return self.frames(QpStateCode::ReadyToSend, rings, port);
        }
        self.mailbox(QpStateCode::ReadyToSend, 0).with(SEND_PSN, first.get())
    }

    /// Makes the context for INIT2RTR, after which packets of the peer are accepted.
    pub(crate) fn ready_to_receive(&self, connect: &QpConnect, path: Path) -> Mailbox {
        const MASK: u32 = optional::PEER_RIGHTS
            | optional::RNR_TIMER
            | optional::PRIMARY_PATH
            | optional::RESPONDER_READS
            | optional::SCHED_QUEUE
            | optional::COUNTER;
        let mut mailbox = self.mailbox(QpStateCode::ReadyToReceive, MASK);
        Self::allow_peers(&mut mailbox);
        let address = &connect.address;
        for (field, value) in [
            (MTU, mtu_code(connect.mtu)),
            (LOG_MESSAGE, path.log_message),
            (ROCE_MODE, if path.roce_v2 { ROCE_V2 } else { 0 }),
            (REMOTE_QPN, connect.remote_qp.get()),
            (COUNTER, path.port.counter.into()),
            (SCHED_QUEUE, scheduler(path.port, address.service_level)),
            (RESPONDER_READS, log2(self.responder_reads)),
            (RNR_TIMER, rnr_code(connect.min_rnr_delay)),
            (RECEIVE_PSN, connect.recv_psn.get()),
        ] {
            mailbox.set(field, value);
        }
        if has_grh(address) {
            mailbox.set(GRH, 1);
            mailbox.set(SOURCE_GID, path.source_gid.into());
            mailbox.set(HOP_LIMIT, address.hop_limit.into());
            mailbox.set(TRAFFIC_CLASS, address.traffic_class.into());
            mailbox.put(REMOTE_GID, &address.peer.gid.0);
        }
        match path.port.layer {
            Layer::Ethernet => {
                mailbox.set(SOURCE_MAC, path.port.mac_row.into());
                mailbox.set(LINK_TYPE, ETHERNET);
                mailbox.set(FORCES, FORCE_PRIORITY);
                mailbox.put(REMOTE_MAC, &address.peer.mac.0);
                if path.port.vlan.is_some() {
                    mailbox.set(PATH_FLAGS, ON_VLAN);
                    mailbox.set(VLAN_INDEX, VLAN_ROW.into());
                }
            }
            Layer::InfiniBand => mailbox.set(REMOTE_LID, address.peer.lid.into()),
        }
        mailbox
    }

    /// Makes the context for RTR2RTS, after which work is sent.
    pub(crate) fn ready_to_send(&self, connect: &QpConnect, path: Path) -> Mailbox {
        const MASK: u32 =
            optional::REQUESTER_READS | optional::RETRIES | optional::RNR_RETRIES | optional::ACK_TIMEOUT;
        let mut mailbox = self.mailbox(QpStateCode::ReadyToSend, MASK);
        for (field, value) in [
            (ACK_TIMEOUT, timeout_code(connect.ack_timeout)),
            (REQUESTER_READS, log2(connect.max_rd_atomic)),
            (RETRIES, connect.retries.min(7).into()),
            (RNR_RETRIES, connect.rnr_retries.min(7).into()),
            (SEND_PSN, connect.send_psn.get()),
        ] {
            mailbox.set(field, value);
        }
        if path.roce_v2 {
            mailbox.set(UDP_SOURCE, udp_source(self.number, connect.remote_qp));
        }
        mailbox
    }
}

/// Returns the scheduling queue of a service level. Ethernet has fewer of them.
const fn scheduler(port: Port, service_level: u8) -> u32 {
    let level = match port.layer {
        Layer::Ethernet => match (service_level & 7, port.vlan) {
            // Work without a level of its own has the priority of the VLAN.
            (0, Some(vlan)) => (vlan.priority() as u32) << 3,
            (level, _) => (level as u32) << 3,
        },
        Layer::InfiniBand => (service_level as u32 & 0xf) << 2,
    };
    SCHEDULER | level | second_port(port)
}

const fn second_port(port: Port) -> u32 {
    if port.number == 2 { SECOND_PORT } else { 0 }
}

const fn log2(count: u8) -> u32 {
    match count.checked_ilog2() {
        Some(log) => log,
        None => 0,
    }
}

const fn mtu_code(mtu: PathMtu) -> u32 {
    mtu as u32 + 1
}

/// Returns the code of the shortest timeout that is not below `time`: 4.096 us times 2 to the power of the
/// code. Code 0 would mean no timeout.
fn timeout_code(time: Duration) -> u32 {
    (1..31).find(|&code| Duration::from_nanos(4096 << code) >= time).unwrap_or(31)
}

/// Returns the code of the shortest delay that is not below `delay` (InfiniBand specification, table 45).
fn rnr_code(delay: Duration) -> u32 {
    /// Delays in units of 10 us, for codes from 1 on. Code 0 is the longest delay.
    const TENS_OF_US: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let long_enough = |tens: &u64| Duration::from_micros(tens * 10) >= delay;
    TENS_OF_US.iter().position(long_enough).map_or(0, |index| index as u32 + 1)
}

/// Returns the UDP source port, which distributes connections over the paths of a network. It is the same at
/// both ends (Linux).
const fn udp_source(local: QpNum, remote: QpNum) -> u32 {
    const fn spread(qp: QpNum) -> u32 {
        let number = qp.get();
        ((number ^ number >> 16) & 0xff) | number & 0xff00
    }
    (spread(local) ^ spread(remote)) | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_never_shorter_than_asked() {
        assert_eq!(timeout_code(Duration::from_micros(8)), 1);
        assert_eq!(timeout_code(Duration::from_millis(67)), 14);
        assert_eq!(timeout_code(Duration::from_millis(68)), 15);
        assert_eq!(timeout_code(Duration::MAX), 31);
        assert_eq!(rnr_code(Duration::from_micros(10)), 1);
        assert_eq!(rnr_code(Duration::from_millis(1)), 14, "1.28 ms");
        assert_eq!(rnr_code(Duration::from_secs(1)), 0, "the longest there is");
    }

    #[test]
    fn both_ends_have_one_source_port() {
        let (a, b) = (QpNum::new(0x12_3456), QpNum::new(0xab_cdef));
        assert_eq!(udp_source(a, b), udp_source(b, a));
        assert!(udp_source(a, b) >> 14 == 3);
    }
}
