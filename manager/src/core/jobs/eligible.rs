//! The nodes that may take a job: those that have its application, and the reasons why a node takes none.

use super::super::Core;
use super::super::records::{Spec, Ticket, Wanted};
use proto::{CutRule, NodeId, Reason, ToNode, printable};
use std::collections::{BTreeMap, BTreeSet};

/// The reason why a node takes no new job, whatever it does at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Hold {
    /// The reason, which names the node.
    pub(in super::super) reason: Reason,
    /// True if the reason is expected to pass within seconds. A job on all nodes then includes the node.
    pub(in super::super) passes: bool,
}

/// The nodes on which a job may run.
pub(super) struct Fit {
    /// The number of nodes that the job wants.
    pub(super) wanted: usize,
    /// All nodes on which it may run, in the order of preference.
    pub(super) nodes: Vec<NodeId>,
    /// The nodes among them that take a new job.
    pub(super) able: Vec<NodeId>,
    /// The rule of the application's build on these nodes.
    pub(super) cut: CutRule,
}

/// The reason why a job fits nowhere.
pub(super) enum Misfit {
    /// A mistake of the submission, as far as the manager can know.
    Never(Reason),
    /// Nodes are missing that may come.
    Now(Reason),
}

impl Misfit {
    pub(super) fn reason(self) -> Reason {
        match self {
            Self::Never(reason) | Self::Now(reason) => reason,
        }
    }
}

impl Core {
    /// Returns the reason why a node takes no new job, whatever runs on it; `None` if it takes one. All
    /// decisions about jobs ask here.
    pub(in super::super) fn hold(&self, node: NodeId) -> Option<Hold> {
        let Some(live) = self.members.get(node) else {
            return Some(Hold { reason: format!("{node} is gone"), passes: false });
        };
        if self.orders.contains(node) {
            return Some(Hold { reason: format!("{} is about to leave", live.label()), passes: false });
        }
        if let Some(reason) = self.withdrawn(node) {
            return Some(Hold { reason, passes: false });
        }
        let silent = live.conn.is_none() || live.asked;
        silent.then(|| Hold { reason: format!("{} is silent", live.label()), passes: true })
    }

    /// Returns the rule by which a node's build of an application cuts input.
    fn cut_of(&self, node: NodeId, app: &str) -> Option<&CutRule> {
        let apps = &self.members.get(node)?.join.apps;
        apps.iter().find(|manifest| manifest.name == app).map(|manifest| &manifest.cut)
    }

    /// Returns the nodes on which a job may run.
    pub(super) fn fit(&self, spec: &Spec, ticket: &Ticket) -> Result<Fit, Misfit> {
        let (app, terms) = (&spec.app, &ticket.terms);
        // Nodes that were members may come back.
        let absent = terms.wait && self.identities.any_absent(|node| self.members.get(*node).is_some());
        let missing = |reason| if absent { Misfit::Now(reason) } else { Misfit::Never(reason) };
        if self.members.0.is_empty() {
            return Err(missing("no node has joined".into()));
        }
        let all = self.members.0.values();
        let having: Vec<NodeId> =
            all.map(|live| live.member.node).filter(|&node| self.cut_of(node, app).is_some()).collect();
        let excluded = |node: &NodeId| {
            self.members.get(*node).is_some_and(|live| terms.exclude.contains(&live.member.name))
        };
        let Some(first) = having.iter().find_map(|&node| self.cut_of(node, app)) else {
            return Err(Misfit::Never(self.unknown(app)));
        };
        let may = |node: &NodeId| !excluded(node) && self.knows_limits(*node, ticket);
        let allowed: Vec<NodeId> = having.iter().copied().filter(may).collect();
        if let Some(reason) = self.too_old(&having, &allowed, spec, ticket) {
            return Err(Misfit::Never(reason));
        }
        let mut nodes = match &spec.wanted {
            Wanted::Any(0) => {
                let joins = |node: &NodeId| self.hold(*node).is_none_or(|hold| hold.passes);
                allowed.iter().copied().filter(joins).collect()
            }
            Wanted::Any(_) => allowed.clone(),
            Wanted::Named(names) => self.named(names, app, &allowed).map_err(missing)?,
        };
        let cut = nodes.iter().find_map(|&node| self.cut_of(node, app)).unwrap_or(first).clone();
        let other = nodes.iter().copied().find(|&node| self.cut_of(node, app) != Some(&cut));
        let wanted = match &spec.wanted {
            Wanted::Any(0) => nodes.len(),
            Wanted::Any(count) => usize::from(*count),
            Wanted::Named(names) => names.len(),
        };
        if let Some(other) = other {
            nodes.retain(|&node| self.cut_of(node, app) == Some(&cut));
            if nodes.len() < wanted {
                let label = self.members.label(other);
                return Err(Misfit::Never(format!("{label} has another build of {app} than the others")));
            }
        }
        if nodes.is_empty() {
            let holds = self.holds(&having);
            return Err(Misfit::Now(match holds.is_empty() {
                true => format!("all nodes with {app} are excluded"),
                false => format!("no node with {app} takes a job: {holds}"),
            }));
        }
        if nodes.len() < wanted {
            let but = if allowed.len() < having.len() { "may take it" } else { "have joined" };
            return Err(missing(format!("{wanted} nodes wanted, but only {} with {app} {but}", nodes.len())));
        }
        let able = nodes.iter().copied().filter(|&node| self.hold(node).is_none()).collect();
        Ok(Fit { wanted, nodes, able, cut })
    }

