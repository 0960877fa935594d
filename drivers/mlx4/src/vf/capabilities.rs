//! The capabilities of a virtual function, as its master reports them (QUERY_FUNC_CAP).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::Field;

/// The reply about the function (Linux `mlx4_QUERY_FUNC_CAP`).
mod field {
    use super::Field;
    pub(super) const FLAGS: Field = Field::byte(0x00);
    pub(super) const MASTER_BEHAVIOUR: Field = Field::word(0x04);
    pub(super) const EQS: Field = Field::bits(0x2c, 23, 0);
    pub(super) const RESERVED_EQS: Field = Field::bits(0x30, 23, 0);
}

/// Fields of QUERY_FUNC_CAP's reply about one port of the function.
mod of_port {
    use super::Field;
    pub(super) const PORT: Field = Field::byte(0x03);
    pub(super) const FLAGS: Field = Field::byte(0x08);
    pub(super) const FORCES: Field = Field::byte(0x0c);
    pub(super) const OWN_GID: u32 = 0x80;
    pub(super) const MAC_OR_VLAN: u32 = 0xc0;
}

const RDMA: u32 = 0x40;
/// The master's behaviours that Linux's slave knows. A slave must know all that its master has.
const KNOWN_BEHAVIOUR: u32 = 7;
/// Reported by the slave: it accepts any number of event queues, and knows nested VLANs (Linux).
const SLAVE: u32 = 0xc000_0000;

/// Returns the first event queue that the function may use.
pub(crate) fn first_eq(commands: &mut Commands<'_, impl Hardware>, port: u8) -> Result<u32, Error> {
    const PORT: u8 = 1;
    let function = commands.exec_out(Command::new(Opcode::QueryFuncCap).of(SLAVE))?;
    if function.get(field::FLAGS) & RDMA == 0 {
        return Err(Error::Lacks("RDMA for this function"));
    }
    if function.get(field::MASTER_BEHAVIOUR) & !KNOWN_BEHAVIOUR != 0 {
        return Err(Error::Lacks("a master whose behaviours the driver knows"));
    }
    let (first, end) = (function.get(field::RESERVED_EQS), function.get(field::EQS));
    if first >= end || end > 1 << 10 {
        return Err(Error::Nonsense("no event queue is left for this function"));
    }
    let about = commands.exec_out(Command::new(Opcode::QueryFuncCap).of(port.into()).variant(PORT))?;
    if about.get(of_port::PORT) != u32::from(port) {
        return Err(Error::Nonsense("its port has another number"));
    }
    // As in Linux: a port whose GIDs, addresses or VLANs are set by others is not usable for RDMA.
    if about.get(of_port::FLAGS) & of_port::OWN_GID != 0
        || about.get(of_port::FORCES) & of_port::MAC_OR_VLAN != 0
    {
        return Err(Error::Lacks("a port with addresses of its own"));
    }
    Ok(first)
}
