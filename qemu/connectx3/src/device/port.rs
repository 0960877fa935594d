//! A port: its address, tables and state (QUERY_PORT, SET_PORT, INIT_PORT).

use super::ethernet::filter::Filters;
use super::ethernet::headers::{Headers, Length};
use super::hcr::Status;
use super::infiniband::IbPort;
use super::layout::{query_port, set_port_general, set_port_part as part, set_port_queues};
use super::mailbox::Mailbox;
use super::profile::{LinkType, LinkTypes, PortProfile, Profile, limits};
use super::statistics::{FCS, PortStatistics};
use core::time::Duration;
use platform::Instant;
use verbs::{Gid, LinkKind, MacAddr};

/// The number of rows in the GID and MAC tables.
pub(super) const ROWS: usize = 1 << limits::LOG_GIDS;
/// The number of rows in the VLAN table.
const VLAN_ROWS: usize = 1 << limits::LOG_VLANS;
/// The largest Ethernet MTU in bytes (QUERY_PORT).
const MAX_MTU: u16 = 9600;

/// A row of the GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GidRow {
    /// The GID.
    pub gid: Gid,
    /// The kind of frames with which the GID is used.
    pub link: LinkKind,
}

/// A port.
#[derive(Debug)]
pub(super) struct Port {
    mac: MacAddr,
    /// The link types that the port supports.
    links: LinkTypes,
    /// The present link type.
    pub link_type: LinkType,
    /// True between INIT_PORT and CLOSE_PORT.
    pub open: bool,
    /// True while the link is up.
    pub link: bool,
    /// True while the cable is plugged in.
    pub cable: bool,
    /// The time that the link takes to come up.
    pub link_delay: Duration,
    /// The time at which the link will be up.
    pub link_due: Option<Instant>,
    /// The GID table, by index.
    pub gids: Vec<Option<GidRow>>,
    /// The MAC table, by index.
    pub macs: Vec<Option<MacAddr>>,
    /// The VLAN table of connections: VLAN ids by index.
    vlans: Vec<Option<u16>>,
    /// The filters of received frames.
    pub filters: Filters,
    /// The steering of frames by the MAC table.
    pub queues: QueueCalculation,
    /// The maximum length of a frame in bytes, including the check sequence.
    pub max_frame: usize,
    /// The port's counts of frames.
    pub statistics: PortStatistics,
    /// The port's InfiniBand state.
    pub ib: IbPort,
}

/// The queue pairs that receive frames when steering uses the MAC table (SET_PORT, RQP_CALC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueCalculation {
    /// The queue pair of the first row of the MAC table.
    pub base_qpn: u32,
    /// The queue pair for unicast frames whose address is not in the table.
    pub promiscuous: Option<u32>,
    /// The queue pair for multicast frames.
    pub multicast: Option<u32>,
}

impl QueueCalculation {
    fn parse(mailbox: &Mailbox) -> Self {
        use set_port_queues as queues;
        const QPN: u32 = 0xff_ffff;
        let qpn = |enabled, qpn| (mailbox.field(enabled) != 0).then(|| mailbox.field(qpn));
        Self {
            base_qpn: mailbox.field(queues::BASE_QPN) & QPN,
            promiscuous: qpn(queues::PROMISCUOUS, queues::PROMISCUOUS_QPN),
            multicast: qpn(queues::MULTICAST_MODE, queues::MULTICAST_QPN),
        }
    }
}

impl Port {
    /// Creates all ports of a card in their state after a reset.
    #[must_use]
    pub(super) fn all(card: &Profile) -> Vec<Self> {
        let ib = |index| IbPort::new(index as u8 + 1, card.guid(index));
        let ports = card.ports.iter().enumerate();
        ports.map(|(index, &port)| Self::new(port, card.link_delay, ib(index))).collect()
    }

    fn new(profile: PortProfile, link_delay: Duration, ib: IbPort) -> Self {
        Self {
            mac: profile.mac,
            links: profile.links,
            link_type: profile.links.suggested(),
            open: false,
            link: link_delay.is_zero(),
            cable: true,
            link_delay,
            link_due: None,
            gids: vec![None; ROWS],
            macs: vec![None; ROWS],
            vlans: vec![None; VLAN_ROWS],
            filters: Filters::default(),
            queues: QueueCalculation::default(),
            max_frame: usize::MAX,
            statistics: PortStatistics::default(),
            ib,
        }
    }

    /// Returns whether the port is in InfiniBand mode.
    #[must_use]
    pub(super) fn is_infiniband(&self) -> bool {
        self.link_type == LinkType::InfiniBand
    }

    /// Returns the burnt-in address.
    #[must_use]
    pub(super) const fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Returns the VLAN id in a row of the table.
    #[must_use]
    pub(super) fn vlan(&self, row: usize) -> Option<u16> {
        self.vlans.get(row).copied().flatten()
    }

    /// Returns whether an Ethernet address belongs to the port.
    #[must_use]
    pub(super) fn has_mac(&self, mac: [u8; 6]) -> bool {
        self.mac.0 == mac || self.macs.iter().flatten().any(|own| own.0 == mac)
    }

