//! A port: its layer, its bring-up, and the state of its link.

mod ethernet;
mod infiniband;

use crate::bringup::capabilities::Capabilities;
use crate::command::{Command, Commands, Opcode};
use crate::config::{Layer, Vlan};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::Field;
pub(crate) use ethernet::VLAN_ROW;
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

/// The card's description of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortInfo {
    pub(crate) up: bool,
    pub(crate) layer: Layer,
    /// The Ethernet address; zero on InfiniBand.
    pub(crate) mac: MacAddr,
    /// The maximum payload of an Ethernet frame, in bytes.
    pub(crate) max_mtu: u16,
}

/// The state of a port's link, and the port's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) state: PortState,
    /// The GID of the port; all zero while it has none.
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    /// The largest path MTU.
    pub(crate) mtu: Option<PathMtu>,
    /// The index of the partition in the port's table of P_Keys.
    pub(crate) partition: u8,
}

/// A port of a card, by its number from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) layer: Layer,
    roce_v2: bool,
    /// True if other functions also use the port. The master then assigns a counter and addresses to each.
    pub(crate) shared: bool,
    /// The row of the address table whose address frames have as their source.
    pub(crate) mac_row: u8,
    /// The counter for frames of queue pairs.
    pub(crate) counter: u8,
    /// The VLAN of all frames.
    pub(crate) vlan: Option<Vlan>,
    /// The number of the partition; `None` for the default one.
    partition: Option<u16>,
}

/// The code of no counter.
const NO_COUNTER: u8 = 0xff;

impl Port {
    /// Makes a port that the driver may bring up.
    pub(crate) const fn physical(number: u8, layer: Layer, card: &Capabilities) -> Self {
        Self { roce_v2: card.roce_v2, shared: false, ..Self::of_virtual(number, layer) }
    }

    /// Makes a port that other functions also use. Masters allow only RoCE v1 or InfiniBand on it, whatever
    /// the card supports.
    pub(crate) const fn of_virtual(number: u8, layer: Layer) -> Self {
        // InfiniBand ports have counters of their own (Linux).
        let counter = if matches!(layer, Layer::Ethernet) { NO_COUNTER } else { 0 };
        Self { number, layer, roce_v2: false, shared: true, mac_row: 0, counter, vlan: None, partition: None }
    }

    /// Sets the counter, if there is one.
    pub(crate) const fn with_counter(self, counter: Option<u8>) -> Self {
        match counter {
            Some(counter) => Self { counter, ..self },
            None => self,
        }
    }

    /// Sets the row of the address table.
    pub(crate) const fn with_mac_row(self, mac_row: u8) -> Self {
        Self { mac_row, ..self }
    }

    /// Sets the VLAN. It has no meaning on InfiniBand.
    pub(crate) fn with_vlan(self, vlan: Option<Vlan>) -> Self {
        Self { vlan: vlan.filter(|_| self.layer == Layer::Ethernet), ..self }
    }

    /// Sets the partition. It has no meaning on Ethernet.
    pub(crate) fn with_partition(self, partition: Option<u16>) -> Self {
        Self { partition: partition.filter(|_| self.layer == Layer::InfiniBand), ..self }
    }

    /// Returns the frame formats of the port, best first.
    pub(crate) const fn links(self) -> &'static [LinkKind] {
        match self.layer {
            Layer::InfiniBand => &[LinkKind::InfiniBand],
            Layer::Ethernet if self.roce_v2 => &[LinkKind::RoceV2, LinkKind::RoceV1],
            Layer::Ethernet => &[LinkKind::RoceV1],
        }
    }

    /// Returns the row of the GID table for a frame format, or `None` if the port does not support the
    /// format.
    pub(crate) fn row(self, link: LinkKind) -> Option<u8> {
        self.links().iter().position(|known| *known == link).map(|row| row as u8)
    }

    /// Queries a port. Its layer is `wanted`, or the one that the card suggests.
    ///
    /// # Errors
    /// If the port does not support the `wanted` layer.
    pub(crate) fn query(
        commands: &mut Commands<'_, impl Hardware>,
        number: u8,
        wanted: Option<Layer>,
    ) -> Result<PortInfo, Error> {
        let about = commands.exec_out(Command::new(Opcode::QueryPort).of(number.into()))?;
        let layer = match (about.has(query::ETHERNET), about.has(query::INFINIBAND)) {
            (true, true) if about.has(query::SUGGESTS_ETHERNET) => wanted.unwrap_or(Layer::Ethernet),
            (true, true) => wanted.unwrap_or(Layer::InfiniBand),
            (true, false) => Layer::Ethernet,
            (false, true) => Layer::InfiniBand,
            (false, false) => return Err(Error::Nonsense("its port is neither Ethernet nor InfiniBand")),
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

    /// Sets the port up as `info` describes it, and opens it. Its link may need more time.
    pub(crate) fn open(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        info: &PortInfo,
    ) -> Result<(), Error> {
        match self.layer {
            Layer::Ethernet => self.set_ethernet(commands, info.max_mtu)?,
            Layer::InfiniBand => self.set_infiniband(commands)?,
        }
        commands.exec(Command::new(Opcode::InitPort).of(self.number.into()))?;
        if self.layer == Layer::Ethernet && !self.shared {
            self.set_mac(commands, info.mac)?;
            if let Some(vlan) = self.vlan {
                self.set_vlan(commands, vlan)?;
            }
        }
        Ok(())
    }

    /// Closes the port: it no longer sends or receives frames.
    pub(crate) fn close(self, commands: &mut Commands<'_, impl Hardware>) -> Result<(), Error> {
        commands.exec(Command::new(Opcode::ClosePort).of(self.number.into())).map(drop)
    }

    /// Queries the state of the link, and on InfiniBand also the addresses. Other properties are those of
    /// `known`.
    pub(crate) fn query_link(
        self,
        commands: &mut Commands<'_, impl Hardware>,
        known: Link,
    ) -> Result<Link, Error> {
        match self.layer {
            Layer::Ethernet => {
                let up = Self::query(commands, self.number, Some(self.layer))?.up;
                Ok(Link { state: if up { PortState::Active } else { PortState::Down }, ..known })
            }
            Layer::InfiniBand => self.query_subnet(commands),
        }
    }
}
