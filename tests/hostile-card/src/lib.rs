//! A hostile guest on the emulated ConnectX-3: what a byte string makes it do, and what must hold whatever that is.
//!
//! Two cards share a network. One belongs to the guest that the bytes drive, the other to an honest one that is connected
//! to it and lets it reach one small region. Each entry takes any bytes and panics if something does not hold. The tests of
//! this crate call them with seeded random bytes, in every CI; the fuzz targets in `fuzz/` call the same with what
//! libFuzzer makes up.
//!
//! | entry | bytes are |
//! |---|---|
//! | [`commands`] | registers, commands and their mailboxes, the memory that tables lie in |
//! | [`queues`] | work requests, doorbells, contexts, completions, frames, over queue pairs of each service that are up |
//! | [`slave()`] | the same and commands, of a virtual function: its channel, its master's resources, special queue pairs |
//!
//! What must hold, after each thing that the guest does:
//! - The card neither panics nor reaches for memory more often than `MOST_ACCESSES` says, nor holds more frames
//!   than `MOST_BYTES`.
//! - The honest guest's memory is as it was, but for the region that it has opened, and where its own card writes for it.
//! - At the end the honest card still works, and so does the hostile guest's after a reset.
#![forbid(unsafe_code)]

#[path = "../../../qemu/connectx3/tests/it/common/mod.rs"]
mod common;
mod guest;
mod input;
mod slave;
mod world;

pub use world::Report;

use world::World;

/// A guest that gives commands, from the first on.
pub fn commands(bytes: &[u8]) -> Report {
    let mut input = input::Input::new(bytes);
    let mut world = World::new();
    while let Some(action) = input.next() {
        guest::command_action(action, &mut input, &mut world);
        world.check();
    }
    world.end()
}

/// A guest with queue pairs of each service, some of them connected to the honest guest.
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

/// A guest with a virtual function, whose queue pairs are as those of [`queues`].
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
