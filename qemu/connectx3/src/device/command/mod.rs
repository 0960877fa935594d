//! Commands: dispatch by opcode, and their completion.

mod capabilities;
mod firmware;
mod hca;
mod io;
mod objects;
mod ports;

pub(super) use firmware::Firmware;
pub(super) use io::{Output, input};

use super::adapter::Adapter;
use super::hcr::{Command, Status};
use super::host::Host;
use super::mailbox::{MAILBOX, Mailbox};
use super::observe::Observation;
use super::opcode as op;
use super::profile::Profile;

impl Adapter {
    /// Runs a command and writes its output mailbox. Returns the status, and the output of a command without
    /// an output mailbox.
    pub(super) fn execute(&mut self, command: &Command, host: &dyn Host) -> (u8, Option<u64>) {
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
            op::DUMP_ETH_STATS => MAILBOX,
            op::READ_MCG => {
                self.tables.hca.as_ref().map_or(0, |hca| 1usize << hca.mcg_log[0].min(12)).min(MAILBOX)
            }
            _ => USUAL,
        }
    }

    /// Runs a command and returns its output.
    pub(super) fn run(&mut self, command: &Command, host: &dyn Host) -> Result<Output, Status> {
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
