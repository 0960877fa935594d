//! A hostile guest on the emulated ConnectX-3: a byte string decides its actions, and invariants must hold
//! for all of them.
//!
//! Two cards share a network. One belongs to the guest that the bytes control. The other belongs to an honest
//! guest, which is connected to the first and grants it access to one small region. Each entry point accepts
//! any bytes and panics if an invariant is violated. The tests of this crate call them with seeded random
//! bytes in every CI run; the fuzz targets in `fuzz/` call them with libFuzzer's input.
//!
//! | entry point | the bytes decide |
//! |---|---|
//! | [`commands`] | registers, commands and their mailboxes, the memory of tables |
//! | [`queues`] | work requests, doorbells, contexts, completions, frames, for queue pairs of each service |
//! | [`slave()`] | as [`queues`], with commands, on a virtual function and its channel |
//!
//! After each action of the guest:
//! - The card has not panicked, has accessed memory at most `MAX_ACCESSES` times, and holds at most
//!   `MAX_BYTES` of frames.
//! - The honest guest's memory is unchanged, except for the region that it has opened and for its own card's
//!   writes.
//! - At the end the honest card still works, and so does the hostile guest's card after a reset.
//!
//! # Neighbours
//! [`connectx3`] is the card under test; `hostile-device` is the reverse, a hostile card.
#![forbid(unsafe_code)]

mod guest;
mod input;
mod slave;
mod world;

pub use world::Report;

use world::World;

/// Runs a guest that issues commands, from the first one on.
pub fn commands(bytes: &[u8]) -> Report {
    let mut input = input::Input::new(bytes);
    let mut world = World::new();
    while let Some(action) = input.next() {
        guest::command_action(action, &mut input, &mut world);
        world.check();
    }
    world.end()
}

/// Runs a guest with queue pairs of each service, some of them connected to the honest guest.
pub fn queues(bytes: &[u8]) -> Report {
    let mut input = input::Input::new(bytes);
    let mut world = World::new();
    guest::make_queues(&mut world);
    while let Some(action) = input.next() {
        guest::queue_action(action, &mut input, &mut world);
        world.check();
    }
    world.end()
}

/// Runs a guest with a virtual function, with queue pairs as in [`queues`].
pub fn slave(bytes: &[u8]) -> Report {
    let mut input = input::Input::new(bytes);
    let mut world = World::with_slave();
    guest::make_queues(&mut world);
    while let Some(action) = input.next() {
        slave::slave_action(action, &mut input, &mut world);
        world.check();
    }
    world.end()
}
