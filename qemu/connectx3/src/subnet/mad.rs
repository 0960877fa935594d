//! Management datagrams: the common header, and the route of directed ones.

/// Bytes of a datagram.
const LEN: usize = 256;
/// Where a subnet management attribute's data begins.
const DATA: usize = 64;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
/// Hops of a directed route, at most.
const MAX_HOPS: u8 = 63;

/// Management classes.
pub mod class {
    /// Subnet management by LIDs.
    pub const SUBNET_LID_ROUTED: u8 = 0x01;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
    /// Subnet management by directed routes.
    pub const SUBNET_DIRECTED: u8 = 0x81;
}

/// Methods.
pub mod method {
    /// Asks for an attribute.
    pub const GET: u8 = 0x01;
    /// Changes an attribute.
    pub const SET: u8 = 0x02;
    /// Ends the repetition of a trap.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// The answer to GET and SET.
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
    /// Of this vendor: link speeds beyond the specification's.
    pub const EXTENDED_PORT_INFO: u16 = 0xff90;
}

/// What an agent did with an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The answer's data stands.
    Good,
    /// No such method of this attribute, or no such attribute.
    Unsupported,
    /// A field, or the modifier, has a value that it may not have.
    InvalidField,
}

impl Outcome {
    /// The status field.
    const fn status(self) -> u16 {
        match self {
            Self::Good => 0,
            Self::Unsupported => 3 << 2,
            Self::InvalidField => 7 << 2,
        }
    }
}

/// Where a directed datagram goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Out of this port.
    Port(u8),
    /// To the agent of this node.
    Here,
    /// Nowhere: its route is not one of this node.
    Drop,
}

/// A datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad([u8; LEN]);

impl Mad {
    /// The first 256 bytes, if they are a datagram of base version 1.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        (bytes[0] == 1).then_some(Self(*bytes))
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    /// Management class.
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.0[1]
    }

    /// Whether it is subnet management.
    #[must_use]
    pub const fn is_subnet_management(&self) -> bool {
        matches!(self.class(), class::SUBNET_LID_ROUTED | class::SUBNET_DIRECTED)
    }

    /// Method.
    #[must_use]
    pub const fn method(&self) -> u8 {
        self.0[3]
    }

    /// Attribute.
    #[must_use]
    pub fn attribute(&self) -> u16 {
        self.be16(16)
    }

    /// Attribute modifier.
    #[must_use]
    pub fn modifier(&self) -> u32 {
        u32::from(self.be16(20)) << 16 | u32::from(self.be16(22))
    }

    /// The management key that the sender has shown.
    #[must_use]
    pub fn management_key(&self) -> u64 {
        (24..32).fold(0, |key, at| key << 8 | u64::from(self.0[at]))
    }

    /// The data of a subnet management attribute.
    #[must_use]
    pub fn data(&self) -> &[u8; 64] {
        self.0[DATA..].first_chunk().unwrap_or(&[0; 64])
    }

    /// The same, to be changed.
    pub fn set_data(&mut self, data: &[u8; 64]) {
        self.0[DATA..DATA + 64].copy_from_slice(data);
    }

    /// The data of a performance management attribute.
    #[must_use]
    pub fn performance_data(&mut self) -> &mut [u8] {
        &mut self.0[DATA..]
    }

    /// Makes it the answer to itself.
    pub fn answer(&mut self, outcome: Outcome) {
        self.0[3] = method::GET_RESPONSE;
        self.0[4..6].copy_from_slice(&outcome.status().to_be_bytes());
    }

    /// Makes the answer to a directed datagram go back the way it came.
    pub const fn turn_back(&mut self) {
        self.0[4] |= 0x80;
    }

    /// Where a directed datagram goes that has come to a switch with `ports` external ports at `ingress`
    /// (specification 14.2.2). Its hop pointer is moved, and its way back written, for that.
    pub fn next_hop(&mut self, ingress: u8, ports: u8) -> Answer {
        let (pointer, count) = (self.0[6], self.0[7]);
        let back = self.0[4] & 0x80 != 0;
        if count > MAX_HOPS || pointer > count + 1 {
            return Answer::Drop;
        }
        let external = |port: u8| if (1..=ports).contains(&port) { Answer::Port(port) } else { Answer::Drop };
        let permissive = |at: usize, mad: &Self| mad.be16(at) == 0xffff;
        if back {
            // The part of the way that goes by LID before the directed one is not supported: as no manager uses it.
            match pointer {
                2.. if pointer <= count => {
                    self.0[6] = pointer - 1;
                    external(self.0[RETURN_PATH + usize::from(pointer) - 1])
                }
                _ => Answer::Drop,
            }
        } else {
            match pointer {
                0 => Answer::Drop,
                _ if pointer < count => {
                    self.0[RETURN_PATH + usize::from(pointer)] = ingress;
                    self.0[6] = pointer + 1;
                    external(self.0[INITIAL_PATH + usize::from(pointer) + 1])
                }
                _ if pointer == count && permissive(34, self) => {
                    self.0[RETURN_PATH + usize::from(pointer)] = ingress;
                    self.0[6] = pointer + 1;
                    Answer::Here
                }
                _ => Answer::Drop,
            }
        }
    }

    /// Where the answer of a switch to a directed datagram goes first: [`turn_back`](Self::turn_back) was done.
    pub fn first_hop_back(&mut self) -> Option<u8> {
        let pointer = self.0[6].checked_sub(1)?;
        self.0[6] = pointer;
        self.0.get(RETURN_PATH + usize::from(pointer)).copied().filter(|port| *port != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directed request as its sender puts it on the first cable: out of its port 1, then the ports given.
    fn directed(path: &[u8]) -> Mad {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1], bytes[3]) = (1, class::SUBNET_DIRECTED, method::GET);
        (bytes[6], bytes[7]) = (1, path.len() as u8 + 1);
        bytes[32..36].fill(0xff);
        bytes[INITIAL_PATH + 1] = 1;
        bytes[INITIAL_PATH + 2..INITIAL_PATH + 2 + path.len()].copy_from_slice(path);
        Mad::parse(&bytes).unwrap()
    }

    #[test]
    fn a_directed_datagram_goes_through_two_switches_and_back() {
        let mut mad = directed(&[3, 5]);
        assert_eq!(mad.next_hop(7, 8), Answer::Port(3));
        assert_eq!(mad.next_hop(2, 8), Answer::Port(5));
        // At an adapter now, whose agent moves the pointer as the last hop does, and back at the first cable.
        assert_eq!((mad.0[6], mad.0[7]), (3, 3));
        mad.turn_back();
        assert_eq!(mad.next_hop(5, 8), Answer::Port(2), "the way that the second switch wrote down");
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
