//! The admission of operations: limits of an application, and the delay of low priority.

use super::local::Local;
use super::qos::{App, Class, Priority};
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
    }
}

impl Local {
    /// Waits until an operation of `bytes` may go. `one_sided`: the schemes apply to it.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        class: &Class,
        bytes: u64,
        deadline: Instant,
        one_sided: bool,
    ) -> Result<Ticket, Error> {
        let mut ticket = Ticket { node: self.clone(), app: None, counted: None };
        if let Some(app) = &class.app {
            let mut waited = false;
            let enter = || {
                let entered = app.enter(self.platform.now(), bytes, deadline);
                waited |= entered.is_none();
                entered
            };
            let entered = self.timers.before(deadline, app.0.change.until(enter)).await;
            {
                let usage = &mut app.0.account.lock().usage;
                usage.delayed += u64::from(waited);
                usage.refused += u64::from(entered.is_none());
            }
            let go = entered.unwrap_or(Err(Error::Deadline))?;
            ticket.app = Some(app.clone());
            if go > self.platform.now() {
                self.timers.until(go).await;
            }
        }
        let now = self.platform.now();
        if one_sided && let Some(delay) = self.qos.begin(class.priority, now) {
            ticket.counted = Some((class.priority, now));
            if let Some((least, most)) = delay {
                let pause = Duration::from_micros(least + self.random() % (most - least + 1));
                self.timers.until((now + pause).min(deadline)).await;
            }
        }
        Ok(ticket)
    }
}