    /// Counts a frame from the cable, and returns whether the port accepts it.
    pub(super) fn receive(&mut self, frame: &[u8], headers: &Headers) -> bool {
        self.statistics.received.count(frame, headers, self.max_frame);
        let fits = frame.len().saturating_add(FCS) <= self.max_frame;
        if !fits {
            self.statistics.too_long += 1;
        }
        fits
    }

    /// Counts a frame to the cable, and returns whether the port can send it.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        let goes = self.open && self.link;
        if goes {
            let headers = Headers::parse(frame, Length::AsStated);
            self.statistics.sent.count(frame, &headers, self.max_frame);
        } else {
            self.statistics.not_sent += 1;
        }
        goes
    }

    /// QUERY_PORT: writes the port's capabilities and state to `out`.
    pub(super) fn query(&self, out: &mut Mailbox) {
        const PATH_MTU_4096: u32 = 5;
        const WIDTH_4X: u32 = 2;
        const SPEED_40G: u32 = 0x40;
        const SUGGESTS_ETHERNET: u32 = 1 << 3;
        let up = if self.is_infiniband() { self.ib.is_active() } else { self.link };
        let link: u32 = if up { 0x80 } else { 0 };
        let suggested = match self.links.suggested() {
            LinkType::Ethernet => SUGGESTS_ETHERNET,
            LinkType::InfiniBand => 0,
        };
        out.set(query_port::LINK_AND_TYPES, link | suggested | u32::from(self.links.code()));
        out.set(query_port::MAX_PATH_MTU, PATH_MTU_4096);
        out.set(query_port::MAX_ETHERNET_MTU, MAX_MTU.into());
        out.set(query_port::SPEED, SPEED_40G);
        out.set(query_port::MAX_WIDTH, WIDTH_4X);
        out.set(query_port::LOG_MAX_GIDS, limits::LOG_GIDS.into());
        out.set(query_port::LOG_MAX_PKEYS, 7);
        out.set(query_port::LOG_MAX_VLANS, limits::LOG_VLANS.into());
        out.set(query_port::LOG_MAX_MACS, limits::LOG_MACS.into());
        out.set(query_port::VIRTUAL_LANES, 8 << 4 | 8);
        let [a, b, c, d, e, f] = self.mac.0;
        out.set_double(query_port::MAC_HIGH, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    }

    /// Selects the link type, which the form of SET_PORT implies.
    pub(super) fn choose(&mut self, link: LinkType) -> Result<(), Status> {
        if !self.links.has(link) {
            return Err(Status::BadParameter);
        }
        self.link_type = link;
        Ok(())
    }

    /// SET_PORT, Ethernet form. `what` is the subcommand.
    pub(super) fn set_ethernet(&mut self, what: u32, mailbox: &Mailbox) -> Result<(), Status> {
        match what {
            part::MAC_TABLE => {
                for (row, slot) in self.macs.iter_mut().enumerate() {
                    let [valid, _, mac @ ..] = mailbox.u64(row * 8).to_be_bytes();
                    *slot = (valid & 0x80 != 0).then_some(MacAddr(mac));
                }
            }
            part::GID_TABLE => {
                for row in 0..ROWS {
                    self.set_gid(row, mailbox, row * 16, LinkKind::RoceV1);
                }
            }
            part::ROCE_ADDR => {
                const VERSION_2: u8 = 2;
                for row in 0..ROWS {
                    let link = if mailbox.u8(row * 32 + 0x1b) == VERSION_2 {
                        LinkKind::RoceV2
                    } else {
                        LinkKind::RoceV1
                    };
                    self.set_gid(row, mailbox, row * 32, link);
                }
            }
            part::RQP_CALC => self.queues = QueueCalculation::parse(mailbox),
            part::GENERAL => {
                const MTU_VALID: u32 = 1 << 0;
                if mailbox.field(set_port_general::FLAGS) & MTU_VALID != 0 {
                    self.max_frame = mailbox.field(set_port_general::MTU) as usize;
                }
            }
            part::VLAN_TABLE => {
                const VALID: u32 = 1 << 31;
                const NUMBER: u32 = 0xfff;
                for (row, slot) in self.vlans.iter_mut().enumerate() {
                    let word = mailbox.u32(row * 4);
                    *slot = (word & VALID != 0).then_some((word & NUMBER) as u16);
                }
            }
            // There is only one traffic class.
            part::PRIO_MAP | part::PRIO2TC | part::SCHEDULER => {}
            _ => return Err(Status::BadParameter),
        }
        Ok(())
    }

    fn set_gid(&mut self, row: usize, mailbox: &Mailbox, offset: usize, link: LinkKind) {
        let halves = [mailbox.u64(offset).to_be_bytes(), mailbox.u64(offset + 8).to_be_bytes()];
        let mut gid = [0; 16];
        for (half, place) in halves.iter().zip(gid.chunks_exact_mut(8)) {
            place.copy_from_slice(half);
        }
        if let Some(slot) = self.gids.get_mut(row) {
            *slot = (gid != [0; 16]).then_some(GidRow { gid: Gid(gid), link });
        }
    }
}
