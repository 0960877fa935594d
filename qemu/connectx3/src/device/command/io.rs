//! The input and the output of commands.

use crate::device::hcr::{Command, Status};
use crate::device::host::Host;
use crate::device::mailbox::Mailbox;

/// The output of a command.
#[derive(Clone)]
pub(crate) enum Output {
    /// The command has no output.
    None,
    /// A value in the output registers or in the event.
    Immediate(u64),
    /// The output mailbox.
    Mailbox(Mailbox),
}

/// Returns a command's input mailbox.
pub(crate) fn input(command: &Command, host: &dyn Host) -> Result<Mailbox, Status> {
    if let Some(mailbox) = &command.input {
        return Ok(mailbox.clone());
    }
    let mut mailbox = Mailbox::default();
    host.read(command.in_param & !0xfff, mailbox.bytes_mut()).map_err(|_| Status::BadParameter)?;
    Ok(mailbox)
}
