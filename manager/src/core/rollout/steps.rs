//! The steps of a node in a rollout: the one that is due is decided from what the manager knows of the node.

use super::super::Core;
use super::Note;
use proto::{NodeStep, Reason, RolloutState, ToNode};
use std::time::Duration;

/// The circumstances of a node's step.
struct Case {
    name: String,
    /// The time of a step.
    within: Duration,
    /// True if the time of the present step is over.
    is_late: bool,
    /// True if the node runs the image of the rollout; `None` if it is not connected or has not told it.
    runs_wanted: Option<bool>,
    /// True if the node runs its former image; `None` as above.
    runs_former: Option<bool>,
}

impl Core {
    /// Returns the step of a node that is due now.
    pub(super) fn next_step(&mut self, name: &str, former: &[u8; 32], step: &NodeStep) -> NodeStep {
        let Some(status) = &self.rollout.status else { return step.clone() };
        let (wanted, within) = (status.plan.image, Duration::from_millis(status.plan.within_ms));
        // A process of the manager that has just started knows no note yet.
        if step.is_active() && !self.rollout.notes.contains_key(name) {
            let deadline = (*step != NodeStep::Draining).then(|| self.now + within);
            self.rollout.notes.insert(name.into(), Note { deadline, ..Note::default() });
        }
        let deadline = self.rollout.notes.get(name).and_then(|note| note.deadline);
        let case = Case {
            name: name.into(),
            within,
            is_late: deadline.is_some_and(|at| at <= self.now),
            runs_wanted: self.runs(name, &wanted),
            runs_former: self.runs(name, former),
        };
        match step {
            NodeStep::Waiting => self.after_waiting(&case),
            NodeStep::Draining => self.after_draining(name),
            NodeStep::Booting => self.after_booting(&case),
            NodeStep::Checking => match self.check_of(name) {
                Some(Ok(())) => NodeStep::Done,
                Some(Err(reason)) => NodeStep::Returning(reason),
                None if case.is_late => {
                    let seconds = case.within.as_secs_f64();
                    NodeStep::Returning(format!("its check has not ended within {seconds} s"))
                }
                None => NodeStep::Checking,
            },
            NodeStep::Returning(reason) => self.after_returning(&case, reason),
            NodeStep::CheckingFormer(reason) => match self.check_of(name) {
                Some(Ok(())) => NodeStep::Returned(reason.clone()),
                Some(Err(other)) => NodeStep::Lost(format!("{reason}; with its former image: {other}")),
                None if case.is_late => NodeStep::Lost(format!("{reason}; it does not answer")),
                None => step.clone(),
            },
            NodeStep::Done | NodeStep::Returned(_) | NodeStep::Lost(_) => step.clone(),
        }
    }

    /// Returns true if a node runs an image; `None` if it is not connected or has not told its image.
    fn runs(&self, name: &str, image: &[u8; 32]) -> Option<bool> {
        let live = self.members.named(name).filter(|live| live.conn.is_some())?;
        let kernel = live.image.as_ref()?.kernel;
        Some(self.images.get(image).is_some_and(|image| image.info.kernel == kernel))
    }

    fn after_waiting(&self, case: &Case) -> NodeStep {
        if !self.may_begin() {
            return NodeStep::Waiting;
        }
        if case.runs_wanted == Some(true) {
            return NodeStep::Done;
        }
        match self.members.named(&case.name) {
            Some(live) if live.conn.is_some() && self.withdrawn(live.member.node).is_none() => {
                NodeStep::Draining
            }
            _ => NodeStep::Waiting,
        }
    }

    fn after_draining(&mut self, name: &str) -> NodeStep {
        if !self.is_running() {
            return NodeStep::Waiting;
        }
        match self.members.named(name) {
            Some(live) if live.conn.is_some() && live.job.is_none() => {
                let ordered = self.orders.contains(live.member.node);
                if !self.is_vacant(name) || ordered { NodeStep::Draining } else { NodeStep::Booting }
            }
            _ => NodeStep::Draining,
        }
    }

    fn after_booting(&mut self, case: &Case) -> NodeStep {
        let note = self.rollout.notes.get(&case.name);
        let told = note.and_then(|note| note.told);
        if let Some(reason) = note.and_then(|note| note.refused.clone()) {
            return NodeStep::Returning(reason);
        }
        let is_new = self.members.named(&case.name).is_some_and(|live| Some(live.member.incarnation) != told);
        match case.runs_wanted {
            Some(false) if told.is_none() => {
                self.tell_once(&case.name, false);
                NodeStep::Booting
            }
            Some(true) if is_new => NodeStep::Checking,
            Some(false) if is_new => {
                NodeStep::Returning("it has joined with another image than the wanted one".into())
            }
            _ if case.is_late => {
                let seconds = case.within.as_secs_f64();
                NodeStep::Returning(format!("it has not joined with the image within {seconds} s"))
            }
            _ => NodeStep::Booting,
        }
    }

    fn after_returning(&mut self, case: &Case, reason: &Reason) -> NodeStep {
        match case.runs_former {
            Some(true) => return NodeStep::CheckingFormer(reason.clone()),
            _ if case.is_late => {
                return NodeStep::Lost(format!("{reason}; it has not come back with its former image"));
            }
            Some(false) => self.tell_once(&case.name, true),
            None => {}
        }
        NodeStep::Returning(reason.clone())
    }

    fn is_running(&self) -> bool {
        self.rollout.status.as_ref().is_some_and(|status| status.state == RolloutState::Running)
    }

    /// Returns true if another node may begin.
    fn may_begin(&self) -> bool {
        let Some(status) = self.rollout.status.as_ref().filter(|s| s.state == RolloutState::Running) else {
            return false;
        };
        let active = status.nodes.iter().filter(|(_, _, step)| step.is_active()).count();
        let done = status.nodes.iter().filter(|(_, _, step)| *step == NodeStep::Done).count();
        let canary = usize::from(status.plan.canary);
        let limit = usize::from(status.plan.max_unavailable);
        // The canaries must have succeeded before any other node begins.
        let limit = if done < canary { limit.min(canary - done) } else { limit };
        active < limit
    }

    /// Makes a node boot the image of the rollout or its former one, once for each incarnation.
    fn tell_once(&mut self, name: &str, former: bool) {
        let live = self.members.named(name).filter(|live| live.conn.is_some() && live.job.is_none());
        let Some((node, incarnation)) = live.map(|live| (live.member.node, live.member.incarnation)) else {
            return;
        };
        let told = self.rollout.notes.get(name).is_some_and(|note| note.told == Some(incarnation));
        if told || self.orders.contains(node) {
            return;
        }
        if let Some(note) = self.rollout.notes.get_mut(name) {
            note.told = Some(incarnation);
        }
        self.boot_kept(name, former);
    }

    /// Returns the result of the check of a node's present incarnation, which is told to check if it was not.
    fn check_of(&mut self, name: &str) -> Option<Result<(), Reason>> {
        let note = self.rollout.notes.get_mut(name)?;
        if let Some(result) = &note.checked {
            return Some(result.clone());
        }
        let live = self.members.named(name)?;
        let (conn, incarnation) = (live.conn?, live.member.incarnation);
        match note.checks {
            Some((told, _)) if told == incarnation => None,
            Some(_) => Some(Err("it has joined again during its check".into())),
            None => {
                self.rollout.check += 1;
                let request = self.rollout.check;
                note.checks = Some((incarnation, request));
                self.commit_to_node(conn, ToNode::Check { request });
                None
            }
        }
    }
}
