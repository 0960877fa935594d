//! Commands on memory regions, completion queues, queue pairs and the steering table.

use super::io::{Output, input};
use crate::device::adapter::Adapter;
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::mailbox::Mailbox;
use crate::device::opcode as op;
use crate::device::profile::Steering;
use crate::device::qp::Transition;
use crate::device::queue_memory::write_mtt;
use crate::device::statistics::PortStatistics;
use crate::device::steering::members;

impl Adapter {
    pub(super) fn run_on_object(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        if let Some(transition) = Transition::from_opcode(command.opcode) {
            return self.transition(command, transition, host);
        }
        match command.opcode {
            op::SW2HW_MPT | op::HW2SW_MPT | op::QUERY_MPT | op::WRITE_MTT | op::SYNC_TPT => {
                self.run_on_regions(command, host)
            }
            op::SW2HW_CQ | op::HW2SW_CQ | op::QUERY_CQ | op::MODIFY_CQ => {
                self.run_on_completion_queues(command, host)
            }
            op::SW2HW_SRQ | op::HW2SW_SRQ | op::QUERY_SRQ | op::ARM_SRQ => {
                self.run_on_receive_queues(command, host)
            }
            op::QUERY_QP | op::UPDATE_QP | op::CONF_SPECIAL_QP => self.run_on_queue_pairs(command, host),
            op::READ_MCG
            | op::WRITE_MCG
            | op::MGID_HASH
            | op::QP_FLOW_STEERING_ATTACH
            | op::QP_FLOW_STEERING_DETACH => self.run_on_steering(command, host),
            _ if self.tables.hca.is_none() => Err(Status::BadSystemState),
            _ => self.run_on_counters(command, host),
        }
    }

    fn run_on_regions(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        let base = self.tables.hca()?.mtt_base;
        match command.opcode {
            op::SW2HW_MPT => {
                let entry = input(command, host)?;
                self.tables
                    .regions
                    .create(command.in_mod, &entry, &mut self.tables.icm, host)
                    .map(|()| Output::None)
            }
            op::HW2SW_MPT => {
                let entry = self.tables.regions.destroy(command.in_mod, &mut self.tables.icm, host)?;
                // Linux declines the output mailbox by the opcode modifier; iPXE (`hermon_cmd_hw2sw_mpt`)
                // declines it only by an address of zero, which on a PC holds the interrupt vectors.
                let wanted = command.op_mod == 0 && command.out_param != 0;
                Ok(if wanted { Output::Mailbox(entry) } else { Output::None })
            }
            op::QUERY_MPT => {
                self.tables.regions.query(command.in_mod, &self.tables.icm, host).map(Output::Mailbox)
            }
            op::WRITE_MTT => {
                let entries = input(command, host)?;
                write_mtt(&mut self.tables.icm, base, &entries, command.in_mod, host)?;
                self.tables.regions.forget_copies();
                Ok(Output::None)
            }
            op::SYNC_TPT => {
                self.tables.regions.forget_copies();
                Ok(Output::None)
            }
            _ => Err(Status::BadOpcode),
        }
    }

    fn run_on_completion_queues(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        let table = self.tables.mtt()?;
        let none = |()| Output::None;
        match command.opcode {
            op::SW2HW_CQ => {
                let marked = self.profile.sw_cq_init && command.op_mod == 1;
                self.traffic
                    .queues
                    .cqs
                    .create(command.in_mod, &input(command, host)?, marked, table, host)
                    .map(none)
            }
            op::HW2SW_CQ => self.traffic.queues.cqs.destroy(command.in_mod).map(none),
            op::QUERY_CQ => {
                let mut out = Mailbox::default();
                self.traffic.queues.cqs.query(command.in_mod, &mut out).map(|()| Output::Mailbox(out))
            }
            op::MODIFY_CQ if command.op_mod == 0 => {
                self.traffic.queues.cqs.resize(command.in_mod, &input(command, host)?, table, host).map(none)
            }
            op::MODIFY_CQ => {
                let context = input(command, host)?;
                self.traffic.queues.cqs.moderate(command.in_mod, &context, &mut self.eqs, host).map(none)
            }
            _ => Err(Status::BadOpcode),
        }
    }

    fn run_on_receive_queues(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        let table = self.tables.mtt()?;
        let none = |()| Output::None;
        match command.opcode {
            op::SW2HW_SRQ => {
                self.traffic.queues.srqs.create(command.in_mod, &input(command, host)?, table, host).map(none)
            }
            op::HW2SW_SRQ => self.traffic.queues.srqs.destroy(command.in_mod).map(none),
            op::QUERY_SRQ => {
                let mut out = Mailbox::default();
                self.traffic.queues.srqs.query(command.in_mod, &mut out).map(|()| Output::Mailbox(out))
            }
            op::ARM_SRQ => self
                .traffic
                .queues
                .srqs
                .arm(command.in_mod, command.in_param as u16, &mut self.eqs, host)
                .map(none),
            _ => Err(Status::BadOpcode),
        }
    }

