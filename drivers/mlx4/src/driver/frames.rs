//! Plain Ethernet frames beside RDMA, for a machine without another network card.

use super::Mlx4;
use crate::config::FramePort;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::objects::frames::Frames;
use lock_api::{MutexGuard, RawMutex};
use verbs::MacAddr;

/// Plain frames on a port that was started with [`Config::frames`](crate::Config::frames) or as
/// [`Config::second`](crate::Config::second). The port receives frames to its own address, to broadcast, and
/// to the groups that it has joined. [`Rnic::arm`](verbs::Rnic::arm) also requests an interrupt for the next
/// frame.
impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    fn frames(&self, port: FramePort) -> MutexGuard<'_, R, Option<Frames<H::Block>>> {
        let [rdma, second] = &self.frames;
        match port {
            FramePort::Rdma => rdma.lock(),
            FramePort::Second => second.lock(),
        }
    }

    /// Returns the Ethernet address of a port and the maximum payload of a frame in bytes, or `None` if the
    /// port was started without frames.
    pub fn frame_port(&self, port: FramePort) -> Option<(MacAddr, u16)> {
        self.frames(port).as_ref()?;
        self.card.attached(port).map(|attached| (attached.info.mac, attached.info.max_mtu))
    }

    /// Returns true if a frame can be sent at once. A card that has failed accepts all frames and drops them.
    pub fn has_frame_room(&self, port: FramePort) -> bool {
        self.has_failed() || self.frames(port).as_mut().is_some_and(|frames| frames.packets.has_room())
    }

    /// Calls `each` with up to `budget` received frames, without their check sequences. Returns the number of
    /// frames.
    pub fn receive_frames(&self, port: FramePort, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        if self.has_failed() {
            return 0;
        }
        self.frames(port).as_mut().map_or(0, |frames| frames.receive(budget, each))
    }

    /// Sends one frame of at most `max_len` bytes, which `fill` writes and whose length it returns. Returns
    /// false, without a call of `fill`, if there is no room now, or no room for a frame of that length.
    pub fn transmit_frame(
        &self,
        port: FramePort,
        max_len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        if self.has_failed() {
            return false;
        }
        self.frames(port).as_mut().is_some_and(|frames| frames.transmit(&self.hw, max_len, fill))
    }

    /// Starts to receive frames to a group.
    ///
    /// # Errors
    /// If the port was started without frames, it has too many groups, or the card refuses.
    pub fn join_group(&self, port: FramePort, group: MacAddr) -> Result<(), Error> {
        self.with_control(|control| match &mut *self.frames(port) {
            Some(frames) => frames.join(control, group.0),
            None => Err(Error::Lacks("a queue for frames")),
        })
    }
}
