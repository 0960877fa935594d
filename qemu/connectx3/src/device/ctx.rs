//! The parts of a card that work requests, frames and events reach: the machine, the tables, the event queues
//! and the ports.

use super::eq::Eqs;
use super::host::Host;
use super::ports::Ports;
use super::tables::Tables;

/// The surroundings of queue pairs and traffic, for the duration of one call.
pub(super) struct Ctx<'a> {
    /// The machine into which the card is plugged.
    pub host: &'a dyn Host,
    /// The tables in ICM.
    pub tables: &'a mut Tables,
    /// The event queues.
    pub eqs: &'a mut Eqs,
    /// The ports.
    pub ports: &'a mut Ports,
}
