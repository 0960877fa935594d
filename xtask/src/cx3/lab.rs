//! Machines on cards, and what is done with them.

use super::plan::Plan;
use super::{Tools, image};
use anyhow::{Context, Result, anyhow, ensure};
use qemu::cx3::{Cx3, Cx3Config};
use qemu::linux::{Card, Exchanged, Guest, GuestConfig, Listens, exchange};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// What a machine may take to start, on a host that does much else.
const BOOT: Duration = Duration::from_secs(180);
/// The longest that something small may take in a machine, for the same reason.
pub const SOON: Duration = Duration::from_secs(60);

/// Which address a RoCE packet has: the kernel's names, in `ports/1/gid_attrs/types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// RoCE v1: an Ethernet type of its own.
    V1,
    /// RoCE v2: UDP.
    V2,
}

impl Wire {
    fn name(self) -> &'static str {
        match self {
            Self::V1 => "IB/RoCE v1",
            Self::V2 => "RoCE v2",
        }
    }
}

/// Machines that are up, machine N with card N.
pub struct Lab {
    guests: Vec<Guest>,
    cx3: Cx3,
    // Holds the sockets; last, so that it goes after those who use them.
    _dir: TempDir,
}

impl Lab {
    /// Boots the machines, at the same time. Consoles and the log of `cx3` go to files beside `log`.
    pub fn boot(tools: &Tools, plan: &Plan, log: &Path) -> Result<Self> {
        let image = image(plan.release)?;
        let dir = TempDir::with_prefix("ferrolite-")?;
        let record = plan.record.then(|| log.with_extension("record.txt"));
        let log = log.with_extension("cx3.log");
        let config = Cx3Config {
            cards: plan.cards.clone(),
            faults: plan.faults,
            log_level: plan.log_level.clone(),
            arguments: record
                .map(|path| vec!["--record".into(), path.to_string_lossy().into_owned()])
                .unwrap_or_default(),
            ..Cx3Config::new(dir.path().to_owned(), plan.cards.len(), log.clone())
        };
        let cx3 = Cx3::start(&tools.program, &config)?;
        let starting = (0..plan.cards.len()).map(|n| {
            let number = u8::try_from(n + 1).context("too many machines")?;
            let card =
                Card { mtu: plan.mtu, load: plan.load, ..Card::numbered(number, cx3.socket(n).to_owned()) };
            let config = GuestConfig {
                name: format!("linux{number}"),
                memory_mib: plan.memory_mib,
                cpus: plan.cpus,
                card: Some(card),
                module_parameters: plan.module_parameters.clone(),
                reboots: plan.reboots,
                console: Some(log.with_extension(format!("{number}.log"))),
                boot_within: BOOT,
                ..GuestConfig::default()
            };
            Guest::start(&tools.qemu, &image, &config)
        });
        let starting = starting.collect::<Result<Vec<_>>>()?;
        let mut guests = Vec::new();
        for machine in starting {
            guests.push(machine.ready().with_context(|| format!("cx3 says: {}", cx3.tail()))?);
        }
        Ok(Self { guests, cx3, _dir: dir })
    }

    /// A machine by number, from 0.
    pub fn guest(&mut self, number: usize) -> Result<&mut Guest> {
        self.guests.get_mut(number).ok_or_else(|| anyhow!("there is no machine {number}"))
    }

    /// How many machines there are.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// The first two: server and client.
    pub fn pair(&mut self) -> Result<(&mut Guest, &mut Guest)> {
        match self.guests.as_mut_slice() {
            [server, client, ..] => Ok((server, client)),
            _ => Err(anyhow!("there are no two machines")),
        }
    }

    /// Runs a command in a machine, which must succeed.
    pub fn check(&mut self, number: usize, command: &str) -> Result<String> {
        self.guest(number)?.check(command, SOON)
    }

    /// Runs a server in the first machine and its client in the second; both must succeed. `SERVER` in the commands stands for
    /// the first machine's address.
    pub fn exchange(
        &mut self,
        serve: &str,
        listens: Listens,
        ask: &str,
        within: Duration,
    ) -> Result<Exchanged> {
        let address = address(0).to_string();
        let [serve, ask] = [serve, ask].map(|command| command.replace("SERVER", &address));
        let (server, client) = self.pair()?;
        exchange(server, &serve, listens, client, &ask, within)
    }

    /// The index of a machine's GID for its IPv4 address.
    pub fn gid(&mut self, number: usize, wire: Wire) -> Result<u32> {
        let [a, b, c, d] = address(number).octets();
        let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        let find = format!(
            "cd /sys/class/infiniband/mlx4_0/ports/1; for n in gids/*; do n=${{n##*/}}; \
             [ \"$(cat gids/$n)\" != {gid} ] || [ \"$(cat gid_attrs/types/$n 2>/dev/null)\" != '{}' ] || echo $n; done",
            wire.name()
        );
        let said = self.check(number, &find)?;
        said.trim().parse().with_context(|| format!("machine {number} has no GID {gid} of {}", wire.name()))
    }

    /// Runs a program of perftest on both sides and returns what the client printed. The device and the GID are given to it here;
    /// options as for a shell.
    pub fn perftest(&mut self, wire: Wire, program: &str, options: &str, within: Duration) -> Result<String> {
        let command = |gid: u32| format!("{program} -d mlx4_0 -x {gid} -F {options}");
        let (serve, ask) = (command(self.gid(0, wire)?), command(self.gid(1, wire)?));
        let exchanged = self.exchange(&serve, Listens::PERFTEST, &format!("{ask} SERVER"), within)?;
        Ok(exchanged.client)
    }

    /// Whether all machines take commands.
    pub fn answers(&mut self) -> bool {
        self.guests.iter_mut().all(|guest| guest.run("true", SOON).is_ok())
    }

    /// What a card says of itself, for a failure.
    pub fn card_log(&self) -> String {
        self.cx3.tail()
    }

    /// Ends all; `cx3` must have lived until now and end well.
    pub fn end(mut self) -> Result<String> {
        let ended = self.cx3.ended()?;
        ensure!(ended.is_none(), "cx3 has ended ({ended:?}): {}", self.cx3.tail());
        self.guests.clear();
        self.cx3.stop()
    }
}

/// A machine's address on its card, as [`Card::numbered`] has it.
pub fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, u8::try_from(number + 1).unwrap_or(u8::MAX))
}
