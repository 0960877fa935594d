//! What is not on the path of data, behind one lock: commands, tables, and the making and ending of queues.

use crate::capabilities::{BoardId, Capabilities};
use crate::command::{Command, Commands, Opcode};
use crate::config::Layer;
use crate::cq::{Cq, Credit};
use crate::doorbell::Page;
use crate::error::Error;
use crate::firmware::{Firmware, Version};
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::packets::{Packets, Room};
use crate::port::{Link, Port, PortInfo};
use crate::qp::context::{Fixed, Rings, Service, Way};
use crate::qp::numbers::Numbers;
use crate::qp::queue::{QueuePair, Shape};
use crate::qp::{BlueFlameRegister, Parts, Slot, Stage};
use crate::region::Keys;
use crate::reset;
use crate::tables::Tables;
use crate::{CQS, start};
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::Instant;
use verbs::{CqId, CqOptions, Gid, Psn, QpConnect, QpNum, VerbsError};

/// LIDs from here on are of groups.
const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Bytes behind the rings of a queue pair, for its doorbell record.
const RECORD: u64 = 64;

/// Which function of a card it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// The card itself.
    Physical,
    /// A part of it, which the driver of the physical function serves.
    Virtual,
}

/// Where it shows that the card has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// In no place.
    Unseen,
    /// In the register of BAR 0 that is not 0 from then on.
    Register(u32),
    /// In what the master has answered last.
    Channel,
}

/// What a card is, once it is up.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) function: Function,
    /// When its reset had ended, if it was reset.
    pub(crate) reset: Option<Instant>,
    pub(crate) firmware: Version,
    pub(crate) board: BoardId,
    pub(crate) capabilities: Capabilities,
    pub(crate) port: Port,
    pub(crate) info: PortInfo,
    pub(crate) keys: Keys,
    pub(crate) health: Health,
    /// Queue pairs that can exist.
    pub(crate) max_qps: u32,
    /// Requests go with their doorbells where a queue has a register for it.
    pub(crate) blue_flame: bool,
    pub(crate) domain: u32,
}

/// The card as it is driven.
pub(crate) struct Control<B> {
    pub(crate) card: Arc<Card>,
    pub(crate) commands: Commands<B>,
    pub(crate) tables: Tables<B>,
    pub(crate) numbers: Numbers,
    /// Completion queues that were ever there at once, and those of them that are free.
    pub(crate) cqs: u32,
    pub(crate) free_cqs: Vec<u16>,
    pub(crate) eqn: u32,
    /// A virtual function's is its master's.
    pub(crate) _firmware: Option<Firmware<B>>,
}

/// What a queue pair completes into.
pub(crate) struct Target {
    pub(crate) id: CqId,
    /// Its number on the card.
    pub(crate) number: u32,
    pub(crate) credit: Arc<Credit>,
}

impl<B: Block> Control<B> {
    /// Bytes of memory that the card has for its tables.
    pub(crate) const fn table_bytes(&self) -> u64 {
        self.tables.bytes()
    }

    /// Whether no more commands are given.
    pub(crate) const fn has_failed(&self) -> bool {
        self.commands.has_failed()
    }

    /// Gives no more commands.
    pub(crate) const fn fail(&mut self) {
        self.commands.fail();
    }

    /// Gives the port its GID.
    pub(crate) fn set_gid(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        gid: Gid,
    ) -> Result<(), Error> {
        card.port.set_gid(hw, &mut self.commands, gid)
    }

    /// The state of the port's link.
    pub(crate) fn look(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        known: Link,
    ) -> Result<Link, Error> {
        card.port.look(hw, &mut self.commands, known)
    }

