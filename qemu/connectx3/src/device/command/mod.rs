//! Commands: dispatch by opcode, and their completion.

mod capabilities;
mod firmware;
mod hca;
mod io;
mod objects;
mod ports;

pub use firmware::Firmware;
pub use io::{Output, input};

use super::adapter::Adapter;
use super::hcr::{Command, Status};
use super::host::Host;
use super::mailbox::{MAILBOX, Mailbox};
use super::observe::Observation;
use super::profile::Profile;

/// Opcodes (Linux `include/linux/mlx4/cmd.h`).
pub mod opcode {
    #![allow(missing_docs, reason = "the names are the specification's")]
    pub const QUERY_DEV_CAP: u16 = 0x003;
    pub const QUERY_FW: u16 = 0x004;
    pub const QUERY_ADAPTER: u16 = 0x006;
    pub const INIT_HCA: u16 = 0x007;
    pub const CLOSE_HCA: u16 = 0x008;
    pub const INIT_PORT: u16 = 0x009;
    pub const CLOSE_PORT: u16 = 0x00a;
    pub const QUERY_HCA: u16 = 0x00b;
    pub const SET_PORT: u16 = 0x00c;
    pub const SW2HW_MPT: u16 = 0x00d;
    pub const QUERY_MPT: u16 = 0x00e;
    pub const HW2SW_MPT: u16 = 0x00f;
    pub const READ_MTT: u16 = 0x010;
    pub const WRITE_MTT: u16 = 0x011;
    pub const MAP_EQ: u16 = 0x012;
    pub const SW2HW_EQ: u16 = 0x013;
    pub const HW2SW_EQ: u16 = 0x014;
    pub const QUERY_EQ: u16 = 0x015;
    pub const SW2HW_CQ: u16 = 0x016;
    pub const HW2SW_CQ: u16 = 0x017;
    pub const QUERY_CQ: u16 = 0x018;
    pub const QUERY_QP: u16 = 0x022;
    pub const CONF_SPECIAL_QP: u16 = 0x023;
    pub const MAD_IFC: u16 = 0x024;
    pub const READ_MCG: u16 = 0x025;
    pub const WRITE_MCG: u16 = 0x026;
    pub const MGID_HASH: u16 = 0x027;
    pub const MODIFY_CQ: u16 = 0x02c;
    pub const SYNC_TPT: u16 = 0x02f;
    pub const DIAG_RPRT: u16 = 0x030;
    pub const NOP: u16 = 0x031;
    pub const SUSPEND_QP: u16 = 0x032;
    pub const UNSUSPEND_QP: u16 = 0x033;
    pub const MOD_STAT_CFG: u16 = 0x034;
    pub const SW2HW_SRQ: u16 = 0x035;
    pub const HW2SW_SRQ: u16 = 0x036;
    pub const QUERY_SRQ: u16 = 0x037;
    pub const CONFIG_DEV: u16 = 0x03a;
    pub const ACCESS_REG: u16 = 0x03b;
    pub const ARM_SRQ: u16 = 0x040;
    pub const QUERY_PORT: u16 = 0x043;
    pub const SET_VLAN_FLTR: u16 = 0x047;
    pub const SET_MCAST_FLTR: u16 = 0x048;
    pub const DUMP_ETH_STATS: u16 = 0x049;
    pub const SENSE_PORT: u16 = 0x04d;
    pub const HW_HEALTH_CHECK: u16 = 0x050;
    pub const QUERY_IF_STAT: u16 = 0x054;
    pub const QUERY_FUNC: u16 = 0x056;
    pub const GET_OP_REQ: u16 = 0x059;
    pub const INFORM_FLR_DONE: u16 = 0x05b;
    pub const VIRT_PORT_MAP: u16 = 0x05c;
    pub const UPDATE_QP: u16 = 0x061;
    pub const FLOW_ATTACH: u16 = 0x065;
    pub const FLOW_DETACH: u16 = 0x066;
    pub const FLOW_STEERING_IB_UC_QP_RANGE: u16 = 0x064;
    pub const QP_FLOW_STEERING_ATTACH: u16 = 0x065;
    pub const QP_FLOW_STEERING_DETACH: u16 = 0x066;
    pub const CONGESTION_CTRL: u16 = 0x068;
    pub const ALLOCATE_VPP: u16 = 0x080;
    pub const SET_VPORT_QOS: u16 = 0x081;
    pub const MAD_DEMUX: u16 = 0x203;
    pub const RUN_FW: u16 = 0xff6;
    pub const UNMAP_ICM: u16 = 0xff9;
    pub const MAP_ICM: u16 = 0xffa;
    pub const UNMAP_ICM_AUX: u16 = 0xffb;
    pub const MAP_ICM_AUX: u16 = 0xffc;
    pub const SET_ICM_SIZE: u16 = 0xffd;
    pub const UNMAP_FA: u16 = 0xffe;
    pub const MAP_FA: u16 = 0xfff;
}

