//! A slave's commands on event queues, completion queues, shared receive queues and memory regions. The slave
//! can use only its own objects and pages.

use super::resources::MPT_MASK;
use super::tracker::{BUSY, INVALID, Mpt, NO_SUCH, NOT_PERMITTED, Result};
use super::{Slave, native, native_with, numbers, read_input};
use crate::device::adapter::Adapter;
use crate::device::command::Output;
use crate::device::hcr::Command;
use crate::device::host::Host;
use crate::device::layout::{cq_context, eq_context, mpt, srq_context};
use crate::device::mailbox::Mailbox;
use crate::device::opcode as op;
use crate::device::queue_memory::MTT_ENTRY;

/// Returns the index of the MTT entry at a byte offset of the table. Masters check only the low half of the
/// address.
pub(super) const fn mtt_index(offset: u32) -> u32 {
    (offset & !7) / MTT_ENTRY as u32
}

/// Returns the number of MTT entries of a queue of `1 << log_bytes` bytes in pages of `1 << log_page` bytes.
const fn queue_entries(log_bytes: u8, log_page: u8) -> u64 {
    1 << log_bytes.saturating_sub(log_page)
}

impl Slave {
    /// Runs a command on a memory region, a queue or an MTT range of the slave. Returns `None` for other
    /// commands.
    pub(super) fn object(
        &mut self,
        adapter: &mut Adapter,
        command: &Command,
        host: &dyn Host,
    ) -> Option<Result<Output>> {
        Some(match command.opcode {
            op::SW2HW_EQ => self.create_eq(adapter, command, host),
            op::HW2SW_EQ => self.destroy_eq(adapter, command, host),
            op::QUERY_EQ => self
                .tracker
                .eqs
                .get(&command.in_mod)
                .ok_or(NO_SUCH)
                .and_then(|_| native(adapter, command, host)),
            op::SW2HW_CQ => self.create_cq(adapter, command, host),
            op::HW2SW_CQ => self.destroy_cq(adapter, command, host),
            op::QUERY_CQ => self.on_cq(adapter, command, host),
            op::MODIFY_CQ => self.modify_cq(adapter, command, host),
            op::SW2HW_SRQ => self.create_srq(adapter, command, host),
            op::HW2SW_SRQ => self.destroy_srq(adapter, command, host),
            op::QUERY_SRQ | op::ARM_SRQ => self.on_srq(adapter, command, host),
            op::SW2HW_MPT => self.create_mpt(adapter, command, host),
            op::HW2SW_MPT => self.destroy_mpt(adapter, command, host),
            op::QUERY_MPT => self.query_mpt(adapter, command, host),
            op::WRITE_MTT => self.write_mtt(adapter, command, host),
            _ => return None,
        })
    }

