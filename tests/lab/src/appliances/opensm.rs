//! The subnet manager of a run whose appliances have InfiniBand cards: opensm in a Linux machine on their
//! fabric.

use crate::cx3;
use anyhow::{Context, Result};
use qemu::Qemu;
use qemu::cx3::{CardConfig, Cx3};
use qemu::linux::{Card, Guest, GuestConfig, Release};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The profile of the subnet manager's card.
const PROFILE: &str = "ib";
const MEMORY_MIB: u32 = 384;
/// The longest time for the machine to start on a busy host.
const BOOT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// The file of opensm's log, in the machine.
const LOG: &str = "/var/log/opensm.log";
/// The command that starts opensm in the background, on the only port, with a sweep every second for new
/// ports. The console shows its log, so that a run that fails leaves it behind.
const OPENSM: &str = "mkdir -p /var/log /var/cache/opensm && \
     opensm -B -s 1 -f LOG \
     -g 0x$(cut -d: -f5- /sys/class/infiniband/mlx4_0/ports/1/gids/0 | tr -d :) && \
     { tail -f LOG >/dev/console 2>&1 </dev/null & }";

/// A running subnet manager. Ends when dropped.
pub(crate) struct SubnetManager {
    guest: Guest,
    /// The directory for its console and its log.
    logs: Option<PathBuf>,
}

impl SubnetManager {
    /// Returns the subnet manager's card.
    pub(super) fn card() -> CardConfig {
        CardConfig::profile(PROFILE)
    }

    /// Boots the machine, whose card the socket serves, and starts opensm. Ports may come up later. Its
    /// console is written to `subnet-manager.log` in `logs`, and opensm's log at the end to `opensm.log`
    /// there.
    pub(super) fn start(qemu: &Qemu, cards: &Cx3, socket: &Path, logs: Option<&Path>) -> Result<Self> {
        let image = cx3::image(Release::Host, &[])?;
        let config = GuestConfig {
            name: "subnet-manager".into(),
            memory_mib: MEMORY_MIB,
            card: Some(Card { address: None, ..Card::numbered(1, socket.to_owned()) }),
            console: logs.map(|dir| dir.join("subnet-manager.log")),
            boot_within: BOOT,
            ..GuestConfig::default()
        };
        let booted = Guest::boot(qemu, &image, &config);
        let mut guest = booted.with_context(|| format!("no subnet manager; cx3 says: {}", cards.tail()))?;
        start_opensm(&mut guest)?;
        Ok(Self { guest, logs: logs.map(Path::to_owned) })
    }

    /// Ends the machine.
    pub(super) fn stop(mut self) -> Result<()> {
        if let Some(dir) = &self.logs {
            let log = self.guest.check(&format!("cat {LOG}"), SOON)?;
            fs::write(dir.join("opensm.log"), log).context("cannot write the log of opensm")?;
        }
        Ok(())
    }
}

/// Starts opensm in the background of a Linux machine with an InfiniBand card.
pub fn start_opensm(guest: &mut Guest) -> Result<()> {
    guest.check(&OPENSM.replace("LOG", LOG), SOON).context("no subnet manager").map(drop)
}
