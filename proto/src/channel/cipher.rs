//! The implementations of ChaCha20-Poly1305 for a channel. They produce the same bytes: each side chooses its
//! own.

use snow::Error;
use snow::types::Cipher;
use zeroize::{Zeroize, Zeroizing};

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Tag};

/// An implementation of ChaCha20-Poly1305.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// The processor's vector instructions, if it has any.
    #[default]
    Vectors,
    /// General registers only, in programs built with `--cfg chacha20_backend="soft"`, such as the kernel:
    /// about twice as fast where instructions are translated (QEMU's TCG), and half as fast where they are
    /// executed. In other programs the same as [`Vectors`](Self::Vectors).
    Scalars,
}

/// Noise's `ChaChaPoly` by the crate `chacha20poly1305`. The nonce is four zero bytes and the number in
/// little endian (Noise specification, section 12.3).
#[derive(Default)]
pub(super) struct Scalars(Zeroizing<[u8; 32]>);

impl Scalars {
    fn aead(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new((&*self.0).into())
    }
}

fn nonce_bytes(nonce: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

impl Cipher for Scalars {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0.zeroize();
        self.0.copy_from_slice(key);
    }

    /// `snow` has checked that `out` has room for the text and a tag.
    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let tag = self
            .aead()
            .encrypt_inout_detached(&nonce_bytes(nonce).into(), authtext, text.into())
            .expect("a frame is shorter than the 256 GiB limit of a nonce");
        rest[..tag.len()].copy_from_slice(&tag);
        plaintext.len() + tag.len()
    }

    fn decrypt(&self, nonce: u64, authtext: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let len = sealed.len().checked_sub(super::TAG_BYTES).ok_or(Error::Decrypt)?;
        let (cipher, tag) = sealed.split_at(len);
        let text = out.get_mut(..len).ok_or(Error::Decrypt)?;
        text.copy_from_slice(cipher);
        let tag = Tag::try_from(tag).map_err(|_| Error::Decrypt)?;
        self.aead()
            .decrypt_inout_detached(&nonce_bytes(nonce).into(), authtext, text.into(), &tag)
            .map_err(|_| Error::Decrypt)?;
        Ok(len)
    }
}
