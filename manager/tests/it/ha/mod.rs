//! Managers that share their state: the election and the state on a model of etcd in virtual time, and
//! daemons that take over from each other.

mod daemons;
mod model;
mod seeds;
mod state;
