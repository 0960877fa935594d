//! Handles SIGINT, SIGTERM and SIGHUP, and tells systemd of the start.

use anyhow::Context;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Returns a future that is done at the first SIGINT or SIGTERM after the call, and with `at_hangup` at the
/// first SIGHUP unless the process was started with SIGHUP ignored, as by `nohup`.
pub(super) fn stopped(at_hangup: bool) -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if at_hangup && !hangup_is_ignored() { Some(hangups()?) } else { None };
    Ok(async move {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = hung_up => {}
        }
    })
}

/// Returns a stream of the SIGHUPs after the call.
pub(super) fn hangups() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Tells systemd that this service is ready. Does nothing unless a unit of systemd waits for that.
pub(super) fn tell_systemd_ready() -> anyhow::Result<()> {
    sd_notify::notify(&[sd_notify::NotifyState::Ready])
        .context("systemd cannot be told that the service is ready")
}

/// Returns whether this process ignores SIGHUP, by the hexadecimal mask in `/proc/self/status`; false if that
/// cannot be read.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    let bit = SignalKind::hangup().as_raw_value() - 1;
    mask >> bit & 1 != 0
}

/// From this call on, the signals of [`stopped`] remove a file and end the process with status 130.
pub(super) fn remove_when_stopped(file: &Path) -> io::Result<()> {
    let file: PathBuf = file.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = {
        let _inside = runtime.enter();
        stopped(true)?
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(stopped);
        let _ = std::fs::remove_file(file);
        std::process::exit(130);
    })?;
    Ok(())
}
