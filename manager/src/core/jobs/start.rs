//! The start of a job on the nodes that the queue has chosen for it.

use super::super::cut::Cutter;
use super::super::records::{JobRecord, Record, Stage};
use super::super::{Core, Message};
use super::queue::Submission;
use super::spooled::Feeding;
use super::{Job, Part};
use proto::{CutRule, Dataset, InputFile, JobQos, JobStart, NodeId, Reason, ToNode};
use std::sync::Arc;

impl Core {
    /// Starts a job. Returns the submission if no number for it is reserved on the disk.
    pub(super) fn start(
        &mut self,
        mut submission: Submission,
        nodes: Vec<NodeId>,
        cut: CutRule,
    ) -> Option<Submission> {
        // A dataset may have been dropped while the submission waited for nodes.
        let datasets = match self.find_datasets(&submission.spec.datasets) {
            Ok(datasets) => datasets,
            Err(reason) => {
                self.fail_submission(&submission, reason);
                return None;
            }
        };
        let mut save = Vec::new();
        // A job that starts again gets another number, which tells the messages of both times apart.
        let job = match submission.last {
            None => Some(submission.number),
            Some(_) => self.identities.job(&mut save),
        };
        let Some(job) = job else {
            self.save(save);
            return Some(submission);
        };
        submission.ticket.started_ms = self.unix_ms();
        let Submission { conn, spec, ticket, number: first, last, .. } = submission;
        let has_input = spec.inputs.iter().any(|file| file.len > 0);
        let feeding = (ticket.terms.detach && has_input).then(Feeding::default);
        let cutter = Cutter::new(cut, &spec.inputs, nodes.len());
        let incarnation = |&node: &NodeId| Some((node, self.members.get(node)?.member.incarnation));
        let members = nodes.iter().filter_map(incarnation).collect();
        let (stage, copy) = (Stage::Loading, ticket.clone());
        let (spec_copy, qos) = (spec.clone(), ticket.qos);
        let record = JobRecord { job, first, spec: spec_copy, nodes: members, stage, ticket: copy, qos };
        save.push(Record::Job(Arc::new(record)));
        save.extend(last.map(Record::JobGone));
        self.save(save);
        let (mut inputs, mut share) = (spec.inputs.clone(), cutter.share());
        let files = inputs.len();
        for dataset in &datasets {
            share = share.saturating_add(dataset.len().div_ceil(nodes.len() as u64));
            let name = format!("{}{}", Dataset::SCHEME, dataset.name);
            inputs.push(InputFile { name, len: dataset.len() });
        }
        let (app, args, keep) = (spec.app.clone(), spec.args.clone(), spec.keep.is_some());
        let start = JobStart { job, app, args, nodes, inputs, datasets, share, keep };
        self.log(format!("job {}: {} on {} nodes, {files} files", job.0, start.app, start.nodes.len()));
        let parts = self.tell_start(start, qos);
        let cutter = Some(cutter);
        let new = Job { feeding, cutter, ..Job::new((conn, first), (spec, ticket), parts, self.now) };
        self.jobs.running.insert(job, new);
        if let Some(conn) = conn {
            self.jobs.clients.insert(conn, job);
        }
        None
    }

    /// Tells the nodes of a job to start their parts, and returns the parts.
    fn tell_start(&mut self, start: JobStart, qos: JobQos) -> Vec<Part> {
        let (job, nodes) = (start.job, start.nodes.clone());
        let message = Message::to_nodes(&match qos.is_plain() {
            true => ToNode::JobStart(start),
            false => ToNode::JobStartWith { start: Box::new(start), qos },
        });
        for &node in &nodes {
            if let Some(live) = self.members.get_mut(node) {
                live.job = Some(job);
                if let Some(conn) = live.conn {
                    self.commit(conn, message.clone());
                }
            }
        }
        nodes.into_iter().filter_map(|node| self.part(node)).collect()
    }

    /// Returns the part of a member in a new job.
    fn part(&self, node: NodeId) -> Option<Part> {
        let member = &self.members.get(node)?.member;
        Some(Part::new((node, member.incarnation), member.name.clone(), self.now))
    }

    /// Refuses a submission, or reports the failure of a job of the queue.
    pub(super) fn fail_submission(&mut self, submission: &Submission, reason: Reason) {
        self.end_submission(submission, proto::JobEnd::Failed { reason });
    }
}
