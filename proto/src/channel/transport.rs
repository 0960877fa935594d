//! Messages after the handshake: sealing into frames, and opening from a stream of bytes.

use super::{ChannelError, FRAME_OVERHEAD, FRAME_PAYLOAD, LENGTH_BYTES, MAX_MESSAGE, TAG_BYTES};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use snow::StatelessTransportState;

/// Returns the length on the wire of a message of `len` bytes.
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

    /// Writes the sealed message to the front of `out` and returns its length, [`sealed_len`]. Does not
    /// allocate. All sealed messages must be sent, in order.
    ///
    /// # Errors
    /// [`ChannelError::NoRoom`] if `out` is shorter than that.
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
            // Fails only after 2^64 - 1 frames.
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
    /// The received front part of an incomplete frame, with its length.
    frame: Vec<u8>,
    /// The opened part of a message.
    message: Vec<u8>,
    /// The maximum length of an accepted message, in bytes.
    max_message: usize,
    /// The error that has ended the channel.
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

    /// Limits messages to `max_message` bytes from now on. The limit is never above [`MAX_MESSAGE`].
    pub fn limit(&mut self, max_message: usize) {
        self.max_message = max_message.min(MAX_MESSAGE);
    }

    /// Consumes bytes from the front of `bytes` until a message is complete, which it returns, or no bytes
    /// are left. Buffers at most one frame and one message. After an error all calls return the same error.
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
            // A frame that is complete in `bytes` is opened there, without a copy.
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

    /// Moves bytes to the buffered frame. Returns true if it is complete.
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

    /// Opens a Noise message at the end of the buffered message. Returns true if that is complete.
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

/// Returns the length of the frame at the front of `bytes`, in bytes, including its length field; `None` if
/// the length field is not complete.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, ChannelError> {
    let Some(&length) = bytes.first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(length));
    if !(TAG_BYTES..=FRAME_PAYLOAD + TAG_BYTES).contains(&length) {
        return Err(ChannelError::Damaged);
    }
    Ok(Some(LENGTH_BYTES + length))
}

/// A frame's Noise message, and the bytes after the frame.
type NoiseAndRest<'a> = (&'a [u8], &'a [u8]);

/// Returns the Noise message of the frame at the front of `bytes`, and the bytes after the frame; `None` if
/// the frame is not complete.
fn split_frame(bytes: &[u8]) -> Result<Option<NoiseAndRest<'_>>, ChannelError> {
    let Some(len) = frame_len(bytes)? else { return Ok(None) };
    let Some((frame, rest)) = bytes.split_at_checked(len) else { return Ok(None) };
    Ok(frame.get(LENGTH_BYTES..).map(|noise| (noise, rest)))
}
