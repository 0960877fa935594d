//! A slave's virtual command registers (vHCR, Linux `mlx4_vhcr_cmd`), which are in its own memory.

use crate::device::hcr::Command;
use crate::device::host::{DmaError, Host};

const LEN: usize = 32;
const OUT_PARAM: u64 = 0x10;
const STATUS: u64 = 0x1c;
/// The slave wants an event when the command ends.
const EVENT: u8 = 1 << 6;

/// Reads a command, and whether the slave wants an event when it ends.
pub(super) fn read(host: &dyn Host, at: u64) -> Result<(Command, bool), DmaError> {
    let mut bytes = [0; LEN];
    host.read(at, &mut bytes)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l, _, _, _, _, rest @ ..] = bytes;
    let [m, n, o, p, q, r, s, t, token_high, token_low, _, _, _, flags, op_high, op_low] = rest;
    let operation = u16::from_be_bytes([op_high, op_low]);
    let command = Command {
        in_param: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        in_mod: u32::from_be_bytes([i, j, k, l]),
        out_param: u64::from_be_bytes([m, n, o, p, q, r, s, t]),
        token: u16::from_be_bytes([token_high, token_low]),
        opcode: operation & 0xfff,
        op_mod: (operation >> 12) as u8,
        event: false,
        input: None,
    };
    Ok((command, flags & EVENT != 0))
}

/// Writes the status and the output of a command.
pub(super) fn finish(host: &dyn Host, at: u64, status: u8, immediate: Option<u64>) -> Result<(), DmaError> {
    if let Some(value) = immediate {
        host.write(at + OUT_PARAM, &value.to_be_bytes())?;
    }
    host.write(at + STATUS, &[status])
}
