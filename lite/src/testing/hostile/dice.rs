//! The messages of a hostile member: messages of LITE with random fields, most of which make sense to their
//! receiver.

use crate::base::member::MemberId;
use crate::base::names::Kind;
use crate::base::names::ObjectAddress;
use crate::channel::Imm;
use crate::channel::RequestHeader;
use crate::channel::RpcArea;
use crate::region::Grantee;
use crate::region::Piece;
use crate::region::request::{self as region, Loan, MapRequest, Plan, Shape};
use crate::sync::FencingToken;
use crate::sync::Mode;
use crate::sync::Outcome;
use crate::sync::request as sync;
use crate::transport::connect::Envelope;
use crate::transport::connect::Message;
use crate::transport::connect::VERSION;
use crate::transport::connect::{End, Request, RpcAreas, SetUp};
use crate::{Error, Permissions};
use alloc::string::String;
use alloc::vec::Vec;
use platform::IoAddr;
use proto::{Incarnation, NodeId};
use verbs::{LinkKind, PathMtu, Psn, QpNum};

/// The most numbers that are remembered.
const KNOWN: usize = 64;
/// Numbers at the edges of arithmetic.
const EDGES: [u64; 14] = [
    0,
    1,
    7,
    8,
    4095,
    4096,
    65_536,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 32,
    1 << 48,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// Memory of a node that any member may write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) at: MemberId,
    pub(super) addr: IoAddr,
    pub(super) len: u64,
}

/// A generator of random values, and of values that a node could have sent.
pub(super) struct Dice {
    state: u64,
    me: MemberId,
    /// Memory that pieces may name. No other memory of other nodes is ever named, because a member could
    /// write it itself.
    spares: Vec<Spare>,
    /// Numbers of mappings, waits, holdings, objects and attempts that other nodes have named.
    known: Vec<u64>,
    addresses: Vec<ObjectAddress>,
}

impl Dice {
    pub(super) fn new(seed: u64, me: MemberId, spares: Vec<Spare>) -> Self {
        Self { state: seed, me, spares, known: Vec::new(), addresses: Vec::new() }
    }

