//! Commands for the firmware: its version, its memory, and the memory of the card's tables.

use super::io::{Output, input};
use crate::device::bar0::{CLEAR_INTERRUPT, CLOCK, ERROR_BUFFER, ERROR_BUFFER_WORDS};
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::icm::Icm;
use crate::device::layout::{mod_stat_cfg, query_fw as fw};
use crate::device::mailbox::Mailbox;
use crate::device::opcode as op;
use crate::device::profile::Profile;

/// The number of 4096-byte pages that the firmware requests for itself, and for its own tables in ICM. The
/// emulation needs none; the requests exist so that tests can check that a driver provides them.
const FIRMWARE_PAGES: u16 = 16;
const AUX_PAGES: u64 = 1;
/// The maximum number of entries of a mailbox that maps pages.
const MAX_ENTRIES: u32 = 256;

/// The state of the firmware.
#[derive(Debug, Default)]
pub(crate) struct Firmware {
    /// The number of pages that the driver has provided.
    pages: u64,
    /// True after RUN_FW.
    pub running: bool,
}

impl Firmware {
    /// MAP_FA, MAP_ICM_AUX, MAP_ICM: maps `in_mod` entries, each an ICM address, and a bus address with
    /// log2(size / 4096) in its low bits.
    pub(crate) fn map_pages(
        &mut self,
        icm: &mut Icm,
        command: &Command,
        host: &dyn Host,
    ) -> Result<Output, Status> {
        if command.in_mod > MAX_ENTRIES {
            return Err(Status::BadParameter);
        }
        let mailbox = input(command, host)?;
        for entry in 0..command.in_mod as usize {
            let (virt, page) = (mailbox.u64(entry * 16), mailbox.u64(entry * 16 + 8));
            let log_size = (page & 0x3f) as u8 + 12;
            let pages = 1u64.checked_shl(u32::from(log_size) - 12).ok_or(Status::BadParameter)?;
            match command.opcode {
                op::MAP_FA => self.pages = self.pages.saturating_add(pages),
                op::MAP_ICM_AUX => {}
                _ => {
                    let chunks = icm.guest().ok_or(Status::BadSystemState)?;
                    if !chunks.map(virt, page & !0xfff, log_size) {
                        return Err(Status::BadParameter);
                    }
                }
            }
        }
        Ok(Output::None)
    }

    pub(crate) fn unmap_pages(&mut self, icm: &mut Icm, command: &Command) -> Result<Output, Status> {
        match command.opcode {
            op::UNMAP_FA => {
                *self = Self::default();
                if let Some(chunks) = icm.guest() {
                    chunks.clear();
                }
            }
            op::UNMAP_ICM_AUX => {}
            _ => {
                let len = u64::from(command.in_mod) * 4096;
                let chunks = icm.guest().ok_or(Status::BadSystemState)?;
                chunks.unmap(command.in_param, command.in_param.saturating_add(len));
            }
        }
        Ok(Output::None)
    }

    pub(crate) fn run(&mut self) -> Result<Output, Status> {
        if self.pages < u64::from(FIRMWARE_PAGES) {
            return Err(Status::BadSystemState);
        }
        self.running = true;
        Ok(Output::None)
    }

    pub(crate) fn set_icm_size(&self) -> Result<Output, Status> {
        if self.running { Ok(Output::Immediate(AUX_PAGES)) } else { Err(Status::BadSystemState) }
    }
}

/// Returns the output of QUERY_FW.
pub(super) fn query_fw(profile: &Profile) -> Mailbox {
    const COMMAND_REVISION: u32 = 3;
    const LOG_MAX_COMMANDS: u32 = 4;
    let mut out = Mailbox::default();
    let [major, minor, subminor] = profile.firmware;
    out.set(fw::PAGES, FIRMWARE_PAGES.into());
    out.set(fw::VERSION_MAJOR, major.into());
    out.set(fw::VERSION_SUBMINOR, subminor.into());
    out.set(fw::VERSION_MINOR, minor.into());
    out.set(fw::COMMAND_REVISION, COMMAND_REVISION);
    out.set(fw::LOG_MAX_COMMANDS, LOG_MAX_COMMANDS);
    out.set_double(fw::CLEAR_INTERRUPT_HIGH, CLEAR_INTERRUPT);
    out.set_double(fw::ERROR_BUFFER_HIGH, ERROR_BUFFER);
    out.set(fw::ERROR_BUFFER_WORDS, ERROR_BUFFER_WORDS);
    // The register is in BAR 0: the BAR code at 0x58 is 0.
    out.set_double(fw::CLOCK_HIGH, CLOCK);
    out
}

/// MOD_STAT_CFG: accepts any page size, which is 4096 in all cases; with op_mod 2, returns a port's GUID.
pub(super) fn mod_stat_cfg(profile: &Profile, command: &Command) -> Result<Output, Status> {
    if command.op_mod != 2 {
        return Ok(Output::None);
    }
    let index = profile.port_index(command.in_mod >> 8).ok_or(Status::BadParameter)?;
    let guid = profile.guid(index);
    let mut out = Mailbox::default();
    out.set(mod_stat_cfg::GUID_UPPER, (guid >> 32) as u32);
    out.set(mod_stat_cfg::GUID_LOWER, guid as u32);
    Ok(Output::Mailbox(out))
}
