//! SwitchInfo and the forwarding tables (specification 14.2.5.4, 14.2.5.10 and 14.2.5.12).

use crate::subnet::mad::Outcome;
use roce::wire::Lrh;

/// The number of unicast LIDs in the table.
const LINEAR: usize = Lrh::FIRST_MULTICAST_LID as usize;
/// The number of LIDs in a block of the unicast table.
const LINEAR_BLOCK: usize = 64;
/// The number of multicast LIDs in the table.
const MULTICAST: usize = 1024;
/// The number of LIDs in a block of the multicast table.
const MULTICAST_BLOCK: usize = 32;
/// The number of ports in a column of the multicast table.
const COLUMN: u32 = 16;
/// The value of an entry without port.
const NOWHERE: u8 = 255;

/// The forwarding tables.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    linear: Vec<u8>,
    /// A mask of ports for each multicast LID.
    multicast: Vec<u64>,
    /// The highest LID that is forwarded.
    top: u16,
    /// Default ports: for unicast, for multicast of the primary port, and for other multicast.
    defaults: [u8; 3],
    lifetime: u8,
    /// True if a port's state has changed since the manager last cleared this.
    pub changed: bool,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            linear: vec![NOWHERE; LINEAR],
            multicast: vec![0; MULTICAST],
            top: 0,
            defaults: [NOWHERE; 3],
            lifetime: 0,
            changed: false,
        }
    }
}

impl Tables {
    /// Returns the port of a unicast LID.
    #[must_use]
    pub(super) fn port(&self, lid: u16) -> Option<u8> {
        let port = *self.linear.get(usize::from(lid)).filter(|_| lid <= self.top)?;
        (port != NOWHERE).then_some(port)
    }

    /// Returns the mask of the ports of a multicast LID.
    #[must_use]
    pub(super) fn group(&self, lid: u16) -> u64 {
        let row = usize::from(lid.wrapping_sub(Lrh::FIRST_MULTICAST_LID));
        self.multicast.get(row).copied().unwrap_or(0)
    }

    /// Answers SwitchInfo.
    pub(super) fn info(&mut self, set: bool, data: &mut [u8; 64]) -> Outcome {
        const CHANGED: u8 = 1 << 2;
        if set {
            self.top = u16::from_be_bytes([data[6], data[7]]);
            self.defaults = [data[8], data[9], data[10]];
            self.lifetime = data[11] >> 3;
            if data[11] & CHANGED != 0 {
                self.changed = false;
            }
        }
        *data = [0; 64];
        data[..2].copy_from_slice(&(LINEAR as u16).to_be_bytes());
        data[4..6].copy_from_slice(&(MULTICAST as u16).to_be_bytes());
        data[6..8].copy_from_slice(&self.top.to_be_bytes());
        data[8..11].copy_from_slice(&self.defaults);
        data[11] = self.lifetime << 3 | if self.changed { CHANGED } else { 0 };
        Outcome::Good
    }

    /// Answers LinearForwardingTable: a block of ports by LID.
    pub(super) fn linear(&mut self, block: u32, set: bool, data: &mut [u8; 64]) -> Outcome {
        let entries =
            usize::try_from(block).ok().and_then(|n| self.linear.chunks_exact_mut(LINEAR_BLOCK).nth(n));
        let Some(entries) = entries else { return Outcome::InvalidField };
        if set {
            entries.copy_from_slice(data);
        } else {
            data.copy_from_slice(entries);
        }
        Outcome::Good
    }

    /// Answers MulticastForwardingTable: a column of 16 ports for a block of LIDs.
    pub(super) fn multicast(&mut self, modifier: u32, set: bool, data: &mut [u8; 64]) -> Outcome {
        let (column, block) = (modifier >> 28, (modifier & 0x1ff) as usize);
        let shift = column * COLUMN;
        let Some(entries) = self.multicast.chunks_exact_mut(MULTICAST_BLOCK).nth(block) else {
            return Outcome::InvalidField;
        };
        if shift >= u64::BITS {
            return Outcome::InvalidField;
        }
        for (entry, place) in entries.iter_mut().zip(data.as_chunks_mut::<2>().0) {
            if set {
                let ports = u64::from(u16::from_be_bytes(*place));
                *entry = *entry & !(0xffff << shift) | ports << shift;
            }
            *place = ((*entry >> shift) as u16).to_be_bytes();
        }
        Outcome::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_go_where_the_manager_says_up_to_its_top() {
        let mut tables = Tables::default();
        let mut block = [NOWHERE; 64];
        (block[3], block[5]) = (2, 1);
        assert_eq!(tables.linear(0, true, &mut block), Outcome::Good);
        assert_eq!(tables.port(3), None, "beyond the top");
        let mut info = [0; 64];
        info[7] = 4;
        tables.info(true, &mut info);
        assert_eq!([3, 4, 5].map(|lid| tables.port(lid)), [Some(2), None, None]);
        assert_eq!(tables.linear(0xc000 / 64, false, &mut block), Outcome::InvalidField);
    }

    #[test]
    fn groups_are_written_by_columns() {
        let mut tables = Tables::default();
        let mut block = [0; 64];
        block[4..6].copy_from_slice(&0x0006u16.to_be_bytes());
        assert_eq!(tables.multicast(0, true, &mut block), Outcome::Good);
        assert_eq!(tables.multicast(1 << 28, true, &mut block), Outcome::Good);
        assert_eq!(tables.group(0xc002), 0x0006_0006);
        assert_eq!(tables.group(0xc003) | tables.group(0xffff), 0);
        assert_eq!(tables.multicast(4 << 28, true, &mut block), Outcome::InvalidField);
        assert_eq!(tables.multicast(32, false, &mut block), Outcome::InvalidField);
    }

    #[test]
    fn that_a_port_has_changed_stays_until_cleared() {
        let mut tables = Tables { changed: true, ..Tables::default() };
        let mut info = [0; 64];
        tables.info(false, &mut info);
        assert_eq!(info[11], 4);
        tables.info(true, &mut info);
        assert_eq!(info[11], 0);
    }
}
