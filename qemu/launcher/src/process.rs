//! Child processes that end with their parent.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the command's process when the thread that starts it ends for any reason: Ctrl-C, a
/// panic, or SIGKILL to the whole program. Therefore the thread must outlive the process's intended run time.
pub fn die_with_this_thread(command: &mut Command) -> &mut Command {
    let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
    let hook = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::NotConnected.into()) }
    };
    // SAFETY: between fork and exec the hook makes two system calls and builds errors that hold no heap
    // memory.
    unsafe { command.pre_exec(hook) }
}
