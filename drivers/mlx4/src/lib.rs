//! ConnectX-3 and ConnectX-3 Pro as an RNIC: Mellanox's card behind the [`verbs::Rnic`] trait.
//!
//! [`Mlx4::start`] brings a card up, from its reset to an open port, through the services of [`Hardware`].
//! The driver checks everything that the card reports, and every wait for the card has a deadline: a card
//! that reports impossible values or dies causes an [`Error`].
//!
//! | module | subject |
//! |---|---|
//! | `hardware`, `bus` | registers, doorbells, shared memory and time; the card's access to memory |
//! | `config`, `card`, `error` | the configuration, the properties and health of a card, its errors |
//! | `mailbox`, `command` | big-endian mailboxes; commands by registers (HCR) or a channel (vHCR) |
//! | `device`, `control` | the receivers of all work outside of the data path, behind one lock |
//! | `bringup` | the steps from a reset to an open port, for a physical function and for a virtual one |
//! | `icm` | memory for the card's tables: their layout, their pages, page entries of queues |
//! | `vf` | a virtual function: the channel to its master, and its capabilities and resources from there |
//! | `objects` | queues, queue pairs, memory keys, the port, frames, and steering of their addresses |
//! | `datapath` | rings, work requests, completions and doorbells |
//! | `management` | management datagrams of InfiniBand, and the agent that answers them |
//! | `recovery` | reset and restart of a card that has failed |
//! | `driver` | the card that is up: the trait, events, health, frames, restart |
//!
//! A function receives the narrowest of three: `Commands` can execute commands, `Device` also has the card's
//! tables, and `Control` also has the numbers of its objects. Each borrows the machine and the state that it
//! needs, for as long as the control lock is held.
//!
//! **The data path** has two locks: a poster holds that of its queue pair, because the card consumes a ring
//! in order; a poller holds that of its completion queue. Posters and pollers share only atomics (the rings
//! of `datapath`), and nothing on the data path allocates. Memory shared with the card is words that either
//! side may change at any time (`[AtomicU64]`), so nothing here is unsafe.
//!
//! # Example
//!
//! The driver of a card that the tests emulate:
//!
//! ```
//! use cards::{DATA, Driver, Machine};
//! use connectx3::device::Profile;
//! use mlx4::{Config, Layer, Mlx4};
//! use platform::{Arena, IoAddr};
//! use std::sync::Arc;
//! use verbs::{MacAddr, Rnic};
//!
//! let mac = MacAddr([2, 0, 0, 0, 0, 1]);
//! let machine = Machine::new(Profile::pro(mac), Arc::new(Arena::new(IoAddr(DATA), 1 << 20)));
//! let card: Driver = Mlx4::start(machine.plug(), &Config::default())?;
//! assert_eq!(card.identity().mac, mac);
//! assert_eq!(card.ports()?[0].layer, Layer::Ethernet);
//! assert!(card.attributes().max_inline >= 64);
//! # Ok::<(), mlx4::Error>(())
//! ```
//!
//! # Sources
//!
//! Facts come from public drivers, which are named at the place of use: Linux `mlx4`, rdma-core, iPXE
//! `hermon` (its header of the Programmer's Reference Manual is called PRM here), illumos `hermon`.
//! docs/design/mlx4-unproven.md lists the uses of a card that only this driver makes, which have
//! been seen on the emulated card alone.
//!
//! # Neighbours
//! `softroce` and `ibverbs` are the other implementations of [`verbs::Rnic`]; `connectx3` is the emulated
//! card that tests this driver, and `kernel/src/mlx4` its machine on an appliance.
#![no_std]
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod bringup;
mod bus;
mod card;
mod command;
mod config;
mod control;
mod datapath;
mod device;
mod driver;
mod error;
mod hardware;
mod icm;
mod mailbox;
mod management;
mod objects;
mod recovery;
mod vf;

pub use bringup::capabilities::BoardId;
pub use bringup::firmware::Version;
pub use card::{CardPort, Function, Health, Identity};
pub use command::{Opcode, Status};
pub use config::{Config, FramePort, Layer, Ranges, Remote, Vlan};
pub use driver::Mlx4;
pub use error::Error;
pub use hardware::{Block, Hardware};
