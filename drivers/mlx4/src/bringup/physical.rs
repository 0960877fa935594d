//! Bring-up of a physical function: the driver starts the firmware, and lends the card memory for its tables.

use super::plan::{Base, Plan, Started};
use crate::bringup::capabilities::{BoardId, Capabilities, first_eq};
use crate::bringup::firmware::Firmware;
use crate::bringup::hca;
use crate::card::{Attached, Function, HealthSource};
use crate::command::{Command, CommandState, Commands, Opcode};
use crate::config::Layer;
use crate::control::{Control, ControlState};
use crate::device::Tables;
use crate::error::Error;
use crate::hardware::{Hardware, random_u32};
use crate::icm::layout::LOG_MPTS;
use crate::icm::{Icm, Object};
use crate::management::agent;
use crate::objects::mr::{KeySlots, MptSlot, Pages};
use crate::objects::packets::Packets;
use crate::objects::port::Port;
use crate::objects::qp_context::Service;
use crate::objects::qpn::QpnAllocator;

/// Brings up the physical function of a card that was just reset.
pub(super) fn bring_up<H: Hardware>(plan: &Plan<'_, H>) -> Result<Started<H::Block>, Error> {
    let mut base = prepare(plan)?;
    let eq = plan.create_eq(&mut base)?;
    let special = reserve_special_qps(plan, &mut base)?;
    let qpns = QpnAllocator::for_pf(random_u32(plan.hw));
    let slots = key_slots(&base.capabilities);
    let keys = plan.create_keys(&mut base, slots)?;
    let mut control = plan.make_control(base, keys, qpns);
    let agent = create_agent(plan, &mut control, special)?;
    plan.finish(control, eq, agent)
}

/// Starts the firmware, lends the card its tables, and starts it with them.
fn prepare<H: Hardware>(plan: &Plan<'_, H>) -> Result<Base<H::Block>, Error> {
    let reset = Some(plan.hw.now());
    let mut state = CommandState::of_physical(plan.hw)?;
    let mut commands = Commands::new(plan.hw, &mut state);
    let firmware = Firmware::start(&mut commands)?;
    let capabilities = Capabilities::query(&mut commands)?;
    let number = plan.port_number(&capabilities)?;
    let info = Port::query(&mut commands, number, plan.config.layer)?;
    let second = query_second(plan, &mut commands, &capabilities)?;
    if info.layer == Layer::Ethernet && !capabilities.roce {
        return Err(Error::Lacks("RDMA over Ethernet"));
    }
    let key_pages = plan.pages.as_ref().map_or(0, Pages::count);
    let icm = Icm::new(&mut commands, &capabilities, key_pages)?;
    hca::start(&mut commands, &capabilities, &icm.layout)?;
    let board = BoardId::query(&mut commands)?;
    let eqn = first_eq(&mut commands, capabilities.eqs)?;
    Ok(Base {
        function: Function::Physical,
        reset,
        commands: state,
        tables: Tables::Own(icm.into()),
        version: firmware.version,
        health: firmware.error_buffer.map_or(HealthSource::Unseen, HealthSource::Register),
        firmware: Some(firmware),
        port: Port::physical(number, info.layer, &capabilities)
            .with_vlan(plan.config.vlan)
            .with_partition(plan.config.partition),
        capabilities,
        board,
        info,
        second,
        eqn,
    })
}

/// Queries the port of plain frames alone, if there is one.
fn query_second(
    plan: &Plan<'_, impl Hardware>,
    commands: &mut Commands<'_, impl Hardware>,
    capabilities: &Capabilities,
) -> Result<Option<Attached>, Error> {
    let Some(number) = plan.second_number(capabilities)? else { return Ok(None) };
    let info = Port::query(commands, number, Some(Layer::Ethernet))?;
    Ok(Some(Attached { port: Port::physical(number, info.layer, capabilities), info }))
}

/// Reserves the eight queue pair numbers for management (Linux `mlx4_init_qp_table`) and returns the first.
/// The first two are for the subnet management of the ports.
fn reserve_special_qps<H: Hardware>(plan: &Plan<'_, H>, base: &mut Base<H::Block>) -> Result<u32, Error> {
    const COUNT: u32 = 8;
    let first = base.capabilities.reserved_qps.next_multiple_of(COUNT);
    let mut device = plan.device(base);
    device.ensure_icm(Object::Qp, first.into(), COUNT.into())?;
    device.commands.exec(Command::new(Opcode::ConfSpecialQp).of(first)).map(|_| first)
}

/// Returns the first entries of the table of keys that the firmware does not use.
fn key_slots(card: &Capabilities) -> KeySlots {
    let slot = |index| MptSlot { index, log_count: LOG_MPTS };
    KeySlots { local: slot(card.reserved_mpts), remote: slot(card.reserved_mpts + 1) }
}

/// Makes the agent for subnet management on an InfiniBand port. `special` is the first of the special queue
/// pairs.
fn create_agent<H: Hardware>(
    plan: &Plan<'_, H>,
    state: &mut ControlState<H::Block>,
    special: u32,
) -> Result<Option<Packets<H::Block>>, Error> {
    let Port { number, layer, .. } = state.card.port;
    match layer {
        Layer::Ethernet => Ok(None),
        Layer::InfiniBand => {
            let number = special + u32::from(number) - 1;
            let mut control = Control::new(plan.hw, state);
            control.create_packets(Service::Management, number, agent::ROOM).map(Some)
        }
    }
}
