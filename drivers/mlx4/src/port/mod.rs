//! A port: of which layer it is, how it is brought up, and what state its link is in.

mod ethernet;
pub(crate) mod infiniband;

use crate::capabilities::Capabilities;
use crate::command::{Command, Commands, Opcode};
use crate::config::Layer;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::layout::Field;
use infiniband::Subnet;
use verbs::{Gid, LinkKind, MacAddr, PathMtu, PortState};

/// QUERY_PORT (Linux `mlx4_QUERY_PORT`, PRM `query_port_cap`).
mod query {
    use super::Field;
    pub(super) const UP: Field = Field::bit(0x00, 31);
    pub(super) const SUGGESTS_ETHERNET: Field = Field::bit(0x00, 27);
    pub(super) const ETHERNET: Field = Field::bit(0x00, 25);
    pub(super) const INFINIBAND: Field = Field::bit(0x00, 24);
    pub(super) const MAX_MTU: Field = Field::half(0x02);
    pub(super) const MAC: usize = 0x10;
}

/// What the card says of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortInfo {
    pub(crate) up: bool,
    pub(crate) layer: Layer,
    /// Zero on InfiniBand.
    pub(crate) mac: MacAddr,
    /// Bytes of the payload of an Ethernet frame.
    pub(crate) max_mtu: u16,
}

/// The state of a port's link, and how peers find the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) state: PortState,
    /// All zero as long as there is none.
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    /// The longest path MTU.
    pub(crate) mtu: Option<PathMtu>,
}

/// A port of a card, by its number from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) layer: Layer,
    roce_v2: bool,
    /// Other functions have it too, and a master sees to it that each has its own counter and addresses.
    pub(crate) shared: bool,
    /// The row of its table of addresses that frames come from.
    pub(crate) mac_row: u8,
    /// What counts the frames of queue pairs.
    pub(crate) counter: u8,
}

/// No counter counts the frames.
const NO_COUNTER: u8 = 0xff;

impl Port {
    /// A port that may be brought up.
    pub(crate) const fn physical(number: u8, layer: Layer, card: &Capabilities) -> Self {
        Self { roce_v2: card.roce_v2, shared: false, ..Self::of_slave(number, layer) }
    }

    /// One that other functions have too. Masters have it take RoCE v1 or InfiniBand only, whatever the card can.
    pub(crate) const fn of_slave(number: u8, layer: Layer) -> Self {
        // InfiniBand ports count by themselves (Linux).
        let counter = if matches!(layer, Layer::Ethernet) { NO_COUNTER } else { 0 };
        Self { number, layer, roce_v2: false, shared: true, mac_row: 0, counter }
    }

    /// With a counter, if there is one.
    pub(crate) const fn with_counter(self, counter: Option<u8>) -> Self {
        match counter {
            Some(counter) => Self { counter, ..self },
            None => self,
        }
    }

    /// With a row of its table of addresses.
    pub(crate) const fn with_mac_row(self, mac_row: u8) -> Self {
        Self { mac_row, ..self }
    }

    /// What kinds of frames it takes, best first.
    pub(crate) const fn links(self) -> &'static [LinkKind] {
        match self.layer {
            Layer::InfiniBand => &[LinkKind::InfiniBand],
            Layer::Ethernet if self.roce_v2 => &[LinkKind::RoceV2, LinkKind::RoceV1],
            Layer::Ethernet => &[LinkKind::RoceV1],
        }
    }

    /// The row of the GID table for a kind of frames. `None`: the port does not take them.
    pub(crate) fn row(self, link: LinkKind) -> Option<u8> {
        self.links().iter().position(|known| *known == link).map(|row| row as u8)
    }

    /// Asks for its state, and for the layer that it has: that which is `wanted`, or the one that the card suggests.
    pub(crate) fn query<B: Block>(
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        number: u8,
        wanted: Option<Layer>,
    ) -> Result<PortInfo, Error> {
        let about = commands.query(hw, Command::new(Opcode::QueryPort).of(number.into()))?;
        let layer = match (about.has(query::ETHERNET), about.has(query::INFINIBAND)) {
            (true, true) if about.has(query::SUGGESTS_ETHERNET) => wanted.unwrap_or(Layer::Ethernet),
            (true, true) => wanted.unwrap_or(Layer::InfiniBand),
            (true, false) => Layer::Ethernet,
            (false, true) => Layer::InfiniBand,
            (false, false) => return Err(Error::Nonsense("its port is of no kind")),
        };
        match wanted.filter(|wanted| *wanted != layer) {
            Some(Layer::Ethernet) => return Err(Error::Lacks("an Ethernet link at its port")),
            Some(Layer::InfiniBand) => return Err(Error::Lacks("an InfiniBand link at its port")),
            None => {}
        }
        let up = about.has(query::UP);
        if layer == Layer::InfiniBand {
            return Ok(PortInfo { up, layer, mac: MacAddr([0; 6]), max_mtu: 0 });
        }
        let [_, _, mac @ ..] = about.array::<8>(query::MAC);
        if mac == [0; 6] || mac[0] & 1 != 0 {
            return Err(Error::Nonsense("its port has no address"));
        }
        Ok(PortInfo { up, layer, mac: MacAddr(mac), max_mtu: about.get(query::MAX_MTU) as u16 })
    }

    /// Sets it up, for Ethernet frames with payloads of `mtu` bytes, and opens it. Its link takes its time.
    pub(crate) fn open<B: Block>(
        self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        mtu: u16,
    ) -> Result<(), Error> {
        match self.layer {
            Layer::Ethernet => self.set_ethernet(hw, commands, mtu)?,
            Layer::InfiniBand => self.set_infiniband(hw, commands)?,
        }
        commands.run(hw, Command::new(Opcode::InitPort).of(self.number.into())).map(drop)
    }

    /// Closes it: no frame is sent or taken any more.
    pub(crate) fn close<B: Block>(
        self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
    ) -> Result<(), Error> {
        commands.run(hw, Command::new(Opcode::ClosePort).of(self.number.into())).map(drop)
    }

    /// Asks what state its link is in, if it is other than `known`. On InfiniBand, its addresses too.
    pub(crate) fn look<B: Block>(
        self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        known: Link,
    ) -> Result<Link, Error> {
        match self.layer {
            Layer::Ethernet => {
                let up = Self::query(hw, commands, self.number, Some(self.layer))?.up;
                Ok(Link { state: if up { PortState::Active } else { PortState::Down }, ..known })
            }
            Layer::InfiniBand => Subnet::ask(hw, commands, self.number).map(Link::from),
        }
    }
}
