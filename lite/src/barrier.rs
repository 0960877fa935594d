//! Barriers: the nodes of a group wait for each other, by name.
//!
//! The home of a group is its lowest id, which does not change. All who wait are released together, or all fail: when a
//! node of the group leaves or dies, or when one of them stops waiting. Nodes outside of the group do not matter. After
//! it has opened or failed a name can be used again.

use crate::node::Node;
use crate::rpc::{Answer, Ask, Call, answer};
use crate::{Error, Lite};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::NodeId;
use spin::Mutex;

const LONGEST_NAME: usize = 256;

struct Waiting {
    group: Vec<NodeId>,
    calls: Vec<(u64, Call)>,
}

/// The barriers whose home this node is.
#[derive(Default)]
pub(crate) struct Barriers(Mutex<BTreeMap<String, Waiting>>);

impl Barriers {
    /// One more waits. `group` is ascending.
    pub(crate) fn enter(&self, node: &Node, call: Call, name: String, group: Vec<NodeId>, token: u64) {
        let from = call.from();
        let refuse = |call, why: &str| answer(call, Err(Error::Refused(why.into())));
        if group.first() != Some(&node.me) || !group.is_sorted() || !group.contains(&from) {
            return refuse(call, "that is no group of the barrier's home and of who asks");
        }
        let mut table = self.0.lock();
        // Under the lock, so that a death is seen here or ends the wait.
        if let Some(dead) = group.iter().find(|n| node.has_left(**n)) {
            let failed = table.remove(&name);
            drop(table);
            finish(failed, &Err(Error::NodeDown(*dead)));
            return answer(call, Err(Error::NodeDown(*dead)));
        }
        let waiting =
            table.entry(name.clone()).or_insert_with(|| Waiting { group: group.clone(), calls: Vec::new() });
        if waiting.group != group {
            drop(table);
            return refuse(call, "another group waits at this barrier");
        }
        if waiting.calls.iter().any(|(_, c)| c.from() == from) {
            drop(table);
            return refuse(call, "this node waits at this barrier already");
        }
        waiting.calls.push((token, call));
        if waiting.calls.len() < group.len() {
            return;
        }
        let opened = table.remove(&name);
        drop(table);
        finish(opened, &Ok(Answer::Done));
    }

    /// One who waited does not any more.
    pub(crate) fn leave(&self, name: &str, token: u64) {
        let mut table = self.0.lock();
        let waits = table.get(name).is_some_and(|w| w.calls.iter().any(|(t, _)| *t == token));
        let failed = waits.then(|| table.remove(name)).flatten();
        drop(table);
        finish(failed, &Err(Error::Deadline));
    }

    /// A node has left: ends the waits of its groups.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut failed = Vec::new();
        self.0.lock().retain(|_, waiting| {
            let stays = !waiting.group.contains(&node);
            if !stays {
                failed.append(&mut waiting.calls);
            }
            stays
        });
        for (_, call) in failed {
            answer(call, Err(Error::NodeDown(node)));
        }
    }

    /// Ends all waits.
    pub(crate) fn end_all(&self, error: &Error) {
        let all = core::mem::take(&mut *self.0.lock());
        finish(all.into_values(), &Err(error.clone()));
    }
}

fn finish(waiting: impl IntoIterator<Item = Waiting>, result: &Result<Answer, Error>) {
    for (_, call) in waiting.into_iter().flat_map(|w| w.calls) {
        answer(call, result.clone());
    }
}

/// Tells the home that nobody waits here any more, unless the wait has ended.
struct Entered<'a> {
    node: &'a Arc<Node>,
    home: NodeId,
    name: &'a str,
    token: u64,
    armed: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.armed {
            let ask = Ask::BarrierLeave { name: self.name.into(), token: self.token };
            self.node.spawn_tidy(self.home, ask);
        }
    }
}

impl Lite {
    /// Waits until each node of `group`, this one included, waits at the barrier `name`, once. All name the same group,
    /// in any order. Either all are released or all fail: with `NodeDown` if a node of the group is dead or leaves
    /// meanwhile, with `Deadline` or `Unknown` if one of them waits no longer.
    pub async fn barrier(&self, name: &str, group: &[NodeId]) -> Result<(), Error> {
        let deadline = self.deadline();
        let node = &self.node;
        let mut group = group.to_vec();
        group.sort_unstable();
        group.dedup();
        let home = match group.first() {
            Some(home) if name.len() <= LONGEST_NAME && group.contains(&node.me) => *home,
            _ => {
                let why = "a barrier has a name of at most 256 bytes, and a group that this node belongs to";
                return Err(Error::Refused(why.into()));
            }
        };
        let token = node.random();
        let mut entered = Entered { node, home, name, token, armed: true };
        let ask = Ask::BarrierEnter { name: name.into(), group, token };
        let result = node.ask_node(home, &ask, deadline).await;
        entered.armed = matches!(result, Err(Error::Unknown));
        result.map(drop)
    }
}
