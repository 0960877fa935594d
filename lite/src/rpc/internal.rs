//! Internal functions of LITE: requests of nodes to each other. An upper layer has a function of
//! its own, with its own requests; a task serves them in order of arrival, and a request that must
//! wait goes on in a task of its own.

use super::Rpc;
use super::call::Call;
use super::client::{RawRequest, ReplyTarget, Whom};
use super::server::{FunctionId, RpcOptions};
use super::service::{Service, Takes};
use crate::Error;
use crate::base::member::MemberId;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use platform::Instant;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first of the function numbers that applications cannot register.
pub(crate) const INTERNAL: FunctionId = 0xffff_0000;
const MAX_REQUEST: usize = 64 << 10;
const MAX_RESPONSE: usize = 200;
/// The length of the longest response to [`Rpc::request_long`], in bytes.
const LONG_RESPONSE: usize = 4000;
const QUEUE: usize = 1024;

/// A request of one node to another, for an internal function.
pub(crate) trait InternalRequest:
    Serialize + DeserializeOwned + Clone + Send + Sync + 'static
{
    /// The response, if the request succeeds.
    type Response: Serialize + DeserializeOwned;
    /// The internal function.
    const FUNCTION: FunctionId;
}

/// The upper layer that serves an internal function. This is the one way by which RPC calls an upper layer.
pub(crate) trait InternalService: Send + Sync + 'static {
    /// The requests.
    type Request: InternalRequest;

    /// Serves a request: answers `call` now or later.
    fn serve(self: &Arc<Self>, call: Call, request: Self::Request);
}

impl Rpc {
    /// Sends a request to that incarnation of a node, which may be this one, by `deadline`; a later
    /// incarnation is not asked.
    pub(crate) async fn request<R: InternalRequest>(
        self: &Arc<Self>,
        whom: MemberId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Response, Error> {
        self.exchange(whom, request, deadline).await.flatten()
    }

    /// Does the work of [`request`](Self::request), and distinguishes a failed request from an answer that
    /// is an error.
    pub(super) async fn exchange<R: InternalRequest>(
        self: &Arc<Self>,
        whom: MemberId,
        request: &R,
        deadline: Instant,
    ) -> Result<Result<R::Response, Error>, Error> {
        self.local.look_at_lease(self.local.platform.now());
        let mut reply = [0; MAX_RESPONSE];
        let (whom, data) = (Whom::Member(whom), &proto::encode(request));
        let request = RawRequest { whom, function: R::FUNCTION, data, deadline };
        let len = self.call_internal(&request, &mut reply).await?;
        let reply = reply.get(..len).unwrap_or_default();
        Ok(proto::decode(reply).unwrap_or_else(|_| Err(Error::Refused("malformed answer".into()))))
    }

    /// Does the work of [`request`](Self::request) for a request whose response may be long.
    pub(crate) async fn request_long<R: InternalRequest>(
        self: &Arc<Self>,
        whom: MemberId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Response, Error> {
        let mut reply = alloc::vec![0; LONG_RESPONSE];
        let (whom, data) = (Whom::Member(whom), &proto::encode(request));
        let request = RawRequest { whom, function: R::FUNCTION, data, deadline };
        let len = self.call_internal(&request, &mut reply).await?;
        let reply = reply.get(..len).unwrap_or_default();
        proto::decode::<Result<R::Response, Error>>(reply)
            .map_err(|_| Error::Refused("malformed answer".into()))?
    }

    async fn call_internal(
        self: &Arc<Self>,
        request: &RawRequest<'_>,
        reply: &mut [u8],
    ) -> Result<usize, Error> {
        let called = self.call(request, &mut ReplyTarget::Slice(reply)).await;
        called.map_err(|error| match error {
            // The internal functions of this node end with its membership.
            Error::NoSuchFunction if self.local.is_fenced() => Error::LinkDown,
            error => error,
        })
    }

    /// Serves the internal function of an upper layer for ever.
    pub(crate) fn start_internal<S: InternalService>(self: &Arc<Self>, upper: Arc<S>) {
        let options = RpcOptions { max_request: MAX_REQUEST, queue: QUEUE };
        let service = Arc::new(Service::new(options, Takes::Calls));
        self.services.add(S::Request::FUNCTION, service.clone());
        let me = self.clone();
        let task = async move {
            while let Ok(mut call) = service.next_as_is(&me).await {
                if !call.is_remote() {
                    serve_call(&upper, call);
                    continue;
                }
                // The fetch has a task of its own, so that no other request waits for it.
                let upper = upper.clone();
                let fetch = async move {
                    if call.fetch().await.is_ok() {
                        serve_call(&upper, call);
                    }
                };
                me.platform.spawn("lite-fetch", Box::pin(fetch));
            }
        };
        self.local.platform.spawn("lite-rpc", Box::pin(task));
    }

    /// Answers an internal call with the result of a task.
    pub(crate) fn answer_later<T: Serialize>(
        &self,
        call: Call,
        result: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) {
        self.local.platform.spawn("lite-answer", Box::pin(async move { answer(call, &result.await) }));
    }

    /// Answers an internal call whose response may be long.
    pub(crate) fn answer_long<T: Serialize>(&self, call: Call, result: &Result<T, Error>) {
        let bytes = proto::encode(result);
        // A caller that has departed needs no answer.
        let task = async move { drop(call.reply(&bytes).await) };
        self.local.platform.spawn("lite-pieces", Box::pin(task));
    }
}

fn serve_call<S: InternalService>(upper: &Arc<S>, call: Call) {
    match proto::decode(call.request()) {
        Ok(request) => upper.serve(call, request),
        Err(_) => answer(call, &Err::<(), _>(Error::Refused("malformed request".into()))),
    }
}

/// Answers an internal call.
pub(crate) fn answer<T: Serialize>(call: Call, result: &Result<T, Error>) {
    let mut bytes = proto::encode(result);
    if bytes.len() > MAX_RESPONSE {
        bytes = proto::encode(&Err::<(), Error>(Error::Refused("answer too long".into())));
    }
    // A caller that has departed needs no answer.
    let _ = call.reply_now(&bytes);
}
