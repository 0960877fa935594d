//! SIGINT and SIGTERM.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};

/// Done at the first SIGINT or SIGTERM from the call on.
pub fn stopped() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// From now on, SIGINT and SIGTERM remove a file and end the process with status 130.
pub fn remove_when_stopped(file: &Path) -> io::Result<()> {
    let file: PathBuf = file.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = {
        let _inside = runtime.enter();
        stopped()?
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(stopped);
        let _ = std::fs::remove_file(file);
        std::process::exit(130);
    })?;
    Ok(())
}
