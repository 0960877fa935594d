//! The admission of operations: limits of an application, and the turn and the delay of low priority.

use super::local::Local;
use super::qos::{App, Class, Priority};
use super::turns::Turn;
use crate::Error;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;

/// An operation that has been admitted; dropping it returns what the operation counted against its limits.
pub(crate) struct Ticket {
    node: Arc<Local>,
    app: Option<App>,
    /// Set under SW-Pri: the priority of the operation and the time at which it began.
    counted: Option<(Priority, Instant)>,
    /// The turn of an operation of low priority, if those go one at a time.
    turn: Option<Turn>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(app) = &self.app {
            let mut account = app.0.account.lock();
            account.usage.outstanding -= 1;
            drop(account);
            app.0.change.wake_all();
        }
        if let Some((priority, begun)) = self.counted {
            self.node.qos.end(priority, begun, self.node.platform.now());
        }
        if let Some(turn) = self.turn.take() {
            self.node.qos.turns.give_back(turn, self.node.platform.now());
        }
    }
}

impl Local {
    /// Waits until an operation of `bytes` may go, and returns its deadline too, which is later if the limits
    /// have made it wait and are patient. `one_sided`: it ends by itself, so that others may wait for its
    /// end.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        class: &Class,
        bytes: u64,
        deadline: Instant,
        one_sided: bool,
    ) -> Result<(Ticket, Instant), Error> {
        let mut ticket = Ticket { node: self.clone(), app: None, counted: None, turn: None };
        let mut deadline = deadline;
        if let Some(app) = &class.app {
            let (asked, patience) = (self.platform.now(), app.patience());
            let latest = deadline + patience;
            let (mut place, mut waited) = (app.place(), false);
            let enter = || {
                let entered = place.enter(self.platform.now(), bytes, latest);
                waited |= entered.is_none();
                entered
            };
            let entered = self.timers.before(latest, app.0.change.until(enter)).await;
            drop(place);
            {
                let usage = &mut app.0.account.lock().usage;
                usage.delayed += u64::from(waited);
                usage.refused += u64::from(entered.is_none());
            }
            let go = entered.unwrap_or(Err(Error::Deadline))?;
            ticket.app = Some(app.clone());
            self.counters.limited.add(1);
            self.counters.bytes_limited.add(bytes);
            if go > self.platform.now() {
                waited = true;
                self.timers.until(go).await;
            }
            if waited {
                let time = self.platform.now() - asked;
                app.0.account.lock().usage.waited += time;
                self.counters.limit_waits.add(1);
                self.counters.limit_waited_us.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
                deadline = deadline + time.min(patience);
            }
        }
        let now = self.platform.now();
        if self.qos.begin(class.priority) {
            ticket.counted = Some((class.priority, now));
            if class.priority == Priority::Low {
                self.give_way(&mut ticket, deadline).await;
            }
            if !one_sided && let Some(turn) = ticket.turn.take() {
                self.qos.turns.give_back(turn, self.platform.now());
            }
        }
        Ok((ticket, deadline))
    }

    /// Waits for the turn of an operation of low priority and for its delay, while those of high priority
    /// need that; no longer than until `deadline`.
    async fn give_way(&self, ticket: &mut Ticket, deadline: Instant) {
        // Operations of low priority that wait here go on when none of high priority is in use any more.
        let is_needed = || self.qos.pause(self.platform.now()).is_some();
        let turn = self.qos.turns.take(is_needed);
        let Some(Some(turn)) = self.timers.before(deadline, turn).await else { return };
        let earliest = turn.earliest();
        ticket.turn = Some(turn);
        let now = self.platform.now();
        if let Some((least, most)) = self.qos.pause(now) {
            let pause = Duration::from_micros(least + self.random() % (most - least + 1));
            self.timers.until((now + pause).max(earliest).min(deadline)).await;
        }
        if let Some(turn) = &mut ticket.turn {
            turn.begin(self.platform.now());
        }
    }
}
