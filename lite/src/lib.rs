//! LITE: remote memory, remote procedure calls and synchronisation for the nodes of a cluster, over any RNIC.
//!
//! A node joins the cluster through the manager and passes its RNIC and control connection to
//! [`Lite::start`]. An application then holds a [`Lite`]: it allocates memory on any node, reads and writes
//! it, calls functions of other nodes, and synchronises with them:
//!
//! ```
//! # use lite::{Error, Lite, Permissions};
//! # use proto::NodeId;
//! # async fn example(lite: &Lite) -> Result<(), Error> {
//! // Remote memset: 1 MiB on node 2.
//! let lmr = lite.alloc(NodeId(2), 1 << 20, Permissions::READ | Permissions::WRITE).await?;
//! lmr.memset(0, lmr.len(), 0xff).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it is built
//! - [`Lite::poll`] is the poller: it takes completions, wakes the tasks that wait for them, delivers RPC
//!   messages and expires deadlines. It runs in task context on the core that owns the RNIC. Everything
//!   else runs in tasks on any core.
//! - A one-sided operation goes from the issuing task to the RNIC and back without an allocation: slots and
//!   bounce buffers come from pools that are made at the start. Memory that a peer may write is copied,
//!   never borrowed.
//! - A future may be dropped at any point. An operation that it leaves in flight keeps its slot and its
//!   buffer until the completion arrives or the queue pair is reset.
//! - The issuing node checks one-sided operations; the receiving node checks all messages. Every call has a
//!   deadline.
//! - Locks are held for short, bounded times, and never across a wait. The order is, outermost first: a
//!   connection's ring, its outbox, bounce pool, operation table. The lock of a mapping's layout also
//!   precedes the operation table, and that of the table of functions precedes a function's queue. No other
//!   two are held together.
//! - While the manager is silent for longer than the lease, the node posts nothing new; see `lease.rs`.
//!
//! # Neighbours
//! [`verbs`] and [`platform`] are the interfaces below, [`proto`] has the messages to the manager, and
//! `runtime` runs jobs above.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(any(test, all(feature = "testing", debug_assertions)))]
extern crate std;

mod base;
mod channel;
mod lite;
mod membership;
mod node;
mod planted;
mod region;
mod rpc;
mod sometimes;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;

pub use base::config::{Config, Retransmission};
pub use base::error::Error;
pub use base::permissions::Permissions;
pub use base::qos::{App, Limits, Priority, Scheme, Usage};
pub use base::scope::Scope;
pub use base::settings::{SETTINGS, Setting, SettingError};
pub use base::trace::{Event as TraceEvent, Stamped, Work};
pub use lite::Lite;
pub use membership::{Change, ControlMessages, Watcher};
pub use proto::{Incarnation, Member, NodeId};
pub use region::{Completed, CompletionQueue, Grantee, Lmr, LocalMemory, Op, OpKind, Placement};
pub use rpc::{Call, FunctionId, Mailbox, Message, RpcOptions, RpcServer};
pub use sync::{Counter, Event, FencingToken, Lock, LockGuard};

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
