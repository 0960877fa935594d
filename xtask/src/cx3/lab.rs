//! Machines on cards, and what is done with them.

use super::plan::Plan;
use super::{Tools, image};
use anyhow::{Context, Result, anyhow, ensure};
use qemu::cx3::{Cx3, Cx3Config};
use qemu::fabric::Fabric;
use qemu::linux::{Card, Exchanged, Guest, GuestConfig, Listens, Network, exchange};
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
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "IB/RoCE v1",
            Self::V2 => "RoCE v2",
        }
    }
}

/// Machines that are up: those with cards, then those with rdma_rxe.
pub struct Lab {
    guests: Vec<Guest>,
    cards: usize,
    cx3: Cx3,
    // Goes after those who are plugged in.
    _fabric: Option<Fabric>,
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
        let fabric = plan.fabric(dir.path())?;
        let mut config = Cx3Config {
            cards: plan.cards.clone(),
            faults: plan.faults,
            log_level: plan.log_level.clone(),
            arguments: record
                .map(|path| vec!["--record".into(), path.to_string_lossy().into_owned()])
                .unwrap_or_default(),
            ..Cx3Config::new(dir.path().to_owned(), plan.cards.len(), log.clone())
        };
        if let Some(fabric) = &fabric {
            for (n, card) in config.cards.iter_mut().enumerate() {
                card.fabric = Some(fabric.socket(n).to_owned());
            }
        }
        let cx3 = Cx3::start(&tools.program, &config)?;
        let start = |n: usize| {
            let number = u8::try_from(n + 1).context("too many machines")?;
            let card = (n < plan.cards.len()).then(|| Card {
                mtu: plan.mtu,
                load: plan.load,
                ..Card::numbered(number, cx3.socket(n).to_owned())
            });
            let network = fabric.as_ref().filter(|_| card.is_none()).map(|fabric| Network {
                address: address(n),
                mtu: plan.mtu,
                ..Network::numbered(number, fabric.plug(n))
            });
            let config = GuestConfig {
                name: format!("linux{number}"),
                memory_mib: plan.memory_mib,
                cpus: plan.cpus,
                card,
                network,
                module_parameters: plan.module_parameters.clone(),
                reboots: plan.reboots,
                console: Some(log.with_extension(format!("{number}.log"))),
                boot_within: BOOT,
                ..GuestConfig::default()
            };
            Guest::start(&tools.qemu, &image, &config)
        };
        let starting = (0..plan.machines()).map(start).collect::<Result<Vec<_>>>()?;
        let mut guests = Vec::new();
        for machine in starting {
            guests.push(machine.ready().with_context(|| format!("cx3 says: {}", cx3.tail()))?);
        }
        Ok(Self { guests, cards: plan.cards.len(), cx3, _fabric: fabric, _dir: dir })
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

    /// The words of a shell that give the index of a machine's GID for its IPv4 address: to be run in that machine.
    pub fn gid(&self, number: usize, wire: Wire) -> String {
        let [a, b, c, d] = address(number).octets();
        let device = self.device(number);
        // Most of the table is empty, and an index that is empty has no type.
        format!(
            "$(cd /sys/class/infiniband/{device}/ports/1; for n in $(grep -l ffff:{a:02x}{b:02x}:{c:02x}{d:02x} gids/*); do \
             grep -q -x '{}' gid_attrs/types/${{n##*/}} && echo ${{n##*/}}; done)",
            wire.name()
        )
    }

    /// The RDMA device of a machine.
    pub fn device(&self, number: usize) -> &'static str {
        if number < self.cards { "mlx4_0" } else { "rxe0" }
    }

    /// A command with `DEVICE` and `GID` replaced by what a machine has.
    fn of_machine(&self, number: usize, wire: Wire, command: &str) -> String {
        command.replace("DEVICE", self.device(number)).replace("GID", &self.gid(number, wire))
    }

    /// As [`exchange`](Self::exchange), of a program that is a server alone and a client of the address behind it. `DEVICE` and
    /// `GID` in the command stand for each machine's RDMA device and index of GID.
    pub fn both(
        &mut self,
        wire: Wire,
        command: &str,
        listens: Listens,
        within: Duration,
    ) -> Result<Exchanged> {
        let [serve, ask] = [0, 1].map(|number| self.of_machine(number, wire, command));
        self.exchange(&serve, listens, &format!("{ask} SERVER"), within)
    }

    /// Runs a program of perftest on both sides and returns what the client printed. The device and the GID are given to it here;
    /// options as for a shell.
    pub fn perftest(&mut self, wire: Wire, program: &str, options: &str, within: Duration) -> Result<String> {
        let command = format!("{program} -d DEVICE -x GID -F {options}");
        Ok(self.both(wire, &command, Listens::PERFTEST, within)?.client)
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
