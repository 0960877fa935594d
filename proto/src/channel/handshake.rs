//! The handshake: the responder's challenge, then a Noise message in each direction. After it both sides have
//! a channel.

use super::cipher::{Arithmetic, Scalars};
use super::dh::{Curve25519, KeyPair};
use super::{
    ChannelError, LENGTH_BYTES, Opener, Role, RoleKey, RoleKeys, Sealer, TAG_BYTES, UserId, UserKey,
};
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

/// The length of an encrypted static key, in bytes.
const STATIC: usize = 32 + TAG_BYTES;

/// The length of the answer to a user in bytes: an ephemeral key, the manager's static key, and a tag.
const USER_ANSWER: usize = MESSAGE + STATIC;

/// The length of a user's last message in bytes: the user's static key, and a tag.
const USER_LAST: usize = STATIC + TAG_BYTES;

/// The byte in place of the role of a client that has a user's key.
const USER: u8 = 3;

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
    Challenge { key: RoleKey, user: Option<Box<UserKey>>, pair: KeyPair, arithmetic: Arithmetic },
    /// The state of an initiator that has sent its message and waits for the answer.
    Answer { role: Role, user: Option<Box<UserKey>>, state: Box<HandshakeState> },
    /// A responder waits for the initiator's message.
    First { keys: RoleKeys, challenge: [u8; CHALLENGE], random: Zeroizing<[u8; 32]> },
    /// A responder waits for the last message of a user.
    Last { former: bool, state: Box<HandshakeState> },
}

