//! The work of tasks: everything that LITE offers to applications, each call with a model of its permitted
//! results.

mod calls;
mod copies;
mod events;
mod lifetime;
mod limits;
mod locks;
mod memory;
mod names;
mod objects;
mod own;
mod pool;
mod queue;
mod rights;
mod serve;
mod stage;
mod step;
mod words;
mod worker;

pub(super) use serve::PROBES;
pub(super) use stage::{EACH, Owned, PART, PATIENT, SECRET, Stage, Thing, spared};
pub(super) use step::Step;
pub(super) use worker::cut;
