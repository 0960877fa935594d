//! The handshake: two messages of 48 bytes, after which both sides have a channel.

use super::cipher::{Arithmetic, Scalars};
use super::{ChannelError, ClusterKey, LENGTH_BYTES, Opener, Sealer, TAG_BYTES};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use snow::params::{
    BaseChoice, CipherChoice, DHChoice, HandshakeChoice, HandshakeModifier, HandshakeModifierList,
    HandshakePattern, HashChoice, NoiseParams,
};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

/// Mixed into the handshake by both sides: who means another protocol or version fails it.
const PROLOGUE: &[u8] = b"ferrolite 1";

/// Bytes of each handshake message: an ephemeral public key and the tag of an empty payload.
const MESSAGE: usize = 32 + TAG_BYTES;

/// One side of a handshake.
///
/// The side that connected starts as [`initiator`](Self::initiator), the other as [`responder`](Self::responder);
/// each sends what it is given to send, and feeds what it receives.
pub struct Handshake {
    state: Box<HandshakeState>,
    initiator: bool,
    /// What has come of the peer's message, length included.
    received: Vec<u8>,
}

/// What feeding a handshake has led to.
#[derive(Debug)]
pub enum HandshakeStep {
    /// More bytes are needed.
    Continue(Handshake),
    /// The peer has the key.
    Done {
        /// Bytes to send first of all; empty for the initiator.
        reply: Vec<u8>,
        /// The channel.
        channel: Channel,
    },
}

/// Both directions of an open channel, for their owners to take.
#[derive(Debug)]
pub struct Channel {
    /// The direction to the peer.
    pub sealer: Sealer,
    /// The direction from the peer.
    pub opener: Opener,
}

impl Handshake {
    /// A frame that a responder sends before it closes, if the initiator has another key; without it the initiator
    /// could not tell that from a broken connection. It is not authenticated: who can forge it can also cut.
    pub const REFUSAL: [u8; LENGTH_BYTES] = [0, 0];

    /// Starts as the side that connected; also gives the bytes to send. `random` must be fresh.
    #[must_use]
    pub fn initiator(key: &ClusterKey, random: [u8; 32]) -> (Self, Vec<u8>) {
        Self::initiator_with(key, random, Arithmetic::default())
    }

    /// As [`initiator`](Self::initiator), with a choice of how this side computes.
    #[must_use]
    pub fn initiator_with(key: &ClusterKey, random: [u8; 32], arithmetic: Arithmetic) -> (Self, Vec<u8>) {
        let mut this = Self::new(key, random, true, arithmetic);
        let first = this.write();
        (this, first)
    }

    /// Starts as the side that accepted. `random` must be fresh.
    #[must_use]
    pub fn responder(key: &ClusterKey, random: [u8; 32]) -> Self {
        Self::new(key, random, false, Arithmetic::default())
    }

    fn new(key: &ClusterKey, random: [u8; 32], initiator: bool, arithmetic: Arithmetic) -> Self {
        let resolver = Box::new(Primitives { random: Zeroizing::new(random), arithmetic });
        let builder = Builder::with_resolver(params(), resolver)
            .psk(0, key.bytes())
            .and_then(|builder| builder.prologue(PROLOGUE))
            .and_then(
                |builder| if initiator { builder.build_initiator() } else { builder.build_responder() },
            );
        // The parameters are constant, the key has its length by type, and the resolver knows all they name.
        let state = Box::new(builder.expect("constant Noise parameters"));
        Self { state, initiator, received: Vec::with_capacity(LENGTH_BYTES + MESSAGE) }
    }

    /// The frame with this side's message.
    fn write(&mut self) -> Vec<u8> {
        let mut frame = vec![0; LENGTH_BYTES + MESSAGE];
        // Cannot fail: it is this side's turn, the buffer fits, and the one ephemeral key has its random bytes.
        let written = self.state.write_message(&[], &mut frame[LENGTH_BYTES..]).expect("handshake message");
        debug_assert_eq!(written, MESSAGE);
        frame[..LENGTH_BYTES].copy_from_slice(&(MESSAGE as u16).to_be_bytes());
        frame
    }

    /// Takes bytes of the peer's message from the front of `bytes`; what is left belongs to the channel.
    ///
    /// A responder that gets [`ChannelError::WrongKey`] sends [`REFUSAL`](Self::REFUSAL) before it closes.
    pub fn feed(mut self, bytes: &mut &[u8]) -> Result<HandshakeStep, ChannelError> {
        if !self.take(bytes, LENGTH_BYTES) {
            return Ok(HandshakeStep::Continue(self));
        }
        if self.initiator && self.received.starts_with(&Self::REFUSAL) {
            return Err(ChannelError::WrongKey);
        }
        if !self.received.starts_with(&(MESSAGE as u16).to_be_bytes()) {
            return Err(ChannelError::NotFerrolite);
        }
        if !self.take(bytes, LENGTH_BYTES + MESSAGE) {
            return Ok(HandshakeStep::Continue(self));
        }
        let message = self.received.split_off(LENGTH_BYTES);
        self.state.read_message(&message, &mut []).map_err(|_| ChannelError::WrongKey)?;
        let reply = if self.initiator { Vec::new() } else { self.write() };
        let transport = self.state.into_stateless_transport_mode().map_err(|_| ChannelError::NotFerrolite)?;
        let transport = Arc::new(transport);
        let channel = Channel { sealer: Sealer::new(transport.clone()), opener: Opener::new(transport) };
        Ok(HandshakeStep::Done { reply, channel })
    }

    /// Moves bytes until `len` have been received; whether they have.
    fn take(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let missing = len.saturating_sub(self.received.len());
        let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
        self.received.extend_from_slice(taken);
        *bytes = rest;
        self.received.len() >= len
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("initiator", &self.initiator).finish_non_exhaustive()
    }
}

/// `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, put together without parsing.
fn params() -> NoiseParams {
    let handshake = HandshakeChoice {
        pattern: HandshakePattern::NN,
        modifiers: HandshakeModifierList { list: vec![HandshakeModifier::Psk(0)] },
    };
    NoiseParams::new(
        "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".into(),
        BaseChoice::Noise,
        handshake,
        DHChoice::Curve25519,
        CipherChoice::ChaChaPoly,
        HashChoice::Blake2s,
    )
}

/// The primitives of `snow`, with the caller's bytes as the only randomness and the caller's choice of arithmetic.
struct Primitives {
    random: Zeroizing<[u8; 32]>,
    arithmetic: Arithmetic,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.random.clone()))))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match self.arithmetic {
            Arithmetic::Vectors => DefaultResolver.resolve_cipher(choice),
            // The one that `params` names.
            Arithmetic::Scalars => Some(Box::new(Scalars::default())),
        }
    }
}

/// Random bytes that can be had once: a second ephemeral key of the same bytes would break the handshake's secrecy.
struct Once(Option<Zeroizing<[u8; 32]>>);

impl Random for Once {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if bytes.len() == into.len() => {
                into.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
