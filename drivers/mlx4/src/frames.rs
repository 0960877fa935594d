//! Plain Ethernet frames beside RDMA, for a machine without another network card.

use crate::control::{Card, Control};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::packets::{Packets, Room};
use crate::qp::context::Service;
use crate::steering::{BROADCAST, Steering, is_group};
use crate::{Function, Mlx4};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use lock_api::RawMutex;
use verbs::MacAddr;

/// The length of a frame's header with a VLAN tag, in bytes.
const HEADER: usize = 14 + 4;
/// The number of frames that there is memory for, in each direction.
const FRAMES: u32 = 256;
/// The length of the shortest frame, in bytes.
const SHORTEST: usize = 60;
/// The maximum number of groups, not counting broadcast.
const MAX_GROUPS: usize = 32;

/// The sender and receiver of frames.
pub(crate) struct Frames<B> {
    pub(crate) packets: Packets<B>,
    steering: Steering,
    mac: [u8; 6],
    groups: Vec<[u8; 6]>,
    /// True if other functions of the card may have the address to which a frame is sent.
    shared: bool,
    /// The frame that is being read or written.
    scratch: Box<[u8]>,
}

impl<B: Block> Frames<B> {
    /// Starts to receive frames to the port's address and to broadcast.
    pub(crate) fn start(
        hw: &impl Hardware<Block = B>,
        control: &mut Control<B>,
        card: &Card,
    ) -> Result<Self, Error> {
        let len = (usize::from(card.info.max_mtu) + HEADER).next_multiple_of(64);
        let room = Room { receives: FRAMES, receive_len: len as u32, sends: FRAMES, send_len: len as u32 };
        let number = control.allocate_qpn(hw)?;
        let packets = control.create_packets(hw, card, Service::Frames, number, room)?;
        let steering = Steering::begin(hw, &mut control.commands, card, number)?;
        Ok(Self {
            packets,
            steering,
            mac: card.info.mac.0,
            groups: Vec::new(),
            shared: card.function == Function::Virtual,
            scratch: vec![0; len].into(),
        })
    }

    /// Starts to receive frames to a group.
    pub(crate) fn join(
        &mut self,
        hw: &impl Hardware<Block = B>,
        control: &mut Control<B>,
        group: [u8; 6],
    ) -> Result<(), Error> {
        if !is_group(group) || group == BROADCAST || self.groups.contains(&group) {
            return Ok(());
        }
        if self.groups.len() >= MAX_GROUPS {
            return Err(Error::Exhausted("groups"));
        }
        let card = control.card.clone();
        self.steering.add(hw, &mut control.commands, &card, group)?;
        self.groups.push(group);
        self.steering.filter(hw, &mut control.commands, &card, &self.groups)
    }

    /// Returns the number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.packets.number()
    }

    /// Returns the joined groups.
    pub(crate) fn groups(&self) -> &[[u8; 6]] {
        &self.groups
    }

    /// Returns true if a frame is addressed to this port and was not sent by it.
    fn is_for_us(&self, frame: &[u8]) -> bool {
        let Some((to, from)) = frame.first_chunk::<12>().map(|both| {
            let [a, b, c, d, e, f, from @ ..] = *both;
            ([a, b, c, d, e, f], from)
        }) else {
            return false;
        };
        from != self.mac && (to == self.mac || to == BROADCAST || self.groups.contains(&to))
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        for _ in 0..budget {
            let Some(arrival) = self.packets.next() else { break };
            for (place, word) in self.scratch.as_chunks_mut().0.iter_mut().zip(self.packets.words(&arrival)) {
                *place = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            self.packets.give_back(arrival);
            let frame = self.scratch.get(..arrival.len).unwrap_or_default();
            if self.is_for_us(frame) {
                each(frame);
                taken += 1;
            }
        }
        taken
    }

    fn transmit(
        &mut self,
        hw: &impl Hardware<Block = B>,
        max_len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        // Looking for room also collects completed sends.
        if !self.packets.has_room() {
            return false;
        }
        let Some(place) = self.scratch.get_mut(..max_len) else { return false };
        let len = fill(place).min(max_len);
        let padded = len.max(SHORTEST);
        if let Some(padding) = self.scratch.get_mut(len..padded) {
            padding.fill(0);
        }
        let to = self.scratch.first_chunk().copied().filter(|_| self.shared);
        let scratch = &self.scratch;
        self.packets.send(
            hw,
            |words| {
                for (word, bytes) in words.iter().zip(scratch.as_chunks().0).take(padded.div_ceil(8)) {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
            },
            |wqe, key, addr| wqe.frame(key, addr, padded as u32, to),
        )
    }
}

/// Plain frames on a port that was started with [`Config::frames`](crate::Config::frames). The port receives
/// frames to its own address, to broadcast, and to the groups that it has joined.
/// [`Rnic::arm`](verbs::Rnic::arm) also requests an interrupt for the next frame.
impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Returns the maximum payload of a frame in bytes, or `None` if the port was started without frames.
    pub fn frame_payload(&self) -> Option<u16> {
        self.frames.lock().as_ref().map(|_| self.card.info.max_mtu)
    }

    /// Returns true if a frame can be sent at once. A card that has failed accepts all frames and drops them.
    pub fn has_frame_room(&self) -> bool {
        self.has_failed() || self.frames.lock().as_mut().is_some_and(|frames| frames.packets.has_room())
    }

    /// Calls `each` with up to `budget` received frames, without their check sequences. Returns the number of
    /// frames.
    pub fn receive_frames(&self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        if self.has_failed() {
            return 0;
        }
        self.frames.lock().as_mut().map_or(0, |frames| frames.receive(budget, each))
    }

    /// Sends one frame of at most `max_len` bytes, which `fill` writes and whose length it returns. Returns
    /// false, without a call of `fill`, if there is no room now, or no room for a frame of that length.
    pub fn transmit_frame(&self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        if self.has_failed() {
            return false;
        }
        self.frames.lock().as_mut().is_some_and(|frames| frames.transmit(&self.hw, max_len, fill))
    }

    /// Starts to receive frames to a group.
    ///
    /// # Errors
    /// If the port was started without frames, it has too many groups, or the card refuses.
    pub fn join_group(&self, group: MacAddr) -> Result<(), Error> {
        self.with_control(|control| match &mut *self.frames.lock() {
            Some(frames) => frames.join(&self.hw, control, group.0),
            None => Err(Error::Lacks("a queue for frames")),
        })
    }
}
