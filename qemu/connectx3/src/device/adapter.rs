//! The channel adapter of a card: the tables, queues and ports on which commands, doorbells and frames act.

use super::command::Firmware;
use super::ctx::Ctx;
use super::eq::Eqs;
use super::host::Host;
use super::memory::Regions;
use super::ports::Ports;
use super::profile::Profile;
use super::tables::Tables;
use super::traffic::Traffic;

/// UDP port of RoCE v2.
const ROCE_UDP_PORT: u16 = 4791;

/// A channel adapter.
pub(super) struct Adapter {
    /// The card's profile.
    pub profile: Profile,
    /// The state of the firmware.
    pub firmware: Firmware,
    /// The UDP port of RoCE v2, for CONFIG_DEV.
    pub roce_udp_port: u16,
    /// The tables in ICM.
    pub tables: Tables,
    /// The event queues.
    pub eqs: Eqs,
    /// The ports.
    pub ports: Ports,
    /// The other queues and the traffic.
    pub traffic: Traffic,
}

impl Adapter {
    /// Creates an adapter in its state after power-on.
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            firmware: Firmware::default(),
            roce_udp_port: ROCE_UDP_PORT,
            tables: Tables::default(),
            eqs: Eqs::default(),
            ports: Ports::new(&profile),
            traffic: Traffic::new(&profile),
            profile,
        }
    }

    /// Returns the traffic, and the parts of the adapter that it reaches.
    pub(super) fn split<'a>(&'a mut self, host: &'a dyn Host) -> (&'a mut Traffic, Ctx<'a>) {
        let Self { tables, eqs, ports, traffic, .. } = self;
        (traffic, Ctx { host, tables, eqs, ports })
    }

    /// Removes every object of the guest.
    pub(super) fn forget_objects(&mut self) {
        self.tables.hca = None;
        self.tables.regions = Regions::default();
        self.eqs = Eqs::default();
        self.traffic.forget();
    }
}