    /// Makes a queue pair of the driver's own. It has room in a completion queue of its own for all its packets.
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
        let shape = shape.ok_or(Error::Lacks("rings of some entries"))?;
        let slot = self.make_qp(hw, card, QpNum::new(number), service, shape, [target(), target()])?;
        cq.attach(QueuePair::<B>::slot_of(slot.queue.number()), slot.queue.clone());
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
        let number = tables.take_cq(hw, commands, capabilities, id)?;
        let cq = Cq::create(hw, commands, tables, capabilities, [number, self.eqn, options.depth]);
        if cq.is_err() {
            tables.give_cq(hw, commands, number)?;
        }
        let cq = cq?;
        match free {
            Some(_) => drop(self.free_cqs.pop()),
            None => self.cqs += 1,
        }
        Ok((CqId(id as u16), cq))
    }

    /// Takes over from one whose card was reset: its completion queues stay.
    pub(crate) fn succeed(&mut self, former: &mut Self) {
        self.cqs = former.cqs;
        self.free_cqs = core::mem::take(&mut former.free_cqs);
    }

    /// Makes a completion queue anew on a card that was reset.
    pub(crate) fn renew_cq(
        &mut self,
        hw: &impl Hardware<Block = B>,
        index: u32,
        cq: &mut Cq<B>,
    ) -> Result<(), Error> {
        let (tables, commands) = (&mut self.tables, &mut self.commands);
        let number = tables.take_cq(hw, commands, &self.card.capabilities, index)?;
        cq.renew(hw, commands, tables, &self.card.capabilities, [number, self.eqn])
    }

    /// Takes a completion queue back from the card.
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

    /// Makes a queue pair to which receives may be posted; one for datagrams may send too. `depths`: of sends, and of
    /// receives.
    pub(crate) fn create_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        service: Service,
        [send_depth, recv_depth]: [u32; 2],
        targets: [Target; 2],
    ) -> Result<Slot<B>, VerbsError> {
        let most = card.capabilities.log_send_entries;
        let shape = Shape::new(send_depth, recv_depth, most).ok_or(VerbsError::InvalidArgument)?;
        let number = self.take_number(hw)?;
        let made = self.make_qp(hw, card, QpNum::new(number), service, shape, targets);
        if made.is_err() {
            self.numbers.give(number);
        }
        Ok(made?)
    }

    /// A number for a queue pair, which has entries in the card's tables.
    pub(crate) fn take_number(&mut self, hw: &impl Hardware<Block = B>) -> Result<u32, Error> {
        while let Some((first, count)) = self.numbers.wanted() {
            self.tables.back(hw, &mut self.commands, Object::Qp, first.into(), count.into())?;
            self.numbers.were_backed();
        }
        self.numbers.take(start::chance(hw)).ok_or(Error::Exhausted("queue pairs"))
    }

    fn make_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        number: QpNum,
        service: Service,
        shape: Shape,
        targets: [Target; 2],
    ) -> Result<Slot<B>, Error> {
        let capabilities = &card.capabilities;
        let buffer = hw.allocate(shape.bytes() + RECORD).ok_or(Error::NoMemory("a queue pair"))?;
        let connected = service == Service::Reliable;
        let datagrams = matches!(service, Service::Datagram(_) | Service::Management);
        let queue = Arc::new(QueuePair::new(number, datagrams, buffer, shape));
        let slot = QueuePair::<B>::slot_of(number);
        let page = Page::of(slot, capabilities);
        let [send, receive] = targets;
        let fixed = Fixed {
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
        let rings = Rings { mtt: pages.offset(), record: queue.record_addr() };
        let init = Command::new(Opcode::Rst2InitQp).of(number.get());
        if let Err(error) = self.commands.send(hw, init, &fixed.init(rings, card.port)) {
            self.tables.unmap_queue(hw, &mut self.commands, pages);
            return Err(error);
        }
        if !connected && let Err(error) = self.ready_for_datagrams(hw, card, &fixed, rings) {
            if self.reset_qp(hw, &fixed).is_ok() {
                self.tables.unmap_queue(hw, &mut self.commands, pages);
            } else {
                // The card may still use the rings: their memory is never used for anything else.
                core::mem::forget(queue);
            }
            return Err(error);
        }
        let register = |blue_flame| BlueFlameRegister::new(capabilities.uar_len, blue_flame);
        // Two queues may have one place for a register: that of the driver's own goes without.
        let own = matches!(service, Service::Management | Service::Frames);
        let may = card.blue_flame && !own && Page::has_register(slot, capabilities);
        let blue_flame = capabilities.blue_flame.filter(|_| may).map(register);
        Ok(Slot::new(Parts {
            queue,
            fixed,
            pages,
            cqs: [send.id, receive.id],
            credits: [send.credit, receive.credit],
            page,
            blue_flame,
        }))
    }

    /// Has a queue pair without a connection take and send datagrams.
    fn ready_for_datagrams(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        qp: &Fixed,
        rings: Rings,
    ) -> Result<(), Error> {
        let number = qp.number.get();
        let receive = qp.ready_for_datagrams(rings, card.port);
        self.commands.send(hw, Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let first = if matches!(qp.service, Service::Datagram(_)) { start::chance(hw) } else { 0 };
        let send = qp.ready_to_send_datagrams(rings, card.port, Psn::new(first));
        self.commands.send(hw, Command::new(Opcode::Rtr2RtsQp).of(number), &send)
    }

    /// Connects a queue pair that was made and not connected.
    pub(crate) fn connect_qp(
        &mut self,
        hw: &impl Hardware<Block = B>,
        card: &Card,
        qp: &Fixed,
        connect: &QpConnect,
        link: &Link,
    ) -> Result<(), VerbsError> {
        let (to, none) = (&connect.address, Gid([0; 16]));
        let row = card.port.row(to.link).ok_or(VerbsError::Unsupported)?;
        // The card would send from nowhere, or to it.
        let reachable = match card.port.layer {
            Layer::Ethernet => link.gid != none && to.peer.gid != none,
            Layer::InfiniBand => link.lid != 0 && (1..FIRST_MULTICAST_LID).contains(&to.peer.lid),
        };
        if !reachable {
            return Err(VerbsError::Unreachable);
        }
        let way = Way {
            port: card.port,
            source_gid: row,
            roce_v2: connect.address.link == verbs::LinkKind::RoceV2,
            log_message: card.capabilities.log_message,
        };
        let number = qp.number.get();
        let receive = qp.ready_to_receive(connect, way);
        self.commands.send(hw, Command::new(Opcode::Init2RtrQp).of(number), &receive)?;
        let send = qp.ready_to_send(connect, way);
        self.commands.send(hw, Command::new(Opcode::Rtr2RtsQp).of(number), &send)?;
        Ok(())
    }

    /// Has the card let go of a queue pair: from here on it touches neither rings nor memory for it.
    pub(crate) fn reset_qp(&mut self, hw: &impl Hardware<Block = B>, qp: &Fixed) -> Result<(), Error> {
        const WITHOUT_MAILBOX: u8 = 2;
        let reset = Command::new(Opcode::ToRstQp).of(qp.number.get()).variant(WITHOUT_MAILBOX);
        self.commands.run(hw, reset).map(drop)
    }

    /// Takes what a queue pair that was reset had of the tables.
    pub(crate) fn release_qp(&mut self, hw: &impl Hardware<Block = B>, slot: &Slot<B>) {
        if slot.stage != Stage::Lost {
            self.tables.unmap_queue(hw, &mut self.commands, slot.pages);
        }
        self.numbers.give(slot.fixed.number.get());
    }

    /// Has the card stop, and gives it up. One that does not is reset, since its memory goes.
    pub(crate) fn stop(&mut self, hw: &impl Hardware<Block = B>, card: &Card) {
        let closed = card.port.close(hw, &mut self.commands);
        let stopped = closed.and_then(|()| match card.function {
            Function::Physical => self
                .commands
                .run(hw, Command::new(Opcode::CloseHca))
                .and_then(|_| self.commands.run(hw, Command::new(Opcode::UnmapIcmAux)))
                .and_then(|_| self.commands.run(hw, Command::new(Opcode::UnmapFa)))
                .map(drop),
            Function::Virtual => self.commands.leave(hw),
        });
        if let Err(error) = stopped {
            log::warn!("mlx4: the card does not stop, and is reset: {error}");
            reset::silence(hw, card.function);
        }
        if card.function == Function::Physical {
            reset::give_up(hw);
        }
    }
}
