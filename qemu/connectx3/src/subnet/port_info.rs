//! PortInfo: the state of a port, and the fields that a subnet manager may change (specification 14.2.5.6).

use super::mad::Outcome;
use verbs::PathMtu;

/// The logical state of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LinkState {
    /// The port has no partner.
    Down = 1,
    /// The port has a partner but is not configured: it passes only subnet management.
    Init = 2,
    /// The port is configured: it receives data, and sends none yet.
    Armed = 3,
    /// The port sends and receives all packets.
    Active = 4,
}

impl LinkState {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            _ => return None,
        })
    }
}

/// The physical state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Physical {
    /// The port searches for a partner.
    Polling = 2,
    /// The manager has disabled the port.
    Disabled = 3,
    /// The link is trained.
    LinkUp = 5,
}

/// Offsets of fields. Where fields share a byte, the comment names them from the high bits to the low bits.
mod at {
    pub(super) const M_KEY: usize = 0;
    pub(super) const GID_PREFIX: usize = 8;
    pub(super) const LID: usize = 16;
    pub(super) const MASTER_SM_LID: usize = 18;
    pub(super) const CAPABILITY_MASK: usize = 20;
    pub(super) const M_KEY_LEASE: usize = 26;
    pub(super) const WIDTH_ENABLED: usize = 29;
    pub(super) const WIDTH_SUPPORTED: usize = 30;
    pub(super) const WIDTH_ACTIVE: usize = 31;
    /// Supported speeds, then the logical state.
    pub(super) const STATE: usize = 32;
    /// The physical state, then the state after a loss of the link.
    pub(super) const PHYSICAL: usize = 33;
    /// Protection of the management key (2 bits), reserved (3), LMC (3).
    pub(super) const LMC: usize = 34;
    /// Active speed, then the enabled speeds.
    pub(super) const SPEED: usize = 35;
    /// MTU to the partner, then the service level to the manager.
    pub(super) const NEIGHBOR_MTU: usize = 36;
    /// Supported virtual lanes, then the initialization type.
    pub(super) const VL_CAP: usize = 37;
    pub(super) const VL_HIGH_LIMIT: usize = 38;
    /// The number of high-priority entries in the arbitration table. The next byte holds that of low-priority
    /// entries.
    pub(super) const VL_ARB_HIGH_CAP: usize = 39;
    /// Reply to the initialization type, then the supported MTU.
    pub(super) const MTU_CAP: usize = 41;
    pub(super) const LIFETIME: usize = 42;
    /// Virtual lanes in use, then the enforcement of partitions.
    pub(super) const OPERATIONAL_VLS: usize = 43;
    pub(super) const VIOLATIONS: usize = 44;
    pub(super) const GUID_CAP: usize = 50;
    /// Request that clients register again (1 bit), reserved (2), subnet timeout (5).
    pub(super) const SUBNET_TIMEOUT: usize = 51;
    pub(super) const RESPONSE_TIME: usize = 52;
    pub(super) const ERROR_LIMITS: usize = 53;
}

/// Offset of the number of the port at which the node received the request.
pub(super) const LOCAL_PORT: usize = 28;

/// The fixed attributes of a port.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// The port's number in its node.
    pub number: u8,
    /// The capability mask.
    pub capabilities: u32,
    /// The number of entries in the GUID table.
    pub guids: u8,
}

/// The attribute PortInfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    data: [u8; 64],
    /// True if the LIDs are the port's own; not so for the external ports of a switch.
    addressed: bool,
}

