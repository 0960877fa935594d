//! Performance management: counts of a port's packets (PortCounters, specification 16.1.3.5).

use super::mad::{Mad, Outcome, method};

/// The numbers of the attributes of performance management.
const CLASS_PORT_INFO: u16 = 0x01;
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// A port's counts. Bytes are those of packets without the variant CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received with an invalid check or header.
    pub rx_errors: u64,
    /// Packets dropped before sending because the port was not active.
    pub tx_discards: u64,
}

impl Traffic {
    /// Answers a datagram in place, for a request at port `number`.
    pub fn answer(&mut self, mad: &mut Mad, number: u8) {
        const EXTENDED_WIDTH: u16 = 1 << 9;
        const RESPONSE_TIME: u8 = 18;
        let (asked, attribute) = (mad.method(), mad.attribute());
        let data = mad.performance_data();
        let outcome = match (asked, attribute) {
            (method::GET, CLASS_PORT_INFO) => {
                data.fill(0);
                data[0..2].copy_from_slice(&[1, 1]);
                data[2..4].copy_from_slice(&EXTENDED_WIDTH.to_be_bytes());
                data[7] = RESPONSE_TIME;
                Outcome::Good
            }
            (method::GET | method::SET, PORT_COUNTERS | PORT_COUNTERS_EXTENDED) => {
                let select = u16::from_be_bytes([data[2], data[3]]);
                if data[1] != number && data[1] != 0xff {
                    Outcome::InvalidField
                } else {
                    if asked == method::SET {
                        self.clear(select, attribute);
                    }
                    data[4..].fill(0);
                    if attribute == PORT_COUNTERS {
                        self.short(data);
                    } else {
                        self.long(data);
                    }
                    Outcome::Good
                }
            }
            _ => Outcome::Unsupported,
        };
        mad.answer(outcome);
    }

    /// Converts bytes to words of 4 bytes, the unit of the attributes.
    const fn words(bytes: u64) -> u64 {
        bytes / 4
    }

    /// Clears the counters that the mask of a SET selects. Values other than zero cannot be written.
    fn clear(&mut self, select: u16, attribute: u16) {
        let first = if attribute == PORT_COUNTERS { 12 } else { 0 };
        let fields = [&mut self.tx_bytes, &mut self.rx_bytes, &mut self.tx_packets, &mut self.rx_packets];
        for (bit, field) in fields.into_iter().enumerate() {
            if u32::from(select) >> (first + bit) & 1 != 0 {
                *field = 0;
            }
        }
        if attribute == PORT_COUNTERS {
            if select >> 3 & 1 != 0 {
                self.rx_errors = 0;
            }
            if select >> 6 & 1 != 0 {
                self.tx_discards = 0;
            }
        }
    }

    /// Writes the 32-bit counters, which saturate.
    fn short(&self, data: &mut [u8]) {
        let cut = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
        let cut16 = |value: u64| u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
        data[8..10].copy_from_slice(&cut16(self.rx_errors));
        data[14..16].copy_from_slice(&cut16(self.tx_discards));
        let long = [Self::words(self.tx_bytes), Self::words(self.rx_bytes), self.tx_packets, self.rx_packets];
        for (place, value) in data[24..40].chunks_exact_mut(4).zip(long) {
            place.copy_from_slice(&cut(value));
        }
    }

    /// Writes the 64-bit counters.
    fn long(&self, data: &mut [u8]) {
        let long = [Self::words(self.tx_bytes), Self::words(self.rx_bytes), self.tx_packets, self.rx_packets];
        for (place, value) in data[8..40].chunks_exact_mut(8).zip(long) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    }
}
