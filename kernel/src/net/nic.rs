//! What is behind an Ethernet port: a device that takes frames and gives them where they lie. Virtio's ([`super::virtio`]), or
//! the port of a card ([`super::card`]).

use alloc::boxed::Box;
use verbs::MacAddr;

/// Bytes of the header of a frame.
pub const ETHERNET_HEADER: usize = 14;

/// Frames from the device. Neither allocates nor waits.
pub trait Receive: Send {
    /// The oldest frame received that was not taken yet.
    fn peek(&mut self) -> Option<&[u8]>;
    /// Takes the frame that [`peek`](Self::peek) shows: its buffer goes back to the device.
    fn pop(&mut self);
    /// Shows the device the buffers that were handed back.
    fn flush(&mut self);
    /// Asks for an interrupt at the next frame. `true`: frames wait already, and no interrupt may come.
    fn arm(&mut self) -> bool;
    /// Asks for no interrupts: the device is polled.
    fn disarm(&mut self);
    /// Frames received.
    fn frames(&self) -> u64;
}

/// Frames to the device. Neither allocates nor waits.
pub trait Transmit: Send {
    /// Whether there is room for a frame.
    fn has_room(&mut self) -> bool;
    /// Room for a frame of `len` bytes. `None` while there is none, and for a frame longer than the device's. What is
    /// written goes out with [`send`](Self::send), or not at all.
    fn buffer(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Queues the first `len` bytes of the last [`buffer`](Self::buffer) as a frame.
    ///
    /// # Panics
    /// If there was no such buffer.
    fn send(&mut self, len: usize);
    /// Tells the device about the frames since the last time.
    fn flush(&mut self);
    /// Asks for an interrupt at the next free buffer if one was missing. `true`: there is one already.
    fn arm(&mut self) -> bool;
    /// Asks for no interrupts: the device is polled.
    fn disarm(&mut self);
    /// Frames sent.
    fn frames(&self) -> u64;
}

/// A device that is up.
pub struct Nic {
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The largest payload of a frame.
    pub mtu: usize,
    /// Frames in.
    pub rx: Box<dyn Receive>,
    /// Frames out.
    pub tx: Box<dyn Transmit>,
}

impl Nic {
    /// Asks for an interrupt at the next frame, or at the next free transmit buffer if one was missing. `true`: such
    /// wait already, and no interrupt may come.
    pub fn arm(&mut self) -> bool {
        self.rx.arm() | self.tx.arm()
    }

    /// Asks for no interrupts: the device is polled.
    pub fn disarm(&mut self) {
        self.rx.disarm();
        self.tx.disarm();
    }
}
