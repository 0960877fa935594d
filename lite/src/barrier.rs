//! Barriers: tasks on any nodes that wait for each other, by name.
//!
//! A barrier's home is the live member with the lowest id. All who wait are released together, or all fail: when any
//! member leaves or dies, when the home does, or when one of them stops waiting. If the lowest member changes because
//! one joins, those who wait move to the new home by themselves. After it has opened or failed a name can be used again.

use crate::node::Node;
use crate::rpc::{Answer, Ask, Call, answer};
use crate::{Error, Lite};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use proto::NodeId;
use spin::Mutex;

const LONGEST_NAME: usize = 256;
/// Before asking again when two nodes disagree for a moment on who is the home.
const MOVE_PAUSE: Duration = Duration::from_micros(500);

struct Waiting {
    count: u32,
    calls: Vec<(u64, Call)>,
}

/// The barriers whose home this node is.
#[derive(Default)]
pub(crate) struct Barriers(Mutex<BTreeMap<String, Waiting>>);

impl Barriers {
    pub(crate) fn enter(&self, node: &Node, call: Call, name: String, count: u32, token: u64) {
        let home = node.lowest_member();
        if home != node.me {
            return answer(call, Ok(Answer::Elsewhere(home)));
        }
        let mut table = self.0.lock();
        let waiting = table.entry(name.clone()).or_insert_with(|| Waiting { count, calls: Vec::new() });
        if waiting.count != count {
            let why = alloc::format!("others wait at this barrier for {}", waiting.count);
            drop(table);
            return answer(call, Err(Error::Refused(why)));
        }
        waiting.calls.push((token, call));
        if waiting.calls.len() < count as usize {
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

    /// Ends all waits.
    pub(crate) fn end_all(&self, result: &Result<Answer, Error>) {
        let all = core::mem::take(&mut *self.0.lock());
        finish(all.into_values(), result);
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
    /// Waits until `count` tasks, this one included, wait at the barrier `name`. Either all are released or all fail:
    /// with `NodeDown` if any member leaves meanwhile, with `Deadline` or `Unknown` if one of them waits no longer. A
    /// task that comes after the others have failed waits for others anew.
    pub async fn barrier(&self, name: &str, count: u32) -> Result<(), Error> {
        if name.len() > LONGEST_NAME || count == 0 {
            return Err(Error::Refused("a barrier has a name of at most 256 bytes and a count".into()));
        }
        let deadline = self.deadline();
        let node = &self.node;
        loop {
            let home = node.lowest_member();
            let token = node.random();
            let mut entered = Entered { node, home, name, token, armed: true };
            let ask = Ask::BarrierEnter { name: name.into(), count, token };
            let result = node.ask_node(home, &ask, deadline).await;
            entered.armed = matches!(result, Err(Error::Unknown));
            match result? {
                Answer::Elsewhere(there) if there != node.lowest_member() => {
                    // One of us has not heard of the change yet.
                    if node.platform.now() + MOVE_PAUSE >= deadline {
                        return Err(Error::Deadline);
                    }
                    self.sleep(MOVE_PAUSE).await;
                }
                Answer::Elsewhere(_) => {}
                _ => return Ok(()),
            }
        }
    }
}
