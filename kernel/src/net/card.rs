//! A port of a ConnectX-3 as an Ethernet device, in addition to RDMA or instead of it. Each frame is copied
//! once more than the card requires, which is acceptable for the control connection, DHCP and neighbour
//! resolution.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use mlx4::FramePort;

use super::nic::{ETHERNET_HEADER, Nic, Receive, Transmit};
use crate::mlx4::Card;

/// The length of a VLAN tag, in bytes.
const TAG: usize = 4;

/// Returns a port of the card as a device, if it is in use and on Ethernet.
pub(super) fn start(card: &Arc<Card>, port: FramePort) -> Option<Nic> {
    let (mac, mtu) = card.frame_port(port)?;
    let mtu = usize::from(mtu);
    let room = || vec![0; ETHERNET_HEADER + TAG + mtu].into_boxed_slice();
    Some(Nic {
        mac,
        mtu,
        rx: Box::new(Receiver { card: card.clone(), port, frame: room(), len: 0, frames: 0 }),
        tx: Box::new(Transmitter {
            card: card.clone(),
            port,
            frame: room(),
            frame_max: ETHERNET_HEADER + mtu,
            frames: 0,
        }),
    })
}

struct Receiver {
    card: Arc<Card>,
    port: FramePort,
    /// The frame that was received from the card and not consumed yet; none if `len` is 0.
    frame: Box<[u8]>,
    len: usize,
    frames: u64,
}

impl Receive for Receiver {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.len == 0 {
            let (frame, len) = (&mut self.frame, &mut self.len);
            self.card.receive_frames(self.port, 1, &mut |came| {
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
    port: FramePort,
    frame: Box<[u8]>,
    frame_max: usize,
    frames: u64,
}

impl Transmit for Transmitter {
    fn has_room(&mut self) -> bool {
        self.card.has_frame_room(self.port)
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
        let sent = self.card.transmit_frame(self.port, len, &mut |target| {
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