impl Stage {
    /// Returns the length of the expected message, in bytes.
    const fn wanted(&self) -> usize {
        match self {
            Self::Challenge { .. } => CHALLENGE,
            Self::Answer { user: None, .. } => MESSAGE,
            Self::Answer { user: Some(_), .. } => USER_ANSWER,
            Self::First { .. } => FIRST,
            Self::Last { .. } => USER_LAST,
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
        /// The bytes to send first; empty for an initiator without a user's key.
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
    /// The user, if the initiator has a user's key; known to the responder only.
    pub user: Option<UserId>,
    /// True if the initiator's key is that of the former cluster key; known to the responder only.
    pub former: bool,
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
        Self::at(Stage::Challenge { key: key.clone(), user: None, pair, arithmetic })
    }

    /// Starts a handshake as the side that connected, with a user's key. `random` must be fresh.
    #[must_use]
    pub fn user(key: &UserKey, random: [u8; 32]) -> Self {
        let pair = KeyPair::new(Zeroizing::new(random));
        let (cluster, user) = (key.cluster().clone(), Some(Box::new(key.clone())));
        Self::at(Stage::Challenge { key: cluster, user, pair, arithmetic: Arithmetic::default() })
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
                Stage::Challenge { key, user, pair, arithmetic } => {
                    let challenge = message.try_into().map_err(|_| ChannelError::NotFerrolite)?;
                    let primitives = Primitives { pair: Some(pair), random: None, arithmetic };
                    let own = user.as_ref().map(|user| user.pair());
                    let mut state = state(&key, own, &challenge, true, primitives);
                    let kind = if user.is_some() { USER } else { key.role().byte() };
                    reply.extend(frame(&[&[kind], &write(&mut state)[..]].concat()));
                    Self::at(Stage::Answer { role: key.role(), user, state })
                }
                Stage::Answer { role, user, mut state } => {
                    state.read_message(&message, &mut []).map_err(|_| ChannelError::WrongKey)?;
                    if let Some(user) = user {
                        if state.get_remote_static() != Some(user.manager().bytes()) {
                            return Err(ChannelError::WrongManager);
                        }
                        reply.extend(frame(&write(&mut state)));
                    }
                    return done(*state, role, None, false, reply);
                }
                Stage::First { keys, challenge, random } => {
                    let Opened { role, user, former, mut state } =
                        open(&keys, &challenge, &random, &message)?;
                    reply.extend(frame(&write(&mut state)));
                    if !user {
                        return done(*state, role, None, former, reply);
                    }
                    Self::at(Stage::Last { former, state })
                }
                Stage::Last { former, mut state } => {
                    state.read_message(&message, &mut []).map_err(|_| ChannelError::WrongKey)?;
                    let user = state.get_remote_static().and_then(|key| key.try_into().ok()).map(UserId);
                    let user = user.ok_or(ChannelError::NotFerrolite)?;
                    return done(*state, Role::Client, Some(user), former, reply);
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

/// A responder's handshake after a first message with a right key.
struct Opened {
    role: Role,
    /// True if the initiator has a user's key.
    user: bool,
    /// True if the key is that of the former cluster key.
    former: bool,
    state: Box<HandshakeState>,
}

/// Opens an initiator's first message with the key for its role, of this cluster key or the former one.
fn open(
    keys: &RoleKeys,
    challenge: &[u8; CHALLENGE],
    random: &Zeroizing<[u8; 32]>,
    message: &[u8],
) -> Result<Opened, ChannelError> {
    let Some((&kind, message)) = message.split_first() else { return Err(ChannelError::NotFerrolite) };
    let user = kind == USER;
    let role = if user { Role::Client } else { Role::from_byte(kind).ok_or(ChannelError::NotFerrolite)? };
    for (age, keys) in keys.generations().enumerate() {
        let arithmetic = Arithmetic::default();
        let primitives = Primitives { pair: None, random: Some(random.clone()), arithmetic };
        let own = user.then(|| keys.identity());
        let mut state = state(keys.of(role), own, challenge, false, primitives);
        if state.read_message(message, &mut []).is_ok() {
            return Ok(Opened { role, user, former: age > 0, state });
        }
    }
    Err(ChannelError::WrongKey)
}

/// Makes Noise's state at the beginning of a handshake. `own` is this side's static key if the initiator has
/// a user's key.
fn state(
    key: &RoleKey,
    own: Option<&KeyPair>,
    challenge: &[u8; CHALLENGE],
    initiator: bool,
    primitives: Primitives,
) -> Box<HandshakeState> {
    let kind = if own.is_some() { USER } else { key.role().byte() };
    let prologue = [PROLOGUE, &[kind], challenge].concat();
    let params =
        if own.is_some() { params(XX, HandshakePattern::XX) } else { params(NN, HandshakePattern::NN) };
    let builder = Builder::with_resolver(params, Box::new(primitives))
        .psk(0, key.bytes())
        .and_then(|builder| builder.prologue(&prologue))
        .and_then(|builder| match own {
            Some(own) => builder.local_private_key(own.private()),
            None => Ok(builder),
        })
        .and_then(|builder| if initiator { builder.build_initiator() } else { builder.build_responder() });
    // The parameters are constant, the keys' types fix their lengths, and the resolver has all primitives.
    Box::new(builder.expect("constant Noise parameters"))
}

/// Returns this side's Noise message.
fn write(state: &mut HandshakeState) -> Vec<u8> {
    let mut message = vec![0; USER_ANSWER];
    // Cannot fail: it is this side's turn, the buffer fits, and there is an ephemeral key or the bytes for
    // one.
    let written = state.write_message(&[], &mut message).expect("handshake message");
    message.truncate(written);
    message
}

/// Returns the message with its length in front.
fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

fn done(
    state: HandshakeState,
    role: Role,
    user: Option<UserId>,
    former: bool,
    reply: Vec<u8>,
) -> Result<HandshakeStep, ChannelError> {
    let transport = state.into_stateless_transport_mode().map_err(|_| ChannelError::NotFerrolite)?;
    let transport = Arc::new(transport);
    let (sealer, opener) = (Sealer::new(transport.clone()), Opener::new(transport));
    Ok(HandshakeStep::Done { reply, channel: Channel { sealer, opener, role, user, former } })
}

/// The name of the handshake of a peer with the key of a role alone.
const NN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The name of the handshake of a peer with a user's key.
const XX: &str = "Noise_XXpsk0_25519_ChaChaPoly_BLAKE2s";

/// Makes the parameters of that name, with pre-shared key 0, without parsing.
fn params(name: &str, pattern: HandshakePattern) -> NoiseParams {
    let modifiers = HandshakeModifierList { list: vec![HandshakeModifier::Psk(0)] };
    NoiseParams::new(
        name.into(),
        BaseChoice::Noise,
        HandshakeChoice { pattern, modifiers },
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
