//! Plain Ethernet frames beside RDMA, for a machine that has no other network card.

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

/// Bytes of the header of a frame, with a VLAN tag.
const HEADER: usize = 14 + 4;
/// Frames that there is memory for, each way.
const FRAMES: u32 = 256;
/// Bytes of the shortest frame.
const SHORTEST: usize = 60;
/// Groups beside that of all.
const MOST_GROUPS: usize = 32;

/// What sends and takes frames.
pub(crate) struct Frames<B> {
    pub(crate) packets: Packets<B>,
    steering: Steering,
    mac: [u8; 6],
    groups: Vec<[u8; 6]>,
    /// Other functions of the card may have the address that a frame goes to.
    shared: bool,
    /// Where a frame lies while it is looked at, or made.
    scratch: Box<[u8]>,
}

impl<B: Block> Frames<B> {
    /// Has frames to the port's address and to all come here.
    pub(crate) fn start(
        hw: &impl Hardware<Block = B>,
        control: &mut Control<B>,
        card: &Card,
    ) -> Result<Self, Error> {
        let len = (usize::from(card.info.max_mtu) + HEADER).next_multiple_of(64);
        let room = Room { receives: FRAMES, receive_len: len as u32, sends: FRAMES, send_len: len as u32 };
        let number = control.take_number(hw)?;
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

    /// Has frames to a group come here too.
    pub(crate) fn join(
        &mut self,
        hw: &impl Hardware<Block = B>,
        control: &mut Control<B>,
        group: [u8; 6],
    ) -> Result<(), Error> {
        if !is_group(group) || group == BROADCAST || self.groups.contains(&group) {
            return Ok(());
        }
        if self.groups.len() >= MOST_GROUPS {
            return Err(Error::Exhausted("groups"));
        }
        let card = control.card.clone();
        self.steering.add(hw, &mut control.commands, &card, group)?;
        self.groups.push(group);
        self.steering.filter(hw, &mut control.commands, &card, &self.groups)
    }

    /// The number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.packets.number()
    }

    /// The groups that were joined.
    pub(crate) fn groups(&self) -> &[[u8; 6]] {
        &self.groups
    }

    /// Whether a frame is for this port, and not its own.
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
        // What has left makes room.
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

/// Frames of a port that was started with [`Config::frames`](crate::Config::frames). Of frames that go to one, only those to the
/// port's own address are taken; of groups, that of all and those that were joined. [`Rnic::arm`](verbs::Rnic::arm) asks for an
/// interrupt at the next frame too.
impl<H: Hardware, R: RawMutex> Mlx4<H, R> {
    /// Bytes of the largest payload of a frame. `None`: the port has no frames.
    pub fn frame_payload(&self) -> Option<u16> {
        self.frames.lock().as_ref().map(|_| self.card.info.max_mtu)
    }

    /// Whether a frame can be sent at once. A card that has failed takes all that there is, and sends nothing.
    pub fn has_frame_room(&self) -> bool {
        self.has_failed() || self.frames.lock().as_mut().is_some_and(|frames| frames.packets.has_room())
    }

    /// Calls `each` with up to `budget` frames that have arrived, each without its check sequence; gives how many.
    pub fn receive_frames(&self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        if self.has_failed() {
            return 0;
        }
        self.frames.lock().as_mut().map_or(0, |frames| frames.receive(budget, each))
    }

    /// Has `fill` write one frame of at most `max_len` bytes, of which it gives the length, and sends it. `false`, and `fill` is
    /// not called: there is no room now, or for a frame that long.
    pub fn transmit_frame(&self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        if self.has_failed() {
            return false;
        }
        self.frames.lock().as_mut().is_some_and(|frames| frames.transmit(&self.hw, max_len, fill))
    }

    /// Has frames to a group come here too.
    ///
    /// # Errors
    /// If the port takes no frames, has too many groups, or the card refuses it.
    pub fn join_group(&self, group: MacAddr) -> Result<(), Error> {
        self.with_control(|control| match &mut *self.frames.lock() {
            Some(frames) => frames.join(&self.hw, control, group.0),
            None => Err(Error::Lacks("a queue for frames")),
        })
    }
}
