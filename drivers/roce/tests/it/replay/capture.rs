//! A capture of a connection, and the interpretation of its frames.

use crate::common::{data, timed_frames};
use roce::wire::{Ext, Frame, Operation, Packet, Service};
use verbs::{PathMtu, Psn, QpNum, RemoteKey};

/// The index of the server's side: 10.0.0.1, where the captures were made. The client's is 1.
pub(super) const SERVER: usize = 0;

/// The frames of a capture.
pub(super) struct Capture {
    frames: Vec<(u64, Vec<u8>)>,
    pub mtu: PathMtu,
}

/// A frame of a reliable connection.
pub(super) struct Event<'a> {
    /// Nanoseconds since the first frame.
    pub time: u64,
    /// The index of the sender's side.
    pub side: usize,
    pub frame: Frame<'a>,
}

impl Event<'_> {
    pub(super) fn packet(&self) -> &Packet<'_> {
        &self.frame.packet
    }

    pub(super) fn operation(&self) -> Operation {
        self.packet().bth.opcode.operation
    }

    pub(super) fn psn(&self) -> Psn {
        self.packet().bth.psn
    }

    pub(super) fn is_request(&self) -> bool {
        !self.operation().is_response()
    }

    /// Returns true for the first packet of a message.
    pub(super) fn begins(&self) -> bool {
        use Operation as O;
        !matches!(
            self.operation(),
            O::SendMiddle
                | O::SendLast
                | O::SendLastImm
                | O::SendLastInvalidate
                | O::WriteMiddle
                | O::WriteLast
                | O::WriteLastImm
        )
    }

    pub(super) fn is_send(&self) -> bool {
        matches!(self.operation() as u8, 0..=5 | 22 | 23)
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.operation() as u8, 6..=11)
    }

    pub(super) fn imm(&self) -> Option<u32> {
        match self.packet().ext {
            Ext::Imm(imm) | Ext::RethImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    pub(super) fn invalidates(&self) -> Option<RemoteKey> {
        match self.packet().ext {
            Ext::Invalidate(key) => Some(key),
            _ => None,
        }
    }

    /// Returns true if the receiver must have a receive posted: for the first packet of a SEND, and for the
    /// immediate data of a WRITE.
    pub(super) fn needs_receive(&self) -> bool {
        self.is_send() && self.begins() || self.is_write() && self.imm().is_some()
    }

    /// Returns the first address, the key and the length that the packet names.
    pub(super) fn remote(&self) -> Option<(u64, RemoteKey, u32)> {
        match self.packet().ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => Some((reth.addr.0, reth.key, reth.len)),
            Ext::Atomic(atomic) => Some((atomic.addr.0, atomic.key, 8)),
            _ => None,
        }
    }
}

impl Capture {
    pub(super) fn load(name: &str) -> Self {
        let frames = timed_frames(&data().join(name).with_extension("pcap"));
        let mtu = match name {
            "rc_mtu256" => PathMtu::B256,
            "rc_mtu4096" | "rc_mtu4096_read" => PathMtu::B4096,
            _ => PathMtu::B1024,
        };
        Self { frames, mtu }
    }

    /// Returns the number of frames.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns all frames of any service.
    pub(super) fn all(&self) -> Vec<Event<'_>> {
        let event = |(time, bytes): &'_ (u64, Vec<u8>)| {
            let side = usize::from(Frame::parse(bytes).unwrap().headers.ethernet.src.0[5]) - 1;
            (*time, side)
        };
        let parsed = self.frames.iter().map(|(_, bytes)| Frame::parse(bytes).unwrap());
        let with = self.frames.iter().map(event).zip(parsed);
        with.map(|((time, side), frame)| Event { time, side, frame }).collect()
    }

    /// Returns the queue pairs of the connection: the one to which `side` sends, and its own.
    pub(super) fn numbers(&self, side: usize) -> (QpNum, QpNum) {
        let events = self.connection();
        let of = |from| events.iter().find(|e| e.side == from).unwrap().packet().bth.dest_qp;
        (of(side), of(1 - side))
    }

    /// Returns the frames of the reliable connection.
    pub(super) fn connection(&self) -> Vec<Event<'_>> {
        let mut all = self.all();
        all.retain(|event| event.packet().bth.opcode.service == Service::Rc);
        all
    }
}

/// A message of one side: the packets of the message, each once, in order.
pub(super) struct Message<'a> {
    pub packets: Vec<&'a Event<'a>>,
}

impl<'a> Message<'a> {
    /// Returns the messages that `side` sent, in order, without repetitions.
    pub(super) fn of(events: &'a [Event<'a>], side: usize) -> Vec<Self> {
        let mut messages: Vec<Self> = Vec::new();
        let mut last: Option<Psn> = None;
        for event in events.iter().filter(|e| e.side == side && e.is_request()) {
            if last.is_some_and(|last| event.psn().distance_from(last) <= 0) {
                continue;
            }
            last = Some(event.psn());
            match messages.last_mut() {
                Some(message) if !event.begins() => message.packets.push(event),
                _ => messages.push(Self { packets: vec![event] }),
            }
        }
        messages
    }

    pub(super) fn first(&self) -> &'a Event<'a> {
        self.packets[0]
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.packets.iter().flat_map(|event| event.packet().payload.iter().copied()).collect()
    }

    pub(super) fn imm(&self) -> Option<u32> {
        self.packets.iter().find_map(|event| event.imm())
    }

    pub(super) fn invalidates(&self) -> Option<RemoteKey> {
        self.packets.iter().find_map(|event| event.invalidates())
    }

    pub(super) fn takes_receive(&self) -> bool {
        self.first().is_send() || self.imm().is_some()
    }
}
