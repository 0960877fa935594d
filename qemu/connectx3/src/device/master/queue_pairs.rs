//! A slave's commands on queue pairs. The slave can use only its own queue pairs, with its own queues,
//! addresses and keys. Fields of the context that are relative to the function, such as an index in the
//! port's table, are translated.

use super::objects::mtt_index;
use super::resources::QPN_MASK;
use super::tracker::{INVALID, NO_SUCH, NOT_PERMITTED, QpState, QpUses, Result};
use super::{Slave, native, native_with, numbers, read_input};
use crate::device::adapter::Adapter;
use crate::device::command::Output;
use crate::device::hcr::Command;
use crate::device::host::Host;
use crate::device::layout::{Field, qp_context as qp, update_qp};
use crate::device::mailbox::Mailbox;
use crate::device::opcode as op;
use crate::device::qp::Transition;

/// A path in the mailbox of a transition, by the distance of its fields from those of the primary path.
#[derive(Clone, Copy)]
struct Path(usize);

impl Path {
    const PRIMARY: Self = Self(0);
    const ALTERNATE: Self = Self(0x2c);

    const fn field(self, of_primary: Field) -> Field {
        of_primary.moved(self.0)
    }
}

/// Bits of the mask of optional parameters.
const ALTERNATE_PATH: u32 = 1 << 0;
const PRIMARY_PATH: u32 = 1 << 7;

/// Service codes.
mod service {
    pub(super) const RC: u32 = 0;
    pub(super) const UC: u32 = 1;
    pub(super) const UD: u32 = 3;
    pub(super) const XRC: u32 = 6;
    pub(super) const MLX: u32 = 7;
}

/// Flag of a source GID: the index is taken from the address vector, relative to this row.
const GID_BASE: u32 = 0x80;

impl Slave {
    /// Runs a command on a queue pair. Returns `None` for other commands.
    pub(super) fn queue_pair(
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
        let port = port_index(&mailbox, Path::PRIMARY);
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
        let uses = QpUses {
            mtt: mtt_index(mailbox.field(qp::MTT)),
            cqs: [qp::RECEIVE_CQN, qp::SEND_CQN].map(|field| mailbox.field(field)),
            srq: (mailbox.field(qp::USES_SRQ) != 0).then(|| mailbox.field(qp::SRQN)),
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
        let alternate = mailbox.field(qp::OPTIONAL) & ALTERNATE_PATH != 0;
        let known = |path| port_index(mailbox, path) < adapter.ports.all.len();
        if known(Path::PRIMARY) && (!alternate || known(Path::ALTERNATE)) { Ok(()) } else { Err(INVALID) }
    }

    /// Checks that the source address and the counter belong to the slave.
    fn check_addresses(&self, mailbox: &Mailbox) -> Result {
        let port = self.ports.get(port_index(mailbox, Path::PRIMARY)).ok_or(INVALID)?;
        let mac = mailbox.field(qp::SOURCE_MAC) as usize;
        if mailbox.field(qp::SERVICE) != service::MLX && !port.has_mac(mac) {
            return Err(INVALID);
        }
        let counter = mailbox.field(qp::COUNTER);
        if counter != numbers::SINK_COUNTER && self.tracker.counters.get(counter).is_err() {
            return Err(INVALID);
        }
        Ok(())
    }

    /// UPDATE_QP: allows changes of the source address and of the loopback check.
    fn update_qp(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        const SOURCE_MAC: u64 = 1 << 34;
        const LOOPBACK_CHECK: u64 = 1 << 51;
        let mailbox = read_input(command, host)?;
        let (of_qp, of_path, of_alternate) = (
            mailbox.double(update_qp::QP_MASK_HIGH),
            mailbox.double(update_qp::PATH_MASK_HIGH),
            mailbox.double(update_qp::ALTERNATE_MASK_HIGH),
        );
        if of_qp != 0 || of_alternate != 0 || of_path & !(SOURCE_MAC | LOOPBACK_CHECK) != 0 {
            return Err(NOT_PERMITTED);
        }
        let tracked = self.tracker.qps.get(command.in_mod & 0xff_ffff)?;
        if of_path & SOURCE_MAC != 0 {
            let index = mailbox.field(update_qp::GRH_AND_SOURCE_MAC) as usize;
            if !self.ports.get(tracked.port).is_some_and(|port| port.has_mac(index)) {
                return Err(NO_SUCH);
            }
        }
        native_with(adapter, command, mailbox, host)
    }
}

fn port_index(mailbox: &Mailbox, path: Path) -> usize {
    (mailbox.field(path.field(qp::SCHED_QUEUE)) >> 6 & 1) as usize
}

/// Returns the number of MTT entries of a queue pair's buffer as the master counts them: whole pages, rounded
/// up to a power of two.
fn buffer_entries(mailbox: &Mailbox) -> u64 {
    let bytes = |log_entries, stride| 1u64 << (mailbox.field(log_entries) + mailbox.field(stride) + 4);
    let send = bytes(qp::LOG_SENDS, qp::SEND_STRIDE);
    let (shared, rss) = (mailbox.field(qp::USES_SRQ) != 0, mailbox.field(qp::SPREADS) != 0);
    let own_receive = if shared || rss || mailbox.field(qp::SERVICE) == service::XRC {
        0
    } else {
        bytes(qp::LOG_RECEIVES, qp::RECEIVE_STRIDE)
    };
    let offset = u64::from(mailbox.field(qp::PAGE_OFFSET)) << 6;
    let log_page = mailbox.field(qp::LOG_PAGE) + 12;
    ((send + own_receive + offset) >> log_page).max(1).next_power_of_two()
}

/// Checks the parameters of a transition.
fn check_parameters(mailbox: &mut Mailbox, transition: Transition, qpn: u32) -> Result {
    mailbox.set(qp::PHYSICAL_PORT, 0);
    if mailbox.field(qp::RATE_LIMIT) != 0 {
        return Err(NOT_PERMITTED);
    }
    match mailbox.field(qp::SERVICE) {
        service::RC | service::UC | service::XRC => {
            let optional = mailbox.field(qp::OPTIONAL);
            for (bit, path) in [(PRIMARY_PATH, Path::PRIMARY), (ALTERNATE_PATH, Path::ALTERNATE)] {
                if optional & bit != 0 && mailbox.field(path.field(qp::SOURCE_GID)) as usize >= numbers::GIDS
                {
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
    const FIRST: u32 = numbers::FIRST_GID as u32;
    let optional = mailbox.field(qp::OPTIONAL);
    match mailbox.field(qp::SERVICE) {
        service::UD => mailbox.set(qp::SOURCE_GID, FIRST | GID_BASE),
        service::RC | service::UC | service::XRC => {
            for (bit, path) in [(PRIMARY_PATH, Path::PRIMARY), (ALTERNATE_PATH, Path::ALTERNATE)] {
                if optional & bit != 0 {
                    let source = path.field(qp::SOURCE_GID);
                    mailbox.set(source, mailbox.field(source).wrapping_add(FIRST) & 0x7f);
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
        mailbox.set(qp::Q_KEY, key);
    }
}
