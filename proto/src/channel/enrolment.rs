//! The enrolment of a node that boots without a key: it exchanges a token, which is good for one use, for the
//! key of a node.
//!
//! The exchange is [Noise](https://noiseprotocol.org/noise.html) `NK`: the node knows the manager's public
//! key, and the manager knows the token. One message goes in each direction, each behind its length in two
//! bytes.
//!
//! | from | frame | payload |
//! |---|---|---|
//! | node | ephemeral key, payload, tag | the token, the node's Ethernet address, the digest of its kernel |
//! | manager | ephemeral key, payload, tag | 1 and the text of the key, or 0 and the reason of a refusal |
//!
//! A recorded first message has a token that has been used. Only the holder of the manager's private key can
//! read a token or answer.

use super::cipher::Arithmetic;
use super::dh::KeyPair;
use super::handshake::Primitives;
use super::key::{ClusterKey, NotAKey};
use super::{ChannelError, LENGTH_BYTES, TAG_BYTES};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use blake2::{Blake2s256, Digest};
use core::fmt;
use snow::params::{
    BaseChoice, CipherChoice, DHChoice, HandshakeChoice, HandshakeModifierList, HandshakePattern, HashChoice,
    NoiseParams,
};
use snow::{Builder, HandshakeState};
use verbs::MacAddr;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The prologue, so that another protocol or version fails the exchange.
const PROLOGUE: &[u8] = b"ferrolite enrolment 1";
/// The size of a key, a token and a digest, in bytes.
const BYTES: usize = 32;
/// The length of a request's payload, in bytes.
const REQUEST: usize = 2 * BYTES + 6;
/// The length of an ephemeral key and a tag, in bytes.
const OVERHEAD: usize = BYTES + TAG_BYTES;
/// The greatest length of an answer's payload, in bytes.
const LONGEST_ANSWER: usize = 512;
/// The granularity in which kernels are digested, in bytes: a page.
const PAGE: usize = 4096;

/// The length of a request's frame, in bytes.
pub const REQUEST_FRAME: usize = LENGTH_BYTES + OVERHEAD + REQUEST;
/// The greatest length of an answer's frame, in bytes.
pub const LONGEST_ANSWER_FRAME: usize = LENGTH_BYTES + OVERHEAD + LONGEST_ANSWER;

/// A text that is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want 64 hexadecimal digits")]
pub struct NotHex;

fn from_hex(text: &str) -> Result<[u8; BYTES], NotHex> {
    // The digits of a whole cluster key.
    ClusterKey::from_hex(text.as_bytes()).ok().and_then(|key| key.whole()).ok_or(NotHex)
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The key by which nodes know their manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerKey([u8; BYTES]);

impl ManagerKey {
    pub(super) const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Parses 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, NotHex> {
        from_hex(text).map(Self)
    }
}

impl fmt::Display for ManagerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

/// The digest of a kernel's code and constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDigest([u8; BYTES]);

impl KernelDigest {
    /// Computes the digest of a kernel's parts, each filled up to whole pages with zeros.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Blake2s256::new();
        for part in parts {
            hash.update(part);
            let fill = part.len().next_multiple_of(PAGE) - part.len();
            hash.update(&[0; PAGE][..fill]);
        }
        Self(hash.finalize().into())
    }

    /// Returns the bytes of the digest.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; BYTES] {
        self.0
    }
}

impl fmt::Display for KernelDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

/// A secret that is good for one enrolment. `Debug` never prints it.
#[derive(Clone, PartialEq, Eq, Hash, Zeroize, ZeroizeOnDrop)]
pub struct Token([u8; BYTES]);

impl Token {
    /// Makes a token of bytes from a cryptographically secure source.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Parses 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, NotHex> {
        from_hex(text).map(Self)
    }

    /// Returns the 64 hexadecimal digits, for a node's command line.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut text = ClusterKey::from_bytes(self.0).to_hex();
        text.truncate(2 * BYTES);
        text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The request of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The token of this boot.
    pub token: Token,
    /// The Ethernet address of the node's management port.
    pub mac: MacAddr,
    /// The digest of the node's kernel.
    pub kernel: KernelDigest,
}