    /// Returns true unless a job has limits that a node's release does not know. It does not run there
    /// without them.
    fn knows_limits(&self, node: NodeId, ticket: &Ticket) -> bool {
        let version = self.members.get(node).map(|live| live.join.version);
        ticket.qos.is_plain() || version.is_none_or(|version| version >= ToNode::LIMITS_JOBS)
    }

    /// Returns the reason why a job with limits fits nowhere: a node that it names, or all nodes, do not know
    /// them.
    fn too_old(&self, having: &[NodeId], allowed: &[NodeId], spec: &Spec, ticket: &Ticket) -> Option<Reason> {
        let old = having.iter().copied().find(|&node| {
            let named = || match &spec.wanted {
                Wanted::Any(_) => allowed.is_empty(),
                Wanted::Named(names) => {
                    self.members.get(node).is_some_and(|live| names.contains(&live.member.name))
                }
            };
            !self.knows_limits(node, ticket) && named()
        })?;
        Some(format!("{} is of a former release, and knows no limits of RDMA", self.members.label(old)))
    }

    /// Returns the reasons why nodes take no job, for people; empty if all do.
    pub(super) fn holds(&self, nodes: &[NodeId]) -> Reason {
        const MANY: usize = 8;
        let held: Vec<Reason> =
            nodes.iter().filter_map(|&node| self.hold(node)).map(|hold| hold.reason).collect();
        let more = held.len().saturating_sub(MANY);
        let first = held.into_iter().take(MANY).collect::<Vec<_>>().join(", ");
        if more == 0 { first } else { format!("{first} and {more} more") }
    }

    fn unknown(&self, app: &str) -> Reason {
        let apps = self.members.0.values().flat_map(|live| &live.join.apps);
        let known: BTreeSet<&str> = apps.map(|manifest| manifest.name.as_str()).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        format!("unknown application {}; the nodes have: {}", printable(app), printable(&known))
    }

    /// Returns the nodes with the given names. All must be among the nodes `able` to run the application.
    fn named(&self, names: &[String], app: &str, able: &[NodeId]) -> Result<Vec<NodeId>, Reason> {
        let by_name = |&node: &NodeId| Some((self.members.get(node)?.member.name.as_str(), node));
        let able: BTreeMap<&str, NodeId> = able.iter().filter_map(by_name).collect();
        let mut nodes = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let node = *able
                .get(name.as_str())
                .ok_or_else(|| format!("no node {} with {app} has joined", printable(name)))?;
            if !seen.insert(node) {
                return Err(format!("node {} is named twice", printable(name)));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }
}
