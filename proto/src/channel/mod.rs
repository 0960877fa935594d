//! The encrypted channel of a control connection: Noise under the cluster key, over any byte stream, without
//! I/O.
//!
//! The handshake is [Noise](https://noiseprotocol.org/noise.html) `NNpsk0` with Curve25519, ChaCha20-Poly1305
//! and BLAKE2s. The pre-shared key is that of the initiator's [`Role`], derived from the cluster key. Both
//! sides thereby prove that they have the key, and each connection has its own session keys. Randomness is an
//! argument: fresh bytes for each handshake, from a cryptographically secure source.
//!
//! | from | frame |
//! |---|---|
//! | responder | 32 random bytes, the challenge |
//! | initiator | its role (1: node, 2: client), and the first Noise message, 48 bytes |
//! | responder | the second Noise message, 48 bytes, or an empty frame: another key |
//!
//! A user with a key of its own ([`UserKey`]) sends 3 in place of the role, and the pattern is `XXpsk0` under
//! the key of a client: the second message, 96 bytes, also has the manager's static key, which must be the
//! one that the user's key names, and a third one, 64 bytes, has the user's. Both are encrypted. So the
//! manager knows the user, and nobody else can be the manager for a user.
//!
//! Role and challenge are part of Noise's prologue. A recorded first message therefore has a wrong tag in
//! another handshake, which the responder detects before any computation on the curve.
//!
//! A frame is a big-endian `u16` length, followed by that many bytes of one Noise message. After the
//! handshake a message is divided into frames with [`FRAME_PAYLOAD`] bytes of payload. The first frame with
//! less payload (none, if the message's length is a multiple) ends the message. Each frame authenticates its
//! length, and frames are numbered by their Noise nonce, so that truncation, repetition and reordering are
//! detected.

mod cipher;
mod dh;
pub mod enrolment;
mod generator;
mod handshake;
mod key;
mod transport;
mod user;

pub use cipher::Arithmetic;
pub use generator::Generator;
pub use handshake::{Channel, Handshake, HandshakeStep};
pub use key::{ClusterKey, NotAKey, Role, RoleKey, RoleKeys, WrongRole};
pub use transport::{Opener, Sealer, sealed_len};
pub use user::{UserId, UserKey};

/// The payload of a full frame, in bytes.
pub const FRAME_PAYLOAD: usize = 16 * 1024;

/// The overhead of a frame in bytes: its length and the Poly1305 tag.
pub const FRAME_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;

/// The maximum length of a message on a channel, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;

/// The size of a frame's length, in bytes.
const LENGTH_BYTES: usize = 2;

/// The size of a Poly1305 tag, in bytes.
const TAG_BYTES: usize = 16;

/// The reason for which a channel failed. Nothing more can be sent or received on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer has another cluster key.
    #[error("wrong cluster key")]
    WrongKey,
    /// The peer does not send a Ferrolite control connection.
    #[error("the peer does not speak Ferrolite's control protocol")]
    NotFerrolite,
    /// The manager has another key than the one that this user's key names.
    #[error("the manager has another identity than the one in the user's key")]
    WrongManager,
    /// A frame was changed in transit, or belongs to another connection.
    #[error("a message was damaged on the way")]
    Damaged,
    /// A message is longer than this side sends or accepts.
    #[error("a message is longer than {max} bytes")]
    TooLong {
        /// The maximum length, in bytes.
        max: usize,
    },
    /// The buffer for a sealed message is shorter than [`sealed_len`] returns.
    #[error("no room for the sealed message")]
    NoRoom,
}
