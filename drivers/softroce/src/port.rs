//! The Ethernet port below: frames in and out, in place.

use verbs::MacAddr;

/// An Ethernet device as the software RNIC uses it. It delivers only RoCE frames (IPv4 or IPv6 UDP port 4791,
/// Ethertype 0x8915); whoever implements it keeps the rest (ARP, ND, TCP) for the host's own stack.
pub trait EthernetPort: Send {
    /// The port's address.
    fn mac(&self) -> MacAddr;

    /// The largest payload of a frame (Ethernet MTU): a frame is at most 14 bytes longer.
    fn mtu(&self) -> usize;

    /// Calls `each` with up to `budget` received frames, where they lie; gives how many.
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize;

    /// Has `fill` write one frame of at most `max_len` bytes where the device will read it; `fill` gives its length.
    /// `false`, and `fill` is not called, while the device has no room.
    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;

    /// Tells the device about the frames transmitted since the last call.
    fn flush(&mut self);

    /// Asks for an interrupt at the next frame. `true`: frames already wait.
    fn arm(&mut self) -> bool;
}
