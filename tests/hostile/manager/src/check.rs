//! Invariants across connections.

use crate::peers::Client;
use crate::world::{JOB_WINDOW, PIECE, World};
use proto::{Incarnation, JobId, NodeId};
use std::collections::BTreeMap;

/// Checks that each member was told of all other live members, and of no others.
pub(crate) fn views(world: &World) {
    let connected = world.nodes().map(|(_, node)| node);
    let all: BTreeMap<NodeId, Incarnation> =
        connected.chain(world.silent.values()).map(|node| (node.id, node.incarnation)).collect();
    for (_, node) in world.nodes() {
        assert_eq!(node.others.len() + 1, all.len(), "{} knows all others", node.id);
        for (other, departed) in &node.others {
            assert_eq!(all.get(other), Some(departed), "{} knows the current incarnation", node.id);
        }
    }
}

/// Returns the number of bytes of a job's input that its nodes received.
fn got(world: &World, job: JobId) -> u64 {
    let all = world.nodes().map(|(_, node)| node).chain(world.silent.values());
    let parts = all.filter_map(|node| node.job.as_ref());
    parts.filter(|part| part.job == job).map(|part| part.got_bytes).sum()
}

/// Returns true if a job has ended or is about to start again: input that still comes for it is dropped.
fn starts_again(world: &World, job: JobId) -> bool {
    let parts = world.nodes().filter_map(|(_, node)| node.job.as_ref());
    let silent = world.silent.values().filter_map(|node| node.job.as_ref());
    parts.filter(|part| part.cancelled).chain(silent).any(|part| part.job == job)
}

/// Checks that the manager holds no more input of an obedient client than its window and one message.
pub(crate) fn input_that_waits(world: &World) {
    let submissions = world.clients().filter_map(|(_, client)| client.submission.as_ref());
    // The disk takes what goes to the spool.
    for submission in submissions.filter(|submission| !submission.spools) {
        let Some(job) = submission.job.filter(|job| !starts_again(world, *job)) else { continue };
        let waits = submission.sent - got(world, job);
        assert!(waits <= JOB_WINDOW + PIECE, "{waits} bytes of input wait");
    }
}

/// Checks that the nodes of a job received all the input that its client had to send.
pub(crate) fn all_input_is_out(world: &World, job: JobId) {
    if world.is_detached(job) {
        return;
    }
    let of_job = |client: &Client| client.submission.as_ref().is_some_and(|s| s.job == Some(job));
    let client = world.clients().map(|(_, client)| client).find(|client| of_job(client));
    let submission = client.and_then(|client| client.submission.as_ref()).expect("its client lives");
    assert_eq!(submission.left, 0, "the input ends before its end");
    assert_eq!(got(world, job), submission.sent, "input is lost or doubled");
}
