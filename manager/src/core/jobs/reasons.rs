//! The reasons why jobs of the queue wait, computed from the present state.

use super::super::Core;
use super::super::members::STORE_IS_SLOW;
use super::eligible::Fit;
use super::policy::Verdict;
use super::queue::{DEPTH, Submission};
use proto::{JobEnd, JobId, NodeId, Reason, printable};
use std::collections::BTreeSet;

/// The reason why a job that runs after another does not start.
pub(super) enum After {
    Wait(Reason),
    Never(Reason),
}

impl Core {
    /// Returns an error unless the job that must be done before another is done.
    pub(super) fn after(&self, job: Option<JobId>) -> Result<(), After> {
        let Some(job) = job else { return Ok(()) };
        if self.jobs.waiting.iter().any(|other| other.number == job) {
            return Err(After::Wait(format!("it runs after job {}, which waits", job.0)));
        }
        if self.jobs.running.values().any(|other| other.first == job) {
            return Err(After::Wait(format!("it runs after job {}, which runs", job.0)));
        }
        match self.history.get(job).map(|ended| &ended.end) {
            Some(JobEnd::Done { .. }) => Ok(()),
            Some(end) => {
                let (job, word) = (job.0, end.word());
                Err(After::Never(format!("it was to run after job {job}, which has ended: {word}")))
            }
            None => Err(After::Never(format!("there is no job {}, after which it was to run", job.0))),
        }
    }

    /// Returns the reason, other than nodes, why a job of the queue cannot start.
    pub(super) fn obstacle(&self, submission: &Submission) -> Option<Reason> {
        if submission.is_abandoned() {
            return Some("its client has not come back".into());
        }
        if let Some(reason) = self.store_objection() {
            return Some(reason);
        }
        if let Some(reason) = self.former_parts(submission) {
            return Some(reason);
        }
        match self.after(submission.ticket.terms.after) {
            Ok(()) => None,
            Err(After::Wait(reason) | After::Never(reason)) => Some(reason),
        }
    }

    /// Returns the reason why a job of the queue waits.
    pub(super) fn reason(&self, submission: &Submission, decision: Option<&(Fit, Verdict)>) -> Reason {
        if let Some(reason) = self.obstacle(submission) {
            return reason;
        }
        match decision {
            Some((fit, Verdict::Turn(of))) => {
                let idle = self.idle(fit);
                let of: Vec<String> = of.iter().take(8).map(|job| format!("job {}", job.0)).collect();
                let (wanted, of) = (fit.wanted, of.join(", "));
                format!("{wanted} nodes wanted, and {idle} are idle, but kept for {of}")
            }
            // The number for a new start is not reserved yet.
            Some((_, Verdict::Start(_))) => STORE_IS_SLOW.into(),
            Some((fit, Verdict::Busy)) => self.busy(fit),
            None => match self.fit(&submission.spec, &submission.ticket) {
                Ok(fit) if self.idle(&fit) < fit.wanted => self.busy(&fit),
                Ok(_) => format!("more than {DEPTH} jobs are before it"),
                Err(misfit) => misfit.reason(),
            },
        }
    }

    /// Returns the number of nodes that would take a job at once.
    fn idle(&self, fit: &Fit) -> usize {
        let idle = |node: &&NodeId| self.members.get(**node).is_some_and(|live| live.job.is_none());
        fit.able.iter().filter(idle).count()
    }

    /// Returns the reason of a job that has too few idle nodes.
    fn busy(&self, fit: &Fit) -> Reason {
        let jobs = fit.nodes.iter().filter_map(|&node| self.members.get(node)?.job);
        let jobs: BTreeSet<JobId> = jobs.collect();
        let say = |id: &JobId| match (self.jobs.ending.get(id), self.jobs.running.get(id)) {
            (Some(ending), _) => {
                format!(
                    "job {} is ending on {}",
                    ending.first.0,
                    self.members.labels(ending.nodes.iter().copied())
                )
            }
            (None, Some(job)) => format!("job {} runs", job.first.0),
            (None, None) => format!("job {} runs", id.0),
        };
        let holds = self.holds(&fit.nodes);
        let all = jobs.iter().map(say).chain((!holds.is_empty()).then_some(holds));
        let all = all.collect::<Vec<_>>().join(", ");
        let (wanted, idle) = (fit.wanted, self.idle(fit));
        printable(&format!("{wanted} nodes wanted, but {idle} are idle: {all}"))
    }

    /// Returns the reason why a job that starts again has to wait for the end of its former parts: no job
    /// runs twice at once.
    fn former_parts(&self, submission: &Submission) -> Option<Reason> {
        let ending = self.jobs.ending.get(&submission.last?);
        let ending = ending.into_iter().flat_map(|ending| ending.nodes.iter().copied());
        // After a restart of the manager, the nodes tell of their parts when they resume.
        let untold = |node: &NodeId| self.members.get(*node).is_some_and(|live| live.awaited || live.asked);
        let nodes: BTreeSet<NodeId> = ending.chain(submission.nodes.iter().copied().filter(untold)).collect();
        let labels = || self.members.labels(nodes.iter().copied());
        (!nodes.is_empty()).then(|| format!("it starts again once its former part has ended on {}", labels()))
    }
}