impl PortInfo {
    /// The code of the largest MTU.
    const MTU_4096: u8 = 5;
    /// The code of eight virtual lanes.
    pub const EIGHT_LANES: u8 = 4;
    /// The default GID prefix of a subnet.
    const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Creates a port without partner, with at most four lanes of 10 Gb/s (QDR).
    #[must_use]
    pub fn new(abilities: Abilities, addressed: bool) -> Self {
        const WIDTH_1X_4X: u8 = 3;
        const SPEED_SDR_DDR_QDR: u8 = 7;
        const SPEED_QDR: u8 = 4;
        const LOCAL_CA_ACK: u8 = 16;
        const ARBITRATION_ENTRIES: u8 = 8;
        let mut info = Self { data: [0; 64], addressed };
        info.put(at::GID_PREFIX, &Self::DEFAULT_PREFIX.to_be_bytes());
        info.put(at::CAPABILITY_MASK, &abilities.capabilities.to_be_bytes());
        info.put(LOCAL_PORT, &[abilities.number, WIDTH_1X_4X, WIDTH_1X_4X]);
        info.data[at::STATE] = SPEED_SDR_DDR_QDR << 4;
        info.data[at::PHYSICAL] = Physical::Polling as u8;
        info.data[at::SPEED] = SPEED_QDR << 4 | SPEED_SDR_DDR_QDR;
        info.data[at::NEIGHBOR_MTU] = Self::MTU_4096 << 4;
        info.data[at::VL_CAP] = Self::EIGHT_LANES << 4;
        info.put(at::VL_ARB_HIGH_CAP, &[ARBITRATION_ENTRIES; 2]);
        info.data[at::MTU_CAP] = Self::MTU_4096;
        info.data[at::OPERATIONAL_VLS] = Self::EIGHT_LANES << 4;
        info.data[at::GUID_CAP] = abilities.guids;
        info.data[at::RESPONSE_TIME] = LOCAL_CA_ACK;
        info.set_link(LinkState::Down, Physical::Polling);
        info
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.data.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.data[at], self.data[at + 1]])
    }

    fn be64(&self, at: usize) -> u64 {
        (at..at + 8).fold(0, |value, at| value << 8 | u64::from(self.data[at]))
    }

    /// Returns the attribute's bytes.
    #[must_use]
    pub const fn data(&self) -> &[u8; 64] {
        &self.data
    }

    /// Returns the management key.
    #[must_use]
    pub fn management_key(&self) -> u64 {
        self.be64(at::M_KEY)
    }

    /// Returns whether GETs without the key are refused too.
    #[must_use]
    pub const fn protects_reads(&self) -> bool {
        self.data[at::LMC] >> 6 >= 2
    }

    /// Returns the prefix of the port's GIDs.
    #[must_use]
    pub fn gid_prefix(&self) -> u64 {
        self.be64(at::GID_PREFIX)
    }

    /// Returns the base LID, or 0 if it is not assigned.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.be16(at::LID)
    }

    /// Returns log2 of the number of the port's LIDs.
    #[must_use]
    pub const fn lmc(&self) -> u8 {
        self.data[at::LMC] & 7
    }

    /// Returns the path bits of `lid`, or `None` if it does not belong to the port.
    #[must_use]
    pub fn path_bits(&self, lid: u16) -> Option<u8> {
        let bits = lid & ((1 << self.lmc()) - 1);
        (self.lid() != 0 && lid - bits == self.lid()).then_some(bits as u8)
    }

    /// Returns the LID of the subnet manager, and the service level to it.
    #[must_use]
    pub fn manager(&self) -> (u16, u8) {
        (self.be16(at::MASTER_SM_LID), self.data[at::NEIGHBOR_MTU] & 0xf)
    }

    /// Returns the capability mask.
    #[must_use]
    pub fn capabilities(&self) -> u32 {
        u32::from(self.be16(at::CAPABILITY_MASK)) << 16 | u32::from(self.be16(at::CAPABILITY_MASK + 2))
    }

    /// Sets the capability mask on behalf of the node's own software.
    pub fn set_capabilities(&mut self, mask: u32) {
        self.put(at::CAPABILITY_MASK, &mask.to_be_bytes());
    }

    /// Returns the logical state.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        match LinkState::from_code(self.data[at::STATE] & 0xf) {
            Some(state) => state,
            None => LinkState::Down,
        }
    }

    /// Returns whether the manager has disabled the port.
    #[must_use]
    pub const fn is_disabled(&self) -> bool {
        self.data[at::PHYSICAL] >> 4 == Physical::Disabled as u8
    }

    /// Returns the MTU to the partner.
    #[must_use]
    pub fn mtu(&self) -> PathMtu {
        let code = usize::from(self.data[at::NEIGHBOR_MTU] >> 4);
        code.checked_sub(1).and_then(|code| PathMtu::ALL.get(code)).copied().unwrap_or(PathMtu::B256)
    }

    fn set_link(&mut self, state: LinkState, physical: Physical) {
        const WIDTH_4X: u8 = 2;
        self.data[at::STATE] = self.data[at::STATE] & 0xf0 | state as u8;
        self.data[at::PHYSICAL] = (physical as u8) << 4 | self.data[at::PHYSICAL] & 0xf;
        self.data[at::WIDTH_ACTIVE] = WIDTH_4X;
    }

    /// Sets the state after the training of the link.
    pub fn link_up(&mut self) {
        self.set_link(LinkState::Init, Physical::LinkUp);
    }

    /// Sets the state after the loss of the partner.
    pub fn link_down(&mut self) {
        let physical = if self.is_disabled() { Physical::Disabled } else { Physical::Polling };
        self.set_link(LinkState::Down, physical);
    }

    /// Activates a link that needs no manager: on Ethernet, and from a switch to itself.
    pub fn link_active(&mut self) {
        self.set_link(LinkState::Active, Physical::LinkUp);
    }

    /// Activates an armed port after a data packet from its active partner (specification 7.2.7). Returns
    /// whether the port was armed.
    pub fn activated_by_partner(&mut self) -> bool {
        let armed = self.state() == LinkState::Armed;
        if armed {
            self.set_link(LinkState::Active, Physical::LinkUp);
        }
        armed
    }

    /// SET: changes the writable fields. A refused SET changes nothing.
    pub fn set(&mut self, new: &[u8; 64]) -> Outcome {
        let mut next = self.clone();
        let outcome = next.take(new);
        if outcome == Outcome::Good {
            *self = next;
        }
        outcome
    }

    fn take(&mut self, new: &[u8; 64]) -> Outcome {
        let be16 = |at: usize| u16::from_be_bytes([new[at], new[at + 1]]);
        for (at, len) in [(at::M_KEY, 16), (at::MASTER_SM_LID, 2), (at::M_KEY_LEASE, 2)] {
            if let Some(bytes) = new.get(at..at + len) {
                self.put(at, bytes);
            }
        }
        if self.addressed {
            let (lid, lmc) = (be16(at::LID), new[at::LMC] & 7);
            if lid == 0 || lid >= 0xc000 || lid.trailing_zeros() < u32::from(lmc) {
                return Outcome::InvalidField;
            }
            self.put(at::LID, &lid.to_be_bytes());
        }
        self.data[at::LMC] = new[at::LMC] & 0b1100_0111;
        for (at, mask) in [
            (at::VL_HIGH_LIMIT, 0xff),
            (at::LIFETIME, 0xff),
            (at::ERROR_LIMITS, 0xff),
            (at::NEIGHBOR_MTU, 0x0f),
        ] {
            self.data[at] = self.data[at] & !mask | new[at] & mask;
        }
        self.data[at::OPERATIONAL_VLS] =
            self.data[at::OPERATIONAL_VLS] & 0xf0 | new[at::OPERATIONAL_VLS] & 0x0f;
        // The bit that requests registration is an event and is not stored.
        self.data[at::SUBNET_TIMEOUT] = new[at::SUBNET_TIMEOUT] & 0x1f;
        // Violation counters: a SET of zero clears them.
        for at in (at::VIOLATIONS..at::VIOLATIONS + 6).step_by(2) {
            if be16(at) == 0 {
                self.put(at, &[0, 0]);
            }
        }
        self.take_link(new)
    }

    /// Sets the fields in which 0 means no change.
    fn take_link(&mut self, new: &[u8; 64]) -> Outcome {
        const ALL_SUPPORTED: u8 = 0xff;
        const ALL_SPEEDS: u8 = 0xf;
        match new[at::WIDTH_ENABLED] {
            0 => {}
            ALL_SUPPORTED => self.data[at::WIDTH_ENABLED] = self.data[at::WIDTH_SUPPORTED],
            width if width & !self.data[at::WIDTH_SUPPORTED] == 0 => self.data[at::WIDTH_ENABLED] = width,
            _ => return Outcome::InvalidField,
        }
        let speeds = self.data[at::STATE] >> 4;
        match new[at::SPEED] & 0xf {
            0 => {}
            ALL_SPEEDS => self.data[at::SPEED] = self.data[at::SPEED] & 0xf0 | speeds,
            speed if speed & !speeds == 0 => self.data[at::SPEED] = self.data[at::SPEED] & 0xf0 | speed,
            _ => return Outcome::InvalidField,
        }
        for (at, limit) in [
            (at::NEIGHBOR_MTU, self.data[at::MTU_CAP] & 0xf),
            (at::OPERATIONAL_VLS, self.data[at::VL_CAP] >> 4),
        ] {
            match new[at] >> 4 {
                0 => {}
                value if value <= limit => self.data[at] = value << 4 | self.data[at] & 0xf,
                _ => return Outcome::InvalidField,
            }
        }
        match new[at::PHYSICAL] & 0xf {
            0 => {}
            default @ (1 | 2) => self.data[at::PHYSICAL] = self.data[at::PHYSICAL] & 0xf0 | default,
            _ => return Outcome::InvalidField,
        }
        match new[at::PHYSICAL] >> 4 {
            0 => {}
            physical if physical == Physical::Polling as u8 => {
                self.set_link(LinkState::Down, Physical::Polling);
            }
            physical if physical == Physical::Disabled as u8 => {
                self.set_link(LinkState::Down, Physical::Disabled);
            }
            _ => return Outcome::InvalidField,
        }
        let wanted = new[at::STATE] & 0xf;
        if wanted == 0 {
            return Outcome::Good;
        }
        use LinkState as S;
        match (self.state(), S::from_code(wanted)) {
            (_, Some(S::Down)) => self.set_link(S::Down, Physical::Polling),
            (S::Init | S::Armed, Some(S::Armed)) => self.set_link(S::Armed, Physical::LinkUp),
            (S::Armed | S::Active, Some(S::Active)) => self.set_link(S::Active, Physical::LinkUp),
            _ => return Outcome::InvalidField,
        }
        Outcome::Good
    }
}

