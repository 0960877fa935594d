//! Which card is emulated: identity, sizes and capabilities. Values are those seen on real cards, or
//! the smallest that Linux accepts.

use core::time::Duration;
use verbs::MacAddr;

/// A card.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What the guest gets of the card.
    pub function: Function,
    /// PCI device id: 0x1003 ConnectX-3, 0x1007 ConnectX-3 Pro, 0x1004 a virtual function.
    pub device_id: u16,
    /// Firmware version: major, minor, subminor.
    pub firmware: [u16; 3],
    /// Board id, up to 16 printable bytes.
    pub board: &'static str,
    /// One or two ports.
    pub ports: Vec<PortProfile>,
    /// RoCE v2 (ConnectX-3 Pro).
    pub roce_v2: bool,
    /// How event queues are numbered.
    pub eqs: EqScheme,
    /// How Ethernet frames can be steered to queue pairs.
    pub steering: SteeringOffer,
    /// Drivers mark the entries of completion queues as not written yet (SW_CQ_INIT).
    pub sw_cq_init: bool,
    /// Event and completion queues with entries of 64 bytes are offered, beside those of 32.
    pub large_entries: bool,
    /// Work requests can be written to the card along with their doorbell.
    pub blue_flame: bool,
    /// How long a reset lasts.
    pub reset_time: Duration,
    /// How long a link takes to come up.
    pub link_delay: Duration,
    /// Atomic operations are atomic among the card's own only, not against the processor.
    pub torn_atomics: bool,
}

/// How Ethernet frames find their queue pairs; INIT_HCA chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// A0: by the row of the port's MAC table.
    Table,
    /// B0: by entries of the multicast table, unicast too.
    Groups,
    /// Device-managed: by rules.
    Flows,
}

/// What a card offers beside [`Steering::Table`], which all have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteeringOffer {
    /// [`Steering::Groups`].
    pub groups: bool,
    /// [`Steering::Flows`].
    pub flows: bool,
}

impl SteeringOffer {
    /// Whether a driver may choose it.
    #[must_use]
    pub const fn offers(self, steering: Steering) -> bool {
        match steering {
            Steering::Table => true,
            Steering::Groups => self.groups,
            Steering::Flows => self.flows,
        }
    }
}

/// What the guest gets of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// All of it.
    Physical,
    /// A virtual function: its commands go to a master, which the card has built in.
    Virtual,
}

/// A port of the card.
#[derive(Clone, Copy, Debug)]
pub struct PortProfile {
    /// The burnt-in address.
    pub mac: MacAddr,
    /// The link layers that it can have.
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

/// The link layers that a port can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkTypes {
    /// InfiniBand only.
    InfiniBand,
    /// Ethernet only.
    Ethernet,
    /// Either: the driver says which with the form of SET_PORT that it uses, and until then it is the one suggested.
    Either {
        /// What QUERY_PORT suggests.
        suggested: LinkType,
    },
}

impl LinkTypes {
    /// The code of QUERY_PORT.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::InfiniBand => 1,
            Self::Ethernet => 2,
            Self::Either { .. } => 3,
        }
    }

    /// The link layer until the driver has chosen.
    #[must_use]
    pub const fn suggested(self) -> LinkType {
        match self {
            Self::InfiniBand => LinkType::InfiniBand,
            Self::Ethernet => LinkType::Ethernet,
            Self::Either { suggested } => suggested,
        }
    }

    /// Whether the port can have a link layer.
    #[must_use]
    pub fn has(self, link: LinkType) -> bool {
        matches!(self, Self::Either { .. }) || self.suggested() == link
    }
}

/// How event queues are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EqScheme {
    /// By UARs reserved: QUERY_FUNC is not used.
    Legacy,
    /// System EQs: QUERY_FUNC says which are the function's.
    System {
        /// Queues that the firmware keeps.
        reserved: u16,
        /// Queues in all.
        max: u16,
    },
}

