//! Commands on memory regions, completion queues and queue pairs.

use super::Output;
use crate::device::Card;
use crate::device::hcr::{Command, Status};
use crate::device::host::Host;

/// The key that reaches all memory of the guest, for its kernel's own use (QUERY_DEV_CAP 0x98).
pub const RESERVED_LKEY: u32 = 0x100;

impl Card {
    pub(super) fn run_on_object(&mut self, command: &Command, _host: &dyn Host) -> Result<Output, Status> {
        match command.opcode {
            super::opcode::SYNC_TPT => Ok(Output::None),
            super::opcode::CONF_SPECIAL_QP => {
                self.special_qp_base = command.in_mod & 0xff_fff8;
                Ok(Output::None)
            }
            _ => Err(Status::BadOpcode),
        }
    }

    /// Forgets every object of the guest.
    pub(in crate::device) fn forget_objects(&mut self) {
        self.hca = None;
        self.eqs = Default::default();
        self.special_qp_base = 0;
    }
}
