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
//!   connection's ring, its outbox, bounce pool, operation table. No other two are held together.
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

mod bounce;
mod config;
mod conn;
mod control;
mod counters;
mod errands;
mod error;
mod issuer;
mod lease;
mod leave;
mod lock;
mod locked;
mod membership;
mod names;
mod node;
mod op;
mod permissions;
mod planted;
mod qos;
mod region;
mod rpc;
mod scope;
mod settings;
mod sometimes;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod trace;
mod wait;

pub use config::Config;
pub use control::JobMessages;
pub use error::Error;
pub use membership::{Change, Watcher};
pub use op::{Completed, CompletionQueue, Op, OpKind};
pub use permissions::Permissions;
pub use proto::{Incarnation, Member, NodeId};
pub use qos::{App, Limits, Priority, Scheme, Usage};
pub use region::{Grantee, Lmr, LocalMemory, Placement};
pub use rpc::{Call, FunctionId, Mailbox, Message, RpcOptions, RpcServer};
pub use scope::Scope;
pub use settings::{SETTINGS, Setting, SettingError};
pub use sync::{Counter, Event, FencingToken, Lock, LockGuard};
pub use trace::{Event as TraceEvent, Stamped, Work};

use alloc::sync::Arc;
use core::time::Duration;
use issuer::Issuer;
use node::Node;
use platform::{ControlLink, Instant, Platform};
use proto::Welcome;
use verbs::Rnic;

/// A node's LITE, and the deadline, priority and application of the operations that are issued through this
/// handle. Cheap to clone.
#[derive(Clone)]
pub struct Lite {
    by: Arc<Issuer>,
}

impl Lite {
    /// Starts LITE on a node whose join was answered with `welcome`. The RNIC must be up with the GID of
    /// `welcome`. LITE receives everything that arrives on `link` from now on, including acknowledgements
    /// of heartbeats; the platform sends the heartbeats.
    ///
    /// # Errors
    /// `NoMemory` or `Refused` if the node's memory or the RNIC's resources do not suffice.
    pub fn start(
        platform: Arc<dyn Platform>,
        rnic: Arc<dyn Rnic>,
        link: Arc<dyn ControlLink>,
        welcome: Welcome,
        config: Config,
    ) -> Result<Self, Error> {
        let patience = config.deadline;
        let node = Arc::new(Node::new(platform, rnic, (&welcome, link.lease_until()), config)?);
        for member in welcome.members {
            node.on_joined(member);
        }
        node.start_internal();
        node.start_control(link);
        node.report_memory();
        Ok(Self { by: Issuer::new(node, patience, qos::Class::default()) })
    }

    /// Runs the poller once and returns true if there was something to do. Call it in task context on the
    /// core that owns the RNIC, after the RNIC's own `progress`, and again before that core halts.
    pub fn poll(&self, now: Instant) -> bool {
        self.by.node.poll(now)
    }

    /// Returns the time by which [`poll`](Self::poll) must be called even if nothing arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.by.node.next_deadline()
    }

    /// Returns the platform: the node's, or the one that was given to [`scoped`](Self::scoped).
    #[must_use]
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.by.platform
    }

    /// Waits for `d`.
    pub async fn sleep(&self, d: Duration) {
        self.by.node.timers.until(self.by.node.platform.now() + d).await;
    }

    /// Returns the number of this node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.by.node.me
    }

    /// Returns the incarnation of this node.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.by.node.incarnation
    }

    /// Returns a handle whose operations, and those of regions that it makes, end within `d` of their call.
    #[must_use]
    pub fn with_deadline(&self, d: Duration) -> Self {
        Self { by: self.by.patient(d) }
    }

    fn deadline(&self) -> Instant {
        self.by.deadline()
    }

    /// Calls `each` for every count of this node's LITE: `lite_reads`, `lite_retries`, and so on.
    pub fn counters(&self, each: &mut dyn FnMut(verbs::Counter)) {
        let fast_path = self.by.node.ops.lock().fast_path;
        self.by.node.counters.each(&fast_path, each);
    }
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
