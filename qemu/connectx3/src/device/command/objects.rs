//! Commands on memory regions, completion queues, queue pairs and the steering table.

use super::{Output, opcode};
use crate::device::Card;
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::mailbox::Mailbox;
use crate::device::memory::Regions;
use crate::device::profile::Steering;
use crate::device::qp::{Qps, Transition};
use crate::device::queue_memory::{MttTable, write_mtt};
use crate::device::statistics::PortStatistics;
use crate::device::steering::{self, McgTable, members};

impl Card {
    pub(super) fn run_on_object(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        use opcode as op;
        if let Some(transition) = Transition::from_opcode(command.opcode) {
            return self.transition(command, transition, host);
        }
        let hca = self.hca.as_ref().ok_or(Status::BadSystemState)?;
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let groups = McgTable { icm: &self.icm, hca };
        let none = |()| Output::None;
        let mut out = Mailbox::default();
        match command.opcode {
            op::SW2HW_MPT => {
                let entry = super::input(command, host)?;
                self.regions.create(command.in_mod, &entry, &mut self.icm, host).map(none)
            }
            op::HW2SW_MPT => {
                let entry = self.regions.destroy(command.in_mod, &mut self.icm, host)?;
                // Linux declines the output mailbox by the opcode modifier; iPXE (`hermon_cmd_hw2sw_mpt`)
                // declines it only by an address of zero, which on a PC holds the interrupt vectors.
                let wanted = command.op_mod == 0 && command.out_param != 0;
                Ok(if wanted { Output::Mailbox(entry) } else { Output::None })
            }
            op::QUERY_MPT => self.regions.query(command.in_mod, &self.icm, host).map(Output::Mailbox),
            op::WRITE_MTT => {
                let (base, entries) = (hca.mtt_base, super::input(command, host)?);
                write_mtt(&mut self.icm, base, &entries, command.in_mod, host)?;
                self.regions.forget_copies();
                Ok(Output::None)
            }
            op::SYNC_TPT => {
                self.regions.forget_copies();
                Ok(Output::None)
            }
            op::SW2HW_CQ => {
                let marked = self.profile.sw_cq_init && command.op_mod == 1;
                self.cqs.create(command.in_mod, &super::input(command, host)?, marked, table, host).map(none)
            }
            op::HW2SW_CQ => self.cqs.destroy(command.in_mod).map(none),
            op::QUERY_CQ => self.cqs.query(command.in_mod, &mut out).map(|()| Output::Mailbox(out)),
            op::MODIFY_CQ if command.op_mod == 0 => {
                self.cqs.resize(command.in_mod, &super::input(command, host)?, table, host).map(none)
            }
            op::SW2HW_SRQ => {
                self.srqs.create(command.in_mod, &super::input(command, host)?, table, host).map(none)
            }
            op::HW2SW_SRQ => self.srqs.destroy(command.in_mod).map(none),
            op::QUERY_SRQ => self.srqs.query(command.in_mod, &mut out).map(|()| Output::Mailbox(out)),
            op::ARM_SRQ => {
                self.srqs.arm(command.in_mod, command.in_param as u16, &mut self.eqs, host).map(none)
            }
            op::QUERY_QP => {
                self.qps.query(command.in_mod & 0xff_ffff, &mut out).map(|()| Output::Mailbox(out))
            }
            op::READ_MCG => groups.read(command.in_mod, host).map(Output::Mailbox),
            op::WRITE_MCG if command.op_mod == 0 => {
                let entry = super::input(command, host)?;
                steering::write(hca, &mut self.icm, command.in_mod, &entry, host).map(none)
            }
            op::WRITE_MCG => {
                let entry = super::input(command, host)?;
                let (port, steer) = ((command.in_mod >> 16) as usize, (command.in_mod >> 1 & 1) as usize);
                let kinds = port.checked_sub(1).and_then(|port| self.default_steering.get_mut(port));
                *kinds.and_then(|kinds| kinds.get_mut(steer)).ok_or(Status::BadParameter)? = members(&entry);
                Ok(Output::None)
            }
            op::MGID_HASH => {
                let mailbox = super::input(command, host)?;
                let gid = mailbox.bytes().first_chunk().ok_or(Status::Internal)?;
                Ok(Output::Immediate(u64::from(groups.hash(gid))))
            }
            op::CONF_SPECIAL_QP => {
                self.special_qp_base = command.in_mod & 0xff_fff8;
                Ok(Output::None)
            }
            op::UPDATE_QP => {
                self.qps.amend(command.in_mod & 0xff_ffff, &super::input(command, host)?).map(none)
            }
            op::MODIFY_CQ => {
                let context = super::input(command, host)?;
                self.cqs.moderate(command.in_mod, &context, &mut self.eqs, host).map(none)
            }
            op::FLOW_ATTACH | op::FLOW_DETACH if hca.steering != Steering::Flows => {
                Err(Status::BadSystemState)
            }
            op::FLOW_ATTACH => {
                let rule = super::input(command, host)?;
                self.flows.attach(&rule, command.in_mod).map(Output::Immediate)
            }
            op::FLOW_DETACH => self.flows.detach(command.in_param).map(none),
            _ => self.run_on_counters(command, host),
        }
    }

