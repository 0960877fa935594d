//! A slave's commands on queue pairs. The slave can use only its own queue pairs, with its own queues,
//! addresses and keys. Fields of the context that are relative to the function, such as an index in the
//! port's table, are translated.

use super::objects::mtt_index;
use super::resources::QPN_MASK;
use super::tracker::{INVALID, NO_SUCH, NOT_PERMITTED, QpState, QpUses, Result};
use super::{Slave, native, native_with, numbers, read_input};
use crate::device::adapter::Adapter;
use crate::device::command::{Output, opcode as op};
use crate::device::hcr::Command;
use crate::device::host::Host;
use crate::device::mailbox::Mailbox;
use crate::device::qp::Transition;

/// Offsets in the mailbox of a transition.
mod at {
    pub const OPTIONAL: usize = 0x00;
    pub const SERVICE: usize = 0x09;
    pub const SIZES: usize = 0x11;
    pub const PATH: usize = 0x20;
    pub const ALTERNATE_PATH: usize = 0x4c;
    pub const SEND_CQN: usize = 0x84;
    pub const PARAMETERS_2: usize = 0x98;
    pub const RECEIVE_CQN: usize = 0xa4;
    pub const Q_KEY: usize = 0xb0;
    pub const SRQN: usize = 0xb4;
    pub const RATE_LIMIT: usize = 0xc4;
    pub const LOG_PAGE: usize = 0xd0;
    pub const MTT: usize = 0xd4;
}

/// Offsets in an address path.
mod path {
    pub const COUNTER: usize = 0x04;
    pub const SOURCE_MAC: usize = 0x05;
    pub const SOURCE_GID: usize = 0x09;
    pub const SCHEDULE: usize = 0x20;
}

/// Bits of the mask of optional parameters.
const ALTERNATE_PATH: u32 = 1 << 0;
const PRIMARY_PATH: u32 = 1 << 7;

/// Service codes.
mod service {
    pub const RC: u8 = 0;
    pub const UC: u8 = 1;
    pub const UD: u8 = 3;
    pub const XRC: u8 = 6;
    pub const MLX: u8 = 7;
}

/// Flag of a source GID: the index is taken from the address vector, relative to this row.
const GID_BASE: u8 = 0x80;

impl Slave {
    /// Runs a command on a queue pair. Returns `None` for other commands.
    pub fn queue_pair(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
    ) -> Option<Result<Output>> {
        if let Some(transition) = Transition::from_opcode(command.opcode) {
            return Some(self.transition(adapter, command, transition, host));
        }
        Some(match command.opcode {
            op::QUERY_QP | op::SUSPEND_QP | op::UNSUSPEND_QP => self.on_qp(adapter, command, host),
            op::UPDATE_QP => self.update_qp(adapter, command, host),
            _ => return None,
        })
    }

    fn on_qp(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        self.tracker.qps.get(command.in_mod & QPN_MASK)?.expect_hardware()?;
        native(adapter, command, host)
    }

    fn transition(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        transition: Transition,
        host: &dyn Host,
    ) -> Result<Output> {
        let qpn = command.in_mod & QPN_MASK;
        match transition {
            Transition::ToReset => {
                if !matches!(self.tracker.qps.get(qpn)?.state, QpState::Hardware(_)) {
                    return Err(INVALID);
                }
                let output = native(adapter, command, host)?;
                self.tracker.qp_to_mapped(qpn);
                return Ok(output);
            }
            Transition::ToError | Transition::RtsToSqd => return self.on_qp(adapter, command, host),
            Transition::ResetToInit => return self.first_transition(adapter, command, host),
            _ => {}
        }
        let mut mailbox = read_input(command, host)?;
        if transition != Transition::InitToInit {
            self.check_port(adapter, &mailbox)?;
        }
        if !matches!(transition, Transition::InitToInit | Transition::SqErrorToRts) {
            check_parameters(&mut mailbox, transition, qpn)?;
        }
        if transition == Transition::InitToRtr {
            self.check_addresses(&mailbox)?;
        }
        if !matches!(transition, Transition::InitToInit | Transition::SqErrorToRts) {
            translate_gids(&mut mailbox);
        }
        set_proxy_key(&mut mailbox, qpn);
        self.tracker.qps.get(qpn)?.expect_hardware()?;
        let port = port_index(&mailbox, at::PATH);
        let output = native_with(adapter, command, mailbox, host)?;
        if transition == Transition::InitToRtr {
            self.tracker.qps.get_mut(qpn)?.port = port;
        }
        Ok(output)
    }