    fn create_eq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let (eqn, context) = (command.in_mod, read_input(command, host)?);
        if self.tracker.eqs.contains_key(&eqn) || !(numbers::RESERVED_EQS..numbers::EQS).contains(&eqn) {
            return Err(NO_SUCH);
        }
        const LOG_EQE: u8 = 5;
        let mtt = mtt_index(context.field(eq_context::MTT));
        let log_bytes = context.field(eq_context::LOG_ENTRIES) as u8 + LOG_EQE;
        let entries = queue_entries(log_bytes, context.field(eq_context::LOG_PAGE) as u8 + 12);
        self.tracker.check_mtt(mtt, entries)?;
        let output = native_with(adapter, command, context, host)?;
        self.tracker.use_mtt(mtt, true);
        self.tracker.eqs.insert(eqn, mtt);
        Ok(output)
    }

    fn destroy_eq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let mtt = *self.tracker.eqs.get(&command.in_mod).ok_or(NO_SUCH)?;
        let output = native(adapter, command, host)?;
        self.tracker.use_mtt(mtt, false);
        self.tracker.eqs.remove(&command.in_mod);
        Ok(output)
    }

    /// Checks the buffer of a completion queue's context and returns its first MTT entry.
    fn check_cq(&self, context: &Mailbox) -> Result<u32> {
        const LOG_CQE: u8 = 5;
        let mtt = mtt_index(context.field(cq_context::MTT));
        let log_bytes = context.field(cq_context::LOG_ENTRIES) as u8 + LOG_CQE;
        let entries = queue_entries(log_bytes, context.field(cq_context::LOG_PAGE) as u8 + 12);
        self.tracker.check_mtt(mtt, entries).map(|()| mtt)
    }

    fn create_cq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let (cqn, context) = (command.in_mod, read_input(command, host)?);
        if self.tracker.cqs.get(cqn)?.mtt.is_some() {
            return Err(INVALID);
        }
        let mtt = self.check_cq(&context)?;
        let output = native_with(adapter, command, context, host)?;
        self.tracker.use_mtt(mtt, true);
        self.tracker.cqs.get_mut(cqn)?.mtt = Some(mtt);
        Ok(output)
    }

    fn destroy_cq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let queue = self.tracker.cqs.get(command.in_mod)?;
        let mtt = queue.mtt.ok_or(INVALID)?;
        if queue.users > 0 {
            return Err(BUSY);
        }
        let output = native(adapter, command, host)?;
        self.tracker.use_mtt(mtt, false);
        self.tracker.cqs.get_mut(command.in_mod)?.mtt = None;
        Ok(output)
    }

    /// Runs a command on a queue that the card owns. On any other queue the command has no effect and is no
    /// error.
    fn on_cq(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        match self.tracker.cqs.get(command.in_mod)?.mtt {
            Some(_) => native(adapter, command, host),
            None => Ok(Output::Mailbox(Mailbox::default())),
        }
    }

    fn modify_cq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        const RESIZE: u8 = 0;
        let context = read_input(command, host)?;
        let Some(before) = self.tracker.cqs.get(command.in_mod)?.mtt else { return Ok(Output::None) };
        if command.op_mod != RESIZE {
            return native_with(adapter, command, context, host);
        }
        let mtt = self.check_cq(&context)?;
        let output = native_with(adapter, command, context, host)?;
        self.tracker.use_mtt(before, false);
        self.tracker.use_mtt(mtt, true);
        self.tracker.cqs.get_mut(command.in_mod)?.mtt = Some(mtt);
        Ok(output)
    }

    fn create_srq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let (srqn, context) = (command.in_mod, read_input(command, host)?);
        if context.field(srq_context::SRQN) != srqn || self.tracker.srqs.get(srqn)?.mtt.is_some() {
            return Err(INVALID);
        }
        let mtt = mtt_index(context.field(srq_context::MTT));
        let log_entries = context.field(srq_context::LOG_ENTRIES) as u8;
        let log_bytes = log_entries + context.field(srq_context::LOG_STRIDE) as u8 + 4;
        let log_page = context.field(srq_context::LOG_PAGE) as u8 + 12;
        self.tracker.check_mtt(mtt, queue_entries(log_bytes, log_page))?;
        let output = native_with(adapter, command, context, host)?;
        self.tracker.use_mtt(mtt, true);
        self.tracker.srqs.get_mut(srqn)?.mtt = Some(mtt);
        Ok(output)
    }

    fn destroy_srq(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let queue = self.tracker.srqs.get(command.in_mod)?;
        let mtt = queue.mtt.ok_or(INVALID)?;
        if queue.users > 0 {
            return Err(BUSY);
        }
        let output = native(adapter, command, host)?;
        self.tracker.use_mtt(mtt, false);
        self.tracker.srqs.get_mut(command.in_mod)?.mtt = None;
        Ok(output)
    }

    fn on_srq(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        self.tracker.srqs.get(command.in_mod)?.mtt.ok_or(BUSY)?;
        native(adapter, command, host)
    }

    fn create_mpt(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        const REGION: u32 = 1 << 8;
        const PHYSICAL: u32 = 1 << 9;
        const MAY_BIND: u32 = 1 << 15;
        const FAST_REGISTER: u32 = 1 << 27;
        let (index, entry) = (command.in_mod & MPT_MASK, read_input(command, host)?);
        if !matches!(self.tracker.mpts.get(index)?, Mpt::Mapped) {
            return Err(INVALID);
        }
        let (flags, domain) = (entry.field(mpt::FLAGS), entry.u32(mpt::PD.word()));
        // Slaves have no memory windows, and the function number in the protection domain must be the
        // slave's.
        let function = domain >> 17 & 0x7f;
        let windows = flags & REGION == 0 || (domain & FAST_REGISTER != 0 && flags & MAY_BIND != 0);
        if windows || (function != 0 && function - 1 != numbers::SLAVE) {
            return Err(NOT_PERMITTED);
        }
        let mtt = (flags & PHYSICAL == 0).then(|| mtt_index(entry.field(mpt::MTT)));
        if let Some(mtt) = mtt {
            self.tracker.check_mtt(mtt, u64::from(entry.field(mpt::MTT_SIZE)))?;
        }
        let output = native_with(adapter, command, entry, host)?;
        if let Some(mtt) = mtt {
            self.tracker.use_mtt(mtt, true);
        }
        *self.tracker.mpts.get_mut(index)? = Mpt::Hardware { mtt };
        Ok(output)
    }

    fn destroy_mpt(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        let index = command.in_mod & MPT_MASK;
        let Mpt::Hardware { mtt } = *self.tracker.mpts.get(index)? else { return Err(INVALID) };
        native(adapter, command, host)?;
        if let Some(mtt) = mtt {
            self.tracker.use_mtt(mtt, false);
        }
        *self.tracker.mpts.get_mut(index)? = Mpt::Mapped;
        Ok(Output::None)
    }

    /// QUERY_MPT: returns an entry regardless of its owner. A slave cannot read the table, and re-registers a
    /// region from this output.
    fn query_mpt(&self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        match self.tracker.mpts.get(command.in_mod & MPT_MASK)? {
            Mpt::Reserved => Err(BUSY),
            Mpt::Mapped | Mpt::Hardware { .. } => native(adapter, command, host),
        }
    }

    /// WRITE_MTT: the mailbox holds the index of the first entry, an unused word, and the entries.
    fn write_mtt(&mut self, adapter: &mut Adapter, command: &Command, host: &dyn Host) -> Result<Output> {
        const PRESENT: u64 = 1;
        const HEADER: usize = 16;
        const MAX_ENTRIES: u32 = ((crate::device::mailbox::MAILBOX - HEADER) / MTT_ENTRY as usize) as u32;
        let (count, mailbox) = (command.in_mod, read_input(command, host)?);
        let first = mailbox.u32(0x04);
        if count > MAX_ENTRIES {
            return Err(INVALID);
        }
        self.tracker.check_mtt_part(first, count)?;
        let base = adapter.tables.hca.as_ref().map_or(0, |hca| hca.mtt_base);
        let entries: Vec<u8> = (0..count as usize)
            .flat_map(|i| (mailbox.u64(HEADER + i * MTT_ENTRY as usize) | PRESENT).to_be_bytes())
            .collect();
        adapter.tables.icm.write(host, base + u64::from(first) * MTT_ENTRY, &entries).map_err(|_| NO_SUCH)?;
        Ok(Output::None)
    }
}
