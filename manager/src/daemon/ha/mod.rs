//! Several managers with one state: one of them leads, and the others take over when it ends.
//!
//! The managers share a store with leases and transactions: etcd (`etcd`, a feature of this crate). A leader
//! acts only while its lease lasts ([`Elector`], [`Tenure`]). Each of its changes is refused once another
//! manager leads ([`State`]). Nodes obey no manager with a lower epoch than they have seen.

mod candidate;
mod election;
#[cfg(feature = "etcd")]
pub mod etcd;
mod kv;
mod state;
mod tenure;

pub use candidate::{Candidate, Group};
pub use election::{Elector, Standing, Term};
pub use kv::{Answer, Kv, Op, Pair, Request, Txn, When};
pub use state::State;
pub use tenure::Tenure;
