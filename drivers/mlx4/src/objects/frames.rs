//! Plain Ethernet frames beside RDMA, for a machine without another network card.

use crate::card::{Attached, Function};
use crate::config::{FramePort, Vlan};
use crate::control::Control;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::objects::packets::{Packets, Room};
use crate::objects::port::PortInfo;
use crate::objects::qp_context::Service;
use crate::objects::steering::{BROADCAST, Steering, is_group};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// The length of a frame's header with a VLAN tag, in bytes.
const HEADER: usize = 14 + 4;
/// The lengths of a frame's two addresses, and of a VLAN tag behind them, in bytes.
const ADDRESSES: usize = 12;
const TAG_LEN: usize = 4;
/// The type of a VLAN tag.
const TAG: [u8; 2] = [0x81, 0x00];
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
    /// The VLAN of all frames.
    vlan: Option<Vlan>,
    /// True if other functions of the card may have the address to which a frame is sent.
    shared: bool,
    /// The frame that is being read or written.
    scratch: Box<[u8]>,
}

impl<B: Block> Frames<B> {
    /// Starts to receive frames to the address of a port in use and to broadcast.
    pub(crate) fn start(
        control: &mut Control<'_, impl Hardware<Block = B>>,
        which: FramePort,
        at: Attached,
    ) -> Result<Self, Error> {
        let PortInfo { max_mtu, mac, .. } = at.info;
        let shared = control.card().function == Function::Virtual;
        let vlan = at.port.vlan;
        let len = (usize::from(max_mtu) + HEADER).next_multiple_of(64);
        let room = Room { receives: FRAMES, receive_len: len as u32, sends: FRAMES, send_len: len as u32 };
        let number = control.allocate_qpn()?;
        let packets = control.create_packets(Service::Frames(which), number, room)?;
        let (mut commands, card) = control.commands();
        let steering = Steering::begin(&mut commands, card, (which, at), number)?;
        Ok(Self {
            packets,
            steering,
            mac: mac.0,
            groups: Vec::new(),
            vlan,
            shared,
            scratch: vec![0; len].into(),
        })
    }

    /// Starts to receive frames to a group.
    pub(crate) fn join(
        &mut self,
        control: &mut Control<'_, impl Hardware<Block = B>>,
        group: [u8; 6],
    ) -> Result<(), Error> {
        if !is_group(group) || group == BROADCAST || self.groups.contains(&group) {
            return Ok(());
        }
        if self.groups.len() >= MAX_GROUPS {
            return Err(Error::Exhausted("groups"));
        }
        let (mut commands, card) = control.commands();
        self.steering.add(&mut commands, card, group)?;
        self.groups.push(group);
        self.steering.filter(&mut commands, &self.groups)
    }

    /// Returns the number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.packets.number()
    }

    /// Returns the multicast groups that the port has joined.
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

    /// Removes the tag of a received frame, and returns where the frame begins then. Returns `None` if the
    /// frame is not in the port's VLAN.
    fn remove_tag(&mut self) -> Option<usize> {
        let Some(vlan) = self.vlan else { return Some(0) };
        let (kind, tag) = (self.scratch.get(ADDRESSES..)?.first_chunk()?, self.scratch.get(ADDRESSES + 2..)?);
        let id = u16::from_be_bytes(*tag.first_chunk()?) & 0xfff;
        (*kind == TAG && id == vlan.id()).then_some(())?;
        self.scratch.copy_within(..ADDRESSES, TAG_LEN);
        Some(TAG_LEN)
    }

    /// Inserts the tag of the port's VLAN, if it has one, into a frame to be sent. Returns its new length.
    fn insert_tag(&mut self, len: usize) -> usize {
        let Some(vlan) = self.vlan else { return len };
        let tagged = len + TAG_LEN;
        if len < ADDRESSES || tagged > self.scratch.len() {
            return len;
        }
        self.scratch.copy_within(ADDRESSES..len, ADDRESSES + TAG_LEN);
        let [a, b] = TAG;
        let [c, d] = vlan.tag().to_be_bytes();
        if let Some(place) = self.scratch.get_mut(ADDRESSES..ADDRESSES + TAG_LEN) {
            place.copy_from_slice(&[a, b, c, d]);
        }
        tagged
    }

    /// Calls `each` with up to `budget` received frames. Returns the number of frames.
    pub(crate) fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        for _ in 0..budget {
            let Some(arrival) = self.packets.next() else { break };
            for (bytes, word) in self.scratch.as_chunks_mut().0.iter_mut().zip(self.packets.words(&arrival)) {
                *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            self.packets.give_back(arrival);
            let Some(begin) = self.remove_tag() else { continue };
            let frame = self.scratch.get(begin..arrival.len).unwrap_or_default();
            if self.is_for_us(frame) {
                each(frame);
                taken += 1;
            }
        }
        taken
    }

    /// Sends one frame of at most `max_len` bytes, which `fill` writes and whose length it returns. Returns
    /// false, without a call of `fill`, if there is no room for it.
    pub(crate) fn transmit(
        &mut self,
        hw: &impl Hardware<Block = B>,
        max_len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        // Looking for room also collects completed sends.
        if !self.packets.has_room() {
            return false;
        }
        let Some(buffer) = self.scratch.get_mut(..max_len) else { return false };
        let len = fill(buffer).min(max_len);
        let len = self.insert_tag(len);
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
