//! Management datagrams: the common header, and directed routes.

/// The length of a datagram, in bytes.
const LEN: usize = 256;

/// The offsets of the fields of a datagram, in bytes.
pub(crate) mod offset {
    pub(crate) const CLASS: usize = 1;
    pub(crate) const METHOD: usize = 3;
    /// The status, whose first bit is the direction of a directed datagram.
    pub(crate) const STATUS: usize = 4;
    pub(crate) const HOP_POINTER: usize = 6;
    pub(crate) const HOP_COUNT: usize = 7;
    pub(crate) const TRANSACTION: usize = 8;
    pub(crate) const ATTRIBUTE: usize = 16;
    pub(crate) const MODIFIER: usize = 20;
    pub(crate) const MANAGEMENT_KEY: usize = 24;
    /// The LID after the directed part of a route.
    pub(crate) const DESTINATION_LID: usize = 34;
    /// The data of a subnet management attribute.
    pub(crate) const DATA: usize = 64;
    pub(crate) const INITIAL_PATH: usize = 128;
    pub(crate) const RETURN_PATH: usize = 192;
}
/// The maximum number of hops of a directed route.
const MAX_HOPS: u8 = 63;

/// Management classes.
pub mod class {
    /// Subnet management, routed by LID.
    pub const SUBNET_LID_ROUTED: u8 = 0x01;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
    /// Subnet management, by directed route.
    pub const SUBNET_DIRECTED: u8 = 0x81;
}

/// Methods.
pub mod method {
    /// Reads an attribute.
    pub const GET: u8 = 0x01;
    /// Writes an attribute.
    pub const SET: u8 = 0x02;
    /// Reports an event at a node to the subnet manager.
    pub const TRAP: u8 = 0x05;
    /// Stops the repetition of a trap.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Answers a GET or SET.
    pub const GET_RESPONSE: u8 = 0x81;
}

/// Attributes of subnet management.
pub mod attribute {
    #![allow(missing_docs, reason = "the names are the specification's")]
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const SWITCH_INFO: u16 = 0x12;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const P_KEY_TABLE: u16 = 0x16;
    pub const SL_TO_VL_TABLE: u16 = 0x17;
    pub const VL_ARBITRATION_TABLE: u16 = 0x18;
    pub const LINEAR_FORWARDING_TABLE: u16 = 0x19;
    pub const MULTICAST_FORWARDING_TABLE: u16 = 0x1b;
    pub const LED_INFO: u16 = 0x31;
    /// Mellanox's attribute for link speeds beyond the specification's.
    pub const EXTENDED_PORT_INFO: u16 = 0xff90;
}

/// The result of a request for an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request succeeded; the answer's data is valid.
    Good,
    /// The attribute is unknown, or does not have this method.
    Unsupported,
    /// A field or the modifier is invalid.
    InvalidField,
}

impl Outcome {
    /// Returns the code for the status field.
    const fn status(self) -> u16 {
        match self {
            Self::Good => 0,
            Self::Unsupported => 3 << 2,
            Self::InvalidField => 7 << 2,
        }
    }
}

/// The next step of a directed datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The datagram leaves through this port.
    Port(u8),
    /// The agent of the node that received the datagram handles it.
    Here,
    /// The datagram is dropped: its route is invalid at this node.
    Drop,
}

/// A management datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad([u8; LEN]);

