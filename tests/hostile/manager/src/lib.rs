//! Hostile members and clients of the manager's core: a byte string decides their actions, and invariants
//! must hold for all of them.
//!
//! The core is a function of time and events, so a byte string decides everything: which peers connect, join,
//! submit, fall silent, answer, lie or send garbage, and whether ticks come early or late. A model runs next
//! to the core and knows only the messages in both directions. [`drive`] panics if one of these invariants is
//! violated after an event:
//! - Nothing is sent on a connection that has ended, and none ends twice.
//! - A node has one incarnation at a time, each later one has a higher number, also after a restart of the
//!   manager, and each member was told of all other members and no others. No job has the number of another.
//! - A node is declared dead for its silence only if the manager was able to hear it for a lease. It is not
//!   able to while it is suspended.
//! - A node is told of a job only if its part of the previous job is over. It receives no more input than it
//!   has granted credit for, and its input ends only after all the client's data.
//! - A submission ends once: done or failed. No message follows on its connection after a failure.
//! - A name is found exactly while the node that has bound it lives.
//! - No message is longer than a connection accepts; lines for people are printable.
//! - The total number of actions is bounded by the numbers of events and of connections.
//!
//! At the end all peers behave honestly: then the silent ones are declared dead, all jobs and submissions
//! end, and one more job on all live nodes succeeds.
//!
//! # Neighbours
//! [`manager::core`] is the state machine under test; `tests/sim` runs it with real nodes.
#![forbid(unsafe_code)]

mod check;
mod end;
mod events;
#[path = "../../transport/src/input.rs"]
mod input;
mod peers;
mod world;

use input::Input;
use world::World;

/// Counts of a run, by which a test can see that the run was meaningful.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Events.
    pub events: u64,
    /// Actions of the core.
    pub actions: u64,
    /// Joins that were granted.
    pub joins: u64,
    /// Restarts of the manager.
    pub restarts: u64,
    /// Members that were declared dead for their silence.
    pub expired: u64,
    /// Jobs of which nodes were told.
    pub jobs: u64,
    /// Jobs that succeeded.
    pub done: u64,
    /// Submissions that failed.
    pub failed: u64,
}

/// Runs the core with members and clients that a byte string controls.
///
/// # Panics
/// Panics if an invariant is violated.
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
