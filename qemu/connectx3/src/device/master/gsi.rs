//! General services of a slave. The slave's queue pair 1 is one end of a tunnel; the master has the other
//! end. A datagram from the slave is preceded by its real destination; the master sends it from the port's
//! own queue pair 1. A datagram that arrives there goes to the slave, preceded by a header with its origin
//! (Linux `hw/mlx4/mad.c`, `qp.c`, `cq.c`).
//!
//! A master of several slaves also renumbers connections in these datagrams, to distinguish the slaves. This
//! master has only one.

use super::numbers::{self, Special};
use roce::wire::{Bth, Deth, Ext, Frame, Headers, Opcode, Operation, Service};
use verbs::{Psn, QKey, QpNum};

/// The length of a management datagram, in bytes.
const MAD: usize = 256;
/// The length of the header before a datagram from the slave, and of the header before one to the slave, in
/// bytes.
const OUT_HEADER: usize = 56;
const IN_HEADER: usize = 16;
/// The length of a datagram segment, with which the outbound header begins, in bytes.
const SEGMENT: usize = 48;
/// The port's queue pair for general services, and its Q_Key.
pub(crate) const GSI: QpNum = QpNum::new(1);
const GSI_Q_KEY: QKey = QKey(0x8001_0000);

/// Classes of management datagrams.
mod class {
    pub(super) const ADMINISTRATION: u8 = 0x03;
    pub(super) const DEVICE: u8 = 0x06;
    pub(super) const COMMUNICATION: u8 = 0x07;
}

/// Returns whether a datagram from one queue pair to another goes to the master.
#[must_use]
pub(crate) const fn is_tunnel(from: u32, to: u32) -> bool {
    numbers::is_proxy(from) && numbers::tunnel_of(from) == to
}

/// Returns the master's end of the tunnel of a port, counted from 0.
#[must_use]
pub(crate) const fn tunnel(port: usize) -> u32 {
    numbers::tunnel(Special::Gsi, port as u32)
}

/// A datagram from a slave to its master.
pub(crate) struct Outbound<'a> {
    /// The datagram segment with the real destination.
    pub segment: &'a [u8; SEGMENT],
    mad: &'a [u8],
}

impl<'a> Outbound<'a> {
    /// Parses a message. Returns `None` if the master does not forward it: subnet management is not available
    /// to slaves, and of device management only requests are forwarded.
    #[must_use]
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        const GET_OR_SET: [u8; 2] = [1, 2];
        let (header, mad) = message.split_at_checked(OUT_HEADER)?;
        let passes = match *mad.get(1)? {
            class::ADMINISTRATION | class::COMMUNICATION => true,
            class::DEVICE => GET_OR_SET.contains(mad.get(3)?),
            _ => false,
        };
        passes.then_some(Self { segment: header.first_chunk()?, mad: mad.get(..MAD)? })
    }

    /// Returns the frame to a queue pair, with the headers for its destination.
    #[must_use]
    pub(crate) fn frame(&self, headers: &Headers, to: u32, qkey: u32, psn: u32) -> Option<Vec<u8>> {
        // A controlled Q_Key stands for the Q_Key of the sending queue pair.
        let qkey = if QKey(qkey).is_controlled() { GSI_Q_KEY } else { QKey(qkey) };
        datagram(headers, GSI, QpNum::new(to), qkey, Psn::new(psn), self.mad)
    }
}

/// Returns the frame to the slave's end of the tunnel for a frame that has arrived at queue pair 1 of the
/// port. Returns `None` for a class that slaves do not receive: on Ethernet they receive only connection
/// management.
#[must_use]
pub(crate) fn inbound(port: usize, frame: &Frame<'_>, vlan: Option<u16>) -> Option<Vec<u8>> {
    const GLOBAL_ROUTE: u8 = 0x80;
    const NO_VLAN: u16 = 0xffff;
    let Ext::Deth(deth) = frame.packet.ext else { return None };
    let mad = frame.packet.payload.get(..MAD)?;
    if QKey(deth.qkey) != GSI_Q_KEY || *mad.get(1)? != class::COMMUNICATION {
        return None;
    }
    let [a, b, c, d, e, f] = frame.headers.ethernet.src.0;
    let [vlan_high, vlan_low] = vlan.unwrap_or(NO_VLAN).to_be_bytes();
    let mut message = Vec::with_capacity(IN_HEADER + 40 + MAD);
    message.extend_from_slice(&deth.src_qp.get().to_be_bytes());
    message.extend_from_slice(&[GLOBAL_ROUTE, 0, 0, 0, vlan_high, vlan_low, e, f, a, b, c, d]);
    message.extend_from_slice(&frame.origin());
    message.extend_from_slice(mad);
    let proxy = numbers::proxy(Special::Gsi, port as u32);
    let qkey = QKey(numbers::proxy_q_key(proxy)?);
    let from = QpNum::new(tunnel(port));
    datagram(&frame.headers, from, QpNum::new(proxy), qkey, frame.packet.bth.psn, &message)
}

