//! The steps of a bring-up that are equal for all functions.

use crate::bringup::capabilities::{BoardId, Capabilities};
use crate::bringup::firmware::{Firmware, Version};
use crate::card::{Attached, Card, Function, HealthSource};
use crate::command::{CommandState, Commands};
use crate::config::{Config, FramePort, Layer};
use crate::control::{Control, ControlState, CqIds};
use crate::device::{Device, Tables};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::objects::eq::Eq;
use crate::objects::frames::Frames;
use crate::objects::mr::{self, KeySlots, Keys, Pages};
use crate::objects::packets::Packets;
use crate::objects::port::{Link, Port, PortInfo};
use crate::objects::qpn::QpnAllocator;
use alloc::sync::Arc;
use platform::Instant;
use verbs::{Gid, PathMtu, PortState};

/// The queues for plain frames of each port, by the index in [`FramePort::ALL`].
pub(crate) type PortFrames<B> = [Option<Frames<B>>; FramePort::ALL.len()];

/// The result of a bring-up.
pub(crate) struct Started<B> {
    pub(crate) control: ControlState<B>,
    pub(crate) card: Arc<Card>,
    pub(crate) eq: Eq<B>,
    /// The agent for subnet management on an InfiniBand port, unless the master has it.
    pub(crate) agent: Option<Packets<B>>,
    /// The queues for plain frames on each Ethernet port, if they are wanted.
    pub(crate) frames: PortFrames<B>,
    pub(crate) link: Link,
}

/// The state of a card before it failed that must survive the restart.
pub(crate) struct Preserved {
    /// The keys that peers know.
    pub(crate) keys: Keys,
    /// The allocator of queue pair numbers. Numbers of queue pairs lost in a reset stay in use until the
    /// application destroys them.
    pub(crate) qpns: QpnAllocator,
}

/// The input of a bring-up.
pub(super) struct Plan<'a, H> {
    pub(super) hw: &'a H,
    pub(super) config: &'a Config,
    pub(super) preserved: Option<&'a Preserved>,
    /// The pages that peers may reach, if they may not reach all memory.
    pub(super) pages: Option<Pages>,
}

/// A card that executes commands and has its tables, but no objects yet.
pub(super) struct Base<B> {
    pub(super) function: Function,
    /// The time at which the card's reset ended, if it was reset.
    pub(super) reset: Option<Instant>,
    pub(super) commands: CommandState<B>,
    pub(super) tables: Tables<B>,
    /// The firmware's memory, which a virtual function does not have.
    pub(super) firmware: Option<Firmware<B>>,
    pub(super) version: Version,
    pub(super) health: HealthSource,
    pub(super) capabilities: Capabilities,
    pub(super) board: BoardId,
    pub(super) port: Port,
    pub(super) info: PortInfo,
    /// The port of plain frames alone, if there is one.
    pub(super) second: Option<Attached>,
    /// The number for the event queue.
    pub(super) eqn: u32,
}

impl<'a, H: Hardware> Plan<'a, H> {
    /// Checks the configuration.
    pub(super) fn new(
        hw: &'a H,
        config: &'a Config,
        preserved: Option<&'a Preserved>,
    ) -> Result<Self, Error> {
        Ok(Self { hw, config, preserved, pages: Pages::of(&config.remote)? })
    }

