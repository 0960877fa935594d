//! Calls and messages.

use super::serve::{CALLS, HEADER, MESSAGES, seal};
use super::worker::{Ended, Worker};
use crate::explore::check::{CallEnd, WriteEnd};
use lite::{Error, NodeId, RpcOptions};
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// The first number of the functions and mailboxes of single tasks.
const PRIVATE: u32 = 100;

/// Returns the outcome that the check records for the result of a call or a message.
fn ended<T>(result: &Ended<T>) -> CallEnd {
    match result {
        Some(Ok(_)) => CallEnd::Done,
        None | Some(Err(Error::Unknown | Error::NodeDown(_) | Error::LinkDown)) => CallEnd::Unknown,
        Some(Err(Error::TooLarge { .. } | Error::Refused(_))) => CallEnd::Unknown,
        Some(Err(_)) => CallEnd::Never,
    }
}

/// Waits for both futures.
pub(super) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let mut ended = (None, None);
    std::future::poll_fn(|cx| {
        if ended.0.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            ended.0 = Some(value);
        }
        if ended.1.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            ended.1 = Some(value);
        }
        match (ended.0.take(), ended.1.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            other => {
                ended = other;
                Poll::Pending
            }
        }
    })
    .await
}

impl Worker {
    /// Returns a request of `len` bytes, with a number of its own.
    fn request(&mut self, len: usize) -> (u64, Vec<u8>) {
        let (id, mut request) = (self.fresh(), self.random.bytes(len.max(HEADER)));
        seal(&mut request, id, self.member());
        (id, request)
    }

    pub(super) async fn call(&mut self) -> Option<()> {
        let to = self.anyone();
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let len = self.random.pick(&[HEADER, 100, 5000, 60_000]);
        let (id, mut request) = self.request(len);
        let what = format!("call {id:#x} of {len} to {to}");
        let reply = if self.random.one_in(2) {
            let mut place = vec![0; len];
            let call = lite.call_into(to, CALLS, &request, &mut place);
            let result = self.run(what, timeout, call).await;
            result.map(|result| result.map(|len| place[..len].to_vec()))
        } else {
            self.post(what, timeout, lite.call(to, CALLS, &request, len)).await
        };
        self.check.called(id, ended(&reply));
        request.reverse();
        if reply?.ok()? != request {
            self.violated("a reply is the handler's", format_args!("call {id:#x} got other bytes"));
        }
        Some(())
    }

    /// Sends one request to several nodes. Each of them may execute it.
    pub(super) async fn call_each(&mut self) -> Option<()> {
        let (a, b) = (self.anyone(), self.anyone());
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        // Sometimes one node is called many times, with more than its ring holds.
        let many = self.random.one_in(3);
        let len = if many { 3000 } else { HEADER };
        let mut request = self.random.bytes(len);
        // The number 0 is not that of a call: the request is executed once on each node.
        seal(&mut request, 0, self.member());
        let nodes = if many { vec![a; 24] } else { vec![a, b] };
        let call = async { Ok(lite.call_each(&nodes, CALLS, &request, len).await) };
        let what = if many { format!("call {a} often") } else { format!("call {a} and {b}") };
        let replies = self.run(what, timeout, call).await?.ok()?;
        request.reverse();
        let wrong = replies.iter().flatten().any(|reply| *reply != request);
        if wrong || replies.len() != nodes.len() {
            self.violated("a reply is the handler's", format_args!("{} replies", replies.len()));
        }
        replies.into_iter().collect::<Result<Vec<_>, _>>().ok().map(drop)
    }

    pub(super) async fn send(&mut self) -> Option<()> {
        let to = self.anyone();
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let len = HEADER + self.random.below(300) as usize;
        let (id, message) = self.request(len);
        let port = if self.random.one_in(4) { CALLS } else { MESSAGES };
        self.check.sends(id);
        let what = format!("send {id:#x} to {port} of {to}");
        let result = self.run(what, timeout, lite.send(to, port, &message)).await;
        if port == MESSAGES {
            self.check.sent(id, to, ended(&result));
        } else if ended(&result) == CallEnd::Never {
            self.check.called(id, CallEnd::Never);
        }
        result?.ok()
    }

    /// Writes to a shared region with a message behind it. A node may execute the message once at most.
    pub(super) async fn notify(&mut self) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let (at, len) = self.range();
        let (offset, data) = (self.offset(at), self.random.bytes(len));
        let (call, message) = self.request(HEADER + 20);
        let id = self.check.writes(self.member(), n, self.number, at, &data);
        self.check.sends(call);
        let what = format!("write {len} at {offset} of region {n}, then send {call:#x}");
        let result = self.run(what, timeout, region.write_notify(offset, &data, CALLS, &message)).await;
        // After most errors the data may be there without the message.
        let end = if matches!(result, Some(Ok(()))) { WriteEnd::Done } else { WriteEnd::Unknown };
        self.check.wrote(n, self.number, id, end);
        if ended(&result) == CallEnd::Never {
            self.check.called(call, CallEnd::Never);
        }
        result?.ok()
    }

    /// Checks that calls and messages to a function that does not exist any more, or not yet, are refused.
    async fn is_refused(&mut self, what: &str, me: NodeId, port: u32) -> Option<()> {
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let result = self.attempt(what, timeout, lite.send(me, port, b"nobody")).await?;
        if matches!(result, Ok(()) | Err(Error::Unknown)) {
            self.violated("a function ends when it is unregistered", format_args!("{what}: {result:?}"));
        }
        Some(())
    }

    /// Registers a function, calls it, and closes it.
    pub(super) async fn register(&mut self) -> Option<()> {
        let (me, port) = (self.lite.node_id(), PRIVATE + self.number as u32);
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let Ok(server) = lite.register(port, RpcOptions::default()) else {
            // A closed function stays in use while a task has a call of it.
            return None;
        };
        let serve = async {
            let call = server.receive_within(timeout).await?;
            call.reply(b"served").await
        };
        let call = lite.call(me, port, b"own", 6);
        let work = async {
            let (served, reply) = both(serve, call).await;
            served.and(reply)
        };
        let reply = self.run("call its own function", timeout, work).await;
        if reply.as_ref().is_some_and(|reply| reply.as_ref().is_ok_and(|reply| reply != b"served")) {
            self.violated("a reply is the handler's", "its own function");
        }
        let ended = self.run("unregister its function", timeout, server.unregister()).await;
        self.is_refused("call a function that is no more", me, port).await?;
        ended?.ok()?;
        reply?.ok().map(drop)
    }

    /// Opens a mailbox, sends to itself through it, and closes it.
    pub(super) async fn mailbox(&mut self) -> Option<()> {
        let (me, port) = (self.lite.node_id(), PRIVATE + 1000 + self.number as u32);
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let mailbox = lite.open_mailbox(port, RpcOptions::default()).ok()?;
        let sent = self.run("send to its own mailbox", timeout, lite.send(me, port, b"own")).await;
        let got = match sent {
            Some(Ok(())) => {
                let receive = mailbox.receive_within(timeout);
                self.run("receive from its own mailbox", timeout, receive).await
            }
            _ => None,
        };
        if let Some(Ok(message)) = got {
            let from = (message.from(), message.incarnation());
            if from != self.member() || message.data() != b"own" || message.into_data() != b"own" {
                self.violated("messages come in order", "its own message is another");
            }
        }
        mailbox.close();
        self.is_refused("send to a mailbox that is closed", me, port).await?;
        sent?.ok()
    }
}
