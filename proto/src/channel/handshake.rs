//! The handshake: the responder's challenge, then a Noise message in each direction. After it both sides have
//! a channel.

use super::cipher::{Arithmetic, Scalars};
use super::dh::{Curve25519, KeyPair};
use super::{ChannelError, LENGTH_BYTES, Opener, Role, RoleKey, RoleKeys, Sealer, TAG_BYTES};
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

/// The first part of the prologue, which both sides mix into the handshake, so that another protocol or
/// version fails it. The initiator's role and the responder's challenge follow.
const PROLOGUE: &[u8] = b"ferrolite 2";

/// The length of the responder's challenge, in bytes.
const CHALLENGE: usize = 32;

/// The length of a Noise message of the handshake in bytes: an ephemeral public key and the tag of an empty
/// payload.
const MESSAGE: usize = 32 + TAG_BYTES;

/// The length of the initiator's message in bytes: its role and a Noise message.
const FIRST: usize = 1 + MESSAGE;

/// One side of a handshake.
///
/// The side that connected starts as [`initiator`](Self::initiator), the other as
/// [`responder`](Self::responder). Each side sends the bytes that are returned to it, and feeds the bytes
/// that it receives.
pub struct Handshake {
    stage: Stage,
    /// The received part of the peer's message, with its length.
    received: Vec<u8>,
}

/// The message that a side waits for.
enum Stage {
    /// An initiator waits for the challenge.
    Challenge { key: RoleKey, pair: KeyPair, arithmetic: Arithmetic },
    /// The state of an initiator that has sent its message and waits for the answer.
    Answer { role: Role, state: Box<HandshakeState> },
    /// A responder waits for the initiator's message.
    First { keys: RoleKeys, challenge: [u8; CHALLENGE], random: Zeroizing<[u8; 32]> },
}

impl Stage {
    /// Returns the length of the expected message, in bytes.
    const fn wanted(&self) -> usize {
        match self {
            Self::Challenge { .. } => CHALLENGE,
            Self::Answer { .. } => MESSAGE,
            Self::First { .. } => FIRST,
        }
    }
}

/// The result of feeding a handshake.
#[derive(Debug)]
pub enum HandshakeStep {
    /// More bytes are needed.
    Continue {
        /// The bytes to send now; may be empty.
        reply: Vec<u8>,
        /// The handshake, to be fed with the next bytes.
        next: Handshake,
    },
    /// The peer has the key of the initiator's role. The peer of a responder is also known to be present and
    /// not a recording, because it has answered the challenge.
    Done {
        /// The bytes to send first; empty for the initiator.
        reply: Vec<u8>,
        /// The channel.
        channel: Channel,
    },
}

/// The two directions of an open channel.
#[derive(Debug)]
pub struct Channel {
    /// The direction to the peer.
    pub sealer: Sealer,
    /// The direction from the peer.
    pub opener: Opener,
    /// The role of the initiator, proved by its key.
    pub role: Role,
}

impl Handshake {
    /// The frame that a responder sends before it closes if the initiator has another key. Without it the
    /// initiator could not distinguish that from a broken connection. It is not authenticated: an attacker
    /// who can forge it can also cut the connection.
    pub const REFUSAL: [u8; LENGTH_BYTES] = [0, 0];

    /// Starts a handshake as the side that connected, which receives first. `random` must be fresh.
    #[must_use]
    pub fn initiator(key: &RoleKey, random: [u8; 32]) -> Self {
        Self::initiator_with(key, random, Arithmetic::default())
    }

    /// Starts a handshake as [`initiator`](Self::initiator), with a choice of implementation. This call makes
    /// the key pair, which is the longest computation of this side.
    #[must_use]
    pub fn initiator_with(key: &RoleKey, random: [u8; 32], arithmetic: Arithmetic) -> Self {
        let pair = KeyPair::new(Zeroizing::new(random));
        Self::at(Stage::Challenge { key: key.clone(), pair, arithmetic })
    }

    /// Starts a handshake as the side that accepted. Also returns the bytes to send, the challenge. Both
    /// halves of `random` must be fresh.
    ///
    /// Until the initiator has proved that it has a key and knows the challenge, this side computes only a
    /// few hashes and one tag.
    #[must_use]
    pub fn responder(keys: &RoleKeys, random: [[u8; 32]; 2]) -> (Self, Vec<u8>) {
        let [challenge, random] = random;
        let first = frame(&challenge);
        (Self::at(Stage::First { keys: keys.clone(), challenge, random: Zeroizing::new(random) }), first)
    }

    fn at(stage: Stage) -> Self {
        let received = Vec::with_capacity(LENGTH_BYTES + stage.wanted());
        Self { stage, received }
    }

