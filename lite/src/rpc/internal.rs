//! The internal function of LITE: requests of nodes to each other about regions, memory, locks, events and
//! barriers. A task serves them in order of arrival; a request that must wait goes on in a task of its own.

use super::call::Call;
use super::client::{Request, Sink, Whom};
use super::server::{FunctionId, RpcOptions};
use super::service::{Service, Takes};
use crate::membership::Life;
use crate::node::Node;
use crate::op::Loan;
use crate::region::{Grantee, Lent, MapAsk, Piece, Plan, Shape};
use crate::sync::{Kind, Mode, Outcome, Place};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The first of the function numbers that applications cannot register.
pub(crate) const INTERNAL: FunctionId = 0xffff_0000;
const MAX_ASK: usize = 64 << 10;
const MAX_ANSWER: usize = 200;
/// The length of the longest answer to [`Ask::Pieces`], in bytes.
const LONG_ANSWER: usize = 4000;
const QUEUE: usize = 1024;

/// A request of one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Makes a region, whose master is the requester. `mapping` is the number that the requester has given to
    /// its mapping.
    Alloc { mapping: u64, plan: Plan, permissions: Permissions },
    /// Map a region.
    Map { mapping: u64, ask: MapAsk },
    /// Return the pieces of a mapping from the `from`th on, if it has that generation; otherwise its shape.
    Pieces { mapping: u64, generation: u64, from: u32 },
    /// The requester no longer uses a mapping.
    Unmap { mapping: u64 },
    /// Publish a region under a name.
    Publish { mapping: u64, name: String },
    /// Free that name of that region.
    Unpublish { region: u64, name: String },
    /// Grant rights to nodes that map the region from now on.
    Grant { mapping: u64, to: Grantee, rights: Permissions },
    /// Revoke rights. Answered when no operation that relies on them is in flight.
    Withdraw { mapping: u64, from: Grantee, rights: Permissions },
    /// Set the secret that nodes which map the region from now on must give.
    SetSecret { mapping: u64, secret: Vec<u8> },
    /// Make another node the master.
    HandOver { mapping: u64, to: NodeId },
    /// Move a region. Answered when all nodes use the new memory, or the region stays in the old one.
    Move { mapping: u64, plan: Plan },
    /// Free a region. Answered when no node can reach the memory any more.
    Free { mapping: u64 },
    /// Revoke mappings, on behalf of the requester, which owns the regions. Answered when no operation
    /// through them is in flight.
    Revoke { mappings: Vec<u64> },
    /// Hold operations back until the mappings have that generation. Answered when none is in flight.
    Pause { mappings: Vec<u64>, generation: u64 },
    /// Load the pieces of the mappings, which have that generation, and let operations go on. Answered when
    /// they are loaded.
    Resume { mappings: Vec<u64>, generation: u64 },
    /// Take rights from mappings. Answered when no operation that relies on them is in flight.
    Restrict { mappings: Vec<u64>, rights: Permissions },
    /// Take memory and hold it for the requester, under its number `holding`.
    Reserve { holding: u64, len: u64 },
    /// Return the pieces of a holding from the `from`th on.
    Reserved { holding: u64, from: u32 },
    /// The requester no longer needs a holding.
    Yield { holding: u64 },
    /// Set bytes of memory that is held for the requester.
    Fill { piece: Piece, byte: u8 },
    /// Set bytes of a region.
    Memset { mapping: u64, offset: u64, len: u64, byte: u8 },
    /// Lend a mapping of the requester to another node for some time, under a number of the requester's
    /// choice.
    Lend { mapping: u64, to: NodeId, rights: Permissions, token: u64, patience_ns: u64 },
    /// Map a region that was lent to the requester.
    Borrow { mapping: u64, token: u64 },
    /// Copy between two regions that the requester has lent.
    Copy { from: Loan, to: Loan, len: u64, patience_ns: u64 },
    /// Wait at a barrier under the number `token` of the requester's choice. Numbers ascend; `oldest` is the
    /// lowest one under which the requester waits at a barrier of this home.
    BarrierEnter { name: String, group: Vec<NodeId>, token: u64, oldest: u64 },
    /// Stop waiting at a barrier: all others that wait there fail.
    BarrierLeave { name: String, token: u64 },
    /// Make a lock or event. `secret` is the requester's choice.
    Create { kind: Kind, secret: u64, name: String },
    /// End the object that was made under `secret`, if there is one.
    Destroy { secret: u64 },
    /// Claim a lock; if it is not free, `wait` for it.
    Claim { place: Place, mode: Mode, token: u64, wait: bool },
    /// Increment an event's count.
    Signal { place: Place },
    /// Wait until an event's count is above `past`.
    Await { place: Place, past: u64, token: u64 },
    /// Stop waiting or holding. `held`: the requester's task has had the lock.
    Leave { place: Place, token: u64, held: bool },
    /// Sent by a home: a wait of the called node has ended.
    Woken { token: u64, outcome: Result<Outcome, Error> },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// Mapped, or allocated and mapped.
    Mapped { shape: Shape, permissions: Permissions },
    /// The pieces of a mapping, as far as they fit.
    Shape(Shape),
    /// Some pieces.
    Pieces(Vec<Piece>),
    /// An object was made.
    Created(Place),
    /// Queued: [`Ask::Woken`] follows.
    Queued,
    /// The wait has ended at once.
    Ended(Outcome),
}

