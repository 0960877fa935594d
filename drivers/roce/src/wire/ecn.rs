//! Explicit congestion notification, by which switches inform the receiver in the IP header (RFC 3168,
//! section 5).

/// The low two bits of an IPv4 type of service or an IPv6 traffic class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ecn {
    /// Not-ECT: the sender does not react to marks, so a congested switch drops the packet.
    #[default]
    NotCapable = 0,
    /// ECT(1): the sender reacts to marks.
    Capable1 = 1,
    /// ECT(0): the sender reacts to marks. RoCE senders use this one.
    Capable0 = 2,
    /// CE: a switch on the path was congested.
    CongestionExperienced = 3,
}

impl Ecn {
    /// Returns the code point in a type of service or traffic class.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::CongestionExperienced,
        }
    }

    /// Returns `traffic_class` with its ECN bits set to this code point.
    #[must_use]
    pub const fn set(self, traffic_class: u8) -> u8 {
        traffic_class & !3 | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points_keep_their_bits_and_leave_the_others() {
        for byte in 0..=255 {
            assert_eq!(Ecn::of(byte).set(byte), byte);
            assert_eq!(Ecn::CongestionExperienced.set(byte), byte | 3);
            assert_eq!(Ecn::NotCapable.set(byte), byte & 0xfc);
        }
    }
}
