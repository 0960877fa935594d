//! Events and barriers.

use super::calls::both;
use super::stage::PATIENT;
use super::worker::{Ended, Worker, is_unsure};
use crate::explore::check::{Act, Cell, End};
use lite::{Error, Event, NodeId};
use std::time::Duration;

/// Returns the end of a request that returns a count.
fn counted(result: &Ended<u64>, before: u64) -> End {
    match result {
        Some(Ok(count)) => End::Saw(count.wrapping_sub(before)),
        Some(Err(error)) if !is_unsure(error) => End::Never,
        None | Some(Err(_)) => End::Asked,
    }
}

impl Worker {
    async fn event(&mut self, n: usize) -> Option<Event> {
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("event-{n}");
        let open = async { lite.open_event(&name).await };
        self.run(format!("open {name}"), PATIENT, open).await?.ok()
    }

    async fn signal_event(&mut self, n: usize, event: &Event, timeout: Duration) -> Option<u64> {
        let op = self.check.word(self.member(), Cell::Event(n), Act::Add(1));
        let signal = event.with_deadline(timeout);
        let result = self.run(format!("signal event {n}"), timeout, signal.signal()).await;
        self.check.word_ended(op, counted(&result, 1));
        result?.ok()
    }

    pub(super) async fn signal(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let event = self.event(n).await?;
        self.signal_event(n, &event, timeout).await.map(drop)
    }

    pub(super) async fn wait(&mut self) -> Option<()> {
        let n = self.shared();
        let timeout = self.timeout();
        let event = self.event(n).await?;
        if self.calm {
            return self.is_woken(n, &event, timeout).await;
        }
        let past = self.random.below(10);
        let op = self.check.word(self.member(), Cell::Event(n), Act::Read);
        let event = event.with_deadline(timeout);
        let result = self.run(format!("wait for event {n} past {past}"), timeout, event.wait(past)).await;
        self.check.word_ended(op, counted(&result, 0));
        let count = result?.ok()?;
        if count <= past {
            self.violated("an event counts its signals", format_args!("event {n}: {count} after {past}"));
        }
        Some(())
    }

    /// Waits for a signal that comes during the wait.
    async fn is_woken(&mut self, n: usize, event: &Event, timeout: Duration) -> Option<()> {
        let past = self.signal_event(n, event, timeout).await?;
        let read = self.check.word(self.member(), Cell::Event(n), Act::Read);
        let add = self.check.word(self.member(), Cell::Event(n), Act::Add(1));
        let (event, lite) = (event.with_deadline(timeout), self.lite.clone());
        let signal = async {
            lite.sleep(Duration::from_millis(1)).await;
            event.signal().await
        };
        let work = async { Ok(both(event.wait(past), signal).await) };
        let both = self.run(format!("wait for event {n} past {past}, and signal"), timeout, work).await;
        let (count, signalled) = match both {
            Some(Ok((count, signalled))) => (Some(count), Some(signalled)),
            _ => (None, None),
        };
        self.check.word_ended(read, counted(&count, 0));
        self.check.word_ended(add, counted(&signalled, 1));
        for end in [&count, &signalled] {
            if let Some(Err(error)) = end
                && !self.is_explained(error)
            {
                self.violated("a healthy cluster works", format_args!("event {n} past {past}: {error}"));
            }
        }
        (count?.is_ok() && signalled?.is_ok()).then_some(())
    }

    pub(super) async fn barrier(&mut self, name: String, group: &[NodeId], timeout: Duration) -> Ended<()> {
        let lite = self.lite.with_deadline(timeout);
        self.check.comes(&name, lite.node_id());
        let barrier = lite.barrier(&name, group);
        let result = self.run(name.clone(), timeout, barrier).await;
        self.check.passed(&name, group, lite.node_id(), result.clone());
        result
    }

    /// Waits at all barriers of a round to which this node belongs, in the order that all nodes keep.
    pub(super) async fn barriers(&mut self, round: u32) -> bool {
        const PATIENCE: Duration = Duration::from_secs(5);
        let count = self.initial;
        for first in 0..count {
            let group: Vec<NodeId> = (0..3).map(|i| NodeId(((first + i) % count + 1) as u16)).collect();
            if group.contains(&self.lite.node_id()) {
                let name = format!("barrier-{round}-{first}");
                if matches!(self.barrier(name, &group, PATIENCE).await, Some(Err(Error::LinkDown))) {
                    break;
                }
            }
        }
        self.lite.is_member()
    }
}
