//! The master of a virtual function, built into the card. On a real card the physical function's driver has
//! this role (Linux `mlx4/cmd.c`, `resource_tracker.c`, `fw.c`, `port.c`, `eq.c`). The master brings the card
//! up, receives commands from its slave over the communication channel, checks each of them and passes them
//! to the card.
//!
//! A card has one slave. Several virtual functions are several cards, each with its own master.

mod addresses;
mod channel;
mod groups;
pub mod gsi;
mod numbers;
mod objects;
mod pool;
mod ports;
mod queries;
mod queue_pairs;
mod resources;
mod startup;
mod tracker;
mod vhcr;

use super::Card;
use super::command::{Output, opcode as op};
use super::eq::{Event, EventType};
use super::hcr::{Command, Status};
use super::host::Host;
use super::mailbox::Mailbox;
use channel::{CHANNEL_LEN, Channel, Task};
use tracker::{INVALID, NOT_PERMITTED, Result};

/// Opcodes that only a slave uses. The master handles them itself.
mod virtual_opcode {
    pub const ALLOC_RES: u16 = 0xf00;
    pub const FREE_RES: u16 = 0xf01;
    pub const PROMISC: u16 = 0xf08;
    pub const QUERY_FUNC_CAP: u16 = 0xf0a;
    pub const QP_ATTACH: u16 = 0xf0b;
}

/// The master.
#[derive(Debug)]
pub struct Master {
    channel: Channel,
    slave: Slave,
}

/// The master's record of its slave; a reset of the slave clears it.
#[derive(Debug, Default)]
struct Slave {
    tracker: tracker::Tracker,
    ports: Vec<ports::Port>,
    groups: groups::Groups,
    /// The number of command events posted.
    events: u16,
}

impl Card {
    /// Reads from the communication channel.
    pub(super) fn read_channel(&self, offset: u64) -> Option<u32> {
        self.master.as_ref().map(|master| master.channel.read(offset))
    }

    /// Writes to the communication channel. Returns whether the offset is part of one.
    pub(super) fn write_channel(&mut self, offset: u64, data: &[u8], host: &dyn Host) -> bool {
        let Some(word) = data.first_chunk().filter(|_| offset < CHANNEL_LEN) else { return false };
        let Some(mut master) = self.master.take() else { return false };
        match master.channel.write(offset, u32::from_be_bytes(*word)) {
            None => {}
            Some(Task::Forget) => master.forget(self),
            Some(Task::Run { vhcr }) => {
                if master.run(self, vhcr, host).is_err() {
                    log::warn!("the slave's command registers at {vhcr:#x} cannot be reached");
                    master.forget(self);
                    master.channel.give_up();
                } else {
                    master.channel.reply();
                }
            }
        }
        self.master = Some(master);
        true
    }
}

impl Master {
    /// Brings a card up and returns its master.
    #[must_use]
    pub fn start(card: &mut Card) -> Self {
        startup::start(card);
        Self { channel: Channel::default(), slave: Slave::new(card.ports.len()) }
    }

    /// Releases all the slave's resources.
    fn forget(&mut self, card: &mut Card) {
        self.slave = Slave::new(card.ports.len());
        startup::start(card);
    }

    /// Runs the command in the slave's registers and writes its result there.
    fn run(
        &mut self,
        card: &mut Card,
        at: u64,
        host: &dyn Host,
    ) -> core::result::Result<(), super::DmaError> {
        let (command, event) = vhcr::read(host, at)?;
        let result = self.slave.execute(card, &command, host);
        let shown = result.as_ref().map_or_else(|e| e.to_string(), |_| "ok".to_owned());
        log::debug!("slave: {command:x?}: {shown}");
        let (status, immediate) = match result {
            Ok(Output::None) => (0, None),
            Ok(Output::Immediate(value)) => (0, Some(value)),
            Ok(Output::Mailbox(mailbox)) => {
                host.write(command.out_param, mailbox.bytes())?;
                (0, None)
            }
            Err(status) => (status as u8, None),
        };
        host.observe(&super::Observation::Command { command: &command, status });
        vhcr::finish(host, at, status, immediate)?;
        if event && card.eqs.routed(EventType::Command) {
            self.slave.events = self.slave.events.wrapping_add(1);
            card.eqs.post(&Event::command(self.slave.events, 0, 0), host);
        }
        Ok(())
    }
}

