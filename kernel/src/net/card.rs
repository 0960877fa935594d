//! The port of a ConnectX-3 as an Ethernet device, in addition to RDMA. Each frame is copied once more than
//! the card requires, which is acceptable for the control connection, DHCP and neighbour resolution.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

use super::nic::{ETHERNET_HEADER, Nic, Receive, Transmit};
use crate::mlx4::Card;

/// The length of a VLAN tag, in bytes.
const TAG: usize = 4;

/// Returns the card's port as a device, if it is on Ethernet.
pub(super) fn start(card: &Arc<Card>) -> Option<Nic> {
    let mtu = usize::from(card.frame_payload()?);
    let room = || vec![0; ETHERNET_HEADER + TAG + mtu].into_boxed_slice();
    Some(Nic {
        mac: card.identity().mac,
        mtu,
        rx: Box::new(Receiver { card: card.clone(), frame: room(), len: 0, frames: 0 }),
        tx: Box::new(Transmitter {
            card: card.clone(),
            frame: room(),
            frame_max: ETHERNET_HEADER + mtu,
            frames: 0,
        }),
    })
}

struct Receiver {
    card: Arc<Card>,
    /// The frame that was received from the card and not consumed yet; none if `len` is 0.
    frame: Box<[u8]>,
    len: usize,
    frames: u64,
}

impl Receive for Receiver {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.len == 0 {
            let (frame, len) = (&mut self.frame, &mut self.len);
            self.card.receive_frames(1, &mut |came| {
                if let Some(target) = frame.get_mut(..came.len()) {
                    target.copy_from_slice(came);
                    *len = came.len();
                }
            });
        }
        self.frame.get(..self.len).filter(|frame| !frame.is_empty())
    }

    fn pop(&mut self) {
        self.frames += u64::from(self.len > 0);
        self.len = 0;
    }

    fn flush(&mut self) {}

    /// Does nothing: the code that polls the card as RNIC arms it.
    fn arm(&mut self) -> bool {
        self.peek().is_some()
    }

    fn disarm(&mut self) {}

    fn frames(&self) -> u64 {
        self.frames
    }
}

struct Transmitter {
    card: Arc<Card>,
    frame: Box<[u8]>,
    frame_max: usize,
    frames: u64,
}

impl Transmit for Transmitter {
    fn has_room(&mut self) -> bool {
        self.card.has_frame_room()
    }

    fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.frame_max || !self.has_room() {
            return None;
        }
        self.frame.get_mut(..len)
    }

    fn send(&mut self, len: usize) {
        let frame = self.frame.get(..len).unwrap_or_default();
        // The frame is dropped if the card has failed since there was room.
        let sent = self.card.transmit_frame(len, &mut |target| {
            target.copy_from_slice(frame);
            len
        });
        self.frames += u64::from(sent);
    }

    fn flush(&mut self) {}

    /// Does nothing: the code that polls the card as RNIC arms it.
    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn frames(&self) -> u64 {
        self.frames
    }
}
