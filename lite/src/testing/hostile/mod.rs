//! A member that breaks LITE's rules: it sends random answers to internal requests of other nodes, and
//! random requests to them.
//!
//! Below that it is a node like the others, so its messages arrive: its connections are set up correctly
//! (among senseless messages about connections), and its requests name mappings, waits and objects that
//! exist. It only names memory of other nodes that it was told it may write: a member could write any
//! memory of the others by its RNIC, and LITE trusts it not to.

mod dice;

use crate::base::member::MemberId;
use crate::base::names::Kind;
use crate::base::names::Named;
use crate::base::names::ObjectAddress;
use crate::node::Node;
use crate::region::request as region;
use crate::rpc::ReplyTarget;
use crate::rpc::RpcOptions;
use crate::rpc::Service;
use crate::rpc::Takes;
use crate::rpc::Whom;
use crate::rpc::{InternalRequest, RawRequest};
use crate::sync::request as sync;
use crate::transport::conn::Conn;
use crate::transport::connect::{Letter, Message};
use crate::{Call, Error, Lite};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use dice::{Dice, Spare};
use platform::IoAddr;
use proto::{NodeId, ToManager};
use spin::Mutex;

/// The length of the longest request that the hostile member accepts, in bytes.
const MAX_ASK: usize = 64 << 10;
/// The names that the hostile member binds: to a region, a lock and an event that do not exist, and to
/// nonsense.
const NAMES: [&str; 4] = ["hostile-region", "hostile-lock", "hostile-event", "hostile-nothing"];

/// The hostile member.
pub struct Hostile {
    node: Arc<Node>,
    dice: Mutex<Dice>,
    questions: AtomicU64,
    answers: AtomicU64,
}

impl Hostile {
    /// Makes `lite`'s node hostile from now on, as `seed` decides. `spares` is memory of other nodes that
    /// it may write: node, first address, and bytes.
    ///
    /// # Panics
    /// If a node of `spares` is not a member.
    #[must_use]
    pub fn start(lite: &Lite, seed: u64, spares: &[(NodeId, IoAddr, u64)]) -> Arc<Self> {
        let node = lite.node.clone();
        let spare = |(of, addr, len): &(NodeId, IoAddr, u64)| {
            let incarnation = node.incarnation_of(*of).expect("a member");
            Spare { at: (*of, incarnation), addr: *addr, len: *len }
        };
        let spares: Vec<Spare> = spares.iter().map(spare).collect();
        let victims: Vec<MemberId> = spares.iter().map(|spare| spare.at).collect();
        let dice = Mutex::new(Dice::new(seed, (node.me, node.incarnation), spares));
        let it = Arc::new(Self { node, dice, questions: AtomicU64::new(0), answers: AtomicU64::new(0) });
        it.serve();
        it.bind_names();
        for victim in victims {
            let me = it.clone();
            it.node.platform.spawn("hostile", Box::pin(async move { me.attack(victim).await }));
        }
        it
    }

    /// Returns the number of requests, messages about connections and records that it has sent.
    #[must_use]
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// Returns the number of requests of other nodes that it has answered in some way.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Replaces LITE's internal functions.
    fn serve(self: &Arc<Self>) {
        self.serve_with(region::Request::FUNCTION, |it, bytes| {
            let mut dice = it.dice.lock();
            let answer = proto::decode(bytes).map_or(Err(Error::Unknown), |request| {
                learn_region(&mut dice, &request);
                dice.answer_region(&request)
            });
            proto::encode(&answer)
        });
        self.serve_with(sync::Request::FUNCTION, |it, bytes| {
            let mut dice = it.dice.lock();
            let answer = proto::decode(bytes).map_or(Err(Error::Unknown), |request| {
                learn_sync(&mut dice, &request);
                dice.answer_sync(&request)
            });
            proto::encode(&answer)
        });
    }

    fn serve_with(self: &Arc<Self>, function: u32, respond: fn(&Self, &[u8]) -> Vec<u8>) {
        if let Some(own) = self.node.services.get(function) {
            self.node.services.remove(function, &own);
        }
        let service = Arc::new(Service::new(RpcOptions { max_request: MAX_ASK, queue: 1024 }, Takes::Calls));
        self.node.services.add(function, service.clone());
        let me = self.clone();
        let task = async move {
            while let Ok(call) = service.next(&me.node).await {
                let it = me.clone();
                me.node.platform.spawn("hostile", Box::pin(async move { it.answer(call, respond).await }));
            }
        };
        self.node.platform.spawn("hostile", Box::pin(task));
    }

