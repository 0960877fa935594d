//! The platform that an application gets: tasks that it starts belong to the job.

use crate::task::Tasks;
use alloc::sync::Arc;
use platform::{Instant, Look, Memory, Platform, Task};

/// A node's platform on which all tasks end with the job.
pub(crate) struct JobPlatform {
    node: Arc<dyn Platform>,
    tasks: Tasks,
}

impl JobPlatform {
    pub(crate) fn new(node: Arc<dyn Platform>, tasks: Tasks) -> Self {
        Self { node, tasks }
    }
}

impl Platform for JobPlatform {
    fn now(&self) -> Instant {
        self.node.now()
    }

    fn fill_random(&self, buf: &mut [u8]) {
        self.node.fill_random(buf);
    }

    fn cpus(&self) -> usize {
        self.node.cpus()
    }

    fn cpu(&self) -> usize {
        self.node.cpu()
    }

    fn spawn(&self, name: &'static str, task: Task) {
        drop(self.tasks.spawn(name, task));
    }

    fn wake_poller(&self) {
        self.node.wake_poller();
    }

    fn poll_in_task(&self) -> Look {
        self.node.poll_in_task()
    }

    fn memory(&self) -> &dyn Memory {
        self.node.memory()
    }

    fn take_log(&self, into: &mut [u8]) -> (usize, u64) {
        self.node.take_log(into)
    }
}