impl Node {
    /// Sends a request to that incarnation of a node, which may be this one, by `deadline`; a later
    /// incarnation is not asked.
    pub(crate) async fn ask_node(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        self.put_to(whom, ask, deadline).await.flatten()
    }

    /// Does the work of [`ask_node`](Self::ask_node), and distinguishes a failed request from an answer
    /// that is an error.
    pub(super) async fn put_to(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Result<Answer, Error>, Error> {
        self.look_at_lease(self.platform.now());
        let mut reply = [0; MAX_ANSWER];
        let request = Request { function: INTERNAL, data: &proto::encode(ask) };
        let len = self.call(Whom::Life(whom), request, Sink::Slice(&mut reply), deadline).await?;
        let reply = reply.get(..len).unwrap_or_default();
        Ok(proto::decode(reply).unwrap_or_else(|_| Err(Error::Refused("malformed answer".into()))))
    }

    /// Does the work of [`ask_node`](Self::ask_node) for a request whose answer may be long.
    pub(crate) async fn ask_node_long(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let mut reply = alloc::vec![0; LONG_ANSWER];
        let request = Request { function: INTERNAL, data: &proto::encode(ask) };
        let len = self.call(Whom::Life(whom), request, Sink::Slice(&mut reply), deadline).await?;
        let reply = reply.get(..len).unwrap_or_default();
        proto::decode::<Result<Answer, Error>>(reply)
            .map_err(|_| Error::Refused("malformed answer".into()))?
    }

    /// Serves LITE's internal function for ever.
    pub(crate) fn start_internal(self: &Arc<Self>) {
        let service = Arc::new(Service::new(RpcOptions { max_request: MAX_ASK, queue: QUEUE }, Takes::Calls));
        self.services.add(INTERNAL, service.clone());
        let node = self.clone();
        let task = async move {
            while let Ok(mut call) = service.next_as_is(&node).await {
                if !call.is_remote() {
                    node.serve(call);
                    continue;
                }
                // The fetch has a task of its own, so that no other request waits for it.
                let me = node.clone();
                let fetch = async move {
                    if call.fetch().await.is_ok() {
                        me.serve(call);
                    }
                };
                node.platform.spawn("lite-fetch", Box::pin(fetch));
            }
        };
        self.platform.spawn("lite-rpc", Box::pin(task));
    }

    fn serve(self: &Arc<Self>, call: Call) {
        let Ok(ask) = proto::decode::<Ask>(call.request()) else {
            return answer(call, Err(Error::Refused("malformed request".into())));
        };
        let by = (call.from(), call.incarnation());
        match ask {
            Ask::Alloc { mapping, plan, permissions } => self.create_region(call, mapping, plan, permissions),
            Ask::Map { mapping, ask } => self.grant_mapping(call, mapping, ask),
            Ask::Pieces { mapping, generation, from } => {
                self.answer_long(call, &self.regions.pieces(self, by, mapping, generation, from));
            }
            Ask::Unmap { mapping } => answer(call, self.serve_unmap(by, mapping)),
            Ask::Publish { mapping, name } => self.serve_publish(call, by, mapping, name),
            Ask::Unpublish { region, name } => self.serve_unpublish(call, by, region, name),
            Ask::Grant { mapping, to, rights } => answer(call, self.grant(by, mapping, to, rights)),
            Ask::Withdraw { mapping, from, rights } => self.serve_withdraw(call, by, mapping, from, rights),
            Ask::SetSecret { mapping, secret } => answer(call, self.set_secret(by, mapping, secret)),
            Ask::HandOver { mapping, to } => answer(call, self.hand_over(by, mapping, to)),
            Ask::Move { mapping, plan } => self.serve_move(call, by, mapping, plan),
            Ask::Free { mapping } => self.serve_free(call, by, mapping),
            Ask::Revoke { mappings } => self.serve_revoke(call, by, mappings),
            Ask::Pause { mappings, generation } => self.serve_pause(call, by, mappings, generation),
            Ask::Resume { mappings, generation } => self.serve_resume(call, by, mappings, generation),
            Ask::Restrict { mappings, rights } => self.serve_restrict(call, by, mappings, rights),
            Ask::Reserve { holding, len } => self.reserve(call, holding, len),
            Ask::Reserved { holding, from } => {
                self.answer_long(call, &self.holdings.pieces(by, holding, from));
            }
            Ask::Yield { holding } => answer(call, self.serve_yield(by, holding)),
            Ask::Fill { piece, byte } => answer(call, self.fill_held(by, &piece, byte)),
            Ask::Memset { mapping, offset, len, byte } => {
                self.serve_memset(call, by, mapping, (offset, len), byte);
            }
            Ask::Lend { mapping, to, rights, token, patience_ns } => {
                let until = self.platform.now() + Duration::from_nanos(patience_ns);
                let loan = Lent { mapping: (by, mapping), to, rights, until };
                answer(call, self.regions.lend(self, token, loan));
            }
            Ask::Borrow { mapping, token } => self.grant_borrowed(call, mapping, token),
            Ask::Copy { from, to, len, patience_ns } => {
                self.serve_copy(call, by, [from, to], len, patience_ns);
            }
            Ask::BarrierEnter { name, group, token, oldest } => {
                answer(call, self.enter_barrier(by, name, group, (token, oldest)));
            }
            Ask::BarrierLeave { name, token } => {
                self.leave_barrier(by, &name, token);
                answer(call, Ok(Answer::Done));
            }
            Ask::Create { kind, secret, name } => self.create_object(call, kind, secret, name),
            Ask::Destroy { secret } => {
                self.destroy_object(secret);
                answer(call, Ok(Answer::Done));
            }
            Ask::Claim { place, mode, token, wait } => {
                answer(call, self.claim_lock(by, &place, mode, token, wait));
            }
            Ask::Signal { place } => answer(call, self.signal_event(by, &place)),
            Ask::Await { place, past, token } => answer(call, self.await_event(by, &place, past, token)),
            Ask::Leave { place, token, held } => {
                self.leave_object(by, &place, token, held);
                answer(call, Ok(Answer::Done));
            }
            Ask::Woken { token, outcome } => {
                self.waits.end(by, token, outcome);
                answer(call, Ok(Answer::Done));
            }
        }
    }
}

/// Requests about a region or its memory, most of them served in tasks of their own.
impl Node {
    fn serve_unmap(self: &Arc<Self>, by: Life, mapping: u64) -> Result<Answer, Error> {
        if let Some(unreachable) = self.regions.unmap(by, mapping) {
            self.spawn_fence(unreachable);
        }
        Ok(Answer::Done)
    }

