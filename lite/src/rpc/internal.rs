//! LITE's own function: what nodes ask of each other about regions and barriers. Served by a task, in order of arrival;
//! what must wait goes on in a task of its own.

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

/// First of the function ids that applications cannot register.
pub(crate) const INTERNAL: FunctionId = 0xffff_0000;
const MAX_ASK: usize = 64 << 10;
const MAX_ANSWER: usize = 200;
/// Bytes of the longest answer to [`Ask::Pieces`].
const LONG_ANSWER: usize = 4000;
const QUEUE: usize = 1024;

/// What a node asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Make a region; the asker becomes the master. `mapping` is the asker's number of its mapping, as everywhere below.
    Alloc { mapping: u64, plan: Plan, permissions: Permissions },
    /// Map.
    Map { mapping: u64, ask: MapAsk },
    /// The pieces of a mapping from the `from`th on, if its generation is that; otherwise its shape.
    Pieces { mapping: u64, generation: u64, from: u32 },
    /// The asker uses a mapping no more.
    Unmap { mapping: u64 },
    /// Publish under a name.
    Publish { mapping: u64, name: String },
    /// Free that name of that region.
    Unpublish { region: u64, name: String },
    /// Grant rights to whoever maps the region from now on.
    Grant { mapping: u64, to: Grantee, rights: Permissions },
    /// Take rights away. Answered when no operation that relies on them is under way.
    Withdraw { mapping: u64, from: Grantee, rights: Permissions },
    /// Who maps the region from now on must know the secret.
    SetSecret { mapping: u64, secret: Vec<u8> },
    /// Make another node the master.
    HandOver { mapping: u64, to: NodeId },
    /// Move. Answered when the region is in its new place for all, or stays in the old one.
    Move { mapping: u64, plan: Plan },
    /// Free. Answered when nobody can reach the memory any more.
    Free { mapping: u64 },
    /// The asker, who owns the regions, takes mappings back. Answered when no operation through them is under way.
    Revoke { mappings: Vec<u64> },
    /// As before; operations wait until the mappings are of that generation. Answered when none is under way.
    Pause { mappings: Vec<u64>, generation: u64 },
    /// As before; the mappings are of that generation, and their pieces to be asked for. Answered when they are known.
    Resume { mappings: Vec<u64>, generation: u64 },
    /// As before; the mappings lose rights. Answered when no operation that relies on them is under way.
    Restrict { mappings: Vec<u64>, rights: Permissions },
    /// Take memory and hold it for the asker, under its number `holding`.
    Reserve { holding: u64, len: u64 },
    /// The pieces of a holding from the `from`th on.
    Reserved { holding: u64, from: u32 },
    /// The asker needs a holding no more.
    Yield { holding: u64 },
    /// Set bytes of what is held for the asker.
    Fill { piece: Piece, byte: u8 },
    /// Set bytes.
    Memset { mapping: u64, offset: u64, len: u64, byte: u8 },
    /// Lend a mapping of the asker's to another node for some time, under a number of the asker's choice.
    Lend { mapping: u64, to: NodeId, rights: Permissions, token: u64, patience_ns: u64 },
    /// Map what was lent to the asker.
    Borrow { mapping: u64, token: u64 },
    /// Copy between two regions that the asker has lent.
    Copy { from: Loan, to: Loan, len: u64, patience_ns: u64 },
    /// Wait at a barrier under the number `token` of the asker's choice.
    BarrierEnter { name: String, group: Vec<NodeId>, token: u64 },
    /// Wait no more: whoever waits there fails.
    BarrierLeave { name: String, token: u64 },
    /// Make a lock or event. `secret` is the asker's choice.
    Create { kind: Kind, secret: u64, name: String },
    /// End what was made under `secret`, if it was.
    Destroy { secret: u64 },
    /// Hold a lock, or if that cannot be now, `wait` in line.
    Claim { place: Place, mode: Mode, token: u64, wait: bool },
    /// Count an event up.
    Signal { place: Place },
    /// Wait until an event's count is above `past`.
    Await { place: Place, past: u64, token: u64 },
    /// Wait no more, or hold no more. `held`: the asker's task has had the lock.
    Leave { place: Place, token: u64, held: bool },
    /// From a home: a wait of the asked node has ended.
    Woken { token: u64, outcome: Result<Outcome, Error> },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// Mapped, or allocated and mapped.
    Mapped { shape: Shape, permissions: Permissions },
    /// What pieces there are.
    Shape(Shape),
    /// Some pieces.
    Pieces(Vec<Piece>),
    /// An object was made.
    Created(Place),
    /// In line: [`Ask::Woken`] follows.
    Queued,
    /// There was nothing to wait for.
    Ended(Outcome),
}

impl Node {
    /// Asks that life of a node, which may be this one's, by `deadline`; no later life is asked.
    pub(crate) async fn ask_node(
        self: &Arc<Self>,
        whom: Life,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        self.put_to(whom, ask, deadline).await.flatten()
    }

    /// As [`ask_node`](Self::ask_node), and tells a question that failed from an answer that is an error.
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

    /// As [`ask_node`](Self::ask_node), for a question whose answer may be long.
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

