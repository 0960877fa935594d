//! Bring-up of a virtual function of a card that the master has brought up.

use super::plan::{Base, Plan, Started};
use crate::bringup::capabilities::{BoardId, Capabilities};
use crate::bringup::{firmware, hca};
use crate::bus;
use crate::card::{Function, HealthSource};
use crate::command::{CommandState, Commands};
use crate::config::Layer;
use crate::device::Tables;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::objects::mr::{KeySlots, MptSlot};
use crate::objects::port::Port;
use crate::objects::qpn::QpnAllocator;
use crate::vf;

/// Brings up a virtual function.
pub(super) fn bring_up<H: Hardware>(plan: &Plan<'_, H>) -> Result<Started<H::Block>, Error> {
    let (mut base, log_keys) = prepare(plan)?;
    let eq = plan.create_eq(&mut base)?;
    obtain_counter_and_row(plan, &mut base)?;
    let slots = obtain_key_slots(plan, &mut base, log_keys)?;
    let keys = plan.create_keys(&mut base, slots)?;
    let (first, count) = vf::resources::queue_pairs(&mut plan.commands(&mut base))?;
    let control = plan.make_control(base, keys, QpnAllocator::for_vf(first, count));
    plan.finish(control, eq, None)
}

/// Announces the function to its master, and queries the card. Also returns log2 of the number of keys in the
/// card's table.
fn prepare<H: Hardware>(plan: &Plan<'_, H>) -> Result<(Base<H::Block>, u32), Error> {
    if plan.config.vlan.is_some() {
        return Err(Error::Lacks("VLANs for a virtual function"));
    }
    if plan.config.second.is_some() {
        return Err(Error::Lacks("a second port for a virtual function"));
    }
    let mut state = CommandState::of_virtual(plan.hw)?;
    // The master has released everything that the function had, so it may reach memory again if it was cut
    // off.
    bus::connect(plan.hw);
    let mut commands = Commands::new(plan.hw, &mut state);
    let hca = hca::query(&mut commands)?;
    let capabilities = hca.restrict(Capabilities::query(&mut commands)?);
    let number = plan.port_number(&capabilities)?;
    let version = firmware::version(&mut commands)?;
    let eqn = vf::capabilities::first_eq(&mut commands, number)?;
    let info = Port::query(&mut commands, number, plan.config.layer)?;
    let board = BoardId::query(&mut commands)?;
    let base = Base {
        function: Function::Virtual,
        reset: None,
        commands: state,
        tables: Tables::Granted,
        firmware: None,
        version,
        health: HealthSource::Channel,
        port: Port::of_virtual(number, info.layer).with_partition(plan.config.partition),
        capabilities,
        board,
        info,
        second: None,
        eqn,
    };
    Ok((base, hca.log_keys))
}

/// Obtains a counter for the frames of an Ethernet port, and a row of its address table.
fn obtain_counter_and_row<H: Hardware>(plan: &Plan<'_, H>, base: &mut Base<H::Block>) -> Result<(), Error> {
    let Base { port, info, .. } = *base;
    if port.layer == Layer::Ethernet {
        let mut commands = plan.commands(base);
        let counter = vf::resources::counter(&mut commands)?;
        let row = vf::resources::mac_row(&mut commands, port.number, info.mac.0)?;
        base.port = port.with_counter(counter).with_mac_row(row);
    }
    Ok(())
}

/// Obtains an entry of the table of keys for each key. Without a key for peers, both are the same.
fn obtain_key_slots<H: Hardware>(
    plan: &Plan<'_, H>,
    base: &mut Base<H::Block>,
    log_count: u32,
) -> Result<KeySlots, Error> {
    let mut commands = plan.commands(base);
    let local = vf::resources::key(&mut commands)?;
    let remote = if plan.pages.is_none() { local } else { vf::resources::key(&mut commands)? };
    let slot = |index| MptSlot { index, log_count };
    Ok(KeySlots { local: slot(local), remote: slot(remote) })
}
