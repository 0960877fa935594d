//! Jobs that start again, because a connection broke while input came; and the parts that a node
//! reports after it has resumed.

use super::super::records::{Record, Stage};
use super::super::spool::SpoolFile;
use super::super::{ConnId, Core};
use super::queue::{MAX_REQUEUES, description_len};
use super::{Ending, Job, Phase, Submission};
use proto::{JobId, JobStanding, NodeId, ToNode};
use std::collections::{BTreeMap, BTreeSet};

impl Core {
    /// Handles the break of the connection of a node that takes part in a job. If input was on its way, the
    /// job starts again.
    pub(in super::super) fn part_is_cut_off(&mut self, id: JobId, why: &str) {
        if self.jobs.running.get(&id).is_some_and(|job| job.phase != Phase::Running) {
            self.restart_job(id, why);
        }
    }

    /// Ends a job on its nodes, and lets it start again when they have ended it. It gets another number then.
    pub(super) fn restart_job(&mut self, id: JobId, why: &str) {
        self.save_job(id, Stage::Loading);
        let Some(job) = self.end_parts(id, why) else { return };
        self.log(format!("job {}: starts again: {why}", id.0));
        let (conn, nodes) = (job.client, job.nodes());
        let (number, last, since) = (job.first, Some(id), self.now);
        let Job { spec, ticket, .. } = job;
        self.remove_spooled(SpoolFile::output(number));
        let len = description_len(&spec);
        let waiting = Submission { conn, spec, ticket, since, number, last, nodes, told: None, len };
        self.jobs.waiting.push(waiting);
        self.schedule();
    }

    /// Handles the death of a node that takes part in a job: the job goes back to the queue if it is to, or
    /// fails.
    pub(in super::super) fn job_lost_node(&mut self, id: JobId, reason: &str) {
        let Some(job) = self.jobs.running.get_mut(&id) else { return };
        if !job.ticket.terms.requeue {
            return self.fail_job(id, reason.into());
        }
        if job.ticket.requeues >= MAX_REQUEUES {
            let reason = format!("{reason}; it has gone back to the queue {MAX_REQUEUES} times");
            return self.fail_job(id, reason);
        }
        job.ticket.requeues += 1;
        self.restart_job(id, reason);
    }

    /// Handles the death of a node for the jobs that are about to start again and had begun on it.
    pub(in super::super) fn fail_restarts_on(&mut self, node: NodeId, reason: &str) {
        let (failed, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.jobs.waiting)
            .into_iter()
            .partition(|submission| submission.nodes.contains(&node) && !submission.ticket.terms.requeue);
        self.jobs.waiting = stay;
        for submission in failed {
            self.fail_submission(&submission, reason.into());
        }
    }

    /// Returns whether the job of a client is about to start again, and `of` is the number that it
    /// had before.
    pub(super) fn starts_again(&self, conn: ConnId, of: JobId) -> bool {
        let waits = self.jobs.waiting.iter().any(|submission| {
            submission.conn == Some(conn) && submission.last.is_some_and(|last| last >= of)
        });
        let later = |(id, job): (JobId, &super::Job)| id > of && job.first <= of;
        let id = self.jobs.clients.get(&conn);
        waits || id.is_some_and(|&id| self.jobs.running.get(&id).is_some_and(|job| later((id, job))))
    }

    /// Handles a resumed node's list of its parts of jobs, and of the jobs whose output it keeps.
    pub(in super::super) fn jobs_told(
        &mut self,
        node: NodeId,
        jobs: Vec<(JobId, JobStanding)>,
        kept: &[JobId],
    ) {
        // A node may answer the question of a former connection on this one, and then that of this one. No
        // job begins before the first answer. The second may not know a job that has begun since.
        if !self.members.get_mut(node).is_some_and(|live| std::mem::take(&mut live.asked)) {
            return;
        }
        let jobs: BTreeMap<JobId, JobStanding> = jobs.into_iter().collect();
        let goes_on = |id: &JobId| matches!(jobs.get(id), Some(JobStanding::Loading | JobStanding::Running));
        let ending: Vec<JobId> = self.jobs.ending.keys().copied().filter(|id| !goes_on(id)).collect();
        for id in ending {
            self.part_is_over(node, id);
        }
        let lost: Vec<JobId> = self
            .jobs
            .running
            .iter()
            .filter(|(id, job)| {
                job.parts.iter().any(|part| part.node == node && !part.over) && !jobs.contains_key(id)
            })
            .map(|(&id, _)| id)
            .collect();
        let label = self.members.label(node);
        for id in lost {
            self.restart_job(id, &format!("{label} does not have its part"));
        }
        for (id, standing) in jobs {
            self.standing_told(node, id, standing);
        }
        let wanted = self.kept_jobs();
        for &id in kept {
            if !wanted.contains(&id) && !self.jobs.running.contains_key(&id) {
                self.free_kept(id, &[node]);
            }
        }
        self.schedule();
    }

    fn standing_told(&mut self, node: NodeId, id: JobId, standing: JobStanding) {
        let part = self.jobs.running.get(&id).and_then(|job| {
            job.parts.iter().find(|part| part.node == node).map(|part| (job.phase, part.over))
        });
        match (part, standing) {
            (Some((_, true)), JobStanding::Done(_)) => {}
            (Some(_), JobStanding::Done(report)) => self.job_done(node, id, report),
            (Some(_), JobStanding::Failed(reason)) => self.job_failed_by(node, id, &reason),
            (Some((Phase::Running, _)), JobStanding::Running) => self.ask_output(id),
            (Some(_), JobStanding::Loading | JobStanding::Running) => {
                let label = self.members.label(node);
                self.restart_job(id, &format!("{label} does not have all of its input"));
            }
            (None, JobStanding::Done(_) | JobStanding::Failed(_)) => self.forget_part(node, id),
            (None, JobStanding::Loading | JobStanding::Running) => self.end_unknown_part(node, id),
        }
    }

    /// Tells a node to end its part of a job that has ended. The node is busy until it has.
    fn end_unknown_part(&mut self, node: NodeId, id: JobId) {
        let (now, app) = (self.now, String::from("a job of a former manager"));
        let Some(live) = self.members.get_mut(node) else { return };
        live.job = Some(id);
        let Some(conn) = live.conn else { return };
        let ending =
            self.jobs.ending.entry(id).or_insert_with(|| Ending::new((id, app), BTreeSet::new(), now, now));
        ending.nodes.insert(node);
        self.tell_node(conn, ToNode::JobCancel { job: id, reason: "the job has ended".into() });
    }

    /// Tells a node to forget the end of its part, once the end of the job is recorded.
    pub(super) fn forget_part(&mut self, node: NodeId, id: JobId) {
        if let Some(conn) = self.members.get(node).and_then(|live| live.conn) {
            self.commit_to_node(conn, ToNode::JobForget { job: id });
        }
    }

    /// Records that nobody waits for a job any more.
    pub(super) fn job_gone(&mut self, id: JobId) {
        self.save(vec![Record::JobGone(id)]);
    }
}