    /// Serves LITE's own function for ever.
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
                // Nobody waits while it is read.
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
            return answer(call, Err(Error::Refused("malformed question".into())));
        };
        let by = (call.from(), call.incarnation());
        let at_once = match ask {
            Ask::Alloc { mapping, plan, permissions } => {
                return self.create_region(call, mapping, plan, permissions);
            }
            Ask::Map { mapping, ask } => return self.grant_mapping(call, mapping, ask),
            Ask::Pieces { mapping, generation, from } => {
                return self.answer_long(call, &self.regions.pieces(self, by, mapping, generation, from));
            }
            Ask::Reserve { holding, len } => return self.reserve(call, holding, len),
            Ask::Reserved { holding, from } => {
                return self.answer_long(call, &self.holdings.pieces(by, holding, from));
            }
            Ask::Yield { holding } => {
                self.holdings.give_back(by, holding);
                self.report_memory();
                Ok(Answer::Done)
            }
            Ask::Fill { piece, byte } => self.fill_held(by, &piece, byte),
            Ask::Publish { mapping, name } => {
                let task = |n: Arc<Self>| async move { n.publish_region(by, mapping, &name).await };
                return self.answer_later(call, task);
            }
            Ask::Unpublish { region, name } => {
                let task = |n: Arc<Self>| async move { n.unpublish_region(by, region, &name).await };
                return self.answer_later(call, task);
            }
            Ask::Grant { mapping, to, rights } => self.grant(by, mapping, to, rights),
            Ask::Withdraw { mapping, from, rights } => {
                let task =
                    move |n: Arc<Self>| async move { n.revoke_rights(by, mapping, from, rights).await };
                return self.answer_later(call, task);
            }
            Ask::SetSecret { mapping, secret } => self.set_secret(by, mapping, secret),
            Ask::HandOver { mapping, to } => self.hand_over(by, mapping, to),
            Ask::Move { mapping, plan } => {
                let task = move |n: Arc<Self>| async move { n.move_region(by, mapping, &plan).await };
                return self.answer_later(call, task);
            }
            Ask::Pause { mappings, generation } => {
                let task = move |n: Arc<Self>| async move {
                    n.pause_here(by, &mappings, generation).await;
                    Ok(Answer::Done)
                };
                return self.answer_later(call, task);
            }
            Ask::Resume { mappings, generation } => {
                let task = move |n: Arc<Self>| async move {
                    n.resume_here(by, &mappings, generation).await.map(|()| Answer::Done)
                };
                return self.answer_later(call, task);
            }
            Ask::Restrict { mappings, rights } => {
                let task = move |n: Arc<Self>| async move {
                    n.restrict_here(by, &mappings, rights).await;
                    Ok(Answer::Done)
                };
                return self.answer_later(call, task);
            }
            Ask::Unmap { mapping } => {
                if let Some(unreachable) = self.regions.unmap(by, mapping) {
                    self.spawn_fence(unreachable);
                }
                Ok(Answer::Done)
            }
            Ask::Free { mapping } => match self.regions.begin_free(self, by, mapping) {
                Ok(region) => {
                    let node = self.clone();
                    let task = async move {
                        node.fence_region(region).await;
                        answer(call, Ok(Answer::Done));
                    };
                    return self.platform.spawn("lite-free", Box::pin(task));
                }
                Err(error) => Err(error),
            },
            Ask::Revoke { mappings } => {
                let node = self.clone();
                let task = async move {
                    node.revoke_here(by, &mappings).await;
                    answer(call, Ok(Answer::Done));
                };
                return self.platform.spawn("lite-revoke", Box::pin(task));
            }
            Ask::Memset { mapping, offset, len, byte } => {
                let task = move |n: Arc<Self>| async move {
                    n.memset_for(by, mapping, offset, len, byte).await.map(|()| Answer::Done)
                };
                return self.answer_later(call, task);
            }
            Ask::Lend { mapping, to, rights, token, patience_ns } => {
                let until = self.platform.now() + Duration::from_nanos(patience_ns);
                let loan = Lent { mapping: (by, mapping), to, rights, until };
                self.regions.lend(self, token, loan)
            }
            Ask::Borrow { mapping, token } => return self.grant_borrowed(call, mapping, token),
            Ask::Copy { from, to, len, patience_ns } => {
                let task =
                    move |n: Arc<Self>| async move { n.copy_for(by, from, to, len, patience_ns).await };
                return self.answer_later(call, task);
            }
            Ask::BarrierEnter { name, group, token } => self.enter_barrier(by, name, group, token),
            Ask::BarrierLeave { name, token } => {
                self.leave_barrier(by, &name, token);
                Ok(Answer::Done)
            }
            Ask::Create { kind, secret, name } => return self.create_object(call, kind, secret, name),
            Ask::Destroy { secret } => {
                self.destroy_object(secret);
                Ok(Answer::Done)
            }
            Ask::Claim { place, mode, token, wait } => self.claim_lock(by, &place, mode, token, wait),
            Ask::Signal { place } => self.signal_event(by, &place),
            Ask::Await { place, past, token } => self.await_event(by, &place, past, token),
            Ask::Leave { place, token, held } => {
                self.leave_object(by, &place, token, held);
                Ok(Answer::Done)
            }
            Ask::Woken { token, outcome } => {
                self.waits.end(by, token, outcome);
                Ok(Answer::Done)
            }
        };
        answer(call, at_once);
    }
}

impl Node {
    /// Answers an internal call with what a task of its own finds.
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
        // A caller that is gone asks no more.
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
    // A caller that is gone needs no answer.
    let _ = call.reply_now(&bytes);
}