/// Returns whether a SET requests that clients register again.
#[must_use]
pub(super) const fn asks_to_register(new: &[u8; 64]) -> bool {
    new[at::SUBNET_TIMEOUT] & 0x80 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> PortInfo {
        PortInfo::new(Abilities { number: 1, capabilities: 0, guids: 8 }, true)
    }

    /// Returns a SET as a manager sends it: the data that it has read, with a LID and a state.
    fn request(of: &PortInfo, lid: u16, state: u8) -> [u8; 64] {
        let mut new = *of.data();
        new[16..18].copy_from_slice(&lid.to_be_bytes());
        new[32] = state;
        new[33] = 0;
        new
    }

    #[test]
    fn a_manager_brings_a_port_up() {
        let mut port = port();
        assert_eq!(port.state(), LinkState::Down);
        assert_eq!(port.set(&request(&port, 4, 3)), Outcome::InvalidField, "there is no partner");
        port.link_up();
        assert_eq!(port.set(&request(&port, 4, 4)), Outcome::InvalidField, "not armed yet");
        assert_eq!(port.lid(), 0, "a refused SET changes nothing");
        for state in [0, 3, 4, 0] {
            assert_eq!(port.set(&request(&port, 4, state)), Outcome::Good);
        }
        assert_eq!((port.lid(), port.state(), port.mtu()), (4, LinkState::Active, PathMtu::B4096));
        port.link_down();
        assert_eq!((port.lid(), port.state()), (4, LinkState::Down));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let mut port = port();
        port.link_up();
        let good = request(&port, 4, 0);
        for (at, value) in
            [(16, 0xff), (17, 0), (29, 8), (33, 0x70), (33, 3), (36, 0x60), (43, 0x50), (34, 3)]
        {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(port.set(&bad), Outcome::InvalidField, "{at}: {value:#x}");
        }
        assert_eq!(port.set(&good), Outcome::Good);
    }

    #[test]
    fn a_port_has_as_many_lids_as_its_lmc_says() {
        let mut port = port();
        port.link_up();
        let mut new = request(&port, 8, 0);
        new[34] = 2;
        assert_eq!(port.set(&new), Outcome::Good);
        assert_eq!([7, 8, 11, 12].map(|lid| port.path_bits(lid)), [None, Some(0), Some(3), None]);
    }

    #[test]
    fn a_port_that_is_switched_off_stays_so() {
        let mut port = port();
        port.link_up();
        let mut new = request(&port, 4, 0);
        new[33] = 3 << 4;
        assert_eq!(port.set(&new), Outcome::Good);
        port.link_down();
        assert!(port.is_disabled());
        new[33] = 2 << 4;
        assert_eq!(port.set(&new), Outcome::Good);
        assert!(!port.is_disabled());
    }
}