impl Mad {
    /// Returns the first 256 bytes, if they are a datagram of base version 1.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        (bytes[0] == 1).then_some(Self(*bytes))
    }

    /// Returns all bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn be64(&self, at: usize) -> u64 {
        (at..at + 8).fold(0, |value, at| value << 8 | u64::from(self.0[at]))
    }

    /// Returns the management class.
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.0[offset::CLASS]
    }

    /// Returns whether the class is subnet management.
    #[must_use]
    pub const fn is_subnet_management(&self) -> bool {
        matches!(self.class(), class::SUBNET_LID_ROUTED | class::SUBNET_DIRECTED)
    }

    /// Returns the method.
    #[must_use]
    pub const fn method(&self) -> u8 {
        self.0[offset::METHOD]
    }

    /// Returns the number by which an answer names its request.
    #[must_use]
    pub fn transaction(&self) -> u64 {
        self.be64(offset::TRANSACTION)
    }

    /// Returns the attribute.
    #[must_use]
    pub fn attribute(&self) -> u16 {
        self.be16(offset::ATTRIBUTE)
    }

    /// Returns the attribute modifier.
    #[must_use]
    pub fn modifier(&self) -> u32 {
        u32::from(self.be16(offset::MODIFIER)) << 16 | u32::from(self.be16(offset::MODIFIER + 2))
    }

    /// Returns the management key that the sender presented.
    #[must_use]
    pub fn management_key(&self) -> u64 {
        self.be64(offset::MANAGEMENT_KEY)
    }

    /// Returns the data of a subnet management attribute.
    #[must_use]
    pub fn data(&self) -> &[u8; 64] {
        self.0[offset::DATA..].first_chunk().unwrap_or(&[0; 64])
    }

    /// Sets the data of a subnet management attribute.
    pub fn set_data(&mut self, data: &[u8; 64]) {
        self.0[offset::DATA..offset::DATA + 64].copy_from_slice(data);
    }

    /// Returns the data of a performance management attribute.
    #[must_use]
    pub fn performance_data(&mut self) -> &mut [u8] {
        &mut self.0[offset::DATA..]
    }

    /// Turns the request into its answer.
    pub fn answer(&mut self, outcome: Outcome) {
        self.0[offset::METHOD] = method::GET_RESPONSE;
        self.0[offset::STATUS..offset::STATUS + 2].copy_from_slice(&outcome.status().to_be_bytes());
    }

    /// Reverses the direction of a directed datagram.
    pub const fn turn_back(&mut self) {
        self.0[offset::STATUS] |= 0x80;
    }

    /// Determines the next step of a directed datagram that has arrived at `ingress` of a switch with `ports`
    /// external ports (specification 14.2.2). Updates the hop pointer and the return path.
    pub fn next_hop(&mut self, ingress: u8, ports: u8) -> Answer {
        let (pointer, count) = (self.0[offset::HOP_POINTER], self.0[offset::HOP_COUNT]);
        let back = self.0[offset::STATUS] & 0x80 != 0;
        if count > MAX_HOPS || pointer > count + 1 {
            return Answer::Drop;
        }
        let external = |port: u8| if (1..=ports).contains(&port) { Answer::Port(port) } else { Answer::Drop };
        let permissive = |at: usize, mad: &Self| mad.be16(at) == 0xffff;
        if back {
            // A LID-routed part before the directed part is not supported, because no manager uses it.
            match pointer {
                2.. if pointer <= count => {
                    self.0[offset::HOP_POINTER] = pointer - 1;
                    external(self.0[offset::RETURN_PATH + usize::from(pointer) - 1])
                }
                _ => Answer::Drop,
            }
        } else {
            match pointer {
                0 => Answer::Drop,
                _ if pointer < count => {
                    self.0[offset::RETURN_PATH + usize::from(pointer)] = ingress;
                    self.0[offset::HOP_POINTER] = pointer + 1;
                    external(self.0[offset::INITIAL_PATH + usize::from(pointer) + 1])
                }
                _ if pointer == count && permissive(offset::DESTINATION_LID, self) => {
                    self.0[offset::RETURN_PATH + usize::from(pointer)] = ingress;
                    self.0[offset::HOP_POINTER] = pointer + 1;
                    Answer::Here
                }
                _ => Answer::Drop,
            }
        }
    }

    /// Returns the port through which a switch's answer to a directed datagram leaves, and updates the hop
    /// pointer. Call [`turn_back`](Self::turn_back) first.
    pub fn first_hop_back(&mut self) -> Option<u8> {
        let pointer = self.0[offset::HOP_POINTER].checked_sub(1)?;
        self.0[offset::HOP_POINTER] = pointer;
        self.0.get(offset::RETURN_PATH + usize::from(pointer)).copied().filter(|port| *port != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directed request as its sender puts it on the first cable. The sender uses its port 1;
    /// `path` holds the further ports.
    fn directed(path: &[u8]) -> Mad {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1], bytes[3]) = (1, class::SUBNET_DIRECTED, method::GET);
        (bytes[6], bytes[7]) = (1, path.len() as u8 + 1);
        bytes[32..36].fill(0xff);
        bytes[offset::INITIAL_PATH + 1] = 1;
        bytes[offset::INITIAL_PATH + 2..offset::INITIAL_PATH + 2 + path.len()].copy_from_slice(path);
        Mad::parse(&bytes).unwrap()
    }

    #[test]
    fn a_directed_datagram_goes_through_two_switches_and_back() {
        let mut mad = directed(&[3, 5]);
        assert_eq!(mad.next_hop(7, 8), Answer::Port(3));
        assert_eq!(mad.next_hop(2, 8), Answer::Port(5));
        // The datagram is now at an adapter, whose agent moves the pointer as the last hop does. On the way
        // back it is on the first cable.
        assert_eq!((mad.0[6], mad.0[7]), (3, 3));
        mad.turn_back();
        assert_eq!(mad.next_hop(5, 8), Answer::Port(2), "the return path that the second switch recorded");
        assert_eq!(mad.next_hop(3, 8), Answer::Port(7));
        assert_eq!(mad.0[6], 1, "the sender's own agent is next");
    }

    #[test]
    fn one_for_the_switch_itself_is_answered_where_it_came_from() {
        let mut mad = directed(&[]);
        assert_eq!(mad.next_hop(4, 8), Answer::Here);
        mad.answer(Outcome::Good);
        mad.turn_back();
        assert_eq!(mad.first_hop_back(), Some(4));
        assert_eq!((mad.0[6], mad.method()), (1, method::GET_RESPONSE));
        assert_eq!(mad.be16(4), 0x8000);
    }

    #[test]
    fn routes_that_are_none_lead_nowhere() {
        for (path, pointer) in [(&[9][..], 1), (&[0], 1), (&[3], 0), (&[3], 3), (&[3], 4)] {
            let mut mad = directed(path);
            mad.0[6] = pointer;
            assert_eq!(mad.next_hop(1, 8), Answer::Drop, "{path:?} {pointer}");
        }
        let mut mad = directed(&[3]);
        mad.0[7] = 200;
        assert_eq!(mad.next_hop(1, 8), Answer::Drop);
        let mut mad = directed(&[]);
        mad.0[34] = 0;
        assert_eq!(mad.next_hop(1, 8), Answer::Drop, "a way that goes on by LID");
    }
}
