//! The measuring loops between two steps of the exchange.

mod bandwidth;
mod latency;

pub(crate) use bandwidth::{Flow, Sent, bandwidth};
pub(crate) use latency::{one_way, send_ping_pong, write_ping_pong};