    /// splitmix64 (Steele, Lea, Flood 2014).
    pub(super) fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.random() % n.max(1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64) as usize;
        from.get(at).cloned()
    }

    /// Remembers a number that makes sense.
    pub(super) fn learn(&mut self, number: u64) {
        if self.known.len() >= KNOWN {
            let at = self.below(KNOWN as u64) as usize;
            self.known.swap_remove(at);
        }
        self.known.push(number);
    }

    pub(super) fn learn_address(&mut self, address: ObjectAddress) {
        if self.addresses.len() < KNOWN {
            self.addresses.push(address);
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        let known = self.known.clone();
        match self.below(8) {
            0 | 1 => self.below(12),
            2 => self.pick(&EDGES).unwrap_or(0),
            3 => self.random(),
            _ => self.pick(&known).unwrap_or(3),
        }
    }

    /// Returns a length: small, or large enough to overflow.
    fn len(&mut self) -> u64 {
        match self.below(4) {
            0 => self.pick(&EDGES).unwrap_or(0),
            _ => self.below(5000),
        }
    }

    fn member(&mut self) -> MemberId {
        let members: Vec<MemberId> = self.spares.iter().map(|s| s.at).chain([self.me]).collect();
        let member = self.pick(&members).unwrap_or(self.me);
        match self.below(10) {
            0 => (NodeId(self.random() as u16), member.1),
            1 => (member.0, Incarnation(self.number())),
            _ => member,
        }
    }

    fn node(&mut self) -> NodeId {
        self.member().0
    }

    fn rights(&mut self) -> Permissions {
        if self.one_in(2) { Permissions::all() } else { Permissions::from_bits_retain(self.random() as u32) }
    }

    fn piece(&mut self) -> Piece {
        let spares = self.spares.clone();
        if let (true, Some(spare)) = (self.one_in(3), self.pick(&spares)) {
            let from = self.below(spare.len) / 8 * 8;
            let len = self.below(spare.len - from + 1) / 8 * 8;
            return Piece { at: spare.at, addr: IoAddr(spare.addr.0 + from), len };
        }
        let at = self.member();
        let addr = match self.below(3) {
            // No node has memory there.
            0 => 1 << 52 | self.below(1 << 40),
            1 => u64::MAX - self.below(10_000),
            _ => self.below(100),
        };
        // A piece that begins below all memory does not reach into it.
        let len = if addr < 100 { self.below(10_000) } else { self.len() };
        Piece { at, addr: IoAddr(addr), len }
    }

    fn pieces(&mut self, most: u64) -> Vec<Piece> {
        (0..self.below(most + 1)).map(|_| self.piece()).collect()
    }

    fn shape(&mut self) -> Shape {
        let first = self.pieces(6);
        let sum = first.iter().fold(0u64, |sum, piece| sum.wrapping_add(piece.len));
        let count = if self.one_in(2) { first.len() as u64 } else { self.number() };
        Shape {
            generation: self.number(),
            len: if self.one_in(3) { self.len() } else { sum },
            stripe: if self.one_in(2) { 0 } else { self.len() / 8 * 8 },
            columns: if self.one_in(3) { self.number() as u32 } else { 1 + self.below(3) as u32 },
            count: count as u32,
            first,
        }
    }

    fn address(&mut self) -> ObjectAddress {
        let addresses = self.addresses.clone();
        if let (false, Some(address)) = (self.one_in(3), self.pick(&addresses)) {
            return address;
        }
        let (home, incarnation) = self.member();
        ObjectAddress { kind: self.kind(), home, incarnation, number: self.number(), secret: self.number() }
    }

    fn kind(&mut self) -> Kind {
        if self.one_in(2) { Kind::Lock } else { Kind::Event }
    }

    fn name(&mut self) -> String {
        let length = if self.one_in(4) { self.below(400) } else { 2 };
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    fn error(&mut self) -> Error {
        let (asked, free) = (self.number(), self.number());
        let all = [
            Error::Deadline,
            Error::Unknown,
            Error::NodeDown(self.node()),
            Error::NoSuchNode,
            Error::NoSuchName,
            Error::NameTaken,
            Error::NoSuchFunction,
            Error::Permission,
            Error::OutOfBounds,
            Error::Freed,
            Error::NoMemory { asked, free },
            Error::TooLarge { max: free },
            Error::LinkDown,
            Error::Refused(self.name()),
        ];
        self.pick(&all).unwrap_or(Error::Unknown)
    }

    fn outcome(&mut self) -> Outcome {
        match self.below(3) {
            0 => {
                let token = FencingToken::new(self.number(), self.number());
                Outcome::Granted { after_death: self.one_in(2), token }
            }
            1 => Outcome::Count(self.number()),
            _ => Outcome::Open,
        }
    }

    fn plan(&mut self) -> Plan {
        let shares = (0..self.below(5)).map(|_| {
            let len = if self.one_in(5) { self.len() } else { self.below(3) * 4096 };
            (self.node(), len)
        });
        let shares = shares.collect();
        Plan { stripe: if self.one_in(2) { 0 } else { self.len() / 8 * 8 }, shares }
    }

    fn numbers(&mut self) -> Vec<u64> {
        (0..self.below(6)).map(|_| self.number()).collect()
    }

    fn loan(&mut self) -> Loan {
        Loan { owner: self.node(), token: self.number(), offset: self.len() }
    }

    fn some_region_response(&mut self) -> region::Response {
        match self.below(4) {
            0 => region::Response::Done,
            1 => region::Response::Mapped { shape: self.shape(), permissions: self.rights() },
            2 => region::Response::Shape(self.shape()),
            _ => region::Response::Pieces(self.pieces(100)),
        }
    }

    fn some_sync_response(&mut self) -> sync::Response {
        match self.below(4) {
            0 => sync::Response::Done,
            1 => sync::Response::Created(self.address()),
            2 => sync::Response::Queued,
            _ => sync::Response::Ended(self.outcome()),
        }
    }

    /// Returns an answer to a request about regions, mostly of the right kind.
    pub(super) fn answer_region(&mut self, request: &region::Request) -> Result<region::Response, Error> {
        match self.below(10) {
            0 => return Err(self.error()),
            1 => return Ok(self.some_region_response()),
            _ => {}
        }
        use region::{Request, Response};
        Ok(match request {
            Request::Alloc { .. } | Request::Map { .. } | Request::Borrow { .. } => {
                Response::Mapped { shape: self.shape(), permissions: self.rights() }
            }
            Request::Pieces { .. } if self.one_in(3) => Response::Shape(self.shape()),
            Request::Pieces { .. } | Request::Reserved { .. } => Response::Pieces(self.pieces(100)),
            Request::Reserve { len, .. } => {
                let mut shape = self.shape();
                if self.one_in(2) {
                    // Memory of this node, as was asked, or claimed to be.
                    shape.first = alloc::vec![Piece { at: self.me, addr: IoAddr(1 << 52), len: *len }];
                    shape.count = 1;
                }
                Response::Shape(shape)
            }
            _ => Response::Done,
        })
    }

    /// Returns an answer to a request about objects, mostly of the right kind.
    pub(super) fn answer_sync(&mut self, request: &sync::Request) -> Result<sync::Response, Error> {
        match self.below(10) {
            0 => return Err(self.error()),
            1 => return Ok(self.some_sync_response()),
            _ => {}
        }
        use sync::{Request, Response};
        Ok(match request {
            Request::Create { .. } => Response::Created(self.address()),
            Request::Claim { .. } | Request::Await { .. } if self.one_in(2) => Response::Queued,
            Request::Claim { .. } | Request::Await { .. } | Request::Signal { .. } => {
                Response::Ended(self.outcome())
            }
            Request::BarrierEnter { .. } => Response::Queued,
            _ => Response::Done,
        })
    }

    /// Returns a random request about regions.
    pub(super) fn region_request(&mut self) -> region::Request {
        let (mapping, holding, token) = (self.number(), self.number(), self.number());
        let (name, rights, len) = (self.name(), self.rights(), self.len());
        match self.below(25) {
            0 => region::Request::Alloc { mapping, plan: self.plan(), permissions: rights },
            1 => {
                let ask = MapRequest { region: holding, key: token, secret: name.into(), wanted: rights };
                region::Request::Map { mapping, ask }
            }
            2 => region::Request::Pieces { mapping, generation: holding, from: token as u32 },
            3 => region::Request::Unmap { mapping },
            4 => region::Request::Publish { mapping, name },
            5 => region::Request::Unpublish { region: mapping, name },
            6 => region::Request::Grant { mapping, to: self.grantee(), rights },
            7 => region::Request::Withdraw { mapping, from: self.grantee(), rights },
            8 => region::Request::SetSecret { mapping, secret: name.into() },
            9 => region::Request::HandOver { mapping, to: self.node() },
            10 => region::Request::Move { mapping, plan: self.plan() },
            11 => region::Request::Free { mapping },
            12 => region::Request::Revoke { mappings: self.numbers() },
            13 | 14 => region::Request::Pause { mappings: self.numbers(), generation: holding },
            15 => region::Request::Resume { mappings: self.numbers(), generation: holding },
            16 => region::Request::Restrict { mappings: self.numbers(), rights },
            17 => region::Request::Reserve { holding, len },
            18 => region::Request::Reserved { holding, from: token as u32 },
            19 => region::Request::Yield { holding },
            20 => region::Request::Fill { piece: self.piece(), byte: 0xbb },
            21 => region::Request::Memset { mapping, offset: self.len(), len, byte: 0xbb },
            22 => region::Request::Lend { mapping, to: self.node(), rights, token, timeout_ns: len },
            23 => region::Request::Borrow { mapping, token },
            _ => region::Request::Copy { from: self.loan(), to: self.loan(), len, timeout_ns: self.len() },
        }
    }

    /// Returns a random request about objects.
    pub(super) fn sync_request(&mut self) -> sync::Request {
        let (holding, token, name) = (self.number(), self.number(), self.name());
        match self.below(8) {
            0 => {
                let group = (0..self.below(5)).map(|_| self.node()).collect();
                sync::Request::BarrierEnter { name, group, token, oldest: holding }
            }
            1 => sync::Request::BarrierLeave { name, token },
            2 => sync::Request::Create { kind: self.kind(), secret: token, name },
            3 => sync::Request::Destroy { secret: token },
            4 => {
                let mode = if self.one_in(2) { Mode::Shared } else { Mode::Exclusive };
                sync::Request::Claim { address: self.address(), mode, token, wait: self.one_in(2) }
            }
            5 => sync::Request::Await { address: self.address(), past: holding, token },
            6 => sync::Request::Leave { address: self.address(), token, held: self.one_in(2) },
            _ => {
                let outcome = if self.one_in(3) { Err(self.error()) } else { Ok(self.outcome()) };
                sync::Request::Woken { token, outcome }
            }
        }
    }

    fn grantee(&mut self) -> Grantee {
        if self.one_in(2) { Grantee::Everyone } else { Grantee::Node(self.node()) }
    }

    /// Returns a random message about connections.
    pub(super) fn envelope(&mut self) -> Envelope {
        let message = match self.below(5) {
            0 => Message::SetUp((0..self.below(300)).map(|_| self.random() as u8).collect()),
            1 => Message::Close { unused_ns: self.number(), number: self.number() },
            2 => Message::Closed,
            3 => Message::Broken,
            _ => Message::Used { number: self.number() },
        };
        let version = if self.one_in(10) { self.random() as u8 } else { VERSION };
        Envelope { version, attempt: self.number(), message }
    }

    pub(super) fn set_up(&mut self) -> SetUp {
        match self.below(5) {
            0 => {
                let answer_to = self.one_in(2).then(|| QpNum::new(self.random() as u32));
                SetUp::Request(Request { end: self.end(), answer_to })
            }
            1 => SetUp::Reply(self.end()),
            2 => SetUp::Ready,
            3 => SetUp::Refused(self.name()),
            _ => SetUp::Full,
        }
    }

    fn end(&mut self) -> End {
        let links = [LinkKind::RoceV2, LinkKind::RoceV1, LinkKind::InfiniBand];
        let count = if self.one_in(3) { self.below(40) } else { 1 + self.below(4) };
        let cores = if self.one_in(3) { self.below(20) } else { 1 };
        let area = |dice: &mut Self| RpcArea {
            ring: IoAddr(dice.number()),
            ring_len: if dice.one_in(2) { 1 << 16 } else { dice.number() as u32 },
            slots: IoAddr(dice.number()),
            slot_len: if dice.one_in(2) { 4096 } else { dice.number() as u32 },
            slot_count: if dice.one_in(2) { 40 } else { dice.number() as u32 },
        };
        let queue_pair = |dice: &mut Self| (QpNum::new(dice.random() as u32), Psn::new(dice.random() as u32));
        End {
            link: if self.one_in(3) {
                self.pick(&links).unwrap_or(LinkKind::RoceV2)
            } else {
                LinkKind::RoceV2
            },
            mtu: PathMtu::B1024,
            rd_atomic: self.random() as u8,
            queue_pairs: (0..count).map(|_| queue_pair(self)).collect(),
            rpc: RpcAreas::new(&(0..cores).map(|_| area(self)).collect::<Vec<_>>()),
        }
    }

    /// Returns the bytes of a message: correct, changed, cut short, or random.
    pub(super) fn corrupt(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self.below(8) {
            0 => {
                let len = self.below(200);
                bytes = (0..len).map(|_| self.random() as u8).collect();
            }
            1 => bytes.truncate(self.below(bytes.len() as u64 + 1) as usize),
            2 => {
                let at = self.below(bytes.len() as u64) as usize;
                let with = self.random() as u8;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = with;
                }
            }
            _ => {}
        }
        bytes
    }

    /// Returns a ring record that LITE never writes, and a random immediate.
    pub(super) fn record(&mut self) -> (Vec<u8>, u32) {
        let header = RequestHeader {
            function: if self.one_in(2) { crate::rpc::INTERNAL } else { self.below(12) as u32 },
            slot: self.random() as u16,
            one_way: self.one_in(2),
            request_pieces: self.below(64) as u8,
            reply_pieces: self.below(64) as u8,
            call: self.number(),
            len: self.len(),
            max_reply: self.len(),
        };
        let mut bytes = header.emit().to_vec();
        bytes.extend((0..self.below(600)).map(|_| self.random() as u8));
        let imm = match self.below(5) {
            0 => Imm::Reply(self.below(50) as u32).emit(),
            1 => Imm::Credit(self.number() as u32).emit(),
            2 => self.random() as u32,
            _ => Imm::Request(self.below(20) as u32).emit(),
        };
        (bytes, imm)
    }
}
