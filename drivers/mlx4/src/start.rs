//! Bring-up of a card, from its reset to an open port.

use crate::agent;
use crate::capabilities::{BoardId, Capabilities, first_eq};
use crate::command::{Command, Commands, Opcode};
use crate::config::{Config, Layer};
use crate::control::{Card, Control, Function, HealthSource};
use crate::eq::Eq;
use crate::error::Error;
use crate::firmware::{self, Firmware};
use crate::frames::Frames;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::LOG_MPTS;
use crate::icm::{Icm, Object};
use crate::memory_region::{self, Keys, MptSlot, Pages};
use crate::packets::Packets;
use crate::port::{Link, Port, PortInfo};
use crate::qp::context::Service;
use crate::qp::qpn::QpnAllocator;
use crate::reset::Saved;
use crate::tables::Tables;
use crate::{hca, reset, slave, vf_resources};
use alloc::sync::Arc;
use alloc::vec::Vec;
use verbs::{Gid, PathMtu, PortState};

/// The result of a bring-up.
pub(crate) struct Started<B> {
    pub(crate) control: Control<B>,
    pub(crate) card: Arc<Card>,
    pub(crate) eq: Eq<B>,
    /// The agent for subnet management on an InfiniBand port, unless the master has it.
    pub(crate) agent: Option<Packets<B>>,
    /// The queues for plain frames on an Ethernet port, if they are wanted.
    pub(crate) frames: Option<Frames<B>>,
    pub(crate) link: Link,
}

/// The state of a card before it failed that must survive the restart.
pub(crate) struct Preserved {
    /// The keys that peers know.
    pub(crate) keys: Keys,
    /// The numbers of the lost queue pairs, which stay in use until these are destroyed.
    pub(crate) qpns: QpnAllocator,
}

/// Resets a card and brings it up. On return its port is open, but its link may need more time. Also returns
/// the configuration that a later reset would lose, which a virtual function does not have.
pub(crate) fn start<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
) -> Result<(Started<B>, Option<Saved>), Error> {
    match reset::function(hw)? {
        Function::Physical => {
            let saved = reset::take(hw)?;
            let up = restart(hw, config, Function::Physical, None);
            if up.is_err() {
                reset::give_up(hw);
            }
            up.map(|up| (up, Some(saved)))
        }
        Function::Virtual => restart(hw, config, Function::Virtual, None).map(|up| (up, None)),
    }
}

/// Brings up a card that was reset. On failure the card owns no memory any more.
pub(crate) fn restart<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    function: Function,
    preserved: Option<&Preserved>,
) -> Result<Started<B>, Error> {
    let up = match function {
        Function::Physical => physical(hw, config, preserved),
        Function::Virtual => of_virtual(hw, config, preserved),
    };
    if up.is_err() {
        // The card uses memory that is about to be freed.
        reset::silence(hw, function);
    }
    up
}

fn physical<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    preserved: Option<&Preserved>,
) -> Result<Started<B>, Error> {
    let reset = Some(hw.now());
    let pages = Pages::of(&config.remote)?;
    let mut commands = Commands::of_physical(hw)?;
    let firmware = Firmware::start(hw, &mut commands)?;
    let capabilities = Capabilities::query(hw, &mut commands)?;
    let number = port_number(config, &capabilities)?;
    let info = Port::query(hw, &mut commands, number, config.layer)?;
    if info.layer == Layer::Ethernet && !capabilities.roce {
        return Err(Error::Lacks("RDMA over Ethernet"));
    }
    let port = Port::physical(number, info.layer, &capabilities);
    let key_pages = pages.as_ref().map_or(0, Pages::count);
    let icm = Icm::new(hw, &mut commands, &capabilities, key_pages)?;
    hca::start(hw, &mut commands, &capabilities, &icm.layout)?;
    let board = BoardId::query(hw, &mut commands)?;
    let eqn = first_eq(hw, &mut commands, capabilities.eqs)?;
    let mut tables = Tables::Own(icm.into());
    let eq = Eq::create(hw, &mut commands, &mut tables, eqn, capabilities.large_eqes, config.vector)?;
    let special = special_queue_pairs(hw, &mut commands, &mut tables, &capabilities)?;
    let qpn_seed = random_u32(hw);
    let domain = capabilities.reserved_pds;
    let first = capabilities.reserved_mpts;
    let slots = [first, first + 1].map(|index| MptSlot { index, log_count: LOG_MPTS });
    let keys = memory_region::create(
        hw,
        &mut commands,
        &mut tables,
        slots,
        domain,
        pages.as_ref(),
        preserved.map(|preserved| preserved.keys),
    )?;
    let mtu = config.mtu.min(info.max_mtu);
    let qpns = QpnAllocator::for_pf(qpn_seed).excluding(preserved);
    let card = Card {
        function: Function::Physical,
        reset,
        firmware: firmware.version,
        board,
        port,
        info: PortInfo { max_mtu: mtu, ..info },
        keys,
        health: firmware.error_buffer.map_or(HealthSource::Unseen, HealthSource::Register),
        max_qps: qpns.capacity(),
        blue_flame: capabilities.blue_flame.is_some() && hw.combine_writes(capabilities.uar_len),
        domain,
        capabilities,
    };
    let card = Arc::new(card);
    let mut control = control(card.clone(), commands, tables, qpns, eqn, Some(firmware));
    let agent = match info.layer {
        Layer::Ethernet => None,
        Layer::InfiniBand => {
            let number = special + u32::from(number) - 1;
            Some(control.create_packets(hw, &card, Service::Management, number, agent::ROOM)?)
        }
    };
    port.open(hw, &mut control.commands, mtu)?;
    if info.layer == Layer::Ethernet {
        port.set_mac(hw, &mut control.commands, info.mac)?;
    }
    let frames = start_frames(hw, &mut control, config)?;
    Ok(Started { link: first_link(&card.info), control, card, eq, agent, frames })
}

