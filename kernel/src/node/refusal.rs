//! A node that does not start, because of a mistake in its settings or of its machine: the cause stays on the
//! consoles, and the manager is told as soon as it can be reached. The machine is not reset, because it would
//! fail again.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use proto::{Hello, Join, PROTOCOL_VERSION};

use super::rnic::{NodeRnic, Wanted};
use super::{control_link, network};
use crate::boot::acpi;
use crate::net::stack::Stack;
use crate::power::{self, Code};
use crate::{cmdline, console, io_addresses};

/// Prints the cause, tells the manager, and waits until somebody resets the machine. With `retry=off`, or on
/// QEMU with the debug exit device, the machine ends instead.
pub(crate) async fn stay(why: &str) -> ! {
    let was_member = control_link::end_membership(why);
    print(why);
    if !was_member {
        match tell(why).await {
            Ok(()) => log::info!("the manager knows why this node does not start"),
            Err(why) => log::warn!("the manager cannot be told: {why}"),
        }
    }
    core::future::pending().await
}

/// Prints the cause, and waits until somebody resets the machine, as [`stay`] does without a manager.
pub(super) async fn stay_alone(why: &str) -> ! {
    print(why);
    core::future::pending().await
}

fn print(why: &str) {
    log::error!("this node does not start: {why}");
    if control_link::retries() == Ok(false) {
        power::exit(Code::Refused);
    }
    console::flush();
    power::end_emulator(Code::Refused);
    log::error!("this machine waits: correct the cause, and reset it");
}

/// Tells a manager the cause.
///
/// # Errors
/// A line for the user: no manager can be told, however long this node waits.
async fn tell(why: &str) -> Result<(), String> {
    // A device whose addresses are translated must not be used.
    io_addresses::check(&acpi::tables().iommus)?;
    let key = control_link::cluster_key()?;
    let stack = management().await?;
    let of_port = || format!("node-{}", stack.port().mac());
    let mut name = cmdline::get("node").map_or_else(of_port, ToOwned::to_owned);
    while name.len() > Join::MAX_TEXT {
        name.pop();
    }
    let unfit = Hello::Unfit { version: PROTOCOL_VERSION, name, reason: why.to_owned() };
    control_link::tell(stack, key, &unfit).await
}

/// Returns TCP on the management port. If that is a card's port, the card is started.
async fn management() -> Result<&'static Stack, String> {
    let network = network()?;
    match network.management() {
        Ok(stack) => Ok(stack),
        Err(_) if !NodeRnic::was_started() => {
            NodeRnic::start(Wanted::from_command_line().unwrap_or(Wanted::Auto), network).await?;
            network.management()
        }
        Err(why) => Err(why),
    }
}
