//! Hostile members and clients of the manager's core: what a byte string makes them do, and what must hold whatever that is.
//!
//! The core is a function of time and events, so a byte string decides everything: who connects, joins, submits, falls
//! silent, answers, lies or sends rubbish, and when ticks come, early or late. Beside the core runs a model that knows only
//! what was sent and said. [`drive`] panics if something does not hold, after each event:
//! - Nothing is sent on a connection that has ended, and none ends twice.
//! - A node has one life at a time, each later life has a higher number, and each member has been told of just the others.
//! - Nobody who has sent a heartbeat within its lease is declared dead for its silence.
//! - A node is told of a job only if its part of the job before is over, gets no more input than it was ready to take, and
//!   its input ends only when all that the client has sent is out.
//! - A submission ends once: done or failed. Nothing comes on its connection after it has failed.
//! - Names are found exactly while the node lives that has bound them.
//! - No message is longer than a connection takes; lines for people are printable.
//! - All actions together are bounded by the number of events and of connections.
//!
//! At the end all behave well: then the silent die, all jobs and submissions end, and one more job on all that live is done.
#![forbid(unsafe_code)]

mod check;
mod end;
mod events;
#[path = "../../hostile/src/input.rs"]
mod input;
mod peers;
mod world;

use input::Input;
use world::World;

/// What happened in a run, so that a test can see that it is not nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Events.
    pub events: u64,
    /// Actions of the core.
    pub actions: u64,
    /// Joins that were granted.
    pub joins: u64,
    /// Members that were declared dead for their silence.
    pub expired: u64,
    /// Jobs of which nodes were told.
    pub jobs: u64,
    /// Jobs that were done.
    pub done: u64,
    /// Submissions that failed.
    pub failed: u64,
}

/// Has a byte string decide what members and clients do.
///
/// # Panics
/// If something does not hold.
#[must_use]
pub fn drive(bytes: &[u8]) -> Report {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    while let Some(choice) = input.next() {
        events::happen(choice, &mut input, &mut world);
    }
    end::settle(&mut world);
    world.report
}
