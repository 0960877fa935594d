//! Bring-up of a card, from its reset to an open port, in steps:
//!
//! | step | physical function | virtual function |
//! |---|---|---|
//! | reset | [`reset::take`] | by the channel to the master |
//! | prepare | firmware, capabilities, port, tables, INIT_HCA, board | QUERY_HCA, capabilities, port, board |
//! | event queue | [`Plan::create_eq`] | the same |
//! | numbers | special queue pairs, own tables | counter, row of the MAC table, grants of the master |
//! | keys | [`Plan::create_keys`] | the same |
//! | control | [`Plan::make_control`] | the same |
//! | agent | on an InfiniBand port | the master's |
//! | port and frames | [`Plan::finish`] | the same |

pub(crate) mod capabilities;
pub(crate) mod firmware;
pub(crate) mod hca;
mod physical;
mod plan;
pub(crate) mod reset;
mod virtual_function;

use crate::card::Function;
use crate::config::Config;
use crate::error::Error;
use crate::hardware::Hardware;
use plan::Plan;
pub(crate) use plan::{PortFrames, Preserved, Started};
use reset::Saved;

/// Resets a card and brings it up. On return its port is open, but its link may need more time. Also returns
/// the configuration that a later reset would lose, which a virtual function does not have.
pub(crate) fn start<H: Hardware>(
    hw: &H,
    config: &Config,
) -> Result<(Started<H::Block>, Option<Saved>), Error> {
    match reset::function(hw)? {
        Function::Physical => {
            let saved = reset::take(hw)?;
            let started = restart(hw, config, Function::Physical, None);
            if started.is_err() {
                reset::give_up(hw);
            }
            started.map(|started| (started, Some(saved)))
        }
        Function::Virtual => restart(hw, config, Function::Virtual, None).map(|started| (started, None)),
    }
}

/// Brings up a card that was reset. On failure the card is reset again, so that it uses no memory.
pub(crate) fn restart<H: Hardware>(
    hw: &H,
    config: &Config,
    function: Function,
    preserved: Option<&Preserved>,
) -> Result<Started<H::Block>, Error> {
    let started = Plan::new(hw, config, preserved).and_then(|plan| match function {
        Function::Physical => physical::bring_up(&plan),
        Function::Virtual => virtual_function::bring_up(&plan),
    });
    if started.is_err() {
        reset::silence(hw, function);
    }
    started
}
