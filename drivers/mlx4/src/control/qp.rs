//! Creation, connection and destruction of queue pairs.

use super::Control;
use crate::card::Card;
use crate::command::{Command, Opcode};
use crate::config::Layer;
use crate::datapath::doorbell::Page;
use crate::datapath::ring::{QpRings, Shape};
use crate::error::Error;
use crate::hardware::{Hardware, random_u32};
use crate::icm::{Object, PageRun};
use crate::objects::cq::CqRef;
use crate::objects::packets::{Packets, Room};
use crate::objects::port::{Link, Port};
use crate::objects::qp::{BlueFlameRegister, Cqs, Parts, Qp, QpState};
use crate::objects::qp_context::{Path, QpAttributes, RingAddresses, Service};
use alloc::sync::Arc;
use verbs::{CqOptions, Gid, LinkKind, Psn, QpConnect, QpNum, VerbsError};

/// The first LID of multicast groups.
const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Bytes after the rings of a queue pair, for its doorbell record.
const RECORD: u64 = 64;

impl<H: Hardware> Control<'_, H> {
    /// Makes a queue pair for the driver's own use, with a completion queue that holds completions of all its
    /// packets.
    pub(crate) fn create_packets(
        &mut self,
        service: Service,
        number: u32,
        room: Room,
    ) -> Result<Packets<H::Block>, Error> {
        let memory = self.hw.allocate(room.bytes()).ok_or(Error::NoMemory("packets"))?;
        let depth = room.receives + room.sends;
        let none = |_| Error::Exhausted("completion queues");
        let (id, mut cq) = self.create_cq(CqOptions { depth }).map_err(none)?;
        let log_entries = self.state.card.capabilities.log_send_entries;
        let shape = Shape::new(room.sends, room.receives, log_entries);
        let shape = shape.ok_or(Error::Lacks("rings of this size"))?;
        let cqs = Cqs { send: cq.reference(id), receive: cq.reference(id) };
        let qp = self.make_qp(QpNum::new(number), service, shape, cqs)?;
        cq.attach(QpRings::<H::Block>::slot_of(qp.rings.number()), qp.rings.clone());
        Ok(Packets::new(cq, qp, memory, room, self.state.card.keys.local))
    }

    /// Makes a queue pair to which receives may be posted, and for the datagram service also sends.
    pub(crate) fn create_qp(
        &mut self,
        service: Service,
        shape: Shape,
        cqs: Cqs<CqRef>,
    ) -> Result<Qp<H::Block>, Error> {
        let number = self.allocate_qpn()?;
        let made = self.make_qp(QpNum::new(number), service, shape, cqs);
        if made.is_err() {
            self.state.qpns.free(number);
        }
        made
    }

    /// Allocates a queue pair number that has entries in the card's tables.
    pub(crate) fn allocate_qpn(&mut self) -> Result<u32, Error> {
        while let Some((first, count)) = self.state.qpns.next_unbacked() {
            self.device().0.ensure_icm(Object::Qp, first.into(), count.into())?;
            self.state.qpns.mark_backed();
        }
        self.state.qpns.allocate(random_u32(self.hw)).ok_or(Error::Exhausted("queue pairs"))
    }

    fn make_qp(
        &mut self,
        number: QpNum,
        service: Service,
        shape: Shape,
        cqs: Cqs<CqRef>,
    ) -> Result<Qp<H::Block>, Error> {
        let card = self.state.card.clone();
        let buffer = self.hw.allocate(shape.bytes() + RECORD).ok_or(Error::NoMemory("a queue pair"))?;
        let datagrams = matches!(service, Service::Datagram(_) | Service::Management);
        let rings = Arc::new(QpRings::new(number, datagrams, buffer, shape));
        let slot = QpRings::<H::Block>::slot_of(number);
        let page = Page::of(slot, &card.capabilities);
        let attributes = QpAttributes {
            number,
            service,
            domain: card.domain,
            shape,
            uar: page.index(),
            send_cqn: cqs.send.number,
            receive_cqn: cqs.receive.number,
            responder_reads: card.capabilities.max_rd_atomic,
            partition: self.state.partition,
        };
        let pages = self.start_qp(&card, &attributes, &rings)?;
        let blue_flame = blue_flame_register(&card, service, slot);
        Ok(Qp::new(Parts { rings, attributes, pages, cqs, page, blue_flame }))
    }

    /// Makes a queue pair known to the card, in the last state that it reaches without a connection. Returns
    /// the page entries of its rings.
    fn start_qp(
        &mut self,
        card: &Card,
        qp: &QpAttributes,
        rings: &Arc<QpRings<H::Block>>,
    ) -> Result<PageRun, Error> {
        let pages = self.device().0.map_queue(rings.addr(), qp.shape.bytes())?;
        let addresses = RingAddresses { mtt: pages.offset(), record: rings.record_addr() };
        let init = Command::new(Opcode::Rst2InitQp).of(qp.number.get());
        // A queue pair for frames exists only where its port is in use.
        let port = match qp.service {
            Service::Frames(which) => card.attached(which).map_or(card.port, |attached| attached.port),
            Service::Reliable | Service::Datagram(_) | Service::Management => card.port,
        };
        if let Err(error) = self.commands().0.exec_in(init, &qp.init(addresses, port)) {
            self.device().0.unmap(pages);
            return Err(error);
        }
        if qp.service != Service::Reliable
            && let Err(error) = self.ready_for_datagrams(port, qp, addresses)
        {
            if self.reset_qp(qp).is_ok() {
                self.device().0.unmap(pages);
            } else {
                // The card may still use the rings: their memory is never reused.
                core::mem::forget(rings.clone());
            }
            return Err(error);
        }
        Ok(pages)
    }

    /// Brings a queue pair without a connection to the states in which it receives and sends.
    fn ready_for_datagrams(
        &mut self,
        port: Port,
        qp: &QpAttributes,
        addresses: RingAddresses,
    ) -> Result<(), Error> {
        let number = qp.number.get();
        let (mut commands, _) = self.commands();
        let receive = qp.ready_for_datagrams(addresses, port);
        commands.exec_in(Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let first = if matches!(qp.service, Service::Datagram(_)) { random_u32(commands.hw) } else { 0 };
        let send = qp.ready_to_send_datagrams(addresses, port, Psn::new(first));
        commands.exec_in(Command::new(Opcode::Rtr2RtsQp).of(number), &send)
    }

    /// Connects a new queue pair.
    pub(crate) fn connect_qp(
        &mut self,
        qp: &QpAttributes,
        connect: &QpConnect,
        link: &Link,
    ) -> Result<(), VerbsError> {
        let (mut commands, card) = self.commands();
        let (to, none) = (&connect.address, Gid([0; 16]));
        let row = card.port.row(to.link).ok_or(VerbsError::Unsupported)?;
        // The card would send from or to an invalid address.
        let reachable = match card.port.layer {
            Layer::Ethernet => link.gid != none && to.peer.gid != none,
            Layer::InfiniBand => link.lid != 0 && (1..FIRST_MULTICAST_LID).contains(&to.peer.lid),
        };
        if !reachable {
            return Err(VerbsError::Unreachable);
        }
        let path = Path {
            port: card.port,
            source_gid: row,
            roce_v2: to.link == LinkKind::RoceV2,
            log_message: card.capabilities.log_message,
        };
        let number = qp.number.get();
        let receive = qp.ready_to_receive(connect, path);
        commands.exec_in(Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let send = qp.ready_to_send(connect, path);
        commands.exec_in(Command::new(Opcode::Rtr2RtsQp).of(number), &send)?;
        Ok(())
    }

    /// Resets a queue pair. After success the card uses neither its rings nor memory for it.
    pub(crate) fn reset_qp(&mut self, qp: &QpAttributes) -> Result<(), Error> {
        const WITHOUT_MAILBOX: u8 = 2;
        let reset = Command::new(Opcode::ToRstQp).of(qp.number.get()).variant(WITHOUT_MAILBOX);
        self.commands().0.exec(reset).map(drop)
    }

    /// Frees the table entries of a queue pair that was reset.
    pub(crate) fn release_qp(&mut self, qp: &Qp<H::Block>) {
        if qp.state != QpState::Lost {
            self.device().0.unmap(qp.pages);
        }
        self.state.qpns.free(qp.attributes.number.get());
    }
}

/// Returns the BlueFlame register of a queue pair, if the queue pair may use one. The driver's own queue
/// pairs may share a page, and so a register, with another one. They do without.
fn blue_flame_register(card: &Card, service: Service, slot: usize) -> Option<BlueFlameRegister> {
    let own = matches!(service, Service::Management | Service::Frames(_));
    let may = card.blue_flame && !own && Page::has_register(slot, &card.capabilities);
    let register = card.capabilities.blue_flame.filter(|_| may)?;
    Some(BlueFlameRegister::new(card.capabilities.uar_len, register))
}
