//! The Ethernet port below the RNIC: frames in and out, in place.

use verbs::MacAddr;

/// An Ethernet device as the software RNIC uses it. It delivers only RoCE frames (IPv4 or IPv6 UDP port 4791,
/// Ethertype 0x8915); its implementation keeps all others (ARP, ND, TCP) for the host's own stack.
pub trait EthernetPort: Send {
    /// Returns the port's Ethernet address.
    fn mac(&self) -> MacAddr;

    /// Returns the maximum payload of a frame (Ethernet MTU). A frame is at most 14 bytes longer.
    fn mtu(&self) -> usize;

    /// Calls `each` with up to `budget` received frames, in place, and returns their number.
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize;

    /// Lets `fill` write one frame of at most `max_len` bytes in the device's memory; `fill` returns its
    /// length. Returns false, without a call of `fill`, while the device has no room.
    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;

    /// Tells the device about the frames transmitted since the last call.
    fn flush(&mut self);

    /// Requests an interrupt for the next frame. Returns true if frames are already waiting.
    fn arm(&mut self) -> bool;
}
