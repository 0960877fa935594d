//! Waits for unknown outcomes, watches of the members, and leaves.

use super::worker::Worker;
use lite::{Change, Error};
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

impl Worker {
    /// Waits until no operation of this node with an unknown outcome can happen any more.
    pub(super) async fn settle(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let since = self.check.moment();
        let result = self.run("settle", timeout, lite.settled()).await?;
        if result.is_ok() {
            self.check.settled(self.member(), since);
        }
        result.ok()
    }

    /// Takes the changes that a membership watcher reports, and checks that no node that has left is a
    /// member.
    pub(super) async fn watch(&mut self) -> Option<()> {
        let lite = self.lite.clone();
        let watcher = self.watcher.get_or_insert_with(|| lite.watch());
        let mut left = Vec::new();
        loop {
            let mut next = pin!(watcher.next());
            // Only news that has already come.
            match std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await {
                Poll::Ready(Ok(Change::Left { node, incarnation, .. })) => left.push((node, incarnation)),
                Poll::Ready(Ok(Change::Settled { node, incarnation })) => {
                    self.check.sometimes("a watcher was told that an end is settled");
                    left.push((node, incarnation));
                }
                Poll::Ready(Ok(Change::Joined(_))) => {}
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        let members = lite.members();
        let among = |member| members.iter().any(|known| (known.node, known.incarnation) == member);
        let is_sorted = members.windows(2).all(|pair| pair[0].node < pair[1].node);
        if !is_sorted || !among(self.member()) || left.iter().any(|member| among(*member)) {
            self.violated("the members are who they are", format_args!("{members:?}, left: {left:?}"));
        }
        if lite.is_suspended() {
            self.check.sometimes("a node was suspended");
        }
        Some(())
    }

    /// Leaves the cluster in good order.
    pub(super) async fn leave(&mut self) -> bool {
        self.look_at_private();
        self.check.excuse(self.node);
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let from = self.now();
        self.check.log(from, format_args!("{} leaves", self.name));
        match lite.leave().await {
            Ok(()) => self.check.sometimes("a node left in good order"),
            Err(Error::Deadline) => self.check.sometimes("a node left and cut off operations in flight"),
            Err(_) => {}
        }
        if self.lite.is_member() {
            self.violated("who has left is no member", "after leaving");
        }
        self.lite.is_member()
    }
}
