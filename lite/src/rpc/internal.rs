//! LITE's own function: what nodes ask of each other about regions and barriers. Served by a task, in order of arrival;
//! what must wait goes on in a task of its own.

use super::call::Call;
use super::client::{Request, Sink};
use super::server::{FunctionId, RpcOptions};
use super::service::{Service, Takes};
use crate::node::Node;
use crate::sync::{Kind, Mode, Outcome, Place};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{Instant, IoAddr};
use proto::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// First of the function ids that applications cannot register.
pub(crate) const INTERNAL: FunctionId = 0xffff_0000;
const MAX_ASK: usize = 8192;
const MAX_ANSWER: usize = 200;
const QUEUE: usize = 1024;

/// What a node asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Allocate; the asker becomes the master. `secret` is the asker's choice.
    Alloc { secret: u64, len: u64, permissions: Permissions },
    /// Free what was allocated under `secret` by the asker, if it was: the answer to `Alloc` was lost.
    Abandon { secret: u64 },
    /// Map.
    Map { region: u64, secret: u64, wanted: Permissions },
    /// The asker uses a mapping no more.
    Unmap { mapping: u64 },
    /// The master (un)publishes: from now on the region may be mapped by name (no more).
    Share { region: u64, secret: u64, shared: bool },
    /// The master frees. Answered when nobody can reach the memory any more.
    Free { region: u64, secret: u64 },
    /// The asker, where the regions lie, takes mappings back. Answered when no operation through them is under way.
    Revoke { mappings: Vec<u64> },
    /// Set bytes.
    Memset { mapping: u64, offset: u64, len: u64, byte: u8 },
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
    /// Wait no more, or hold no more.
    Leave { place: Place, token: u64 },
    /// From a home: a wait of the asked node has ended.
    Woken { token: u64, outcome: Result<Outcome, Error> },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// Mapped, or allocated and mapped.
    Mapped {
        mapping: u64,
        region: u64,
        home_life: Incarnation,
        addr: IoAddr,
        len: u64,
        permissions: Permissions,
    },
    /// An object was made.
    Created(Place),
    /// In line: [`Ask::Woken`] follows.
    Queued,
    /// There was nothing to wait for.
    Ended(Outcome),
}

impl Node {
    /// Asks `node`, which may be this one, by `deadline`.
    pub(crate) async fn ask_node(
        self: &Arc<Self>,
        node: NodeId,
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let mut reply = [0; MAX_ANSWER];
        let request = Request { function: INTERNAL, data: &proto::encode(ask) };
        let len = self.call(node, request, Sink::Slice(&mut reply), deadline).await?;
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
        let from = call.from();
        let life = call.incarnation();
        let at_once = match ask {
            Ask::Alloc { secret, len, permissions } => {
                self.regions.alloc(self, (from, life), secret, len, permissions)
            }
            Ask::Map { region, secret, wanted } => {
                self.regions.map(self, (from, life), region, secret, wanted)
            }
            Ask::Unmap { mapping } => {
                if let Some(unreachable) = self.regions.unmap(from, mapping) {
                    self.spawn_fence(unreachable);
                }
                Ok(Answer::Done)
            }
            Ask::Share { region, secret, shared } => self.regions.share(from, region, secret, shared),
            Ask::Abandon { secret } => {
                if let Some(region) = self.regions.abandoned(from, secret) {
                    self.spawn_fence(region);
                }
                Ok(Answer::Done)
            }
            Ask::Free { region, secret } => match self.regions.begin_free(from, region, secret) {
                Ok(()) => {
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
                    node.revoke_here(from, &mappings).await;
                    answer(call, Ok(Answer::Done));
                };
                return self.platform.spawn("lite-revoke", Box::pin(task));
            }
            Ask::Memset { mapping, offset, len, byte } => {
                match self.regions.reach(from, mapping, Permissions::WRITE, offset, len) {
                    Ok(reach) => {
                        let node = self.clone();
                        let task = async move {
                            let result = node.fill(&reach, len, byte).await;
                            drop(reach);
                            answer(call, result.map(|()| Answer::Done));
                        };
                        return self.platform.spawn("lite-memset", Box::pin(task));
                    }
                    Err(error) => Err(error),
                }
            }
            Ask::BarrierEnter { name, group, token } => self.enter_barrier((from, life), name, group, token),
            Ask::BarrierLeave { name, token } => {
                self.leave_barrier((from, life), &name, token);
                Ok(Answer::Done)
            }
            Ask::Create { kind, secret, name } => return self.create_object(call, kind, secret, name),
            Ask::Destroy { secret } => {
                self.destroy_object(secret);
                Ok(Answer::Done)
            }
            Ask::Claim { place, mode, token, wait } => {
                self.claim_lock((from, life), &place, mode, token, wait)
            }
            Ask::Signal { place } => self.signal_event(&place),
            Ask::Await { place, past, token } => self.await_event((from, life), &place, past, token),
            Ask::Leave { place, token } => {
                self.leave_object((from, life), &place, token);
                Ok(Answer::Done)
            }
            Ask::Woken { token, outcome } => {
                self.waits.end((from, life), token, outcome);
                Ok(Answer::Done)
            }
        };
        answer(call, at_once);
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