impl Adapter {
    /// Runs a command and writes its output mailbox. Returns the status, and the output of a command without
    /// an output mailbox.
    pub fn execute(&mut self, command: &Command, host: &dyn Host) -> (u8, Option<u64>) {
        let result = self.run(command, host).and_then(|output| match output {
            Output::None => Ok(None),
            Output::Immediate(value) => Ok(Some(value)),
            Output::Mailbox(mailbox) => {
                let used = mailbox.bytes().get(..self.output_len(command.opcode)).unwrap_or_default();
                host.write(command.out_param, used).map_err(|_| Status::BadParameter)?;
                Ok(None)
            }
        });
        log::debug!("{command:x?}: {}", result.map_or_else(|e| e.to_string(), |_| "ok".to_owned()));
        let (status, immediate) = match result {
            Ok(immediate) => (0, immediate),
            Err(e) => (e as u8, None),
        };
        host.observe(&Observation::Command { command, status });
        (status, immediate)
    }

    /// Returns the number of bytes that a command writes to its output mailbox. A driver's mailbox need not
    /// be longer: the mailboxes of iPXE have 1024 bytes (`drivers/infiniband/hermon.h`, `HERMON_MBOX_SIZE`),
    /// those of Linux a page.
    fn output_len(&self, opcode: u16) -> usize {
        const USUAL: usize = 1024;
        match opcode {
            opcode::DUMP_ETH_STATS => MAILBOX,
            opcode::READ_MCG => {
                self.tables.hca.as_ref().map_or(0, |hca| 1usize << hca.mcg_log[0].min(12)).min(MAILBOX)
            }
            _ => USUAL,
        }
    }

    /// Runs a command and returns its output.
    pub fn run(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        use opcode as op;
        match command.opcode {
            op::QUERY_FW => Ok(Output::Mailbox(firmware::query_fw(&self.profile))),
            op::MAP_FA | op::MAP_ICM_AUX | op::MAP_ICM => {
                self.firmware.map_pages(&mut self.tables.icm, command, host)
            }
            op::UNMAP_FA | op::UNMAP_ICM_AUX | op::UNMAP_ICM => {
                self.firmware.unmap_pages(&mut self.tables.icm, command)
            }
            op::RUN_FW => self.firmware.run(),
            op::MOD_STAT_CFG => firmware::mod_stat_cfg(&self.profile, command),
            op::SET_ICM_SIZE => self.firmware.set_icm_size(),
            op::QUERY_DEV_CAP => self.after_run_fw(capabilities::query_dev_cap),
            op::QUERY_ADAPTER => self.after_run_fw(capabilities::query_adapter),
            op::QUERY_FUNC => self.after_run_fw(capabilities::query_func),
            op::QUERY_PORT => self.query_port(command),
            op::SENSE_PORT => self.port(command.in_mod).map(|_| Output::Immediate(2)),
            op::NOP => Ok(Output::None),
            op::INIT_HCA => self.init_hca(input(command, host)?),
            _ => self.run_after_init(command, host),
        }
    }

    /// Runs a command that is valid only after INIT_HCA.
    fn run_after_init(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
        use opcode as op;
        if self.tables.hca.is_none() {
            return Err(if is_known(command.opcode) { Status::BadSystemState } else { Status::BadOpcode });
        }
        match command.opcode {
            op::CLOSE_HCA => self.close_hca(),
            op::QUERY_HCA => self.query_hca(),
            op::INIT_PORT => {
                let (index, _) = self.port(command.in_mod)?;
                self.ports.open(index, &mut self.eqs, host);
                Ok(Output::None)
            }
            op::CLOSE_PORT => {
                let (index, _) = self.port(command.in_mod)?;
                self.ports.close(index, &mut self.eqs, host);
                Ok(Output::None)
            }
            op::SET_PORT => self.set_port(command, &input(command, host)?),
            op::MAD_IFC => {
                let mad = input(command, host)?;
                let answer = self.ports.mad_ifc(command, &mad, &self.profile, &mut self.eqs, host);
                answer.map(Output::Mailbox)
            }
            op::CONFIG_DEV => self.config_dev(command, host),
            op::MAP_EQ => self
                .eqs
                .route(command.in_mod & 0x3ff, command.in_param, command.in_mod >> 31 != 0)
                .map(|()| Output::None),
            op::SW2HW_EQ => self.create_eq(command, &input(command, host)?, host),
            op::HW2SW_EQ => self.eqs.destroy(command.in_mod).map(|()| Output::None),
            op::QUERY_EQ => {
                let mut out = Mailbox::default();
                self.eqs.query(command.in_mod, &mut out).map(|()| Output::Mailbox(out))
            }
            _ => self.run_on_object(command, host),
        }
    }

    fn after_run_fw(&self, query: impl FnOnce(&Profile) -> Mailbox) -> Result<Output, Status> {
        if self.firmware.running {
            Ok(Output::Mailbox(query(&self.profile)))
        } else {
            Err(Status::BadSystemState)
        }
    }

    fn create_eq(&mut self, command: &Command, context: &Mailbox, host: &dyn Host) -> Result<Output, Status> {
        self.eqs.create(command.in_mod, context, self.tables.mtt()?, host).map(|()| Output::None)
    }
}

const fn is_known(opcode: u16) -> bool {
    opcode <= 0x059 || (opcode >= 0xff6 && opcode <= 0xfff)
}