    fn serve_yield(&self, by: Life, holding: u64) -> Result<Answer, Error> {
        self.holdings.give_back(by, holding);
        self.report_memory();
        Ok(Answer::Done)
    }

    fn serve_publish(self: &Arc<Self>, call: Call, by: Life, mapping: u64, name: String) {
        self.answer_later(call, |n| async move { n.publish_region(by, mapping, &name).await });
    }

    fn serve_unpublish(self: &Arc<Self>, call: Call, by: Life, region: u64, name: String) {
        self.answer_later(call, |n| async move { n.unpublish_region(by, region, &name).await });
    }

    fn serve_withdraw(
        self: &Arc<Self>,
        call: Call,
        by: Life,
        mapping: u64,
        from: Grantee,
        rights: Permissions,
    ) {
        self.answer_later(call, move |n| async move { n.revoke_rights(by, mapping, from, rights).await });
    }

    fn serve_move(self: &Arc<Self>, call: Call, by: Life, mapping: u64, plan: Plan) {
        self.answer_later(call, move |n| async move { n.move_region(by, mapping, &plan).await });
    }

    fn serve_free(self: &Arc<Self>, call: Call, by: Life, mapping: u64) {
        let region = match self.regions.begin_free(self, by, mapping) {
            Ok(region) => region,
            Err(error) => return answer(call, Err(error)),
        };
        let node = self.clone();
        let task = async move {
            node.fence_region(region).await;
            answer(call, Ok(Answer::Done));
        };
        self.platform.spawn("lite-free", Box::pin(task));
    }

