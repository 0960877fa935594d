//! Orders to power controllers. Each has a task of its own, so that one that does not answer delays nothing.

use crate::core::{PowerOrder, PowerReport};
use crate::power;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// The tasks, which end with this.
#[derive(Debug)]
pub(super) struct Powerer {
    tasks: JoinSet<()>,
    tell: UnboundedSender<PowerReport>,
}

impl Powerer {
    /// Returns the orders' place and the queue of their reports.
    pub(super) fn new() -> (Self, UnboundedReceiver<PowerReport>) {
        let (tell, told) = unbounded_channel();
        (Self { tasks: JoinSet::new(), tell }, told)
    }

    /// Starts an order. Never waits.
    pub(super) fn obey(&mut self, order: PowerOrder) {
        while self.tasks.try_join_next().is_some() {}
        let tell = self.tell.clone();
        self.tasks.spawn(power::obey(order, move |report| {
            let _ = tell.send(report);
        }));
    }
}