    fn first_transition(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
    ) -> Result<Output> {
        let qpn = command.in_mod & QPN_MASK;
        let mut mailbox = read_input(command, host)?;
        self.check_port(adapter, &mailbox)?;
        if !matches!(self.tracker.qps.get(qpn)?.state, QpState::Mapped) {
            return Err(INVALID);
        }
        let shared = mailbox.u32(at::SRQN);
        let uses = QpUses {
            mtt: mtt_index(mailbox.u32(at::MTT)),
            cqs: [at::RECEIVE_CQN, at::SEND_CQN].map(|offset| mailbox.u32(offset) & 0xff_ffff),
            srq: (shared >> 24 & 1 != 0).then_some(shared & 0xff_ffff),
        };
        self.tracker.check_mtt(uses.mtt, buffer_entries(&mailbox))?;
        for cqn in uses.cqs {
            self.tracker.cqs.get(cqn)?;
        }
        if let Some(srqn) = uses.srq {
            self.tracker.srqs.get(srqn)?;
        }
        set_proxy_key(&mut mailbox, qpn);
        let output = native_with(adapter, command, mailbox, host)?;
        self.tracker.qp_to_hardware(qpn, uses);
        Ok(output)
    }

    fn check_port(&self, adapter: &Adapter, mailbox: &Mailbox) -> Result {
        let alternate = mailbox.u32(at::OPTIONAL) & ALTERNATE_PATH != 0;
        let known = |path| port_index(mailbox, path) < adapter.ports.all.len();
        if known(at::PATH) && (!alternate || known(at::ALTERNATE_PATH)) { Ok(()) } else { Err(INVALID) }
    }

    /// Checks that the source address and the counter belong to the slave.
    fn check_addresses(&self, mailbox: &Mailbox) -> Result {
        let port = self.ports.get(port_index(mailbox, at::PATH)).ok_or(INVALID)?;
        let mac = usize::from(mailbox.u8(at::PATH + path::SOURCE_MAC) & 0x7f);
        if mailbox.u8(at::SERVICE) != service::MLX && !port.has_mac(mac) {
            return Err(INVALID);
        }
        let counter = u32::from(mailbox.u8(at::PATH + path::COUNTER));
        if counter != numbers::SINK_COUNTER && self.tracker.counters.get(counter).is_err() {
            return Err(INVALID);
        }
        Ok(())
    }

    /// UPDATE_QP: allows changes of the source address and of the loopback check.
    fn update_qp(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        const SOURCE_MAC: u64 = 1 << 34;
        const LOOPBACK_CHECK: u64 = 1 << 51;
        const CONTEXT: usize = 0x20;
        let mailbox = read_input(command, host)?;
        let (of_qp, of_path, of_alternate) = (mailbox.u64(0x00), mailbox.u64(0x08), mailbox.u64(0x10));
        if of_qp != 0 || of_alternate != 0 || of_path & !(SOURCE_MAC | LOOPBACK_CHECK) != 0 {
            return Err(NOT_PERMITTED);
        }
        let qp = self.tracker.qps.get(command.in_mod & 0xff_ffff)?;
        if of_path & SOURCE_MAC != 0 {
            let index = usize::from(mailbox.u8(CONTEXT + 0x18 + path::SOURCE_MAC));
            if !self.ports.get(qp.port).is_some_and(|port| port.has_mac(index)) {
                return Err(NO_SUCH);
            }
        }
        native_with(adapter, command, mailbox, host)
    }
}

