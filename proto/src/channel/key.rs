//! The cluster key, and the text form in which it is kept in files.

use alloc::string::String;
use core::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The secret that makes a node or a client part of a cluster. Overwritten when dropped, never printed by `Debug`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct ClusterKey([u8; Self::BYTES]);

/// A text that is not a cluster key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cluster key: want 64 hexadecimal digits")]
pub struct NotAKey;

impl ClusterKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// The key of these bytes, which must come from a source fit for keys.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads the text form: 64 hexadecimal digits, white space around them ignored.
    pub fn from_hex(text: &[u8]) -> Result<Self, NotAKey> {
        let digits = text.trim_ascii();
        if digits.len() != 2 * Self::BYTES {
            return Err(NotAKey);
        }
        let mut key = Self([0; Self::BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(digits.chunks_exact(2)) {
            for &digit in pair {
                let value = char::from(digit).to_digit(16).ok_or(NotAKey)?;
                *byte = *byte << 4 | u8::try_from(value).map_err(|_| NotAKey)?;
            }
        }
        Ok(key)
    }

    /// The text form: 64 hexadecimal digits and a line feed.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * Self::BYTES + 1));
        for byte in self.0 {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        text
    }

    /// The bytes, for the handshake.
    pub(super) const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}
