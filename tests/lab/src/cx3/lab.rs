//! Linux machines on emulated cards, and commands that run in them.

use super::plan::Plan;
use super::{Tools, image};
use anyhow::{Context, Result, anyhow, ensure};
use fabric::Fabric;
use qemu::cx3::{Cx3, Cx3Config};
use qemu::linux::{Card, Exchanged, Guest, GuestConfig, Listens, Network, exchange};
use qemu::vm::Nic;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The longest time that a machine may take to start on a busy host.
const BOOT: Duration = Duration::from_secs(180);
/// The longest time that a small command may take in a machine on a busy host.
pub const SOON: Duration = Duration::from_secs(60);

/// The version of RoCE of a GID, named as in the kernel's `ports/1/gid_attrs/types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// RoCE v1, with its own Ethernet type.
    V1,
    /// RoCE v2, over UDP.
    V2,
}

impl Wire {
    /// Returns the kernel's name of the version.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "IB/RoCE v1",
            Self::V2 => "RoCE v2",
        }
    }
}

/// Running machines: those with cards, then those with rdma_rxe.
pub struct Lab {
    guests: Vec<Guest>,
    cards: usize,
    cx3: Cx3,
    /// The file for the record of the drivers' actions, written at the end.
    record: Option<PathBuf>,
    // Declared after the machines, because it must be dropped after them.
    fabric: Option<Fabric>,
    /// True if the fabric exists in addition to the cards' own network.
    infiniband: bool,
    // The directory of the sockets. Declared last, because it must be dropped after their users.
    _dir: TempDir,
}

