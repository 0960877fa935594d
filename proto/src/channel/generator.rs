//! A generator of unpredictable bytes whose state does not reveal its past output.

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use zeroize::Zeroizing;

/// A generator of unpredictable bytes from a secret of 32 bytes, with fast key erasure: each request also
/// produces a new key, which is never returned, and overwrites the old one (D. J. Bernstein,
/// "Fast-key-erasure random-number generators", 2017). Knowledge of the state reveals no past output.
#[derive(Clone)]
pub struct Generator(Zeroizing<[u8; Self::KEY]>);

impl Generator {
    /// The size of the secret, in bytes.
    pub const KEY: usize = 32;

    /// Makes a generator with this secret.
    #[must_use]
    pub fn new(secret: &[u8; Self::KEY]) -> Self {
        Self(Zeroizing::new(*secret))
    }

    /// Mixes in bytes that may be secret. The new state is at least as hard to guess as the old one, and as
    /// `fresh`.
    pub fn mix(&mut self, fresh: &[u8; Self::KEY]) {
        let mut key = Zeroizing::new([0; Self::KEY]);
        self.fill(&mut *key);
        self.0.iter_mut().zip(*key).zip(fresh).for_each(|((new, own), fresh)| *new = own ^ fresh);
    }

    /// Fills `bytes`, at most 256 GiB.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        // Both are overwritten when they are dropped.
        let mut stream = ChaCha20::new((&*self.0).into(), &[0; 12].into());
        let mut next = Zeroizing::new([0; Self::KEY]);
        stream.apply_keystream(&mut *next);
        bytes.fill(0);
        stream.apply_keystream(bytes);
        self.0.copy_from_slice(&*next);
    }
}

impl core::fmt::Debug for Generator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Generator(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8439, appendix A.1, test vector 1: the key stream of the zero key and the zero nonce.
    const STREAM: [u8; 64] = [
        0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86, 0xbd, 0x28, 0xbd,
        0xd2, 0x19, 0xb8, 0xa0, 0x8d, 0xed, 0x1a, 0xa8, 0x36, 0xef, 0xcc, 0x8b, 0x77, 0x0d, 0xc7, 0xda, 0x41,
        0x59, 0x7c, 0x51, 0x57, 0x48, 0x8d, 0x77, 0x24, 0xe0, 0x3f, 0xb8, 0xd8, 0x4a, 0x37, 0x6a, 0x43, 0xb8,
        0xf4, 0x15, 0x18, 0xa1, 0x1c, 0xc3, 0x87, 0xb6, 0x69, 0xb2, 0xee, 0x65, 0x86,
    ];

    #[test]
    fn the_stream_is_chacha20_and_its_first_bytes_are_the_next_key() {
        let mut generator = Generator::new(&[0; 32]);
        let mut bytes = [0xff; 32];
        generator.fill(&mut bytes);
        assert_eq!(bytes, STREAM[32..]);
        assert_eq!(*generator.0, STREAM[..32]);
    }

    /// No continuation of the state reproduces past output.
    #[test]
    fn past_output_cannot_be_computed_from_the_state() {
        let mut generator = Generator::new(&[7; 32]);
        let mut given = [0; 4096];
        generator.fill(&mut given);
        let mut later = [0; 4096];
        generator.clone().fill(&mut later);
        let known: alloc::collections::BTreeSet<&[u8]> =
            later.windows(16).chain(generator.0.windows(16)).collect();
        assert!(given.windows(16).all(|part| !known.contains(part)));
    }

    #[test]
    fn requests_differ_and_mixed_bytes_count() {
        let next = |generator: &mut Generator| {
            let mut bytes = [0; 16];
            generator.fill(&mut bytes);
            bytes
        };
        let mut one = Generator::new(&[1; 32]);
        let first = next(&mut one);
        assert_ne!(first, next(&mut one));
        let (mut a, mut b) = (one.clone(), one.clone());
        a.mix(&[0; 32]);
        b.mix(&[1; 32]);
        let all = [next(&mut one), next(&mut a), next(&mut b)];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    }
}