    /// Returns the command interface of a card.
    pub(super) const fn commands<'b>(&self, base: &'b mut Base<H::Block>) -> Commands<'b, H>
    where
        'a: 'b,
    {
        Commands::new(self.hw, &mut base.commands)
    }

    /// Returns the device: the hardware with the commands and the tables of `base`.
    pub(super) const fn device<'b>(&self, base: &'b mut Base<H::Block>) -> Device<'b, H>
    where
        'a: 'b,
    {
        Device::new(self.hw, &mut base.commands, &mut base.tables)
    }

    /// Returns the number of the port of RDMA, which the card must have.
    pub(super) fn port_number(&self, card: &Capabilities) -> Result<u8, Error> {
        Self::existing(card, self.config.port)
    }

    /// Returns the number of the port of plain frames alone, which the card must have, if there is one.
    pub(super) fn second_number(&self, card: &Capabilities) -> Result<Option<u8>, Error> {
        let second = self.config.second.filter(|number| *number != self.config.port);
        second.map(|asked| Self::existing(card, asked)).transpose()
    }

    fn existing(card: &Capabilities, asked: u8) -> Result<u8, Error> {
        if (1..=card.ports).contains(&asked) {
            Ok(asked)
        } else {
            Err(Error::NoPort { asked, has: card.ports })
        }
    }

    /// Makes the event queue.
    pub(super) fn create_eq(&self, base: &mut Base<H::Block>) -> Result<Eq<H::Block>, Error> {
        let (number, large) = (base.eqn, base.capabilities.large_eqes);
        Eq::create(&mut self.device(base), number, large, self.config.vector)
    }

    /// Makes the memory keys in the given slots of the key table.
    pub(super) fn create_keys(&self, base: &mut Base<H::Block>, slots: KeySlots) -> Result<Keys, Error> {
        let domain = base.capabilities.reserved_pds;
        let preserved = self.preserved.map(|preserved| preserved.keys);
        mr::create(&mut self.device(base), slots, domain, self.pages.as_ref(), preserved)
    }

    /// Makes the control of a card whose event queue and keys exist. `qpns` are the numbers for its queue
    /// pairs; those in use before a reset stay in use.
    pub(super) fn make_control(
        &self,
        base: Base<H::Block>,
        keys: Keys,
        qpns: QpnAllocator,
    ) -> ControlState<H::Block> {
        let Base { function, reset, version, health, board, port, info, second, eqn, capabilities, .. } =
            base;
        let qpns = qpns.excluding(self.preserved.map(|preserved| &preserved.qpns));
        let limited = |info: PortInfo| PortInfo { max_mtu: self.config.mtu.min(info.max_mtu), ..info };
        let card = Card {
            function,
            reset,
            firmware: version,
            board,
            port,
            info: limited(info),
            second: second.map(|Attached { port, info }| Attached { port, info: limited(info) }),
            keys,
            health,
            max_qps: qpns.capacity(),
            blue_flame: capabilities.blue_flame.is_some() && self.hw.combine_writes(capabilities.uar_len),
            domain: capabilities.reserved_pds,
            capabilities,
        };
        ControlState {
            card: Arc::new(card),
            commands: base.commands,
            tables: base.tables,
            qpns,
            cq_ids: CqIds::default(),
            partition: 0,
            eqn,
            _firmware: base.firmware,
        }
    }

    /// Opens the ports, and starts to receive frames where they are wanted.
    pub(super) fn finish(
        &self,
        mut state: ControlState<H::Block>,
        eq: Eq<H::Block>,
        agent: Option<Packets<H::Block>>,
    ) -> Result<Started<H::Block>, Error> {
        let card = state.card.clone();
        let mut control = Control::new(self.hw, &mut state);
        for Attached { port, info } in card.in_use() {
            port.open(&mut control.commands().0, &info)?;
        }
        let mut frames = PortFrames::default();
        for (frames, which) in frames.iter_mut().zip(FramePort::ALL) {
            let is_wanted = self.config.frames || which == FramePort::Second;
            let attached = card.attached(which).filter(|attached| attached.port.layer == Layer::Ethernet);
            if let Some(attached) = attached.filter(|_| is_wanted) {
                *frames = Some(Frames::start(&mut control, which, attached)?);
            }
        }
        // The state of the link before the first query.
        let mtu = PathMtu::fitting(card.info.max_mtu.into());
        let link = Link { state: PortState::Down, gid: Gid([0; 16]), lid: 0, mtu, partition: 0 };
        Ok(Started { control: state, card, eq, agent, frames, link })
    }
}
