//! The MAC address table of a learning switch, which determines the ports of frames.

use std::collections::HashMap;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The maximum number of addresses in the table; beyond it, unknown ones are flooded. It guards against a
/// guest that invents addresses.
const TABLE_LIMIT: usize = 4096;
/// The length of the shortest frame with both addresses and a type, in bytes.
const ETHERNET_HEADER: usize = 14;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes to one other port.
    Port(usize),
    /// The frame goes to all other ports, because its address is that of a group or is unknown.
    Flood,
    /// No port, because the frame is too short, or its receiver is on the port that it came from.
    Drop,
}

/// The table of a learning switch.
#[derive(Debug, Default)]
pub struct MacTable {
    ports: HashMap<Mac, usize>,
}

impl MacTable {
    /// Decides on the destination of a frame that arrived on port `from`, and learns the port of its sender.
    pub fn switch(&mut self, frame: &[u8], from: usize) -> Verdict {
        if frame.len() < ETHERNET_HEADER {
            return Verdict::Drop;
        }
        let (Some(to), Some(sender)) = (frame.first_chunk::<6>(), frame[6..].first_chunk::<6>()) else {
            return Verdict::Drop;
        };
        if let Some(port) = self.ports.get_mut(sender) {
            *port = from;
        } else if !is_group(sender) && self.ports.len() < TABLE_LIMIT {
            self.ports.insert(*sender, from);
        }
        if is_group(to) {
            return Verdict::Flood;
        }
        match self.ports.get(to) {
            Some(&port) if port == from => Verdict::Drop,
            Some(&port) => Verdict::Port(port),
            None => Verdict::Flood,
        }
    }

    /// Removes all addresses behind a port, when its machine has gone.
    pub fn forget(&mut self, port: usize) {
        self.ports.retain(|_, p| *p != port);
    }
}

/// Returns true for multicast and broadcast addresses: the lowest bit of their first byte is set (IEEE
/// 802.3).
fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        frame
    }

    #[test]
    fn learns_moves_and_forgets() {
        let mut table = MacTable::default();
        assert_eq!(table.switch(&frame(2, 1), 0), Verdict::Flood);
        assert_eq!(table.switch(&frame(1, 2), 1), Verdict::Port(0));
        assert_eq!(table.switch(&frame(2, 1), 0), Verdict::Port(1));
        assert_eq!(table.switch(&frame(1, 3), 0), Verdict::Drop);
        // Address 2 moves to port 3.
        assert_eq!(table.switch(&frame(1, 2), 3), Verdict::Port(0));
        assert_eq!(table.switch(&frame(2, 1), 0), Verdict::Port(3));
        table.forget(3);
        assert_eq!(table.switch(&frame(2, 1), 0), Verdict::Flood);
    }

    #[test]
    fn groups_flood_and_are_never_learned() {
        let mut table = MacTable::default();
        let mut broadcast = frame(0, 1);
        broadcast[..6].fill(0xff);
        assert_eq!(table.switch(&broadcast, 0), Verdict::Flood);
        let mut from_group = frame(9, 0);
        from_group[6..12].fill(0xff);
        table.switch(&from_group, 0);
        assert_eq!(table.ports.len(), 1);
    }

    #[test]
    fn runts_are_dropped_and_the_table_is_bounded() {
        let mut table = MacTable::default();
        assert_eq!(table.switch(&[0; 13], 0), Verdict::Drop);
        assert_eq!(table.switch(&[], 0), Verdict::Drop);
        for n in 0..10_000u32 {
            let mut f = frame(0, 0);
            f[8..12].copy_from_slice(&n.to_be_bytes());
            table.switch(&f, 0);
        }
        assert_eq!(table.ports.len(), TABLE_LIMIT);
    }
}
