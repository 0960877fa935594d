//! Everything outside of the data path, behind one lock: commands, tables, creation and destruction of
//! queues.

mod qp;

use crate::bringup::capabilities::Capabilities;
use crate::bringup::firmware::Firmware;
use crate::bringup::reset;
use crate::card::{Card, Function};
use crate::command::{Command, CommandState, Commands, Opcode};
use crate::device::{Device, Tables};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::icm::layout::MAX_CQS;
use crate::objects::cq::{Cq, CqNumbers};
use crate::objects::port::Link;
use crate::objects::qpn::QpnAllocator;
use alloc::sync::Arc;
use alloc::vec::Vec;
use verbs::{CqId, CqOptions, Gid, VerbsError};

/// The indices of completion queues.
#[derive(Default)]
pub(crate) struct CqIds {
    /// The number of indices that have been in use at once.
    used: u16,
    /// The indices below `used` that are free.
    free: Vec<CqId>,
}

impl CqIds {
    /// Returns the index for the next queue, or `None` if all are in use.
    fn next(&self) -> Option<CqId> {
        let unused = (usize::from(self.used) < MAX_CQS).then_some(CqId(self.used));
        self.free.last().copied().or(unused)
    }

    /// Marks the index that [`next`](Self::next) returned as in use.
    fn take_next(&mut self) {
        if self.free.pop().is_none() {
            self.used += 1;
        }
    }
}

/// The driver's state of the card, behind the control lock.
pub(crate) struct ControlState<B> {
    pub(crate) card: Arc<Card>,
    pub(crate) commands: CommandState<B>,
    pub(crate) tables: Tables<B>,
    pub(crate) qpns: QpnAllocator,
    pub(crate) cq_ids: CqIds,
    /// The index of the partition in the port's table of P_Keys, for new queue pairs.
    pub(crate) partition: u8,
    /// The number of the driver's event queue.
    pub(crate) eqn: u32,
    /// The firmware's memory. A virtual function has none: the firmware is its master's.
    pub(crate) _firmware: Option<Firmware<B>>,
}

/// A card in a machine, whose control lock is held.
pub(crate) struct Control<'a, H: Hardware> {
    hw: &'a H,
    state: &'a mut ControlState<H::Block>,
}

impl<'a, H: Hardware> Control<'a, H> {
    /// Makes the control of a card from its state and the machine.
    pub(crate) const fn new(hw: &'a H, state: &'a mut ControlState<H::Block>) -> Self {
        Self { hw, state }
    }

    /// Returns the properties of the card.
    pub(crate) fn card(&self) -> &Card {
        &self.state.card
    }

    /// Returns the command interface and the properties of the card.
    pub(crate) fn commands(&mut self) -> (Commands<'_, H>, &Card) {
        (Commands::new(self.hw, &mut self.state.commands), &self.state.card)
    }

    /// Returns the device and the properties of the card.
    fn device(&mut self) -> (Device<'_, H>, &Card) {
        let ControlState { card, commands, tables, .. } = &mut *self.state;
        (Device::new(self.hw, commands, tables), card)
    }

    /// Sets the GID of the port.
    pub(crate) fn set_gid(&mut self, gid: Gid) -> Result<(), Error> {
        let (mut commands, card) = self.commands();
        card.port.set_gid(&mut commands, gid)
    }

    /// Queries the state of the port's link. Properties that the card does not report are those of `known`.
    pub(crate) fn query_link(&mut self, known: Link) -> Result<Link, Error> {
        let (mut commands, card) = self.commands();
        let link = card.port.query_link(&mut commands, known)?;
        self.state.partition = link.partition;
        Ok(link)
    }

    /// Makes a completion queue.
    pub(crate) fn create_cq(&mut self, options: CqOptions) -> Result<(CqId, Cq<H::Block>), VerbsError> {
        let capabilities = &self.state.card.capabilities;
        if options.depth == 0 || options.depth >= 1 << capabilities.log_cqes {
            return Err(VerbsError::InvalidArgument);
        }
        let id = self.state.cq_ids.next().ok_or(VerbsError::NoResources)?;
        let create = |device: &mut Device<'_, H>, card: &Capabilities, numbers| {
            Cq::create(device, card, numbers, options.depth)
        };
        let cq = self.with_cq_numbers(id, create)?;
        self.state.cq_ids.take_next();
        Ok((id, cq))
    }

    /// Makes an existing completion queue again on a card that was reset.
    pub(crate) fn recreate_cq(&mut self, id: CqId, cq: &mut Cq<H::Block>) -> Result<(), Error> {
        self.with_cq_numbers(id, |device, card, numbers| cq.recreate(device, card, numbers))
    }

    /// Allocates the card's number for a completion queue, and calls `create` with it. If that fails, frees
    /// the number.
    fn with_cq_numbers<T>(
        &mut self,
        id: CqId,
        create: impl FnOnce(&mut Device<'_, H>, &Capabilities, CqNumbers) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let eqn = self.state.eqn;
        let (mut device, card) = self.device();
        let queue = device.allocate_cqn(&card.capabilities, id.0.into())?;
        let created = create(&mut device, &card.capabilities, CqNumbers { queue, eqn });
        if created.is_err() {
            device.free_cqn(queue)?;
        }
        created
    }

    /// Destroys a completion queue on the card.
    pub(crate) fn destroy_cq(&mut self, id: CqId, cq: &Cq<H::Block>) -> Result<(), VerbsError> {
        let (mut device, _) = self.device();
        cq.destroy(&mut device)?;
        self.state.cq_ids.free.push(id);
        Ok(())
    }

    /// Stops the card and releases it. A card that does not stop is reset, since its memory is about to be
    /// freed.
    pub(crate) fn stop(&mut self) {
        let hw = self.hw;
        let (mut commands, card) = self.commands();
        let closed = card.in_use().try_for_each(|attached| attached.port.close(&mut commands));
        let stopped = closed.and_then(|()| match card.function {
            Function::Physical => [Opcode::CloseHca, Opcode::UnmapIcmAux, Opcode::UnmapFa]
                .into_iter()
                .try_for_each(|opcode| commands.exec(Command::new(opcode)).map(drop)),
            Function::Virtual => commands.leave(),
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
