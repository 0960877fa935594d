//! The layout of the messages of an exchange.

use alloc::vec::Vec;

/// The place of a message's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind the header.
    Message,
    /// In the inbox of the receiver.
    Inbox,
}

/// The head of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of the job.
    pub(super) job: u64,
    pub(super) round: u64,
    /// The number of rounds that the exchange needs, as far as the sender knows.
    pub(super) rounds: u32,
    pub(super) place: Place,
    /// The length of the data, in bytes.
    pub(super) len: u64,
}

impl Header {
    pub(super) const LEN: usize = 32;

    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.job.to_le_bytes());
        out.extend_from_slice(&self.round.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.rounds.to_le_bytes());
        out.extend_from_slice(&u32::from(self.place == Place::Inbox).to_le_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..Self::LEN)?.as_chunks::<8>();
        let [job, round, len, last] = words else { return None };
        let last = u64::from_le_bytes(*last);
        let place = match last >> 32 {
            0 => Place::Message,
            1 => Place::Inbox,
            _ => return None,
        };
        let [job, round, len] = [job, round, len].map(|word| u64::from_le_bytes(*word));
        Some(Self { job, round, rounds: last as u32, place, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_layout_and_nothing_else_is_one() {
        let header = Header { job: 7, round: 1 << 40, rounds: 3, place: Place::Inbox, len: 99 };
        let mut bytes = header.emit();
        assert_eq!(bytes.len(), Header::LEN);
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(Header::parse(&bytes[1..]), None);
        bytes[28] = 2;
        assert_eq!(Header::parse(&bytes), None);
    }
}
