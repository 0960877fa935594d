//! The course of jobs: when each phase began, on the whole and on each node.

use super::Core;
use platform::Instant;
use proto::{JobId, JobPhase, JobReport, NodeId, Reason, ToManager, printable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of jobs that are kept.
const JOBS: usize = 200;
/// The number of phases that are kept of a node's part.
const PHASES: usize = 16;

/// A phase of a node's part of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPhase {
    /// The name, printable.
    pub name: String,
    /// The times of the first and the last message about it.
    pub from: Instant,
    /// See `from`.
    pub to: Instant,
    /// The amount done, and the total, in units of the phase.
    pub done: u64,
    /// See `done`.
    pub total: u64,
}

/// A node's part of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartLine {
    /// The name of the node.
    pub name: String,
    /// The phases that the node has told, in order.
    pub phases: Vec<PartPhase>,
    /// The node's report, once its part is done.
    pub report: Option<JobReport>,
    /// The reason why the part has failed, if it has.
    pub failed: Option<Reason>,
}

/// The course of a job.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The job.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// The user whose job it is; empty for a holder of the cluster's key for clients.
    pub owner: String,
    /// True if the manager is given the output to keep.
    pub keeps_output: bool,
    /// The phases, each with its start.
    pub phases: Vec<(JobPhase, Instant)>,
    /// The nodes' parts, by number of the node.
    pub parts: BTreeMap<NodeId, PartLine>,
    /// The end; `None` while the job is present.
    pub ended: Option<Instant>,
}

impl Timeline {
    /// Returns true if all parts are done, and none has failed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.ended.is_some() && self.parts.values().all(|part| part.report.is_some())
    }
}

/// The courses of the last jobs.
#[derive(Debug, Default)]
pub(super) struct Timelines(BTreeMap<JobId, Arc<Timeline>>);

impl Timelines {
    pub(super) fn all(&self) -> Vec<Arc<Timeline>> {
        self.0.values().cloned().collect()
    }

    fn part(&mut self, job: JobId, node: NodeId) -> Option<&mut PartLine> {
        Arc::make_mut(self.0.get_mut(&job)?).parts.get_mut(&node)
    }
}

impl Core {
    /// Notes the present phases of all jobs.
    pub(super) fn observe_jobs(&mut self) {
        let present = self.job_statuses();
        let now = self.now;
        for status in &present {
            let known = self.timelines.0.get(&status.job);
            let changed =
                known.is_none_or(|known| known.phases.last().map(|(phase, _)| *phase) != Some(status.phase));
            if !changed {
                continue;
            }
            if known.is_none() {
                let parts = status.nodes.iter().map(|&node| {
                    let name =
                        self.members.get(node).map(|live| live.member.name.clone()).unwrap_or_default();
                    (node, PartLine { name, ..PartLine::default() })
                });
                let line = Timeline {
                    job: status.job,
                    app: status.app.clone(),
                    owner: self.owner(status.job).unwrap_or_default().to_owned(),
                    keeps_output: self.keeps_output(status.job),
                    phases: Vec::new(),
                    parts: parts.collect(),
                    ended: None,
                };
                self.timelines.0.insert(status.job, Arc::new(line));
            }
            if let Some(line) = self.timelines.0.get_mut(&status.job) {
                let ago = status.phase_ms.saturating_mul(1_000_000);
                let began = Instant::from_nanos(now.as_nanos().saturating_sub(ago));
                Arc::make_mut(line).phases.push((status.phase, began));
            }
        }
        let is_over = |line: &Arc<Timeline>| {
            line.ended.is_none() && present.iter().all(|status| status.job != line.job)
        };
        for line in self.timelines.0.values_mut().filter(|line| is_over(line)) {
            Arc::make_mut(line).ended = Some(now);
        }
        while self.timelines.0.len() > JOBS {
            self.timelines.0.pop_first();
        }
    }

    /// Notes what a node tells about its part of a job.
    pub(super) fn observe_part(&mut self, node: NodeId, message: &ToManager) {
        let now = self.now;
        match message {
            ToManager::JobProgress { job, phase, done, total } => {
                let Some(part) = self.timelines.part(*job, node) else { return };
                let end = phase.floor_char_boundary(ToManager::MAX_PHASE);
                let name = printable(phase.get(..end).unwrap_or_default());
                let (done, total) = (*done, *total);
                let has_room = part.phases.len() < PHASES;
                match part.phases.iter_mut().find(|phase| phase.name == name) {
                    Some(phase) => (phase.to, phase.done, phase.total) = (now, done, total),
                    None if has_room => {
                        part.phases.push(PartPhase { name, from: now, to: now, done, total });
                    }
                    None => {}
                }
            }
            ToManager::JobDone { job, report } if report.check().is_ok() => {
                if let Some(part) = self.timelines.part(*job, node) {
                    part.report = Some(report.clone());
                }
            }
            ToManager::JobFailed { job, reason } => {
                if let Some(part) = self.timelines.part(*job, node) {
                    part.failed = Some(printable(reason));
                }
            }
            _ => {}
        }
    }
}
