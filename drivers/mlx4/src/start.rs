//! Bringing a card up: from a reset to a port that is open.

use crate::agent;
use crate::capabilities::{BoardId, Capabilities, first_eq};
use crate::command::{Command, Commands, Opcode};
use crate::config::{Config, Layer};
use crate::control::{Card, Control, Function, Health};
use crate::eq::Eq;
use crate::error::Error;
use crate::firmware::{self, Firmware};
use crate::frames::Frames;
use crate::hardware::{Block, Hardware};
use crate::icm::layout::LOG_MPTS;
use crate::icm::{Icm, Object};
use crate::packets::Packets;
use crate::port::{Link, Port, PortInfo};
use crate::qp::context::Service;
use crate::qp::numbers::Numbers;
use crate::region::{self, Keys, Pages, Place};
use crate::reset::Saved;
use crate::tables::Tables;
use crate::{grants, hca, reset, slave};
use alloc::sync::Arc;
use alloc::vec::Vec;
use verbs::{Gid, PathMtu, PortState};

/// A card that is up, how it is driven, and its event queue.
pub(crate) struct Up<B> {
    pub(crate) control: Control<B>,
    pub(crate) card: Arc<Card>,
    pub(crate) eq: Eq<B>,
    /// Of an InfiniBand port, what its subnet manager speaks to, unless that is the master's.
    pub(crate) agent: Option<Packets<B>>,
    /// On an Ethernet port, if frames are wanted.
    pub(crate) frames: Option<Frames<B>>,
    pub(crate) link: Link,
}

/// What a card had before it failed, and keeps.
pub(crate) struct Former {
    /// Which peers know.
    pub(crate) keys: Keys,
    /// Of queue pairs that are lost, until they are destroyed.
    pub(crate) numbers: Numbers,
}

/// Brings a card up from wherever it is, to a port that is open. Its link takes its time. Gives what a reset loses too.
pub(crate) fn start<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
) -> Result<(Up<B>, Option<Saved>), Error> {
    match reset::function(hw)? {
        Function::Physical => {
            let saved = reset::take(hw)?;
            let up = again(hw, config, Function::Physical, None);
            if up.is_err() {
                reset::give_up(hw);
            }
            up.map(|up| (up, Some(saved)))
        }
        Function::Virtual => again(hw, config, Function::Virtual, None).map(|up| (up, None)),
    }
}

/// Brings up a card that was reset. One that fails has nothing any more.
pub(crate) fn again<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    function: Function,
    former: Option<&Former>,
) -> Result<Up<B>, Error> {
    let up = match function {
        Function::Physical => physical(hw, config, former),
        Function::Virtual => of_slave(hw, config, former),
    };
    if up.is_err() {
        // The card has memory that goes.
        reset::silence(hw, function);
    }
    up
}

fn physical<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    former: Option<&Former>,
) -> Result<Up<B>, Error> {
    let reset = Some(hw.now());
    let pages = Pages::of(&config.remote)?;
    let mut commands = Commands::of_card(hw)?;
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
    let for_numbers = chance(hw);
    let domain = capabilities.reserved_pds;
    let first = capabilities.reserved_mpts;
    let places = [first, first + 1].map(|index| Place { index, log_count: LOG_MPTS });
    let keys = region::create(
        hw,
        &mut commands,
        &mut tables,
        places,
        domain,
        pages.as_ref(),
        former.map(|former| former.keys),
    )?;
    let mtu = config.mtu.min(info.max_mtu);
    let numbers = Numbers::own(for_numbers).beside(former);
    let card = Card {
        function: Function::Physical,
        reset,
        firmware: firmware.version,
        board,
        port,
        info: PortInfo { max_mtu: mtu, ..info },
        keys,
        health: firmware.error_buffer.map_or(Health::Unseen, Health::Register),
        max_qps: numbers.most(),
        blue_flame: capabilities.blue_flame.is_some() && hw.combine_writes(capabilities.uar_len),
        domain,
        capabilities,
    };
    let card = Arc::new(card);
    let mut control = control(card.clone(), commands, tables, numbers, eqn, Some(firmware));
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
    Ok(Up { link: first_link(&card.info), control, card, eq, agent, frames })
}