fn port_index(mailbox: &Mailbox, path: usize) -> usize {
    usize::from(mailbox.u8(path + path::SCHEDULE) >> 6 & 1)
}

/// Returns the number of MTT entries of a queue pair's buffer as the master counts them: whole pages, rounded
/// up to a power of two.
fn buffer_entries(mailbox: &Mailbox) -> u64 {
    let bytes = |size: u8| 1u64 << ((size >> 3 & 0xf) + (size & 7) + 4);
    let (receive, send) = (mailbox.u8(at::SIZES), mailbox.u8(at::SIZES + 1));
    let (shared, rss) = (mailbox.u8(at::SRQN) & 1 != 0, mailbox.u32(0x08) >> 13 & 1 != 0);
    let own_receive =
        if shared || rss || mailbox.u8(at::SERVICE) == service::XRC { 0 } else { bytes(receive) };
    let offset = u64::from(mailbox.u32(at::PARAMETERS_2) >> 6 & 0x3f) << 6;
    let log_page = (mailbox.u8(at::LOG_PAGE) & 0x3f) + 12;
    ((bytes(send) + own_receive + offset) >> log_page).max(1).next_power_of_two()
}

/// Checks the parameters of a transition.
fn check_parameters(mailbox: &mut Mailbox, transition: Transition, qpn: u32) -> Result {
    const FORCE_PHYSICAL_PORT: u32 = 1 << 3;
    mailbox.put_u32(at::PARAMETERS_2, mailbox.u32(at::PARAMETERS_2) & !FORCE_PHYSICAL_PORT);
    if mailbox.u16(at::RATE_LIMIT) != 0 {
        return Err(NOT_PERMITTED);
    }
    match mailbox.u8(at::SERVICE) {
        service::RC | service::UC | service::XRC => {
            let optional = mailbox.u32(at::OPTIONAL);
            for (bit, path) in [(PRIMARY_PATH, at::PATH), (ALTERNATE_PATH, at::ALTERNATE_PATH)] {
                if optional & bit != 0 && usize::from(mailbox.u8(path + path::SOURCE_GID)) >= numbers::GIDS {
                    return Err(INVALID);
                }
            }
            Ok(())
        }
        // Subnet management is not available to slaves.
        service::MLX if transition == Transition::InitToRtr && numbers::is_reserved(qpn) => {
            Err(NOT_PERMITTED)
        }
        _ => Ok(()),
    }
}

/// Translates the slave's GID indices, which count from 0, to rows of the port's table. The physical
/// function's rows come first.
fn translate_gids(mailbox: &mut Mailbox) {
    const FIRST: u8 = numbers::FIRST_GID as u8;
    let optional = mailbox.u32(at::OPTIONAL);
    match mailbox.u8(at::SERVICE) {
        service::UD => mailbox.put_u8(at::PATH + path::SOURCE_GID, FIRST | GID_BASE),
        service::RC | service::UC | service::XRC => {
            for (bit, path) in [(PRIMARY_PATH, at::PATH), (ALTERNATE_PATH, at::ALTERNATE_PATH)] {
                if optional & bit != 0 {
                    let index = mailbox.u8(path + path::SOURCE_GID).wrapping_add(FIRST) & 0x7f;
                    mailbox.put_u8(path + path::SOURCE_GID, index);
                }
            }
        }
        _ => {}
    }
}

/// Sets the Q_Key by which the two ends of a special queue pair recognize each other. The slave does not
/// choose it.
fn set_proxy_key(mailbox: &mut Mailbox, qpn: u32) {
    if let Some(key) = numbers::proxy_q_key(qpn) {
        mailbox.put_u32(at::Q_KEY, key);
    }
}