/// A named profile: its name, what is special about it, and how it differs from [`Profile::pro`].
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
    ("vpi", "ConnectX-3 Pro, one port of either kind, as the driver says", |profile| {
        profile.link(LinkTypes::Either { suggested: LinkType::Ethernet });
    }),
    ("vpi-2port", "ConnectX-3 Pro, two ports of either kind", |profile| {
        profile.link(LinkTypes::Either { suggested: LinkType::Ethernet });
        profile.second_port();
    }),
    ("sys-eqs", "event queues by QUERY_FUNC, as firmware from 2.30 on has them", |profile| {
        profile.eqs = EqScheme::System { reserved: 28, max: 156 };
    }),
    ("vf", "virtual function of a ConnectX-3 Pro, with its master built in", |profile| {
        profile.function = Function::Virtual;
        profile.device_id = 0x1004;
    }),
    ("sw-cq-init", "drivers mark new completion queues", |profile| profile.sw_cq_init = true),
    ("large-entries", "entries of 64 bytes in event and completion queues", |profile| {
        profile.large_entries = true;
    }),
    ("blueflame", "work requests written along with the doorbell", |profile| profile.blue_flame = true),
    ("slow", "a reset of 1 s, and links that come up 2 s late", |profile| {
        profile.reset_time = Duration::from_secs(1);
        profile.link_delay = Duration::from_secs(2);
    }),
    ("torn-atomics", "atomics that are not atomic against the processor", |profile| {
        profile.torn_atomics = true;
    }),
    ("a0", "steering by the MAC table only", |profile| profile.steering.groups = false),
];

impl Profile {
    /// The names of the cards that [`named`](Self::named) knows; the first is the usual one.
    pub const NAMES: [&'static str; NAMED.len()] = {
        let mut names = [""; NAMED.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = NAMED[index].0;
            index += 1;
        }
        names
    };

    /// What is special about each card, beside its name.
    pub fn described() -> impl Iterator<Item = (&'static str, &'static str)> {
        NAMED.iter().map(|(name, about, _)| (*name, *about))
    }

    /// A card by its name; `mac` is its first port's address.
    #[must_use]
    pub fn named(name: &str, mac: MacAddr) -> Option<Self> {
        let (_, _, differ) = NAMED.iter().find(|(known, ..)| *known == name)?;
        let mut profile = Self::pro(mac);
        differ(&mut profile);
        Some(profile)
    }

    /// A ConnectX-3 Pro with one Ethernet port.
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

    /// What its ports can be.
    fn link(&mut self, links: LinkTypes) {
        for port in &mut self.ports {
            port.links = links;
        }
    }

    /// Adds a port like the last. Its address is the next one.
    fn second_port(&mut self) {
        if let Some(&(mut port)) = self.ports.last() {
            port.mac.0[5] = port.mac.0[5].wrapping_add(1);
            self.ports.push(port);
        }
    }

    /// The port's GUID: the address with `0x0002c9` style expansion, as the firmware derives it (EUI-64 without the
    /// bit flipped).
    #[must_use]
    pub fn guid(&self, port: usize) -> u64 {
        let [a, b, c, d, e, f] = self.ports.get(port).map_or([0; 6], |port| port.mac.0);
        u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])
    }
}

/// log2 of table sizes and limits (QUERY_DEV_CAP).
pub mod limits {
    /// Entries of the tables of queue pairs, shared receive queues, completion queues and memory regions.
    pub const LOG_OBJECTS: u8 = 24;
    /// XRC domains.
    pub const LOG_XRC_DOMAINS: u8 = 16;
    /// Event queues.
    pub const LOG_EQS: u8 = 9;
    /// Work requests of a queue.
    pub const LOG_WQES: u8 = 14;
    /// Completions of a completion queue.
    pub const LOG_CQES: u8 = 22;
    /// READs and atomics in flight as requester.
    pub const LOG_RDMA: u8 = 4;
    /// READs and atomics answered at once.
    pub const LOG_RDMA_RESPONDER: u8 = 4;
    /// Bytes of a message.
    pub const LOG_MESSAGE: u8 = 30;
    /// GIDs of a port.
    pub const LOG_GIDS: u8 = 7;
    /// MAC addresses of a port.
    pub const LOG_MACS: u8 = 7;
    /// VLANs of a port.
    pub const LOG_VLANS: u8 = 7;
    /// MiB of UAR pages.
    pub const LOG_UAR_MIB: u8 = 3;
    /// Bytes of a BlueFlame register, two halves in one.
    pub const LOG_BLUE_FLAME: u8 = 9;
    /// Scatter/gather elements of a send and of a receive work request.
    pub const SEND_SGES: u8 = 62;
    /// Of a receive work request.
    pub const RECV_SGES: u8 = 32;
}
