//! Profiles of the emulated cards: identity, sizes and capabilities. The values are those of real cards, or
//! the smallest that Linux accepts.

use core::time::Duration;
use verbs::MacAddr;

/// The profile of a card.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The part of the card that the guest sees.
    pub function: Function,
    /// The PCI device id: 0x1003 ConnectX-3, 0x1007 ConnectX-3 Pro, 0x1004 a virtual function.
    pub device_id: u16,
    /// The firmware version: major, minor, subminor.
    pub firmware: [u16; 3],
    /// The board id, up to 16 printable bytes.
    pub board: &'static str,
    /// The card's ports, one or two.
    pub ports: Vec<PortProfile>,
    /// True if RoCE v2 is supported (ConnectX-3 Pro).
    pub roce_v2: bool,
    /// The numbering of event queues.
    pub eqs: EqScheme,
    /// The schemes that the card offers to steer Ethernet frames to queue pairs.
    pub steering: SteeringOffer,
    /// True if drivers must initialize the entries of completion queues as not yet written (SW_CQ_INIT).
    pub sw_cq_init: bool,
    /// True if the card offers event and completion queues with entries of 64 bytes, in addition to 32 bytes.
    pub large_entries: bool,
    /// True if a doorbell can carry its work request (BlueFlame).
    pub blue_flame: bool,
    /// The duration of a reset.
    pub reset_time: Duration,
    /// The time that a link takes to come up.
    pub link_delay: Duration,
    /// True if atomic operations are atomic only among the card's own, not with respect to the processor.
    pub torn_atomics: bool,
}

/// A scheme by which Ethernet frames are steered to queue pairs. INIT_HCA selects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// A0: by the row of the port's MAC table.
    Table,
    /// B0: by entries of the multicast table, also for unicast.
    Groups,
    /// Device-managed steering: the driver gives the card rules.
    Flows,
}

/// The schemes that a card offers in addition to [`Steering::Table`], which every card offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteeringOffer {
    /// True if [`Steering::Groups`] is offered.
    pub groups: bool,
    /// True if [`Steering::Flows`] is offered.
    pub flows: bool,
}

impl SteeringOffer {
    /// Returns whether a driver may select a scheme.
    #[must_use]
    pub const fn offers(self, steering: Steering) -> bool {
        match steering {
            Steering::Table => true,
            Steering::Groups => self.groups,
            Steering::Flows => self.flows,
        }
    }
}

/// The part of a card that the guest sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// A physical function, which has the whole card.
    Physical,
    /// A virtual function. Its commands go to a master, which is built into the card.
    Virtual,
}

/// A port of the card.
#[derive(Clone, Copy, Debug)]
pub struct PortProfile {
    /// The burnt-in address.
    pub mac: MacAddr,
    /// The supported link types.
    pub links: LinkTypes,
}

/// The link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkType {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
}

/// The link types that a port supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkTypes {
    /// InfiniBand only.
    InfiniBand,
    /// Ethernet only.
    Ethernet,
    /// Either type. The driver selects it by the form of SET_PORT; until then the suggested type applies.
    Either {
        /// The type that QUERY_PORT suggests.
        suggested: LinkType,
    },
}

impl LinkTypes {
    /// Returns the code for QUERY_PORT.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::InfiniBand => 1,
            Self::Ethernet => 2,
            Self::Either { .. } => 3,
        }
    }

    /// Returns the link type before the driver has selected one.
    #[must_use]
    pub const fn suggested(self) -> LinkType {
        match self {
            Self::InfiniBand => LinkType::InfiniBand,
            Self::Ethernet => LinkType::Ethernet,
            Self::Either { suggested } => suggested,
        }
    }

    /// Returns whether the port supports a link type.
    #[must_use]
    pub fn has(self, link: LinkType) -> bool {
        matches!(self, Self::Either { .. }) || self.suggested() == link
    }
}

/// The numbering of event queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EqScheme {
    /// By reserved UARs, without QUERY_FUNC.
    Legacy,
    /// System EQs: QUERY_FUNC reports which belong to the function.
    System {
        /// The number of queues reserved for the firmware.
        reserved: u16,
        /// The total number of queues.
        max: u16,
    },
}

/// A named profile: its name, its description, and its differences from [`Profile::pro`].
type Named = (&'static str, &'static str, fn(&mut Profile));

/// All named profiles.
const NAMED: &[Named] = &[
    ("pro", "ConnectX-3 Pro, one Ethernet port", |_| ()),
    ("pro-2port", "ConnectX-3 Pro, two Ethernet ports", Profile::second_port),
    ("cx3", "ConnectX-3: RoCE v1 only", |profile| {
        profile.device_id = 0x1003;
        profile.firmware = [2, 30, 8000];
        profile.board = "FER0000000001";
        profile.roce_v2 = false;
    }),
    ("ib", "ConnectX-3 Pro, one InfiniBand port", |profile| profile.link(LinkTypes::InfiniBand)),
    ("vpi", "ConnectX-3 Pro, one port of either link type, which the driver selects", |profile| {
        profile.link(LinkTypes::Either { suggested: LinkType::Ethernet });
    }),
    ("vpi-2port", "ConnectX-3 Pro, two ports of either link type", |profile| {
        profile.link(LinkTypes::Either { suggested: LinkType::Ethernet });
        profile.second_port();
    }),
    ("sys-eqs", "event queues numbered by QUERY_FUNC, as in firmware from 2.30 on", |profile| {
        profile.eqs = EqScheme::System { reserved: 28, max: 156 };
    }),
    ("vf", "virtual function of a ConnectX-3 Pro, with its master built in", |profile| {
        profile.function = Function::Virtual;
        profile.device_id = 0x1004;
    }),
    ("sw-cq-init", "drivers initialize the entries of new completion queues", |profile| {
        profile.sw_cq_init = true;
    }),
    ("large-entries", "entries of 64 bytes in event and completion queues", |profile| {
        profile.large_entries = true;
    }),
    ("blueflame", "doorbells that carry their work request", |profile| profile.blue_flame = true),
    ("slow", "a reset of 1 s, and links that come up after 2 s", |profile| {
        profile.reset_time = Duration::from_secs(1);
        profile.link_delay = Duration::from_secs(2);
    }),
    ("torn-atomics", "atomics that are not atomic with respect to the processor", |profile| {
        profile.torn_atomics = true;
    }),
    ("a0", "steering by the MAC table only", |profile| profile.steering.groups = false),
];

