//! The manager's daemon in a thread of this process.

use anyhow::{Context, Result};
use manager::LogFormat;
use manager::core::Config;
use manager::daemon::{self, Options};
use manager::key;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A running daemon. Dropping it leaves the thread behind; [`stop`](Self::stop) ends it.
pub(crate) struct Daemon {
    /// The address at which the daemon listens, `host:port`.
    pub(crate) address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Daemon {
    /// Starts the daemon on a free port of this host. It makes `cluster.key` in `dir` and keeps its state
    /// there.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let (key, _) = key::load_or_make(&dir.join("cluster.key"))?;
        let options = Options {
            listen: ([127, 0, 0, 1], 0).into(),
            key,
            state: dir.join("state"),
            config: Config::default(),
            http: None,
            former: None,
            format: LogFormat::Text,
        };
        let (stop, stopped) = oneshot::channel();
        let (started, address) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                let daemon = daemon::Daemon::bind(options).await?;
                started.send(daemon.local_addr()?.to_string())?;
                // An error means that the sender is gone, which ends the daemon too.
                daemon.serve(async { drop(stopped.await) }).await?;
                Ok(())
            })
        });
        match address.recv() {
            Ok(address) => Ok(Self { address, stop: Some(stop), thread: Some(thread) }),
            Err(_) => match thread.join() {
                Ok(ended) => ended.and(Err(anyhow::anyhow!("the manager has ended"))),
                Err(_) => Err(anyhow::anyhow!("the manager has panicked")),
            }
            .context("cannot start the manager"),
        }
    }

    /// Ends the daemon and waits for the end of its thread.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
