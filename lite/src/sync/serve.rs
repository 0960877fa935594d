//! The service of requests about locks, events and barriers.

use super::home::SyncHome;
use super::request::{Request, Response};
use crate::rpc::{Call, InternalService, answer};
use alloc::sync::Arc;

impl InternalService for SyncHome {
    type Request = Request;

    fn serve(self: &Arc<Self>, call: Call, request: Request) {
        let by = (call.from(), call.incarnation());
        match request {
            Request::BarrierEnter { name, group, token, oldest } => {
                answer(call, &self.enter_barrier(by, name, group, (token, oldest)));
            }
            Request::BarrierLeave { name, token } => {
                self.leave_barrier(by, &name, token);
                answer(call, &Ok(Response::Done));
            }
            Request::Create { kind, secret, name } => self.create_object(call, kind, secret, name),
            Request::Destroy { secret } => {
                self.destroy_object(secret);
                answer(call, &Ok(Response::Done));
            }
            Request::Claim { address, mode, token, wait } => {
                answer(call, &self.claim_lock(by, &address, mode, token, wait));
            }
            Request::Signal { address } => answer(call, &self.signal_event(by, &address)),
            Request::Await { address, past, token } => {
                answer(call, &self.await_event(by, &address, past, token));
            }
            Request::Leave { address, token, held } => {
                self.leave_object(by, &address, token, held);
                answer(call, &Ok(Response::Done));
            }
            Request::Woken { token, outcome } => {
                self.waits.end(by, token, outcome);
                answer(call, &Ok(Response::Done));
            }
        }
    }
}