    fn serve_memset(
        self: &Arc<Self>,
        call: Call,
        by: Life,
        mapping: u64,
        (offset, len): (u64, u64),
        byte: u8,
    ) {
        self.answer_later(call, move |n| async move {
            n.memset_for(by, mapping, offset, len, byte).await.map(|()| Answer::Done)
        });
    }

    fn serve_copy(self: &Arc<Self>, call: Call, by: Life, [from, to]: [Loan; 2], len: u64, patience_ns: u64) {
        self.answer_later(call, move |n| async move { n.copy_for(by, from, to, len, patience_ns).await });
    }
}

/// Requests of an owner about mappings of this node, served in tasks of their own.
impl Node {
    fn serve_revoke(self: &Arc<Self>, call: Call, owner: Life, mappings: Vec<u64>) {
        let node = self.clone();
        let task = async move {
            node.revoke_here(owner, &mappings).await;
            answer(call, Ok(Answer::Done));
        };
        self.platform.spawn("lite-revoke", Box::pin(task));
    }

    fn serve_pause(self: &Arc<Self>, call: Call, owner: Life, mappings: Vec<u64>, generation: u64) {
        self.answer_later(call, move |n| async move {
            n.pause_here(owner, &mappings, generation).await;
            Ok(Answer::Done)
        });
    }

    fn serve_resume(self: &Arc<Self>, call: Call, owner: Life, mappings: Vec<u64>, generation: u64) {
        self.answer_later(call, move |n| async move {
            n.resume_here(owner, &mappings, generation).await.map(|()| Answer::Done)
        });
    }

    fn serve_restrict(self: &Arc<Self>, call: Call, owner: Life, mappings: Vec<u64>, rights: Permissions) {
        self.answer_later(call, move |n| async move {
            n.restrict_here(owner, &mappings, rights).await;
            Ok(Answer::Done)
        });
    }
}

impl Node {
    /// Answers an internal call with the result of a task.
    fn answer_later<F>(self: &Arc<Self>, call: Call, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        let result = task(self.clone());
        self.platform.spawn("lite-answer", Box::pin(async move { answer(call, result.await) }));
    }

    /// Answers an internal call whose answer may be long.
    fn answer_long(&self, call: Call, result: &Result<Answer, Error>) {
        let bytes = proto::encode(result);
        // A caller that has departed needs no answer.
        let task = async move { drop(call.reply(&bytes).await) };
        self.platform.spawn("lite-pieces", Box::pin(task));
    }
}

/// Answers an internal call.
pub(crate) fn answer(call: Call, result: Result<Answer, Error>) {
    let mut bytes = proto::encode(&result);
    if bytes.len() > MAX_ANSWER {
        bytes = proto::encode(&Err::<Answer, Error>(Error::Refused("answer too long".into())));
    }
    // A caller that has departed needs no answer.
    let _ = call.reply_now(&bytes);
}