    async fn answer(&self, call: Call, respond: fn(&Self, &[u8]) -> Vec<u8>) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let bytes = respond(self, call.request());
        let (bytes, pause) = {
            let mut dice = self.dice.lock();
            let bytes = dice.corrupt(bytes);
            let pause = if dice.one_in(8) { dice.below(60_000_000) } else { dice.below(100_000) };
            (bytes, pause)
        };
        self.pause(pause).await;
        if !self.dice.lock().one_in(12) {
            drop(call.reply(&bytes).await);
        }
    }

    async fn pause(&self, nanos: u64) {
        self.node.timers.until(self.node.platform.now() + Duration::from_nanos(nanos)).await;
    }

    /// Binds names to objects that do not exist.
    fn bind_names(&self) {
        let mut dice = self.dice.lock();
        let address = |dice: &mut Dice, kind| ObjectAddress {
            kind,
            home: self.node.me,
            incarnation: self.node.incarnation,
            number: dice.number(),
            secret: dice.number(),
        };
        let region = Named::Region { owner: self.node.me, region: dice.number(), key: dice.number() };
        let values = [
            proto::encode(&region),
            proto::encode(&Named::Object(address(&mut dice, Kind::Lock))),
            proto::encode(&Named::Object(address(&mut dice, Kind::Event))),
            vec![0xff; 40],
        ];
        for (name, value) in NAMES.into_iter().zip(values) {
            self.node.control.post(&ToManager::NameBind { request: 0, name: String::from(name), value });
        }
    }

    /// Sends random requests and messages to one node until the membership ends.
    async fn attack(&self, victim: MemberId) {
        while !self.node.is_fenced() {
            let (what, pause) = {
                let mut dice = self.dice.lock();
                (dice.below(10), dice.below(400_000))
            };
            self.pause(pause).await;
            self.questions.fetch_add(1, Ordering::Relaxed);
            match what {
                0 => self.relay(victim),
                1 => self.write_record(victim),
                _ => self.question(victim).await,
            }
        }
    }

    async fn question(&self, victim: MemberId) {
        let (data, function, timeout) = {
            let mut dice = self.dice.lock();
            let (request, function) = if dice.below(33) < 25 {
                (proto::encode(&dice.region_request()), region::Request::FUNCTION)
            } else {
                (proto::encode(&dice.sync_request()), sync::Request::FUNCTION)
            };
            let function = if dice.one_in(20) { dice.below(12) as u32 } else { function };
            (dice.corrupt(request), function, 1 + dice.below(5_000_000))
        };
        let mut reply = vec![0; 4000];
        let deadline = self.node.platform.now() + Duration::from_nanos(timeout);
        let request = RawRequest { whom: Whom::Node(victim.0), function, data: &data, deadline };
        let asked = self.node.call(&request, &mut ReplyTarget::Slice(&mut reply)).await;
        if let Some(bytes) = asked.ok().and_then(|len| reply.get(..len))
            && let Ok(Ok(sync::Response::Created(address))) =
                proto::decode::<Result<sync::Response, Error>>(bytes)
        {
            self.dice.lock().learn_address(address);
        }
    }

    fn relay(&self, victim: MemberId) {
        let mut dice = self.dice.lock();
        let mut envelope = dice.envelope();
        let peer = {
            let peers = self.node.peers.lock();
            peers.get(&victim.0).map(|peer| (peer.member.clone(), peer.voucher.clone(), peer.newest))
        };
        // Half of the messages are senseless ones of the last attempt, with a voucher.
        if let Some((member, voucher, newest)) = peer.filter(|_| dice.one_in(2)) {
            let message = dice.set_up();
            let letter = match voucher.filter(|_| dice.one_in(2)) {
                Some(voucher) => Letter::to_responder(&self.node, &member, &voucher, &message),
                None => Letter::to_requester(&self.node, &member, newest, None, &message),
            };
            envelope.message = Message::SetUp(letter.bytes);
        }
        let body = dice.corrupt(proto::encode(&envelope));
        self.node.control.post(&ToManager::Relay { to: victim.0, incarnation: victim.1, body });
    }

    /// Writes records into the ring that LITE never writes, or announces records that do not exist. That
    /// ends the connection.
    fn write_record(&self, victim: MemberId) {
        let Some(conn) = self.node.connected(victim.0) else { return };
        let (bytes, imm) = self.dice.lock().record();
        self.post(&conn, &bytes, imm);
    }

    fn post(&self, conn: &Arc<Conn>, bytes: &[u8], imm: u32) {
        let Some(rpc) = conn.channel(0) else { return };
        let grains = if imm >> 30 == 0 { imm & 0xff_ffff } else { 0 };
        let Some(addr) = rpc.remote.ring.checked_add(u64::from(grains) * 64) else { return };
        let bytes = if u64::from(grains) * 64 + 1024 < u64::from(rpc.remote.ring_len) { bytes } else { &[] };
        // If there is no room for it now, something else is sent later.
        let _ = self.node.post_message((conn, 0), ([], bytes), addr, imm);
    }
}

/// Remembers the numbers that a request names.
fn learn_region(dice: &mut Dice, request: &region::Request) {
    use region::Request;
    match request {
        Request::Alloc { mapping, .. }
        | Request::Map { mapping, .. }
        | Request::Publish { mapping, .. }
        | Request::Move { mapping, .. }
        | Request::Memset { mapping, .. } => dice.learn(*mapping),
        Request::Borrow { mapping, token } | Request::Lend { mapping, token, .. } => {
            dice.learn(*mapping);
            dice.learn(*token);
        }
        Request::Reserve { holding, .. } => dice.learn(*holding),
        _ => {}
    }
}

/// Remembers the numbers that a request names.
fn learn_sync(dice: &mut Dice, request: &sync::Request) {
    use sync::Request;
    match request {
        Request::Create { secret, .. } => dice.learn(*secret),
        Request::BarrierEnter { token, .. } => dice.learn(*token),
        Request::Claim { address, token, .. } | Request::Await { address, token, .. } => {
            dice.learn(*token);
            dice.learn_address(*address);
        }
        _ => {}
    }
}
