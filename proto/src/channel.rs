//! The encrypted channel of a control connection: Noise under the cluster key, over any byte stream, without I/O.
//!
//! The handshake is [Noise](https://noiseprotocol.org/noise.html) `NNpsk0` with Curve25519, ChaCha20-Poly1305 and
//! BLAKE2s. Its pre-shared key is that of the initiator's [`Role`], which is derived from the cluster key, so that both
//! sides prove that they have it, and each connection has keys of its own. Randomness is an input: fresh bytes for each
//! handshake, from a source fit for keys.
//!
//! | from | frame |
//! |---|---|
//! | responder | 32 random bytes, the challenge |
//! | initiator | its role (1: node, 2: client), and the first Noise message, 48 bytes |
//! | responder | the second Noise message, 48 bytes, or an empty frame: another key |
//!
//! Role and challenge are part of Noise's prologue. So a recorded first message has a wrong tag in another handshake, which
//! the responder finds before it computes anything on the curve.
//!
//! On the wire everything is a frame: a big-endian `u16` length, then that many bytes of one Noise message. After the
//! handshake a message is cut into frames of [`FRAME_PAYLOAD`] bytes; the first frame with less than that (none, if
//! the message ends with a full one) ends it. Lengths are authenticated, as each frame's are, and frames are numbered
//! by their Noise nonce, so that nothing can be cut off, repeated or moved unnoticed.

mod cipher;
mod dh;
mod generator;
mod handshake;
mod key;
mod transport;

pub use cipher::Arithmetic;
pub use generator::Generator;
pub use handshake::{Channel, Handshake, HandshakeStep};
pub use key::{ClusterKey, NotAKey, Role, RoleKey, RoleKeys, WrongRole};
pub use transport::{Opener, Sealer, sealed_len};

/// Bytes of message in a full frame.
pub const FRAME_PAYLOAD: usize = 16 * 1024;

/// Bytes that a frame adds: its length and the Poly1305 tag.
pub const FRAME_OVERHEAD: usize = LENGTH_BYTES + TAG_BYTES;

/// Bytes of the longest message that a channel carries.
pub const MAX_MESSAGE: usize = 1 << 20;

/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 2;

/// Bytes of a Poly1305 tag.
const TAG_BYTES: usize = 16;

/// Why a channel cannot go on. Nothing more can be sent or received on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer has another cluster key.
    #[error("wrong cluster key")]
    WrongKey,
    /// What the peer sends is no Ferrolite control connection.
    #[error("the peer does not speak Ferrolite's control protocol")]
    NotFerrolite,
    /// A frame was changed on its way, or is not of this connection.
    #[error("a message was damaged on the way")]
    Damaged,
    /// A message is longer than this side sends or takes.
    #[error("a message is longer than {max} bytes")]
    TooLong {
        /// The most that is allowed.
        max: usize,
    },
    /// The buffer given for a sealed message is shorter than [`sealed_len`] says.
    #[error("no room for the sealed message")]
    NoRoom,
}