fn datagram(
    headers: &Headers,
    from: QpNum,
    to: QpNum,
    qkey: QKey,
    psn: Psn,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let ext = Ext::Deth(Deth { qkey: qkey.0, reserved: 0, src_qp: from });
    let mut frame = vec![0; headers.frame_len(&ext, payload.len())];
    let opcode = Opcode { service: Service::Ud, operation: Operation::SendOnly };
    let bth = Bth::new(opcode, to, psn);
    headers.emit(&bth, &ext, payload.len(), &mut frame, |out| out.copy_from_slice(payload))?;
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{AddressVector, Gid, LinkKind, MacAddr, PortAddress};

    fn headers() -> Headers {
        let peer = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, 2]), gid: Gid([2; 16]), lid: 0 };
        let to =
            AddressVector { link: LinkKind::RoceV1, peer, traffic_class: 0, hop_limit: 1, service_level: 0 };
        Headers::towards(MacAddr([2, 0, 0, 0, 0, 1]), Gid([1; 16]), &to, 0).unwrap()
    }

    fn message(class: u8, method: u8) -> Vec<u8> {
        let mut message = vec![0; OUT_HEADER + MAD];
        message[OUT_HEADER..OUT_HEADER + 4].copy_from_slice(&[1, class, 2, method]);
        message[OUT_HEADER + MAD - 1] = 9;
        message
    }

    #[test]
    fn what_one_slave_sends_arrives_at_another_with_its_origin() {
        let message = message(class::COMMUNICATION, 3);
        let sent = Outbound::parse(&message).unwrap().frame(&headers(), 1, 0x8001_0000, 7).unwrap();
        let sent = Frame::parse(&sent).unwrap();
        assert!(sent.icrc_ok());
        assert_eq!(sent.packet.payload, &message[OUT_HEADER..]);
        let inside = inbound(0, &sent, Some(0x2005)).unwrap();
        let inside = Frame::parse(&inside).unwrap();
        assert_eq!(inside.packet.bth.dest_qp.get(), numbers::proxy(Special::Gsi, 0));
        let Ext::Deth(deth) = inside.packet.ext else { panic!("a datagram") };
        assert_eq!((deth.src_qp.get(), deth.qkey), (tunnel(0), 0xffff_000a));
        let (header, rest) = inside.packet.payload.split_at(IN_HEADER);
        assert_eq!(
            header,
            [0, 0, 0, 1, 0x80, 0, 0, 0, 0x20, 5, 0, 1, 2, 0, 0, 0],
            "queue pair, VLAN, address"
        );
        assert_eq!(rest[..40], sent.origin());
        assert_eq!(&rest[40..], &message[OUT_HEADER..]);
    }

    #[test]
    fn a_master_passes_on_only_what_is_for_slaves() {
        for (class, method, passes) in [(0x01, 1, false), (0x81, 1, false), (0x04, 1, false), (0x06, 1, true)]
        {
            assert_eq!(Outbound::parse(&message(class, method)).is_some(), passes, "class {class:#x}");
        }
        assert!(Outbound::parse(&message(class::DEVICE, 0x81)).is_none(), "an answer");
        assert!(Outbound::parse(&message(class::COMMUNICATION, 3)[..200]).is_none(), "too short");
        let arrive = |class, qkey| {
            let message = message(class, 3);
            let frame =
                datagram(&headers(), GSI, GSI, QKey(qkey), Psn::new(0), &message[OUT_HEADER..]).unwrap();
            inbound(0, &Frame::parse(&frame).unwrap(), None).is_some()
        };
        assert!(arrive(class::COMMUNICATION, 0x8001_0000));
        assert!(!arrive(class::COMMUNICATION, 0x1234), "another Q_Key");
        assert!(!arrive(class::ADMINISTRATION, 0x8001_0000));
    }
}
