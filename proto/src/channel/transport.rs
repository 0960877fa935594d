//! Messages after the handshake: sealing into frames, and opening them from a stream of bytes.

use super::{ChannelError, FRAME_OVERHEAD, FRAME_PAYLOAD, LENGTH_BYTES, MAX_MESSAGE, TAG_BYTES};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use snow::StatelessTransportState;

/// Bytes on the wire of a message of `len` bytes.
#[must_use]
pub const fn sealed_len(len: usize) -> usize {
    len + (len / FRAME_PAYLOAD + 1) * FRAME_OVERHEAD
}

/// The sending half of a channel.
pub struct Sealer {
    transport: Arc<StatelessTransportState>,
    /// The number of the next frame.
    nonce: u64,
}

impl Sealer {
    pub(super) fn new(transport: Arc<StatelessTransportState>) -> Self {
        Self { transport, nonce: 0 }
    }

    /// Appends the sealed message to `out`.
    pub fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), ChannelError> {
        let start = out.len();
        out.resize(start + sealed_len(message.len()), 0);
        let sealed = self.seal_into(message, out.get_mut(start..).unwrap_or_default());
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed.map(|_| ())
    }

    /// Writes the sealed message to the front of `out`, which must have [`sealed_len`] bytes; gives that number.
    /// Does not allocate. What was sealed must be sent, in order.
    pub fn seal_into(&mut self, message: &[u8], out: &mut [u8]) -> Result<usize, ChannelError> {
        if message.len() > MAX_MESSAGE {
            return Err(ChannelError::TooLong { max: MAX_MESSAGE });
        }
        let len = sealed_len(message.len());
        let out = out.get_mut(..len).ok_or(ChannelError::NoRoom)?;
        let mut frames = out.chunks_mut(FRAME_PAYLOAD + FRAME_OVERHEAD);
        let mut payloads = message.chunks(FRAME_PAYLOAD);
        for frame in &mut frames {
            // A message of whole frames ends with an empty one.
            let payload = payloads.next().unwrap_or_default();
            let (length, body) = frame.split_at_mut(LENGTH_BYTES);
            length.copy_from_slice(&((payload.len() + TAG_BYTES) as u16).to_be_bytes());
            // Fails only when 2^64 - 1 frames have been sent.
            self.transport
                .write_message(self.nonce, payload, body)
                .map_err(|_| ChannelError::TooLong { max: MAX_MESSAGE })?;
            self.nonce += 1;
        }
        Ok(len)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

/// The receiving half of a channel.
pub struct Opener {
    transport: Arc<StatelessTransportState>,
    /// The number of the next frame.
    nonce: u64,
    /// The front of a frame whose rest has not come yet, length included.
    frame: Vec<u8>,
    /// What has been opened of a message.
    message: Vec<u8>,
    /// The longest message taken.
    max_message: usize,
    /// Whether an error has ended the channel.
    failed: Option<ChannelError>,
}

impl Opener {
    pub(super) fn new(transport: Arc<StatelessTransportState>) -> Self {
        Self {
            transport,
            nonce: 0,
            frame: Vec::new(),
            message: Vec::new(),
            max_message: MAX_MESSAGE,
            failed: None,
        }
    }

    /// Takes messages of at most that many bytes from now on, and never more than [`MAX_MESSAGE`].
    pub fn limit(&mut self, max_message: usize) {
        self.max_message = max_message.min(MAX_MESSAGE);
    }

    /// Takes bytes from the front of `bytes` until a message is whole, which it gives, or none are left. It holds at
    /// most one frame and one message. After an error it gives the same error again.
    pub fn open(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, ChannelError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let opened = self.open_frames(bytes);
        self.failed = opened.as_ref().err().copied();
        opened
    }

    fn open_frames(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, ChannelError> {
        loop {
            // A frame that is whole in `bytes` is opened from there, without a copy.
            let whole = self.frame.is_empty().then(|| split_frame(bytes)).transpose()?.flatten();
            let ended = if let Some((noise, rest)) = whole {
                *bytes = rest;
                self.open_frame(noise)?
            } else {
                if !self.collect(bytes)? {
                    return Ok(None);
                }
                let frame = core::mem::take(&mut self.frame);
                let ended = self.open_frame(frame.get(LENGTH_BYTES..).unwrap_or_default())?;
                self.frame = frame;
                self.frame.clear();
                ended
            };
            if ended {
                return Ok(Some(core::mem::take(&mut self.message)));
            }
        }
    }

    /// Moves bytes to the frame held; whether it is whole.
    fn collect(&mut self, bytes: &mut &[u8]) -> Result<bool, ChannelError> {
        loop {
            let wanted = match frame_len(&self.frame)? {
                None => LENGTH_BYTES,
                Some(len) => len,
            };
            let missing = wanted - self.frame.len();
            if missing == 0 {
                return Ok(true);
            }
            if bytes.is_empty() {
                return Ok(false);
            }
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.frame.extend_from_slice(taken);
            *bytes = rest;
        }
    }

    /// Opens a Noise message onto the end of the message held; whether that is now whole.
    fn open_frame(&mut self, noise: &[u8]) -> Result<bool, ChannelError> {
        let start = self.message.len();
        let payload = noise.len().saturating_sub(TAG_BYTES);
        if start + payload > self.max_message {
            return Err(ChannelError::TooLong { max: self.max_message });
        }
        self.message.resize(start + payload, 0);
        let into = self.message.get_mut(start..).unwrap_or_default();
        self.transport.read_message(self.nonce, noise, into).map_err(|_| ChannelError::Damaged)?;
        self.nonce += 1;
        Ok(payload < FRAME_PAYLOAD)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

/// Bytes of the frame that starts with `bytes`, its length included; `None` if even the length is not there.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, ChannelError> {
    let Some(&length) = bytes.first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(length));
    if !(TAG_BYTES..=FRAME_PAYLOAD + TAG_BYTES).contains(&length) {
        return Err(ChannelError::Damaged);
    }
    Ok(Some(LENGTH_BYTES + length))
}

/// A frame's Noise message, and the bytes behind the frame.
type NoiseAndRest<'a> = (&'a [u8], &'a [u8]);

/// The Noise message of the frame at the front of `bytes`, and what follows; `None` if it is not whole.
fn split_frame(bytes: &[u8]) -> Result<Option<NoiseAndRest<'_>>, ChannelError> {
    let Some(len) = frame_len(bytes)? else { return Ok(None) };
    let Some((frame, rest)) = bytes.split_at_checked(len) else { return Ok(None) };
    Ok(frame.get(LENGTH_BYTES..).map(|noise| (noise, rest)))
}