    /// Consumes bytes of the peer's messages from the front of `bytes`. The remaining bytes belong to the
    /// channel.
    ///
    /// # Errors
    /// A responder that receives [`ChannelError::WrongKey`] sends [`REFUSAL`](Self::REFUSAL) before it
    /// closes.
    pub fn feed(mut self, bytes: &mut &[u8]) -> Result<HandshakeStep, ChannelError> {
        let mut reply = Vec::new();
        while let Some(message) = self.take(bytes)? {
            self = match self.stage {
                Stage::Challenge { key, pair, arithmetic } => {
                    let challenge = message.try_into().map_err(|_| ChannelError::NotFerrolite)?;
                    let primitives = Primitives { pair: Some(pair), random: None, arithmetic };
                    let mut state = state(&key, &challenge, true, primitives);
                    let first = [&[key.role().byte()], &write(&mut state)[..]].concat();
                    reply.extend(frame(&first));
                    Self::at(Stage::Answer { role: key.role(), state })
                }
                Stage::Answer { role, mut state } => {
                    state.read_message(&message, &mut []).map_err(|_| ChannelError::WrongKey)?;
                    return done(*state, role, reply);
                }
                Stage::First { keys, challenge, random } => {
                    let Some((&role, message)) = message.split_first() else {
                        return Err(ChannelError::NotFerrolite);
                    };
                    let role = Role::from_byte(role).ok_or(ChannelError::NotFerrolite)?;
                    let arithmetic = Arithmetic::default();
                    let primitives = Primitives { pair: None, random: Some(random), arithmetic };
                    let mut state = state(keys.of(role), &challenge, false, primitives);
                    state.read_message(message, &mut []).map_err(|_| ChannelError::WrongKey)?;
                    reply.extend(frame(&write(&mut state)));
                    return done(*state, role, reply);
                }
            };
        }
        Ok(HandshakeStep::Continue { reply, next: self })
    }

    /// Returns the expected message, without its length, once it is complete.
    fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, ChannelError> {
        if !self.collect(bytes, LENGTH_BYTES) {
            return Ok(None);
        }
        if matches!(self.stage, Stage::Answer { .. }) && self.received.starts_with(&Self::REFUSAL) {
            return Err(ChannelError::WrongKey);
        }
        let wanted = self.stage.wanted();
        if !self.received.starts_with(&(wanted as u16).to_be_bytes()) {
            return Err(ChannelError::NotFerrolite);
        }
        if !self.collect(bytes, LENGTH_BYTES + wanted) {
            return Ok(None);
        }
        Ok(Some(self.received.split_off(LENGTH_BYTES)))
    }

    /// Moves bytes until `len` have been received. Returns true if they have.
    fn collect(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let missing = len.saturating_sub(self.received.len());
        let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
        self.received.extend_from_slice(taken);
        *bytes = rest;
        self.received.len() >= len
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("wants", &self.stage.wanted()).finish_non_exhaustive()
    }
}

/// Makes Noise's state at the beginning of a handshake.
fn state(
    key: &RoleKey,
    challenge: &[u8; CHALLENGE],
    initiator: bool,
    primitives: Primitives,
) -> Box<HandshakeState> {
    let prologue = [PROLOGUE, &[key.role().byte()], challenge].concat();
    let builder = Builder::with_resolver(params(), Box::new(primitives))
        .psk(0, key.bytes())
        .and_then(|builder| builder.prologue(&prologue))
        .and_then(|builder| if initiator { builder.build_initiator() } else { builder.build_responder() });
    // The parameters are constant, the key's type fixes its length, and the resolver has all primitives.
    Box::new(builder.expect("constant Noise parameters"))
}

/// Returns this side's Noise message.
fn write(state: &mut HandshakeState) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    // Cannot fail: it is this side's turn, the buffer fits, and there is an ephemeral key or the bytes for
    // one.
    let written = state.write_message(&[], &mut message).expect("handshake message");
    debug_assert_eq!(written, MESSAGE);
    message
}

/// Returns the message with its length in front.
fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

fn done(state: HandshakeState, role: Role, reply: Vec<u8>) -> Result<HandshakeStep, ChannelError> {
    let transport = state.into_stateless_transport_mode().map_err(|_| ChannelError::NotFerrolite)?;
    let transport = Arc::new(transport);
    let channel = Channel { sealer: Sealer::new(transport.clone()), opener: Opener::new(transport), role };
    Ok(HandshakeStep::Done { reply, channel })
}

/// Makes `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` without parsing.
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

/// The primitives for `snow`. The caller's bytes are the only randomness, and the caller chooses the
/// implementation.
pub(super) struct Primitives {
    /// The ephemeral key pair, if it was made before the handshake.
    pub(super) pair: Option<KeyPair>,
    /// The random bytes from which the ephemeral key pair is made if `pair` is `None`.
    pub(super) random: Option<Zeroizing<[u8; 32]>>,
    pub(super) arithmetic: Arithmetic,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(self.random.clone())))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(Curve25519::new(self.pair.clone()))),
            _ => None,
        }
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match self.arithmetic {
            Arithmetic::Vectors => DefaultResolver.resolve_cipher(choice),
            // The cipher that `params` names.
            Arithmetic::Scalars => Some(Box::new(Scalars::default())),
        }
    }
}

/// Random bytes for a single use. A second ephemeral key from the same bytes would break the handshake's
/// secrecy.
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
