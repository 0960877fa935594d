//! The share of a job in LITE of this node: the priority and the limits of its operations, and its use of
//! them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use lite::{App, Limits, Lite, Priority};
use platform::Instant;
use proto::{JobId, JobQos, RdmaPriority};

/// The longest time that an operation waits for the limits of its job beyond its deadline. Operations of a
/// job become slow by a limit, and do not fail.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The time whose bytes may be sent at once after a pause, as a part of a second.
const BURST: u64 = 100;
/// The least number of bytes that may be sent at once after a pause.
const LEAST_BURST: u64 = 64 << 10;

/// The share of a job.
pub(crate) struct Share {
    priority: Priority,
    /// The account of the job, if it has limits.
    account: Option<App>,
    begun: Instant,
}

impl Share {
    /// Returns the share of a job that begins now.
    pub(crate) fn new(job: JobId, qos: &JobQos, now: Instant) -> Self {
        let JobQos { priority, bytes_per_second, outstanding } = *qos;
        let priority = match priority.unwrap_or_default() {
            RdmaPriority::Low => Priority::Low,
            RdmaPriority::Normal => Priority::Normal,
            RdmaPriority::High => Priority::High,
        };
        let limited = bytes_per_second.is_some() || outstanding.is_some();
        let burst = bytes_per_second.map_or(0, |rate| (rate / BURST).max(LEAST_BURST));
        let limits = Limits { bytes_per_second, burst, outstanding, memory: None, patience: PATIENCE };
        let account = limited.then(|| App::new(&format!("job {}", job.0), limits));
        Self { priority, account, begun: now }
    }

    /// Returns LITE for the tasks of the job. For a job that asks for nothing it is the node's handle.
    pub(crate) fn of(&self, lite: &Lite) -> Lite {
        let lite = match self.priority {
            Priority::Normal => lite.clone(),
            other => lite.with_priority(other),
        };
        match &self.account {
            Some(account) => lite.for_app(account),
            None => lite,
        }
    }

    /// Returns what the job has used of its limits, for its report; nothing if it has none.
    pub(crate) fn used(&self, now: Instant) -> Vec<(String, u64)> {
        let Some(account) = &self.account else { return Vec::new() };
        let usage = account.usage();
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        [
            ("limited", usage.operations),
            ("bytes_limited", usage.bytes),
            ("limit_waits", usage.delayed),
            ("limit_waited_us", us(usage.waited)),
            ("limited_us", us(now - self.begun)),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }
}
