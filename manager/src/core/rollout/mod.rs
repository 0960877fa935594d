//! Rollouts: the nodes of a cluster boot another image, a few at a time, and those that fail boot their
//! former one again.
//!
//! A node succeeds once it has joined with a kernel that computes the image's digest of itself, and has
//! written and read memory of all its peers. The progress is saved, and the manager alone drives it, so a
//! client or a process of the manager may end at any time. After a restart of the manager all time limits
//! begin again.

mod steps;

use super::images::short;
use super::members::Live;
use super::service::Withdrawn;
use super::{ConnId, Core, Record};
use platform::Instant;
use proto::{
    Incarnation, NodeId, NodeStep, Reason, Refusal, RolloutPlan, RolloutState, RolloutStatus, ToClient,
    printable,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The author of a withdrawal by a rollout.
const WHO: &str = "a rollout";

/// The last rollout.
#[derive(Debug, Default)]
pub(super) struct Rollout {
    status: Option<RolloutStatus>,
    /// The circumstances of the nodes' present steps, by name, as far as this process knows them.
    notes: BTreeMap<String, Note>,
    /// The number of the last check.
    check: u32,
}

/// The circumstances of a node's present step.
#[derive(Debug, Default)]
struct Note {
    /// The end of the step's time.
    deadline: Option<Instant>,
    /// The incarnation that was told to boot an image.
    told: Option<Incarnation>,
    /// The incarnation that was told to check its peers, and the number of the check.
    checks: Option<(Incarnation, u32)>,
    /// The result of that check.
    checked: Option<Result<(), Reason>>,
    /// The reason for which an order to boot has failed.
    refused: Option<Reason>,
}

impl Rollout {
    pub(super) fn restore(&mut self, status: Option<RolloutStatus>) {
        self.status = status;
    }

    /// Returns true if the rollout has something left to do.
    fn is_active(&self) -> bool {
        let active = |status: &RolloutStatus| {
            status.state == RolloutState::Running || status.nodes.iter().any(|(_, _, step)| step.is_active())
        };
        self.status.as_ref().is_some_and(active)
    }

    /// Returns true if an image may not be removed.
    pub(super) fn needs(&self, image: &[u8; 32]) -> bool {
        let needs = |s: &RolloutStatus| {
            s.plan.image == *image || s.nodes.iter().any(|(_, former, _)| former == image)
        };
        self.is_active() && self.status.as_ref().is_some_and(needs)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.notes.values().filter_map(|note| note.deadline).min()
    }

    /// Moves all deadlines by the time for which the manager was deaf.
    pub(super) fn forgive(&mut self, late: Duration) {
        self.notes.values_mut().filter_map(|note| note.deadline.as_mut()).for_each(|at| *at = *at + late);
    }
}

impl Core {
    pub(super) fn start_rollout(&mut self, conn: ConnId, plan: RolloutPlan) {
        match self.planned(&plan) {
            Ok(nodes) => self.begin_rollout(conn, plan, nodes),
            Err(reason) => self.fail_client(conn, reason),
        }
    }

    fn begin_rollout(&mut self, conn: ConnId, plan: RolloutPlan, nodes: Vec<(String, [u8; 32])>) {
        let number = self.rollout.status.as_ref().map_or(1, |status| status.number + 1);
        let who = self.who(conn);
        self.log(format!("{who} starts rollout {number} of image {}", short(&plan.image)));
        let nodes = nodes.into_iter().map(|(name, former)| (name, former, NodeStep::Waiting)).collect();
        let status = RolloutStatus { number, plan, who, state: RolloutState::Running, nodes };
        self.rollout.notes.clear();
        self.rollout.status = Some(status);
        self.save_rollout();
        self.advance_rollout();
        self.tell_rollout(conn);
    }

    /// Returns the nodes of a rollout in order, with their present images.
    fn planned(&self, plan: &RolloutPlan) -> Result<Vec<(String, [u8; 32])>, Reason> {
        if let Some(objection) = self.store_objection() {
            return Err(objection);
        }
        if self.rollout.is_active() {
            return Err("another rollout goes on".into());
        }
        if self.images.get(&plan.image).is_none() {
            return Err(format!("there is no image {}", short(&plan.image)));
        }
        if plan.canary == 0 || plan.max_unavailable == 0 || plan.within_ms == 0 {
            return Err("canary, max-unavailable and within must not be 0".into());
        }
        let all = || {
            let machines = self.members.0.values().filter(|live| live.member.rnic.physical);
            machines.map(|live| live.member.name.clone()).collect()
        };
        let names: Vec<String> = if plan.nodes.is_empty() { all() } else { plan.nodes.clone() };
        if names.is_empty() {
            return Err("no machine has joined".into());
        }
        let mut nodes: Vec<(String, [u8; 32])> = Vec::new();
        for name in names {
            if nodes.iter().any(|(known, _)| *known == name) {
                return Err(format!("node {} is named twice", printable(&name)));
            }
            let former = self.present_image(&name)?;
            nodes.push((name, former));
        }
        Ok(nodes)
    }

    /// Returns the kept image that a node runs, to which it can return.
    fn present_image(&self, name: &str) -> Result<[u8; 32], Reason> {
        let shown = printable(name);
        let live = self.members.named(name).ok_or_else(|| format!("no node {shown} has joined"))?;
        let label = live.label();
        if !live.member.rnic.physical {
            return Err(format!("{label} is a process on a host, and no machine of its own"));
        }
        if let Some(reason) = self.withdrawn(live.member.node) {
            return Err(format!("{reason}: put it back into service first"));
        }
        let running =
            live.image.as_ref().ok_or_else(|| format!("{label} does not tell which image it runs"))?;
        let kept = self.images.with_kernel(&running.kernel);
        kept.map(|image| image.info.sha256).ok_or_else(|| {
            format!("{label} runs an image that is not kept, so it could not return to it: add it first")
        })
    }

    /// Returns the last rollout, if there was one.
    pub(super) fn rollout_status(&self) -> Option<&RolloutStatus> {
        self.rollout.status.as_ref()
    }

    pub(super) fn tell_rollout(&mut self, conn: ConnId) {
        let status = self.rollout.status.clone();
        self.commit_to_client(conn, ToClient::Rollout(status));
    }

    /// Lets no more nodes begin.
    pub(super) fn stop_rollout(&mut self, conn: ConnId) {
        let who = self.who(conn);
        match &mut self.rollout.status {
            Some(status) if status.state == RolloutState::Running => {
                status.state = RolloutState::Stopped(format!("stopped by {who}"));
                self.save_rollout();
                self.log(format!("{who} stops the rollout"));
                self.tell_rollout(conn);
            }
            _ => self.refuse_client(conn, Refusal::NotFound, "no rollout goes on".into()),
        }
    }

    /// Starts a rollout of the former image on the nodes that the last one has changed.
    pub(super) fn undo_rollout(&mut self, conn: ConnId) {
        let Some(last) = self.rollout.status.clone() else {
            return self.refuse_client(conn, Refusal::NotFound, "there was no rollout".into());
        };
        let mut changed = last.nodes.iter().filter(|(_, _, step)| *step == NodeStep::Done);
        let Some((_, former, _)) = changed.next().cloned() else {
            return self.fail_client(conn, "the last rollout has changed no node".into());
        };
        if changed.any(|(_, other, _)| *other != former) {
            let reason = "the nodes had several images before: start a rollout for each";
            return self.fail_client(conn, reason.into());
        }
        let done = last.nodes.into_iter().filter(|(_, _, step)| *step == NodeStep::Done);
        let nodes = done.map(|(name, ..)| name).collect();
        self.start_rollout(conn, RolloutPlan { image: former, nodes, ..last.plan });
    }

    /// Notes the result of a node's check.
    pub(super) fn node_has_checked(&mut self, node: NodeId, request: u32, result: Result<(), Reason>) {
        let Some(live) = self.members.get(node) else { return };
        let (name, incarnation) = (live.member.name.clone(), live.member.incarnation);
        if let Some(note) = self.rollout.notes.get_mut(&name)
            && note.checks == Some((incarnation, request))
        {
            note.checked = Some(result.map_err(|reason| printable(&reason)));
            self.advance_rollout();
        }
    }

    /// Notes that a node does not boot the image of a rollout.
    pub(super) fn rollout_is_refused(&mut self, name: &str, reason: &str) {
        if let Some(note) = self.rollout.notes.get_mut(name) {
            note.refused = Some(printable(reason));
        }
    }

    /// Notes the end of a node that was told to check its peers.
    pub(super) fn rollout_node_is_gone(&mut self, gone: &Live, reason: &str) {
        if let Some(note) = self.rollout.notes.get_mut(&gone.member.name)
            && note.told.is_none_or(|told| told != gone.member.incarnation)
        {
            note.checked = Some(Err(format!("it has ended: {reason}")));
        }
    }

    fn save_rollout(&mut self) {
        if let Some(status) = self.rollout.status.clone() {
            self.save(vec![Record::Rollout(Box::new(status))]);
        }
    }

    /// Does for each node what is due.
    pub(super) fn advance_rollout(&mut self) {
        if !self.rollout.is_active() || self.leaving.is_some() {
            return;
        }
        let Some(before) = self.rollout.status.clone() else { return };
        for at in 0..before.nodes.len() {
            let Some((name, former, step)) =
                self.rollout.status.as_ref().and_then(|s| s.nodes.get(at).cloned())
            else {
                return;
            };
            let next = self.next_step(&name, &former, &step);
            if next != step {
                self.enter_step(at, &name, next);
            }
        }
        if let Some(status) = &mut self.rollout.status
            && status.state == RolloutState::Running
            && status.nodes.iter().all(|(_, _, step)| *step == NodeStep::Done)
        {
            status.state = RolloutState::Done;
            let number = status.number;
            self.log(format!("rollout {number} is done"));
        }
        if self.rollout.status.as_ref() != Some(&before) {
            self.save_rollout();
        }
    }

    /// Enters a node's next step.
    fn enter_step(&mut self, at: usize, name: &str, step: NodeStep) {
        let Some(status) = &mut self.rollout.status else { return };
        let within = Duration::from_millis(status.plan.within_ms);
        let why = step.reason().cloned();
        let shown = match &why {
            Some(why) => format!("{}: {why}", step.word()),
            None => step.word().into(),
        };
        let line = format!("rollout {}: {} {shown}", status.number, printable(name));
        let image = short(&status.plan.image);
        if let (NodeStep::Returning(_) | NodeStep::Lost(_), Some(why), RolloutState::Running) =
            (&step, &why, &status.state)
        {
            status.state = RolloutState::Failed(format!("{}: {why}", printable(name)));
        }
        if let Some(entry) = status.nodes.get_mut(at) {
            entry.2 = step.clone();
        }
        self.log(line);
        let note = Note { deadline: Some(self.now + within), ..Note::default() };
        let note = match step {
            // The drain has no limit of time.
            NodeStep::Draining => Note::default(),
            // The machine may have to be reset before it boots the former image.
            NodeStep::Returning(_) => Note { deadline: Some(self.now + within * 2), ..Note::default() },
            _ => note,
        };
        self.rollout.notes.insert(name.into(), note);
        match step {
            NodeStep::Draining => {
                let why = self.withdrawal(WHO.into(), &format!("image {image}"));
                self.withdraw(name, Withdrawn::Upgrading, why);
            }
            NodeStep::Waiting | NodeStep::Done | NodeStep::Returned(_) => {
                self.rollout.notes.remove(name);
                self.restore_to_service(name);
                self.start_waiting();
            }
            NodeStep::Lost(reason) => {
                self.rollout.notes.remove(name);
                let why = self.withdrawal(WHO.into(), &reason);
                self.withdraw(name, Withdrawn::Failed, why);
            }
            NodeStep::Booting | NodeStep::Checking | NodeStep::Returning(_) | NodeStep::CheckingFormer(_) => {
            }
        }
    }

    /// Sends a node the image of the rollout, or its former one.
    fn boot_kept(&mut self, name: &str, former: bool) {
        let Some(status) = &self.rollout.status else { return };
        let entry = status.nodes.iter().find(|(known, ..)| known == name);
        let image = if former { entry.map(|(_, image, _)| *image) } else { Some(status.plan.image) };
        let kept = image.and_then(|image| self.images.get(&image).cloned());
        let Some(node) = self.members.named(name).map(|live| live.member.node) else { return };
        match kept {
            Some(image) => self.order_kept(node, &image),
            None => self.rollout_is_refused(name, "its image is not kept"),
        }
    }
}
