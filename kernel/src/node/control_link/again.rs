//! Resumption: when the control connection has ended, a task connects to the managers again and asks for the
//! node's membership.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll};
use core::time::Duration;
use platform::Instant;
use proto::Resume;
use proto::channel::{ClusterKey, Sealer};

use super::join::{Attempt, managers};
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
        let mut turn = 0;
        while link.broken(&mut turn).await {
            link.hang_up();
            link.connect_again(&means, &mut turn).await;
        }
    })
    .detach();
}

impl ManagerLink {
    /// Waits until the connection has ended. Returns false if there will be no other. One of several managers
    /// that is silent for two thirds of the lease is left, and `turn` is increased.
    async fn broken(&self, turn: &mut usize) -> bool {
        let outlasts = self.lease * 2 / 3;
        loop {
            let ended = poll_fn(|cx| self.poll_broken(cx));
            let silent_at = Instant::from_nanos(self.heard.load(Ordering::Relaxed)) + outlasts;
            if managers().map_or(1, |all| all.len()) < 2 {
                return ended.await;
            }
            // A connection that has ended is the first answer of `ended`.
            let until = silent_at.max(time::now() + PAUSE);
            if let Some(goes_on) = net::with_deadline(until, ended).await {
                return goes_on;
            }
            // A task that has computed all the time may have kept messages from being received.
            exec::sleep(PAUSE).await;
            if Instant::from_nanos(self.heard.load(Ordering::Relaxed)) + outlasts <= time::now() {
                *turn += 1;
                self.has_broken(&"the manager is silent");
            }
        }
    }

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

    /// Tries, from the `turn`-th manager on, until the node has asked one to resume, and the manager had time
    /// to answer, or until LITE has ended the membership.
    async fn connect_again(&self, means: &Means, turn: &mut usize) {
        let Means { stack, key, buffers, silence } = means;
        let attempt = Attempt { stack, key, buffers: *buffers, silence: *silence };
        loop {
            let resume = {
                let outgoing = self.outgoing.lock();
                if matches!(outgoing.line, Line::Over) {
                    return;
                }
                outgoing.resume.clone()
            };
            match attempt.resume(*turn, resume, self.lease).await {
                Ok((incoming, sealer, asked)) => {
                    self.asks(incoming, sealer, asked);
                    break;
                }
                Err(why) => log::debug!("cannot resume: {why}"),
            }
            *turn += 1;
            exec::sleep(PAUSE).await;
        }
        let answered = poll_fn(|cx| self.poll_answered(cx));
        if net::with_deadline(time::now() + Resume::answer_within(self.lease), answered).await.is_none() {
            self.has_broken(&"the manager does not answer");
        }
        if self.outgoing.lock().line != Line::Up {
            // This manager is a standby, or too busy.
            *turn += 1;
            exec::sleep(PAUSE).await;
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
