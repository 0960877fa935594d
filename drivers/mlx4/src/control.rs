//! Everything outside of the data path, behind one lock: commands, tables, creation and destruction of
//! queues.

use crate::capabilities::{BoardId, Capabilities};
use crate::command::{Command, Commands, Opcode};
use crate::config::Layer;
use crate::cq::{Cq, Credit};
use crate::doorbell::Page;
use crate::error::Error;
use crate::firmware::{Firmware, Version};
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::memory_region::Keys;
use crate::packets::{Packets, Room};
use crate::port::{Link, Port, PortInfo};
use crate::qp::context::{Path, QpAttributes, RingAddresses, Service};
use crate::qp::qpn::QpnAllocator;
use crate::qp::queue::{QpRings, Shape};
use crate::qp::{BlueFlameRegister, Parts, Qp, QpState};
use crate::reset;
use crate::tables::Tables;
use crate::{CQS, start};
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::Instant;
use verbs::{CqId, CqOptions, Gid, Psn, QpConnect, QpNum, VerbsError};

/// The first LID of multicast groups.
const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Bytes after the rings of a queue pair, for its doorbell record.
const RECORD: u64 = 64;

/// The kind of a card's PCI function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// The physical function: the card itself.
    Physical,
    /// A virtual function: a part of the card, served by the driver of the physical function.
    Virtual,
}

/// The indicator of a card's failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HealthSource {
    /// There is none.
    Unseen,
    /// A register of BAR 0, which is not 0 once the card has failed.
    Register(u32),
    /// The master's last reply on the channel.
    Channel,
}

/// The properties of a card that is up.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) function: Function,
    /// The end of its reset, if it was reset.
    pub(crate) reset: Option<Instant>,
    pub(crate) firmware: Version,
    pub(crate) board: BoardId,
    pub(crate) capabilities: Capabilities,
    pub(crate) port: Port,
    pub(crate) info: PortInfo,
    pub(crate) keys: Keys,
    pub(crate) health: HealthSource,
    /// The maximum number of queue pairs.
    pub(crate) max_qps: u32,
    /// True if BlueFlame is in use: work requests are written together with their doorbells, where a queue
    /// has a register for it.
    pub(crate) blue_flame: bool,
    pub(crate) domain: u32,
}

/// The driver's state of the card.
pub(crate) struct Control<B> {
    pub(crate) card: Arc<Card>,
    pub(crate) commands: Commands<B>,
    pub(crate) tables: Tables<B>,
    pub(crate) qpns: QpnAllocator,
    /// The number of completion queue indices ever used at once, and those of them that are free.
    pub(crate) cqs: u32,
    pub(crate) free_cqs: Vec<u16>,
    pub(crate) eqn: u32,
    /// The firmware's memory. A virtual function has none: the firmware is its master's.
    pub(crate) _firmware: Option<Firmware<B>>,
}

/// A completion queue, as a queue pair refers to it.
pub(crate) struct Target {
    pub(crate) id: CqId,
    /// The queue's number on the card.
    pub(crate) number: u32,
    pub(crate) credit: Arc<Credit>,
}

impl<B: Block> Control<B> {
    /// Returns the amount of memory lent to the card for its tables, in bytes.
    pub(crate) const fn table_bytes(&self) -> u64 {
        self.tables.bytes()
    }

    /// Returns true if the driver sends no more commands.
    pub(crate) const fn has_failed(&self) -> bool {
        self.commands.has_failed()
    }

    /// Stops sending commands.
    pub(crate) const fn fail(&mut self) {
        self.commands.fail();
    }

    /// Sets the GID of the port.
    pub(crate) fn set_gid(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        gid: Gid,
    ) -> Result<(), Error> {
        card.port.set_gid(hw, &mut self.commands, gid)
    }

    /// Queries the state of the port's link.
    pub(crate) fn query_link(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        known: Link,
    ) -> Result<Link, Error> {
        card.port.query_link(hw, &mut self.commands, known)
    }

    /// Makes a queue pair for the driver's own use, with a completion queue that holds completions of all its
    /// packets.
    pub(crate) fn create_packets(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        service: Service,
        number: u32,
        room: Room,
    ) -> Result<Packets<B>, Error> {
        let memory = hw.allocate(room.bytes()).ok_or(Error::NoMemory("packets"))?;
        let depth = room.receives + room.sends;
        let none = |_| Error::Exhausted("completion queues");
        let (id, mut cq) = self.create_cq(hw, card, CqOptions { depth }).map_err(none)?;
        let target = || Target { id, number: cq.number(), credit: cq.credit.clone() };
        let shape = Shape::new(room.sends, room.receives, card.capabilities.log_send_entries);
        let shape = shape.ok_or(Error::Lacks("rings of this size"))?;
        let slot = self.make_qp(hw, card, QpNum::new(number), service, shape, [target(), target()])?;
        cq.attach(QpRings::<B>::slot_of(slot.queue.number()), slot.queue.clone());
        Ok(Packets::new(cq, slot, memory, room, card.keys.local))
    }

