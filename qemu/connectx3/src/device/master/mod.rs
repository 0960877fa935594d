//! The master of a virtual function, built into the adapter. On a real card the physical function's driver
//! has this role (Linux `mlx4/cmd.c`, `resource_tracker.c`, `fw.c`, `port.c`, `eq.c`). The master brings
//! the card up, receives commands from its slave over the communication channel, checks each of them and
//! passes them to the adapter.
//!
//! A card has one slave. Several virtual functions are several cards, each with its own master.

mod addresses;
mod channel;
mod groups;
pub(super) mod gsi;
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

use super::adapter::Adapter;
use super::command::Output;
use super::eq::{Event, EventType};
use super::hcr::{Command, Status};
use super::host::Host;
use super::mailbox::Mailbox;
use super::opcode as op;
use channel::{CHANNEL_LEN, Channel, Task};
use tracker::{INVALID, NOT_PERMITTED, Result};

/// The master function, which serves a virtual function.
#[derive(Debug)]
pub(super) struct Master {
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

impl Master {
    /// Brings a card up and returns its master.
    #[must_use]
    pub(super) fn start(adapter: &mut Adapter) -> Self {
        startup::start(adapter);
        Self { channel: Channel::default(), slave: Slave::new(adapter.ports.all.len()) }
    }

    /// Reads from the communication channel.
    #[must_use]
    pub(super) const fn read(&self, offset: u64) -> u32 {
        self.channel.read(offset)
    }

    /// Writes to the communication channel. Returns whether the offset is part of it.
    pub(super) fn write(&mut self, offset: u64, word: u32, adapter: &mut Adapter, host: &dyn Host) -> bool {
        if offset >= CHANNEL_LEN {
            return false;
        }
        match self.channel.write(offset, word) {
            None => {}
            Some(Task::Forget) => self.forget(adapter),
            Some(Task::Run { vhcr }) => {
                if self.run(adapter, vhcr, host).is_err() {
                    log::warn!("the slave's command registers at {vhcr:#x} cannot be reached");
                    self.forget(adapter);
                    self.channel.give_up();
                } else {
                    self.channel.reply();
                }
            }
        }
        true
    }

    /// Releases all the slave's resources.
    fn forget(&mut self, adapter: &mut Adapter) {
        self.slave = Slave::new(adapter.ports.all.len());
        startup::start(adapter);
    }

    /// Runs the command in the slave's registers and writes its result there.
    fn run(
        &mut self,
        adapter: &mut Adapter,
        at: u64,
        host: &dyn Host,
    ) -> core::result::Result<(), super::host::DmaError> {
        let (command, event) = vhcr::read(host, at)?;
        let result = self.slave.execute(adapter, &command, host);
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
        host.observe(&super::observe::Observation::Command { command: &command, status });
        vhcr::finish(host, at, status, immediate)?;
        if event && adapter.eqs.routed(EventType::Command) {
            self.slave.events = self.slave.events.wrapping_add(1);
            adapter.eqs.post(&Event::command(self.slave.events, 0, 0), host);
        }
        Ok(())
    }
}

impl Slave {
    fn new(ports: usize) -> Self {
        Self { ports: (0..ports).map(|_| ports::Port::default()).collect(), ..Self::default() }
    }

    /// Checks and runs a command of the slave. An unknown opcode is a bad parameter.
    fn execute(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let native = |adapter: &mut Adapter| native(adapter, command, host);
        let input = || read_input(command, host);
        match command.opcode {
            op::QUERY_FW => queries::firmware(adapter, host),
            op::QUERY_DEV_CAP => queries::capabilities(adapter, host),
            op::QUERY_FUNC_CAP => queries::function(adapter, &self.tracker, command),
            op::QUERY_HCA | op::QUERY_ADAPTER | op::NOP | op::HW_HEALTH_CHECK => native(adapter),
            op::SYNC_TPT | op::READ_MTT | op::INFORM_FLR_DONE | op::CONF_SPECIAL_QP => native(adapter),
            op::CONFIG_DEV if command.op_mod == 1 => native(adapter),
            op::QUERY_PORT => self.query_port(adapter, command, host),
            op::SET_PORT => self.set_port(adapter, command, input()?, host),
            op::INIT_PORT => self.open_port(adapter, command, host, true),
            op::CLOSE_PORT => self.open_port(adapter, command, host, false),
            op::MAD_IFC => self.management(adapter, command, input()?, host),
            op::ACCESS_REG => self.access_register(adapter, command, input()?, host),
            op::MAP_EQ => {
                let (eqn, unmap) = (command.in_mod & 0x3ff, command.in_mod >> 31 != 0);
                // The master only records the route: events for a queue that does not exist are lost.
                adapter.eqs.route_any(eqn, command.in_param, unmap);
                Ok(Output::None)
            }
            op::ALLOC_RES => self.allocate(adapter, command),
            op::FREE_RES => self.free(adapter, command),
            op::QP_ATTACH => self.attach(adapter, command, &input()?, host),
            op::PROMISC => self.promiscuous(adapter, command, host),
            // The port's filters and statistics belong to the physical function.
            op::SET_VLAN_FLTR | op::SET_MCAST_FLTR => Ok(Output::None),
            op::DUMP_ETH_STATS => Ok(Output::Mailbox(Mailbox::default())),
            op::QUERY_IF_STAT => {
                self.tracker.counters.get(command.in_mod & 0xffff)?;
                native(adapter)
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
            _ => match self.object(adapter, command, host) {
                Some(result) => result,
                None => self.queue_pair(adapter, command, host).unwrap_or(Err(INVALID)),
            },
        }
    }
}

/// Passes a command to the adapter. Linux's master converts the card's status to an error number and that
/// to a status for the slave; this function returns the latter.
fn native(adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
    adapter.run(command, host).map_err(|status| match status {
        Status::BadQpState | Status::BadPacket => INVALID,
        Status::BadSize => Status::ExceedsLimit,
        Status::BadResource | Status::BadResourceState | Status::BadIndex => Status::Internal,
        other => other,
    })
}

/// Passes a command to the card with a different input mailbox.
fn native_with(
    adapter: &mut Adapter,
    command: &Command,
    mailbox: Mailbox,
    host: &dyn Host,
) -> Result<Output> {
    native(adapter, &Command { input: Some(mailbox), ..command.clone() }, host)
}

/// Returns the slave's input mailbox. An unreadable mailbox is an internal error.
fn read_input(command: &Command, host: &dyn Host) -> Result<Mailbox> {
    super::command::input(command, host).map_err(|_| Status::Internal)
}
