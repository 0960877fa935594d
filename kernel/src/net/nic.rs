//! The device behind an Ethernet port, which sends and receives frames in place: a virtio device
//! ([`super::virtio`]), or the port of a card ([`super::card`]).

use alloc::boxed::Box;
use verbs::MacAddr;

/// The length of a frame's header, in bytes.
pub(super) const ETHERNET_HEADER: usize = 14;

/// Receives frames from a device. Neither allocates nor waits.
pub(crate) trait Receive: Send {
    /// Returns the oldest frame that was not consumed yet.
    fn peek(&mut self) -> Option<&[u8]>;
    /// Consumes the frame that [`peek`](Self::peek) returns: its buffer goes back to the device.
    fn pop(&mut self);
    /// Makes the returned buffers visible to the device.
    fn flush(&mut self);
    /// Requests an interrupt at the next frame. Returns `true` if frames are waiting already; there may be no
    /// interrupt then.
    fn arm(&mut self) -> bool;
    /// Turns interrupts off, because the device is polled.
    fn disarm(&mut self);
    /// Returns the number of received frames.
    #[cfg_attr(not(feature = "selftest"), expect(dead_code, reason = "only self-tests read it"))]
    fn frames(&self) -> u64;
}

/// Sends frames to a device. Neither allocates nor waits.
pub(crate) trait Transmit: Send {
    /// Returns true if the device can accept a frame.
    fn has_room(&mut self) -> bool;
    /// Returns a buffer for a frame of `len` bytes, or `None` if there is no room or the frame is too long
    /// for the device. Its content is sent by [`send`](Self::send), or not at all.
    fn buffer(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Queues the first `len` bytes of the last [`buffer`](Self::buffer) as a frame. A device that looks for
    /// frames may take it at once; [`flush`](Self::flush) must follow for any other.
    ///
    /// # Panics
    /// Panics if there was no such buffer.
    fn send(&mut self, len: usize);
    /// Notifies the device of the frames that were queued since the last call.
    fn flush(&mut self);
    /// Requests an interrupt at the next free buffer, if one was missing. Returns `true` if there is a free
    /// buffer already.
    fn arm(&mut self) -> bool;
    /// Turns interrupts off, because the device is polled.
    fn disarm(&mut self);
    /// Returns the number of sent frames.
    #[cfg_attr(not(feature = "selftest"), expect(dead_code, reason = "only self-tests read it"))]
    fn frames(&self) -> u64;
}

/// A running device.
pub(crate) struct Nic {
    /// The device's Ethernet address.
    pub mac: MacAddr,
    /// The largest payload of a frame, in bytes.
    pub mtu: usize,
    /// The receiving side.
    pub rx: Box<dyn Receive>,
    /// The sending side.
    pub tx: Box<dyn Transmit>,
}

impl Nic {
    /// Requests an interrupt at the next frame, or at the next free transmit buffer if one was missing.
    /// Returns `true` if there is one already; there may be no interrupt then.
    pub(crate) fn arm(&mut self) -> bool {
        self.rx.arm() | self.tx.arm()
    }

    /// Turns interrupts off, because the device is polled.
    pub(crate) fn disarm(&mut self) {
        self.rx.disarm();
        self.tx.disarm();
    }
}