/// Brings up a virtual function of a card that the master has brought up.
fn of_virtual<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    preserved: Option<&Preserved>,
) -> Result<Started<B>, Error> {
    let pages = Pages::of(&config.remote)?;
    let mut commands = Commands::of_virtual(hw)?;
    // The master has released everything that the function had, so it may reach memory again if it was cut
    // off.
    reset::connect(hw);
    let hca = hca::query(hw, &mut commands)?;
    let capabilities = Capabilities::query(hw, &mut commands)?.with_hca_params(&hca);
    let number = port_number(config, &capabilities)?;
    let version = firmware::version(hw, &mut commands)?;
    let eqn = slave::first_eq(hw, &mut commands, number)?;
    let info = Port::query(hw, &mut commands, number, config.layer)?;
    let board = BoardId::query(hw, &mut commands)?;
    let mut tables = Tables::Granted;
    let eq = Eq::create(hw, &mut commands, &mut tables, eqn, capabilities.large_eqes, config.vector)?;
    let mut port = Port::of_virtual(number, info.layer);
    if info.layer == Layer::Ethernet {
        port = port.with_counter(vf_resources::counter(hw, &mut commands)?);
    }
    let domain = capabilities.reserved_pds;
    let first = vf_resources::key(hw, &mut commands)?;
    let second = if pages.is_none() { first } else { vf_resources::key(hw, &mut commands)? };
    let slots = [first, second].map(|index| MptSlot { index, log_count: hca.log_keys });
    let keys = memory_region::create(
        hw,
        &mut commands,
        &mut tables,
        slots,
        domain,
        pages.as_ref(),
        preserved.map(|preserved| preserved.keys),
    )?;
    let (first, count) = vf_resources::queue_pairs(hw, &mut commands)?;
    let qpns = QpnAllocator::for_vf(first, count).excluding(preserved);
    let mtu = config.mtu.min(info.max_mtu);
    port.open(hw, &mut commands, mtu)?;
    if info.layer == Layer::Ethernet {
        port = port.with_mac_row(vf_resources::mac_row(hw, &mut commands, number, info.mac.0)?);
    }
    let card = Card {
        function: Function::Virtual,
        reset: None,
        firmware: version,
        board,
        port,
        info: PortInfo { max_mtu: mtu, ..info },
        keys,
        health: HealthSource::Channel,
        max_qps: qpns.capacity(),
        blue_flame: capabilities.blue_flame.is_some() && hw.combine_writes(capabilities.uar_len),
        domain,
        capabilities,
    };
    let card = Arc::new(card);
    let mut control = control(card.clone(), commands, tables, qpns, eqn, None);
    let frames = start_frames(hw, &mut control, config)?;
    Ok(Started { link: first_link(&card.info), control, card, eq, agent: None, frames })
}

fn start_frames<B: Block>(
    hw: &impl Hardware<Block = B>,
    control: &mut Control<B>,
    config: &Config,
) -> Result<Option<Frames<B>>, Error> {
    let card = control.card.clone();
    match card.port.layer {
        Layer::Ethernet if config.frames => Frames::start(hw, control, &card).map(Some),
        Layer::Ethernet | Layer::InfiniBand => Ok(None),
    }
}

/// Returns the state of a link before the first query.
fn first_link(info: &PortInfo) -> Link {
    Link { state: PortState::Down, gid: Gid([0; 16]), lid: 0, mtu: PathMtu::fitting(info.max_mtu.into()) }
}

const fn control<B>(
    card: Arc<Card>,
    commands: Commands<B>,
    tables: Tables<B>,
    qpns: QpnAllocator,
    eqn: u32,
    firmware: Option<Firmware<B>>,
) -> Control<B> {
    Control { card, commands, tables, qpns, cqs: 0, free_cqs: Vec::new(), eqn, _firmware: firmware }
}

fn port_number(config: &Config, card: &Capabilities) -> Result<u8, Error> {
    if config.port == 0 || config.port > card.ports {
        return Err(Error::NoPort { asked: config.port, has: card.ports });
    }
    Ok(config.port)
}

/// Reserves the eight queue pair numbers for management (Linux `mlx4_init_qp_table`) and returns the first.
/// The first two are for the subnet management of the ports.
fn special_queue_pairs<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    card: &Capabilities,
) -> Result<u32, Error> {
    const COUNT: u32 = 8;
    let first = card.reserved_qps.next_multiple_of(COUNT);
    tables.ensure_icm(hw, commands, Object::Qp, first.into(), COUNT.into())?;
    commands.exec(hw, Command::new(Opcode::ConfSpecialQp).of(first)).map(|_| first)
}

/// Returns an unpredictable number.
pub(crate) fn random_u32(hw: &impl Hardware) -> u32 {
    let mut bytes = [0; 4];
    hw.fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}