    fn run_on_queue_pairs(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        if self.tables.hca.is_none() {
            return Err(Status::BadSystemState);
        }
        let qpn = command.in_mod & 0xff_ffff;
        match command.opcode {
            op::QUERY_QP => {
                let mut out = Mailbox::default();
                self.traffic.queues.qps.query(qpn, &mut out).map(|()| Output::Mailbox(out))
            }
            op::UPDATE_QP => {
                self.traffic.queues.qps.amend(qpn, &input(command, host)?).map(|()| Output::None)
            }
            op::CONF_SPECIAL_QP => {
                self.traffic.special_qp_base = command.in_mod & 0xff_fff8;
                Ok(Output::None)
            }
            _ => Err(Status::BadOpcode),
        }
    }

    fn run_on_steering(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        let hca = self.tables.hca()?;
        let groups = self.tables.groups()?;
        let none = |()| Output::None;
        match command.opcode {
            op::READ_MCG => groups.read(command.in_mod, host).map(Output::Mailbox),
            op::WRITE_MCG if command.op_mod == 0 => {
                let entry = input(command, host)?;
                self.tables.write_group(command.in_mod, &entry, host).map(none)
            }
            op::WRITE_MCG => {
                let entry = input(command, host)?;
                let (port, steer) = ((command.in_mod >> 16) as usize, (command.in_mod >> 1 & 1) as usize);
                let kinds = port.checked_sub(1).and_then(|port| self.traffic.default_steering.get_mut(port));
                *kinds.and_then(|kinds| kinds.get_mut(steer)).ok_or(Status::BadParameter)? = members(&entry);
                Ok(Output::None)
            }
            op::MGID_HASH => {
                let mailbox = input(command, host)?;
                let gid = mailbox.bytes().first_chunk().ok_or(Status::Internal)?;
                Ok(Output::Immediate(u64::from(groups.hash(gid))))
            }
            op::QP_FLOW_STEERING_ATTACH | op::QP_FLOW_STEERING_DETACH if hca.steering != Steering::Flows => {
                Err(Status::BadSystemState)
            }
            op::QP_FLOW_STEERING_ATTACH => {
                let rule = input(command, host)?;
                self.traffic.flows.attach(&rule, command.in_mod).map(Output::Immediate)
            }
            op::QP_FLOW_STEERING_DETACH => self.traffic.flows.detach(command.in_param).map(none),
            _ => Err(Status::BadOpcode),
        }
    }

    /// Runs a command on filters and counters.
    fn run_on_counters(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        const RESET_PORT: u32 = 1 << 8;
        const FLOW_CONTROL: u32 = 1 << 12;
        const RESET_COUNTER: u32 = 1 << 31;
        let mut out = Mailbox::default();
        match command.opcode {
            op::SET_VLAN_FLTR => {
                let vlans = input(command, host)?;
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
                self.traffic.interface_counters.query(index, command.in_mod & RESET_COUNTER != 0, &mut out);
                Ok(Output::Mailbox(out))
            }
            op::DIAG_RPRT => {
                self.traffic.queues.cqs.report(&mut out);
                self.traffic.queues.transport_report(&mut out);
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
            let (traffic, mut ctx) = self.split(host);
            traffic.queues.fail_qp(qpn, &mut ctx);
        }
        let table = self.tables.mtt()?;
        let mailbox = match transition {
            Transition::ToReset | Transition::ToError => Mailbox::default(),
            _ => input(command, host)?,
        };
        self.traffic.queues.qps.transition(qpn, transition, &mailbox, table, &self.ports.all, host)?;
        match transition {
            Transition::RtsToSqd => {
                if let Some(qp) = self.traffic.queues.qps.get_mut(qpn) {
                    qp.draining = Some(command.in_mod >> 31 != 0);
                }
                let (traffic, mut ctx) = self.split(host);
                traffic.queues.report_drained(qpn, &mut ctx);
            }
            // Work requests may have been posted to the ring before the transition.
            Transition::SqdToRts | Transition::SqErrorToRts => {
                let (traffic, mut ctx) = self.split(host);
                traffic.ring_send(qpn, &mut ctx);
            }
            _ => {}
        }
        Ok(Output::None)
    }
}