/// The same of a virtual function, for which the master has brought the card up.
fn of_slave<B: Block>(
    hw: &impl Hardware<Block = B>,
    config: &Config,
    former: Option<&Former>,
) -> Result<Up<B>, Error> {
    let pages = Pages::of(&config.remote)?;
    let mut commands = Commands::of_slave(hw)?;
    // The master has taken all from the function, which may reach memory again if it was cut off.
    reset::connect(hw);
    let hca = hca::query(hw, &mut commands)?;
    let capabilities = Capabilities::query(hw, &mut commands)?.in_modes(&hca);
    let number = port_number(config, &capabilities)?;
    let version = firmware::version(hw, &mut commands)?;
    let eqn = slave::first_eq(hw, &mut commands, number)?;
    let info = Port::query(hw, &mut commands, number, config.layer)?;
    let board = BoardId::query(hw, &mut commands)?;
    let mut tables = Tables::Granted;
    let eq = Eq::create(hw, &mut commands, &mut tables, eqn, capabilities.large_eqes, config.vector)?;
    let mut port = Port::of_slave(number, info.layer);
    if info.layer == Layer::Ethernet {
        port = port.with_counter(grants::counter(hw, &mut commands)?);
    }
    let domain = capabilities.reserved_pds;
    let first = grants::key(hw, &mut commands)?;
    let second = if pages.is_none() { first } else { grants::key(hw, &mut commands)? };
    let places = [first, second].map(|index| Place { index, log_count: hca.log_keys });
    let keys = region::create(
        hw,
        &mut commands,
        &mut tables,
        places,
        domain,
        pages.as_ref(),
        former.map(|former| former.keys),
    )?;
    let (first, count) = grants::queue_pairs(hw, &mut commands)?;
    let numbers = Numbers::granted(first, count).beside(former);
    let mtu = config.mtu.min(info.max_mtu);
    port.open(hw, &mut commands, mtu)?;
    if info.layer == Layer::Ethernet {
        port = port.with_mac_row(grants::mac_row(hw, &mut commands, number, info.mac.0)?);
    }
    let card = Card {
        function: Function::Virtual,
        reset: None,
        firmware: version,
        board,
        port,
        info: PortInfo { max_mtu: mtu, ..info },
        keys,
        health: Health::Channel,
        max_qps: numbers.most(),
        blue_flame: capabilities.blue_flame.is_some() && hw.combine_writes(capabilities.uar_len),
        domain,
        capabilities,
    };
    let card = Arc::new(card);
    let mut control = control(card.clone(), commands, tables, numbers, eqn, None);
    let frames = start_frames(hw, &mut control, config)?;
    Ok(Up { link: first_link(&card.info), control, card, eq, agent: None, frames })
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

/// What is known of a link before it is looked at.
fn first_link(info: &PortInfo) -> Link {
    Link { state: PortState::Down, gid: Gid([0; 16]), lid: 0, mtu: PathMtu::fitting(info.max_mtu.into()) }
}

const fn control<B>(
    card: Arc<Card>,
    commands: Commands<B>,
    tables: Tables<B>,
    numbers: Numbers,
    eqn: u32,
    firmware: Option<Firmware<B>>,
) -> Control<B> {
    Control { card, commands, tables, numbers, cqs: 0, free_cqs: Vec::new(), eqn, _firmware: firmware }
}

fn port_number(config: &Config, card: &Capabilities) -> Result<u8, Error> {
    if config.port == 0 || config.port > card.ports {
        return Err(Error::NoPort { asked: config.port, has: card.ports });
    }
    Ok(config.port)
}

/// Names the eight numbers of queue pairs for management (Linux `mlx4_init_qp_table`), and gives the first: the first two are
/// those of the ports' subnet management.
fn special_queue_pairs<B: Block>(
    hw: &impl Hardware<Block = B>,
    commands: &mut Commands<B>,
    tables: &mut Tables<B>,
    card: &Capabilities,
) -> Result<u32, Error> {
    const COUNT: u32 = 8;
    let first = card.reserved_qps.next_multiple_of(COUNT);
    tables.back(hw, commands, Object::Qp, first.into(), COUNT.into())?;
    commands.run(hw, Command::new(Opcode::ConfSpecialQp).of(first)).map(|_| first)
}

/// A number that nobody can tell before.
pub(crate) fn chance(hw: &impl Hardware) -> u32 {
    let mut bytes = [0; 4];
    hw.fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}
