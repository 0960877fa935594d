//! Curve25519 for the handshake, with a key pair that can be made in advance.

use curve25519_dalek::constants::X25519_BASEPOINT;
use curve25519_dalek::montgomery::MontgomeryPoint;
use snow::Error;
use snow::types::{Dh, Random};
use zeroize::Zeroizing;

/// The size of a private key, a public key and a shared secret, in bytes.
const LEN: usize = 32;

/// A key pair.
#[derive(Clone)]
pub(super) struct KeyPair {
    private: Zeroizing<[u8; LEN]>,
    public: [u8; LEN],
}

impl KeyPair {
    /// Makes the pair of a private key, which must be fresh random bytes.
    pub(super) fn new(private: Zeroizing<[u8; LEN]>) -> Self {
        // By the same code as a shared secret. A multiplication by way of Edwards' curve is faster, but at a
        // join more of its time is spent on loading (or translating) its code.
        let public = X25519_BASEPOINT.mul_clamped(*private).to_bytes();
        Self { private, public }
    }

    pub(super) const fn public(&self) -> &[u8; LEN] {
        &self.public
    }

    pub(super) fn private(&self) -> &[u8; LEN] {
        &self.private
    }
}

/// Noise's `25519` (Noise specification, section 12.1).
pub(super) struct Curve25519 {
    pair: KeyPair,
    /// The pair that [`generate`](Dh::generate) uses instead of making one.
    prepared: Option<KeyPair>,
}

impl Curve25519 {
    pub(super) fn new(prepared: Option<KeyPair>) -> Self {
        Self { pair: KeyPair { private: Zeroizing::default(), public: [0; LEN] }, prepared }
    }
}

impl Dh for Curve25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        LEN
    }

    fn priv_len(&self) -> usize {
        LEN
    }

    fn set(&mut self, private: &[u8]) {
        let mut bytes = Zeroizing::new([0; LEN]);
        bytes.copy_from_slice(private);
        self.pair = KeyPair::new(bytes);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        self.pair = match self.prepared.take() {
            Some(pair) => pair,
            None => {
                let mut private = Zeroizing::new([0; LEN]);
                random.try_fill_bytes(&mut *private)?;
                KeyPair::new(private)
            }
        };
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.pair.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.pair.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = public.first_chunk::<LEN>().ok_or(Error::Dh)?;
        let out = out.first_chunk_mut::<LEN>().ok_or(Error::Dh)?;
        *out = MontgomeryPoint(*public).mul_clamped(*self.pair.private).to_bytes();
        Ok(())
    }
}