impl Slave {
    fn new(ports: usize) -> Self {
        Self { ports: (0..ports).map(|_| ports::Port::default()).collect(), ..Self::default() }
    }

    /// Checks and runs a command of the slave. An unknown opcode is a bad parameter.
    fn execute(&mut self, card: &mut Card, command: &Command, host: &dyn Host) -> Result<Output> {
        let native = |card: &mut Card| native(card, command, host);
        let input = || read_input(command, host);
        match command.opcode {
            op::QUERY_FW => queries::firmware(card, host),
            op::QUERY_DEV_CAP => queries::capabilities(card, host),
            virtual_opcode::QUERY_FUNC_CAP => queries::function(card, &self.tracker, command),
            op::QUERY_HCA | op::QUERY_ADAPTER | op::NOP | op::HW_HEALTH_CHECK => native(card),
            op::SYNC_TPT | op::READ_MTT | op::INFORM_FLR_DONE | op::CONF_SPECIAL_QP => native(card),
            op::CONFIG_DEV if command.op_mod == 1 => native(card),
            op::QUERY_PORT => self.query_port(card, command, host),
            op::SET_PORT => self.set_port(card, command, input()?, host),
            op::INIT_PORT => self.open_port(card, command, host, true),
            op::CLOSE_PORT => self.open_port(card, command, host, false),
            op::MAD_IFC => self.management(card, command, input()?, host),
            op::ACCESS_REG => self.access_register(card, command, input()?, host),
            op::MAP_EQ => {
                let (eqn, unmap) = (command.in_mod & 0x3ff, command.in_mod >> 31 != 0);
                // The master only records the route: events for a queue that does not exist are lost.
                card.eqs.route_any(eqn, command.in_param, unmap);
                Ok(Output::None)
            }
            virtual_opcode::ALLOC_RES => self.allocate(card, command),
            virtual_opcode::FREE_RES => self.free(card, command),
            virtual_opcode::QP_ATTACH => self.attach(card, command, &input()?, host),
            virtual_opcode::PROMISC => self.promiscuous(card, command, host),
            // The port's filters and statistics belong to the physical function.
            op::SET_VLAN_FLTR | op::SET_MCAST_FLTR => Ok(Output::None),
            op::DUMP_ETH_STATS => Ok(Output::Mailbox(Mailbox::default())),
            op::QUERY_IF_STAT => {
                self.tracker.counters.get(command.in_mod & 0xffff)?;
                native(card)
            }
            op::CONFIG_DEV
            | op::GET_OP_REQ
            | op::ALLOCATE_VPP
            | op::SET_VPORT_QOS
            | op::MAD_DEMUX
            | op::CONGESTION_CTRL
            | op::FLOW_STEERING_IB_UC_QP_RANGE
            | op::VIRT_PORT_MAP => Err(NOT_PERMITTED),
            // Device-managed steering is off: EOPNOTSUPP.
            op::QP_FLOW_STEERING_ATTACH | op::QP_FLOW_STEERING_DETACH => Err(tracker::NO_SUCH),
            _ => match self.object(card, command, host) {
                Some(result) => result,
                None => self.queue_pair(card, command, host).unwrap_or(Err(INVALID)),
            },
        }
    }
}

/// Passes a command to the card. Linux's master converts the card's status to an error number and that to a
/// status for the slave; this function returns the latter.
fn native(card: &mut Card, command: &Command, host: &dyn Host) -> Result<Output> {
    card.run(command, host).map_err(|status| match status {
        Status::BadQpState | Status::BadPacket => INVALID,
        Status::BadSize => Status::ExceedsLimit,
        Status::BadResource | Status::BadResourceState | Status::BadIndex => Status::Internal,
        other => other,
    })
}

/// Passes a command to the card with a different input mailbox.
fn native_with(card: &mut Card, command: &Command, mailbox: Mailbox, host: &dyn Host) -> Result<Output> {
    native(card, &Command { input: Some(mailbox), ..command.clone() }, host)
}

/// Returns the slave's input mailbox. An unreadable mailbox is an internal error.
fn read_input(command: &Command, host: &dyn Host) -> Result<Mailbox> {
    super::command::input(command, host).map_err(|_| Status::Internal)
}