/// The reason for which a node has got no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrolmentError {
    /// The answer is not from the holder of the manager's key, or was changed on the way.
    #[error("the answer is not from this image's manager: {0}")]
    Channel(#[from] ChannelError),
    /// The manager refuses the token.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// The manager's answer contains no key.
    #[error(transparent)]
    NotAKey(#[from] NotAKey),
}

/// The node's side, which has sent its request.
#[derive(Debug)]
pub struct Enrolling(Box<HandshakeState>);

impl Enrolling {
    /// Starts an enrolment. Also returns the frame to send. `random` must be fresh.
    #[must_use]
    pub fn new(manager: &ManagerKey, request: &Request, random: [u8; 32]) -> (Self, Vec<u8>) {
        let mut payload = Zeroizing::new([0; REQUEST]);
        payload[..BYTES].copy_from_slice(&request.token.0);
        payload[BYTES..BYTES + 6].copy_from_slice(&request.mac.0);
        payload[BYTES + 6..].copy_from_slice(&request.kernel.0);
        let build = |builder: Builder<'_>| builder.remote_public_key(&manager.0)?.build_initiator();
        let mut state = state(random, build);
        let frame = frame(&mut state, &*payload);
        (Self(state), frame)
    }

    /// Returns the key of the manager's answer, `message`: a frame without its length.
    ///
    /// # Errors
    /// If the manager refuses, or the answer is not the manager's.
    pub fn finish(mut self, message: &[u8]) -> Result<ClusterKey, EnrolmentError> {
        let mut payload = Zeroizing::new(vec![0; message.len()]);
        let len = self.0.read_message(message, &mut payload).map_err(|_| ChannelError::WrongKey)?;
        match payload.get(..len).and_then(<[u8]>::split_first) {
            Some((1, key)) => Ok(ClusterKey::from_hex(key)?),
            Some((_, reason)) => Err(EnrolmentError::Refused(String::from_utf8_lossy(reason).into_owned())),
            None => Err(ChannelError::NotFerrolite.into()),
        }
    }
}

/// The key pair of a manager that enrols nodes. It is derived from the cluster key.
pub struct Registrar {
    pair: KeyPair,
}

impl Registrar {
    pub(super) fn new(private: Zeroizing<[u8; BYTES]>) -> Self {
        Self { pair: KeyPair::new(private) }
    }

    /// Returns the key by which nodes know this manager.
    #[must_use]
    pub const fn public(&self) -> ManagerKey {
        ManagerKey(*self.pair.public())
    }

    /// Reads a node's request, `message`: a frame without its length. `random` must be fresh.
    ///
    /// # Errors
    /// If the message is not a request to this manager.
    pub fn read(&self, message: &[u8], random: [u8; 32]) -> Result<(Request, Reply), ChannelError> {
        let build = |builder: Builder<'_>| builder.local_private_key(self.pair.private())?.build_responder();
        let mut state = state(random, build);
        let mut payload = Zeroizing::new([0; REQUEST]);
        if message.len() != OVERHEAD + REQUEST {
            return Err(ChannelError::NotFerrolite);
        }
        state.read_message(message, &mut *payload).map_err(|_| ChannelError::WrongKey)?;
        let part = |at: usize| payload.get(at..).and_then(|rest| rest.first_chunk().copied());
        let (Some(token), Some(mac), Some(kernel)) =
            (part(0), payload.get(BYTES..).and_then(|rest| rest.first_chunk().copied()), part(BYTES + 6))
        else {
            return Err(ChannelError::NotFerrolite);
        };
        let request = Request { token: Token(token), mac: MacAddr(mac), kernel: KernelDigest(kernel) };
        Ok((request, Reply(state)))
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registrar({})", self.public())
    }
}

/// A manager's answer to a request, which must still be made.
#[derive(Debug)]
pub struct Reply(Box<HandshakeState>);

impl Reply {
    /// Returns the frame that gives the node its key.
    #[must_use]
    pub fn key(mut self, key: &ClusterKey) -> Vec<u8> {
        let text = key.to_hex();
        let mut payload = Zeroizing::new(Vec::with_capacity(1 + text.len()));
        payload.push(1);
        payload.extend_from_slice(text.as_bytes());
        frame(&mut self.0, &payload)
    }

    /// Returns the frame that refuses. `reason` is cut if it is longer than an answer.
    #[must_use]
    pub fn refuse(mut self, reason: &str) -> Vec<u8> {
        let reason = reason.as_bytes();
        let payload = [&[0], reason.get(..LONGEST_ANSWER - 1).unwrap_or(reason)].concat();
        frame(&mut self.0, &payload)
    }
}

/// Makes the state at the beginning of an exchange.
fn state(
    random: [u8; 32],
    build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Box<HandshakeState> {
    let random = Some(Zeroizing::new(random));
    let primitives = Primitives { pair: None, random, arithmetic: Arithmetic::default() };
    let builder = Builder::with_resolver(params(), Box::new(primitives)).prologue(PROLOGUE);
    // The parameters are constant, the keys' types fix their lengths, and the resolver has all primitives.
    Box::new(builder.and_then(build).expect("constant Noise parameters"))
}

/// Returns the next message with `payload`, behind its length.
fn frame(state: &mut HandshakeState, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; LENGTH_BYTES + OVERHEAD + payload.len()];
    let (length, message) = frame.split_at_mut(LENGTH_BYTES);
    length.copy_from_slice(&((OVERHEAD + payload.len()) as u16).to_be_bytes());
    // Cannot fail: it is this side's turn, the buffer fits, and there are bytes for an ephemeral key.
    let written = state.write_message(payload, message).expect("enrolment message");
    debug_assert_eq!(written, OVERHEAD + payload.len());
    frame
}

/// Makes `Noise_NK_25519_ChaChaPoly_BLAKE2s` without parsing.
fn params() -> NoiseParams {
    let handshake = HandshakeChoice {
        pattern: HandshakePattern::NK,
        modifiers: HandshakeModifierList { list: Vec::new() },
    };
    NoiseParams::new(
        "Noise_NK_25519_ChaChaPoly_BLAKE2s".into(),
        BaseChoice::Noise,
        handshake,
        DHChoice::Curve25519,
        CipherChoice::ChaChaPoly,
        HashChoice::Blake2s,
    )
}
