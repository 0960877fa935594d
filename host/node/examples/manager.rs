//! The manager's daemon as a process of its own, for tests that suspend, stop or kill it.
//!
//! ```text
//! manager KEY_FILE STATE ADDRESS_FILE
//! ```
//!
//! It listens on a free port of this host and writes the address to the file. If the file exists, it listens
//! on the address in it.

use anyhow::{Result, bail};
use manager::LogFormat;
use manager::core::Config;
use manager::daemon::{Daemon, Options};
use manager::key;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [key_file, state, address] = &words[..] else { bail!("usage: manager KEY_FILE STATE ADDRESS_FILE") };
    let options = Options {
        listen: std::fs::read_to_string(address).map_or("127.0.0.1:0".parse(), |known| known.parse())?,
        key: key::load(Path::new(key_file))?,
        state: state.into(),
        config: Config::default(),
        http: None,
        former: None,
        format: LogFormat::Text,
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let daemon = Daemon::bind(options).await?;
        // Before the test knows the address, and may stop the process.
        let mut terminate = signal(SignalKind::terminate())?;
        // The test never sees half of the address.
        let half = Path::new(address).with_extension("half");
        std::fs::write(&half, daemon.local_addr()?.to_string())?;
        std::fs::rename(half, address)?;
        Ok(daemon
            .serve(async {
                let _ = terminate.recv().await;
            })
            .await?)
    })
}