    /// Makes a completion queue.
    pub(crate) fn create_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        options: CqOptions,
    ) -> Result<(CqId, Cq<B>), VerbsError> {
        let capabilities = &card.capabilities;
        if options.depth == 0 || options.depth >= 1 << capabilities.log_cqes {
            return Err(VerbsError::InvalidArgument);
        }
        let free = self.free_cqs.last().copied();
        let id = free.map_or(self.cqs, u32::from);
        if id as usize >= CQS {
            return Err(VerbsError::NoResources);
        }
        let (tables, commands) = (&mut self.tables, &mut self.commands);
        let number = tables.allocate_cq(hw, commands, capabilities, id)?;
        let cq = Cq::create(hw, commands, tables, capabilities, [number, self.eqn, options.depth]);
        if cq.is_err() {
            tables.free_cq(hw, commands, number)?;
        }
        let cq = cq?;
        match free {
            Some(_) => drop(self.free_cqs.pop()),
            None => self.cqs += 1,
        }
        Ok((CqId(id as u16), cq))
    }

    /// Takes over the completion queue indices from the control of a card that was reset.
    pub(crate) fn take_over(&mut self, former: &mut Self) {
        self.cqs = former.cqs;
        self.free_cqs = core::mem::take(&mut former.free_cqs);
    }

    /// Makes an existing completion queue again on a card that was reset.
    pub(crate) fn recreate_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        index: u32,
        cq: &mut Cq<B>,
    ) -> Result<(), Error> {
        let (tables, commands) = (&mut self.tables, &mut self.commands);
        let number = tables.allocate_cq(hw, commands, &self.card.capabilities, index)?;
        cq.recreate(hw, commands, tables, &self.card.capabilities, [number, self.eqn])
    }

    /// Destroys a completion queue on the card.
    pub(crate) fn destroy_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        id: CqId,
        cq: &Cq<B>,
    ) -> Result<(), VerbsError> {
        cq.destroy(hw, &mut self.commands, &mut self.tables)?;
        self.free_cqs.push(id.0);
        Ok(())
    }

    /// Makes a queue pair to which receives may be posted, and for the datagram service also sends. `depths`
    /// and `targets` are those of sends, then of receives.
    pub(crate) fn create_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        service: Service,
        [send_depth, recv_depth]: [u32; 2],
        targets: [Target; 2],
    ) -> Result<Qp<B>, VerbsError> {
        let most = card.capabilities.log_send_entries;
        let shape = Shape::new(send_depth, recv_depth, most).ok_or(VerbsError::InvalidArgument)?;
        let number = self.allocate_qpn(hw)?;
        let made = self.make_qp(hw, card, QpNum::new(number), service, shape, targets);
        if made.is_err() {
            self.qpns.free(number);
        }
        Ok(made?)
    }

    /// Allocates a queue pair number that has entries in the card's tables.
    pub(crate) fn allocate_qpn(&mut self, hw: &impl Hardware<Block = B>) -> Result<u32, Error> {
        while let Some((first, count)) = self.qpns.next_unbacked() {
            self.tables.ensure_icm(hw, &mut self.commands, Object::Qp, first.into(), count.into())?;
            self.qpns.mark_backed();
        }
        self.qpns.allocate(start::random_u32(hw)).ok_or(Error::Exhausted("queue pairs"))
    }

    fn make_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        number: QpNum,
        service: Service,
        shape: Shape,
        targets: [Target; 2],
    ) -> Result<Qp<B>, Error> {
        let capabilities = &card.capabilities;
        let buffer = hw.allocate(shape.bytes() + RECORD).ok_or(Error::NoMemory("a queue pair"))?;
        let connected = service == Service::Reliable;
        let datagrams = matches!(service, Service::Datagram(_) | Service::Management);
        let queue = Arc::new(QpRings::new(number, datagrams, buffer, shape));
        let slot = QpRings::<B>::slot_of(number);
        let page = Page::of(slot, capabilities);
        let [send, receive] = targets;
        let attributes = QpAttributes {
            number,
            service,
            domain: card.domain,
            shape,
            uar: page.index(),
            send_cqn: send.number,
            receive_cqn: receive.number,
            responder_reads: capabilities.max_rd_atomic,
        };
        let pages = self.tables.map_queue(hw, &mut self.commands, queue.addr(), shape.bytes())?;
        let rings = RingAddresses { mtt: pages.offset(), record: queue.record_addr() };
        let init = Command::new(Opcode::Rst2InitQp).of(number.get());
        if let Err(error) = self.commands.exec_in(hw, init, &attributes.init(rings, card.port)) {
            self.tables.unmap(hw, &mut self.commands, pages);
            return Err(error);
        }
        if !connected && let Err(error) = self.ready_for_datagrams(hw, card, &attributes, rings) {
            if self.reset_qp(hw, &attributes).is_ok() {
                self.tables.unmap(hw, &mut self.commands, pages);
            } else {
                // The card may still use the rings: their memory is never reused.
                core::mem::forget(queue);
            }
            return Err(error);
        }
        let register = |blue_flame| BlueFlameRegister::new(capabilities.uar_len, blue_flame);
        // The driver's own queue pair may share a page, and so a BlueFlame register, with another one. It
        // does without.
        let own = matches!(service, Service::Management | Service::Frames);
        let may = card.blue_flame && !own && Page::has_register(slot, capabilities);
        let blue_flame = capabilities.blue_flame.filter(|_| may).map(register);
        Ok(Qp::new(Parts {
            queue,
            attributes,
            pages,
            cqs: [send.id, receive.id],
            credits: [send.credit, receive.credit],
            page,
            blue_flame,
        }))
    }

    /// Brings a queue pair without a connection to the states in which it receives and sends.
    fn ready_for_datagrams(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        qp: &QpAttributes,
        rings: RingAddresses,
    ) -> Result<(), Error> {
        let number = qp.number.get();
        let receive = qp.ready_for_datagrams(rings, card.port);
        self.commands.exec_in(hw, Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let first = if matches!(qp.service, Service::Datagram(_)) { start::random_u32(hw) } else { 0 };
        let send = qp.ready_to_send_datagrams(rings, card.port, Psn::new(first));
        self.commands.exec_in(hw, Command::new(Opcode::Rtr2RtsQp).of(number), &send)
    }

    /// Connects a new queue pair.
    pub(crate) fn connect_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        qp: &QpAttributes,
        connect: &QpConnect,
        link: &Link,
    ) -> Result<(), VerbsError> {
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
            roce_v2: connect.address.link == verbs::LinkKind::RoceV2,
            log_message: card.capabilities.log_message,
        };
        let number = qp.number.get();
        let receive = qp.ready_to_receive(connect, path);
        self.commands.exec_in(hw, Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let send = qp.ready_to_send(connect, path);
        self.commands.exec_in(hw, Command::new(Opcode::Rtr2RtsQp).of(number), &send)?;
        Ok(())
    }

    /// Resets a queue pair. After success the card uses neither its rings nor memory for it.
    pub(crate) fn reset_qp(&mut self, hw: &impl Hardware<Block = B>, qp: &QpAttributes) -> Result<(), Error> {
        const WITHOUT_MAILBOX: u8 = 2;
        let reset = Command::new(Opcode::ToRstQp).of(qp.number.get()).variant(WITHOUT_MAILBOX);
        self.commands.exec(hw, reset).map(drop)
    }

    /// Frees the table entries of a queue pair that was reset.
    pub(crate) fn release_qp(&mut self, hw: &impl Hardware<Block = B>, slot: &Qp<B>) {
        if slot.state != QpState::Lost {
            self.tables.unmap(hw, &mut self.commands, slot.pages);
        }
        self.qpns.free(slot.attributes.number.get());
    }

    /// Stops the card and releases it. A card that does not stop is reset, since its memory is about to be
    /// freed.
    pub(crate) fn stop(&mut self, hw: &impl Hardware<Block = B>, card: &Card) {
        let closed = card.port.close(hw, &mut self.commands);
        let stopped = closed.and_then(|()| match card.function {
            Function::Physical => self
                .commands
                .exec(hw, Command::new(Opcode::CloseHca))
                .and_then(|_| self.commands.exec(hw, Command::new(Opcode::UnmapIcmAux)))
                .and_then(|_| self.commands.exec(hw, Command::new(Opcode::UnmapFa)))
                .map(drop),
            Function::Virtual => self.commands.leave(hw),
        });
        if let Err(error) = stopped {
            log::warn!("mlx4: the card does not stop and is reset: {error}");
            reset::silence(hw, card.function);
        }
        if card.function == Function::Physical {
            reset::give_up(hw);
        }
    }
}