impl Profile {
    /// The names known to [`named`](Self::named); the first is the default.
    pub const NAMES: [&'static str; NAMED.len()] = {
        let mut names = [""; NAMED.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = NAMED[index].0;
            index += 1;
        }
        names
    };

    /// Returns the name and description of each profile.
    pub fn described() -> impl Iterator<Item = (&'static str, &'static str)> {
        NAMED.iter().map(|(name, about, _)| (*name, *about))
    }

    /// Returns a profile by name. `mac` is the address of its first port.
    #[must_use]
    pub fn named(name: &str, mac: MacAddr) -> Option<Self> {
        let (_, _, differ) = NAMED.iter().find(|(known, ..)| *known == name)?;
        let mut profile = Self::pro(mac);
        differ(&mut profile);
        Some(profile)
    }

    /// Returns the profile of a ConnectX-3 Pro with one Ethernet port.
    #[must_use]
    pub fn pro(mac: MacAddr) -> Self {
        Self {
            function: Function::Physical,
            device_id: 0x1007,
            firmware: [2, 42, 5000],
            board: "FER0000000003",
            ports: vec![PortProfile { mac, links: LinkTypes::Ethernet }],
            roce_v2: true,
            eqs: EqScheme::Legacy,
            steering: SteeringOffer { groups: true, flows: true },
            sw_cq_init: false,
            large_entries: false,
            blue_flame: false,
            reset_time: Duration::ZERO,
            link_delay: Duration::ZERO,
            torn_atomics: false,
        }
    }

    /// Sets the link types of all ports.
    fn link(&mut self, links: LinkTypes) {
        for port in &mut self.ports {
            port.links = links;
        }
    }

    /// Adds a port with the properties of the last one and the next Ethernet address.
    fn second_port(&mut self) {
        if let Some(&(mut port)) = self.ports.last() {
            port.mac.0[5] = port.mac.0[5].wrapping_add(1);
            self.ports.push(port);
        }
    }

    /// Returns the index of a port from its number in the low byte, which counts from 1.
    #[must_use]
    pub fn port_index(&self, number: u32) -> Option<usize> {
        let index = (number & 0xff).checked_sub(1)? as usize;
        (index < self.ports.len()).then_some(index)
    }

    /// Returns the port's GUID, derived from its address as the firmware does: an EUI-64 without the inverted
    /// bit.
    #[must_use]
    pub fn guid(&self, port: usize) -> u64 {
        let [a, b, c, d, e, f] = self.ports.get(port).map_or([0; 6], |port| port.mac.0);
        u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])
    }
}

/// Sizes and limits of tables, as log2 unless stated otherwise (QUERY_DEV_CAP).
pub(super) mod limits {
    /// log2 of the number of entries in the tables of queue pairs, shared receive queues, completion queues
    /// and memory regions.
    pub(crate) const LOG_OBJECTS: u8 = 24;
    /// log2 of the number of XRC domains.
    pub(crate) const LOG_XRC_DOMAINS: u8 = 16;
    /// log2 of the number of event queues.
    pub(crate) const LOG_EQS: u8 = 9;
    /// log2 of the number of work requests per queue.
    pub(crate) const LOG_WQES: u8 = 14;
    /// log2 of the number of entries per completion queue.
    pub(crate) const LOG_CQES: u8 = 22;
    /// log2 of the number of READs and atomics in flight per queue pair as requester.
    pub(crate) const LOG_RDMA: u8 = 4;
    /// log2 of the number of READs and atomics in progress per queue pair as responder.
    pub(crate) const LOG_RDMA_RESPONDER: u8 = 4;
    /// log2 of the maximum length of a message, in bytes.
    pub(crate) const LOG_MESSAGE: u8 = 30;
    /// log2 of the number of GIDs per port.
    pub(crate) const LOG_GIDS: u8 = 7;
    /// log2 of the number of MAC addresses per port.
    pub(crate) const LOG_MACS: u8 = 7;
    /// log2 of the number of VLANs per port.
    pub(crate) const LOG_VLANS: u8 = 7;
    /// log2 of the length of the UAR pages, in MiB.
    pub(crate) const LOG_UAR_MIB: u8 = 3;
    /// The length of a BlueFlame register in bytes, including both halves.
    pub(crate) const LOG_BLUE_FLAME: u8 = 9;
    /// The maximum number of gather elements of a send work request (not a logarithm).
    pub(crate) const SEND_SGES: u8 = 62;
    /// The maximum number of scatter elements of a receive work request (not a logarithm).
    pub(crate) const RECV_SGES: u8 = 32;
}