    /// Runs a command on filters and counters.
    fn run_on_counters(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        use opcode as op;
        const RESET_PORT: u32 = 1 << 8;
        const FLOW_CONTROL: u32 = 1 << 12;
        const RESET_COUNTER: u32 = 1 << 31;
        let mut out = Mailbox::default();
        match command.opcode {
            op::SET_VLAN_FLTR => {
                let vlans = super::input(command, host)?;
                self.port_mut(command.in_mod)?.filters.set_vlans(&vlans);
                Ok(Output::None)
            }
            op::SET_MCAST_FLTR => {
                let filters = &mut self.port_mut(command.in_mod)?.filters;
                filters.set_groups(command.op_mod, command.in_param).map(|()| Output::None)
            }
            op::DUMP_ETH_STATS => {
                let statistics = &mut self.port_mut(command.in_mod)?.statistics;
                // Pause frames: the card neither sends nor accepts any, so all counts are zero.
                if command.in_mod & FLOW_CONTROL == 0 {
                    statistics.dump(&mut out);
                }
                if command.in_mod & RESET_PORT != 0 {
                    *statistics = PortStatistics::default();
                }
                Ok(Output::Mailbox(out))
            }
            op::QUERY_IF_STAT => {
                let index = u8::try_from(command.in_mod & !RESET_COUNTER).map_err(|_| Status::BadIndex)?;
                self.interface_counters.query(index, command.in_mod & RESET_COUNTER != 0, &mut out);
                Ok(Output::Mailbox(out))
            }
            op::DIAG_RPRT => {
                self.cqs.report(&mut out);
                self.transport_report(&mut out);
                Ok(Output::Mailbox(out))
            }
            _ => Err(Status::BadOpcode),
        }
    }

    fn transition(
        &mut self,
        command: &Command,
        transition: Transition,
        host: &dyn Host,
    ) -> Result<Output, Status> {
        let qpn = command.in_mod & 0xff_ffff;
        if transition == Transition::ToError {
            self.fail_qp(qpn, host);
        }
        let hca = self.hca.as_ref().ok_or(Status::BadSystemState)?;
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let mailbox = match transition {
            Transition::ToReset | Transition::ToError => Mailbox::default(),
            _ => super::input(command, host)?,
        };
        self.qps.transition(qpn, transition, &mailbox, table, &self.ports, host)?;
        match transition {
            Transition::RtsToSqd => {
                if let Some(qp) = self.qps.get_mut(qpn) {
                    qp.draining = Some(command.in_mod >> 31 != 0);
                }
                self.tell_drained(qpn, host);
            }
            // Work requests may have been posted to the ring before the transition.
            Transition::SqdToRts | Transition::SqErrorToRts => self.ring_send(qpn, host),
            _ => {}
        }
        Ok(Output::None)
    }

    /// Removes every object of the guest.
    pub(in crate::device) fn forget_objects(&mut self) {
        self.hca = None;
        self.eqs = Default::default();
        self.cqs = Default::default();
        self.srqs = Default::default();
        self.qps = Qps::default();
        self.regions = Regions::default();
        self.special_qp_base = 0;
        self.default_steering.fill(Default::default());
        self.interface_counters = Default::default();
        self.flows = Default::default();
    }
}
