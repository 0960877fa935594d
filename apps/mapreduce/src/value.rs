//! Values and their encoding between nodes.

use alloc::vec::Vec;

/// The value of a key. It crosses the network in encoded form.
pub trait Value: Send + Sync + Sized + 'static {
    /// Appends the encoded value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a value from exactly these bytes. Returns `None` if they are not an encoding.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// Encodes a number with seven bits to a byte, the low ones first. The top bit is set in all bytes but the
/// last.
impl Value for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match take_varint(bytes)? {
            (value, len) if len == bytes.len() => Some(value),
            _ => None,
        }
    }
}

/// Returns the number at the start of `bytes` and the length of its encoding, or `None` if `bytes` ends
/// before it does.
pub(crate) fn take_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// The length of the longest encoded number, in bytes.
pub(crate) const VARINT_MAX: usize = 10;

/// Appends a number in decimal, without the code size of `core::fmt`.
pub fn push_decimal(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The encoding is the bytes themselves.
impl Value for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

/// The encoding is empty: only keys matter.
impl Value for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            prop_assert_eq!(u64::decode(&bytes), Some(value));
            bytes.push(0);
            prop_assert_eq!(take_varint(&bytes), Some((value, bytes.len() - 1)));
            prop_assert_eq!(u64::decode(&bytes), None);
        }
    }

    #[test]
    fn decimals_are_those_of_fmt() {
        for number in [0, 9, 10, 99, 100, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(number, &mut out);
            assert_eq!(out, alloc::format!("{number}").into_bytes());
        }
    }

    #[test]
    fn endless_numbers_are_refused() {
        assert_eq!(u64::decode(&[0x80; 20]), None);
        assert_eq!(u64::decode(&[]), None);
    }
}