impl Lab {
    /// Boots the machines in parallel. Consoles and the log of `cx3` are written to files beside `log`.
    pub fn boot(tools: &Tools, plan: &Plan, log: &Path) -> Result<Self> {
        let image = image(plan.release, plan.packages)?;
        let dir = TempDir::with_prefix("ferrolite-")?;
        let record = plan.record.map(|_| log.with_extension("record.txt"));
        let log = log.with_extension("cx3.log");
        let fabric = plan.fabric(dir.path())?;
        let mut config = Cx3Config {
            cards: plan.cards.iter().chain(&plan.appliance).cloned().collect(),
            faults: plan.faults,
            log_level: plan.log_level.clone(),
            arguments: record
                .as_ref()
                .map(|path| vec!["--record".into(), path.to_string_lossy().into_owned()])
                .unwrap_or_default(),
            ..Cx3Config::new(dir.path().to_owned(), 0, log.clone())
        };
        if let Some(fabric) = fabric.as_ref().filter(|_| !plan.infiniband) {
            for (n, card) in config.cards.iter_mut().enumerate() {
                // Machines with rdma_rxe come between.
                let port = if n < plan.cards.len() { n } else { plan.machines() };
                card.fabric = Some(fabric.socket(port).to_owned());
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
            let network =
                fabric.as_ref().filter(|_| card.is_none() || plan.infiniband).map(|fabric| Network {
                    address: address(n),
                    mtu: plan.mtu,
                    rxe: card.is_none(),
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
                files: plan.files.clone(),
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
        Ok(Self {
            guests,
            cards: plan.cards.len(),
            cx3,
            record,
            fabric,
            infiniband: plan.infiniband,
            _dir: dir,
        })
    }

    /// Returns a machine by number, from 0.
    pub fn guest(&mut self, number: usize) -> Result<&mut Guest> {
        self.guests.get_mut(number).ok_or_else(|| anyhow!("there is no machine {number}"))
    }

    /// Returns the number of machines.
    pub fn machines(&self) -> usize {
        self.guests.len()
    }

    /// Returns the number of machines with cards.
    pub fn cards(&self) -> usize {
        self.cards
    }

    /// Returns the first two machines: server and client.
    pub fn pair(&mut self) -> Result<(&mut Guest, &mut Guest)> {
        match self.guests.as_mut_slice() {
            [server, client, ..] => Ok((server, client)),
            _ => Err(anyhow!("there are no two machines")),
        }
    }

    /// Returns the network devices of the plan's appliance: its card, and for an InfiniBand card also a port
    /// of the fabric.
    pub fn appliance(&self) -> Result<Vec<Nic>> {
        let card = Nic::Card { socket: self.cx3.socket(self.cards).to_owned() };
        if !self.infiniband {
            return Ok(vec![card]);
        }
        let fabric = self.fabric.as_ref().context("there is no fabric")?;
        Ok(vec![Nic::Fabric { plug: fabric.plug(self.guests.len()) }, card])
    }

    /// Runs a command in a machine. It must succeed.
    pub fn check(&mut self, number: usize, command: &str) -> Result<String> {
        self.guest(number)?.check(command, SOON)
    }

    /// Runs a server in the first machine and its client in the second. Both must succeed. `SERVER` in the
    /// commands stands for the first machine's address.
    pub fn exchange(
        &mut self,
        serve: &str,
        listens: Listens,
        ask: &str,
        within: Duration,
    ) -> Result<Exchanged> {
        self.exchange_on(Port::FIRST, serve, listens, ask, within)
    }

    /// Runs server and client as [`exchange`](Self::exchange) does, with the first machine's address on a
    /// port.
    pub fn exchange_on(
        &mut self,
        port: Port,
        serve: &str,
        listens: Listens,
        ask: &str,
        within: Duration,
    ) -> Result<Exchanged> {
        let address = port.address(0).to_string();
        let [serve, ask] = [serve, ask].map(|command| command.replace("SERVER", &address));
        let (server, client) = self.pair()?;
        exchange(server, &serve, listens, client, &ask, within)
    }

    /// Returns shell code that prints the index of a machine's GID for its IPv4 address, to be run in that
    /// machine.
    pub fn gid(&self, number: usize, wire: Wire) -> String {
        self.gid_on(Port::FIRST, number, wire)
    }

    /// Returns shell code that prints a port's GID index, as [`gid`](Self::gid) does for the first port.
    fn gid_on(&self, port: Port, number: usize, wire: Wire) -> String {
        let [a, b, c, d] = port.address(number).octets();
        let port = port.0;
        let device = self.device(number);
        // Most of the table is empty, and an empty entry has no type.
        format!(
            "$(cd /sys/class/infiniband/{device}/ports/{port}; for n in $(grep -l ffff:{a:02x}{b:02x}:{c:02x}{d:02x} gids/*); do \
             grep -q -x '{}' gid_attrs/types/${{n##*/}} && echo ${{n##*/}}; done)",
            wire.name()
        )
    }

    /// Returns the name of a machine's RDMA device.
    pub fn device(&self, number: usize) -> &'static str {
        if number < self.cards { "mlx4_0" } else { "rxe0" }
    }

    /// Replaces `DEVICE` and `GID` in a command with a machine's values on a port.
    fn of_machine(&self, port: Port, number: usize, wire: Wire, command: &str) -> String {
        command.replace("DEVICE", self.device(number)).replace("GID", &self.gid_on(port, number, wire))
    }

    /// Runs a program that is a server without an argument and a client with the server's address, as
    /// [`exchange`](Self::exchange) does. `DEVICE` and `GID` in the command stand for each machine's RDMA
    /// device and GID index.
    pub fn both(
        &mut self,
        wire: Wire,
        command: &str,
        listens: Listens,
        within: Duration,
    ) -> Result<Exchanged> {
        self.both_on(Port::FIRST, wire, command, listens, within)
    }

    /// Runs a program as [`both`](Self::both) does, on a port that the command names.
    fn both_on(
        &mut self,
        port: Port,
        wire: Wire,
        command: &str,
        listens: Listens,
        within: Duration,
    ) -> Result<Exchanged> {
        let [serve, ask] = [0, 1].map(|number| self.of_machine(port, number, wire, command));
        self.exchange_on(port, &serve, listens, &format!("{ask} SERVER"), within)
    }

    /// Runs a program of perftest on both sides and returns the client's output. This adds the device and the
    /// GID; `options` are in shell syntax.
    pub fn perftest(&mut self, wire: Wire, program: &str, options: &str, within: Duration) -> Result<String> {
        self.perftest_on(Port::FIRST, wire, program, options, within)
    }

    /// Runs perftest on the given port, as [`perftest`](Self::perftest) does on the first port.
    pub fn perftest_on(
        &mut self,
        port: Port,
        wire: Wire,
        program: &str,
        options: &str,
        within: Duration,
    ) -> Result<String> {
        let command = format!("{program} -d DEVICE -i {} -x GID -F {options}", port.0);
        Ok(self.both_on(port, wire, &command, Listens::PERFTEST, within)?.client)
    }

    /// Returns true if all machines execute commands.
    pub fn answers(&mut self) -> bool {
        self.guests.iter_mut().all(|guest| guest.run("true", SOON).is_ok())
    }

    /// Returns the log of the cards, for a failure's report.
    pub fn card_log(&self) -> String {
        self.cx3.tail()
    }

    /// Ends all machines. `cx3` must have run until now and must end successfully. Returns the record of the
    /// drivers' actions, if the plan wants one.
    pub fn end(mut self) -> Result<Option<String>> {
        let ended = self.cx3.ended()?;
        ensure!(ended.is_none(), "cx3 has ended ({ended:?}): {}", self.cx3.tail());
        self.guests.clear();
        self.cx3.stop()?;
        let read = |path: PathBuf| {
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        self.record.map(read).transpose()
    }
}

/// A port of a card, numbered from 1 as by the drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub u8);

impl Port {
    /// The port that all cards have.
    pub const FIRST: Self = Self(1);
    /// The other port.
    pub const SECOND: Self = Self(2);

    /// Returns a machine's address on the port. The address on the first port is that of [`Card::numbered`].
    pub fn address(self, number: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 10 - self.0.min(10), 0, u8::try_from(number + 1).unwrap_or(u8::MAX))
    }
}

/// Returns a machine's address on its card's first port.
pub fn address(number: usize) -> Ipv4Addr {
    Port::FIRST.address(number)
}
