//! Resumption: when the control connection has ended, a task connects to the managers again and asks for the
//! node's membership.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use platform::Instant;
use proto::Resume;
use proto::channel::{ClusterKey, Sealer};

use super::join::Attempt;
use super::{Incoming, Line, ManagerLink, Seal};
use crate::net::stack::{Buffers, Stack};
use crate::{exec, net, time};

/// The pause between two attempts to connect again.
const PAUSE: Duration = Duration::from_millis(100);

/// The means of a node to connect to a manager again.
pub(super) struct Means {
    pub stack: &'static Stack,
    pub key: ClusterKey,
    pub buffers: Buffers,
    /// The longest silence of the manager beyond the lease that a connection outlasts.
    pub silence: Option<Duration>,
}

/// Starts the task that makes another connection whenever that of a link has ended.
pub(super) fn watch(link: Arc<ManagerLink>, means: Means) {
    exec::spawn("control connection", async move {
        while poll_fn(|cx| link.poll_broken(cx)).await {
            link.hang_up();
            link.connect_again(&means).await;
        }
    })
    .detach();
}

impl ManagerLink {
    /// Waits until the connection has ended. Returns false if there will be no other.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut outgoing = self.outgoing.lock();
        match outgoing.line {
            Line::Broken => Poll::Ready(true),
            Line::Over => Poll::Ready(false),
            Line::Up | Line::Asking(_) => {
                outgoing.again = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits until the manager has answered, or the connection has ended.
    fn poll_answered(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut outgoing = self.outgoing.lock();
        if !matches!(outgoing.line, Line::Asking(_)) {
            return Poll::Ready(());
        }
        outgoing.again = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Drops the connection that has ended, which frees its buffers.
    pub(super) fn hang_up(&self) {
        let incoming = self.receiving.lock().incoming.take();
        let stream = self.outgoing.lock().stream.take();
        drop((incoming, stream));
    }

    /// Tries until the node has asked a manager to resume, and the manager had time to answer, or until LITE
    /// has ended the membership.
    async fn connect_again(&self, means: &Means) {
        let Means { stack, key, buffers, silence } = means;
        let attempt = Attempt { stack, key, buffers: *buffers, silence: *silence };
        let mut turn = 0;
        loop {
            let resume = {
                let outgoing = self.outgoing.lock();
                if matches!(outgoing.line, Line::Over) {
                    return;
                }
                outgoing.resume.clone()
            };
            match attempt.resume(turn, resume, self.lease).await {
                Ok((incoming, sealer, asked)) => {
                    self.asks(incoming, sealer, asked);
                    break;
                }
                Err(why) => log::debug!("cannot resume: {why}"),
            }
            turn += 1;
            exec::sleep(PAUSE).await;
        }
        let answered = poll_fn(|cx| self.poll_answered(cx));
        if net::with_deadline(time::now() + Resume::answer_within(self.lease), answered).await.is_none() {
            self.has_broken(&"the manager does not answer");
        }
    }

    /// Goes on with a connection on which the node has asked to resume, unless LITE has ended the membership
    /// meanwhile.
    fn asks(&self, incoming: Incoming, sealer: Sealer, asked: Instant) {
        let (stream, seal) = (incoming.stream.clone(), Seal::new(sealer));
        let mut receiving = self.receiving.lock();
        let former = {
            let mut outgoing = self.outgoing.lock();
            if matches!(outgoing.line, Line::Over) {
                return;
            }
            outgoing.stream = Some(stream);
            outgoing.number += 1;
            outgoing.bytes.clear();
            outgoing.sent = 0;
            outgoing.line = Line::Asking(asked);
            outgoing.seal.replace(seal)
        };
        receiving.incoming = Some(incoming);
        if let Some(waker) = receiving.waker.take() {
            waker.wake();
        }
        drop(receiving);
        drop(former);
    }
}
