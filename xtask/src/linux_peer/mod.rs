//! `cargo xtask linux-peer`: a Linux machine with SoftRoCE (`rdma_rxe`) on a fabric.

mod options;

pub use options::Options;

use crate::{interrupt, paths, setup, ui};
use anyhow::{Context, Result, bail, ensure};
use fabric::{Fabric, FabricConfig, Plug};
use options::Address;
use qemu::Qemu;
use qemu::linux::{Guest, GuestConfig, Image, Input, Network, RunError, SessionEnd, Status};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tempfile::TempDir;

/// The number of ports for others on a fabric of the peer's own.
const FREE_PORTS: usize = 3;
/// The limit of a command without `--timeout`; the guest counts in seconds.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The interval at which an interrupt is checked.
const TICK: Duration = Duration::from_millis(50);
/// Memory beyond twice the content of the initramfs, in MiB.
const SPARE_MIB: u32 = 200;

/// A running peer, and its fabric.
struct Peer {
    guest: Guest,
    network: Network,
    fabric: Option<Fabric>,
    // The directory of the fabric's sockets. Declared last, because it must be dropped after the fabric.
    _dir: TempDir,
}

/// Boots the peer and runs there what the options ask for. The returned status is that of the command or
/// shell.
pub fn linux_peer(options: &Options) -> Result<ExitCode> {
    check(options)?;
    let qemu = setup::qemu()?;
    let packages: Vec<&str> = options.package.iter().map(String::as_str).collect();
    let cache = paths::target().join("linux-guest");
    let image = ui::step("Linux image", || Image::build_with(&cache, &packages))?;
    interrupt::watch()?;
    let mut peer = ui::step("booting", || Peer::boot(&qemu, &image, options))?;
    interrupt::check()?;
    let describe = |peer: &Peer, status: Option<Status>| match &options.json {
        Some(path) => {
            let text = serde_json::to_vec_pretty(&peer.describe(&image, status))?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    };
    describe(&peer, None)?;
    let status = match &options.run {
        Some(command) => peer.run(command, options.timeout.map_or(FOR_EVER, Duration::from_secs))?,
        None if options.shell => peer.shell()?,
        None => {
            peer.print();
            loop {
                if interrupt::check().is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
                ensure!(runs(peer.guest.pid()), "the Linux machine has ended");
                std::thread::sleep(TICK);
            }
        }
    };
    describe(&peer, Some(status))?;
    Ok(ExitCode::from(status.0))
}

/// Checks the options before anything takes time.
fn check(options: &Options) -> Result<()> {
    for copied in &options.copy {
        let file = std::fs::File::open(&copied.host);
        let meta = file.and_then(|file| file.metadata());
        let meta = meta.with_context(|| format!("cannot read {}", copied.host.display()))?;
        ensure!(meta.is_file(), "cannot copy {}: not a file", copied.host.display());
    }
    if let Some(path) = &options.fabric {
        let meta = std::fs::metadata(path).with_context(|| format!("no fabric at {}", path.display()))?;
        ensure!(meta.file_type().is_socket(), "no fabric at {}: not a socket", path.display());
    }
    if options.json.as_deref().is_some_and(Path::is_dir) {
        bail!("--json: a directory");
    }
    Ok(())
}

impl Peer {
    fn boot(qemu: &Qemu, image: &Image, options: &Options) -> Result<Self> {
        let dir = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
        let (fabric, plug, default) = match &options.fabric {
            Some(socket) => (
                None,
                Plug::Stream(socket.clone()),
                Address { ip: Ipv4Addr::new(10, 77, 255, 1), prefix: 16 },
            ),
            None => {
                let fabric = Fabric::start(&FabricConfig {
                    ports: 1 + FREE_PORTS,
                    dir: dir.path().to_owned(),
                    faults: netfault::Faults::default(),
                    seed: 0,
                    pcap: None,
                })?;
                let plug = fabric.plug(0);
                (Some(fabric), plug, Address { ip: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 })
            }
        };
        let Address { ip, prefix } = options.ip.unwrap_or(default);
        let [_, b, c, d] = ip.octets();
        let network =
            Network { plug, mac: [0x52, 0x54, 0, b, c, d], address: ip, prefix, mtu: options.mtu, rxe: true };
        let config = GuestConfig {
            cpus: options.cpus,
            memory_mib: options.memory.unwrap_or_else(|| memory_mib(image, options)),
            network: Some(network.clone()),
            management: true,
            files: options.copy.iter().map(|c| (c.guest.clone(), c.host.clone())).collect(),
            ..GuestConfig::default()
        };
        Ok(Self { guest: Guest::boot(qemu, image, &config)?, network, fabric, _dir: dir })
    }

    /// Returns the sockets of the fabric that others can join.
    fn free_ports(&self) -> Vec<PathBuf> {
        let fabric = self.fabric.iter();
        fabric.flat_map(|fabric| (1..=FREE_PORTS).map(|n| fabric.socket(n).to_owned())).collect()
    }

    fn describe(&self, image: &Image, status: Option<Status>) -> serde_json::Value {
        let Network { plug, mac, address, prefix, mtu, .. } = &self.network;
        json!({
            "boot_ms": self.guest.boot_time().as_secs_f64() * 1e3,
            "pid": self.guest.pid(),
            "ip": address.to_string(),
            "prefix": prefix,
            "mac": mac.map(|byte| format!("{byte:02x}")).join(":"),
            "mtu": mtu,
            "rdma_device": "rxe0",
            "fabric": plug.socket(),
            "free_ports": self.free_ports(),
            "console": self.guest.console(),
            "packages": image.packages,
            "status": status.map(|status| status.0),
        })
    }

    fn print(&self) {
        let Network { plug, address, prefix, mtu, .. } = &self.network;
        println!("Linux is up: {address}/{prefix}, MTU {mtu}, RDMA device rxe0 (GID 1 is the address)");
        println!("fabric:  {}", plug.socket().display());
        for socket in self.free_ports() {
            println!("join it: cargo xtask linux-peer --ip 10.0.0.2 --fabric {}", socket.display());
        }
        println!("the host is 10.0.2.2 for it; console: {}", self.guest.console().display());
        println!("--shell opens a shell, --run CMD runs a command; Ctrl-C ends the machine");
    }

    /// Runs a command with this program's streams. An interrupt ends the machine.
    fn run(&mut self, command: &str, within: Duration) -> Result<Status> {
        let pid = i32::try_from(self.guest.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        let guest = &mut self.guest;
        let result = std::thread::scope(|scope| {
            let command = scope.spawn(move || {
                let (stdin, mut stdout, mut stderr) = (io::stdin(), io::stdout(), io::stderr());
                guest.stream(command, within, Input::File(stdin.as_fd()), &mut stdout, &mut stderr)
            });
            let mut told = false;
            while !command.is_finished() {
                if !told && interrupt::check().is_err() {
                    told = true;
                    // The process may have ended by itself.
                    let _ = kill_process(pid, Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            command.join()
        });
        interrupt::check()?;
        match result.map_err(|_| anyhow::anyhow!("a thread panicked"))? {
            Ok(status) => Ok(status),
            Err(RunError::TimedOut { within, .. }) => bail!("the command did not end within {within:?}"),
            Err(e) => Err(e.into()),
        }
    }

    fn shell(&mut self) -> Result<Status> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return self.run("exec sh", FOR_EVER);
        }
        eprintln!("  Ctrl-] or `exit` ends shell and machine");
        let kind = std::env::var("TERM").unwrap_or_else(|_| "dumb".into());
        let end = self.guest.shell(stdin.as_fd(), &mut io::stdout(), &kind)?;
        Ok(match end {
            SessionEnd::Shell(status) => status,
            SessionEnd::Escape => Status(0),
        })
    }
}

/// Returns the guest's memory in MiB: twice the unpacked files, and spare room.
fn memory_mib(image: &Image, options: &Options) -> u32 {
    let files: u64 = options.copy.iter().filter_map(|c| Some(std::fs::metadata(&c.host).ok()?.len())).sum();
    let files = u32::try_from(files.div_ceil(1 << 20)).unwrap_or(u32::MAX / 4);
    (SPARE_MIB + 2 * (image.size_mib() + files)).max(256)
}

/// Returns true if a process has not ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, state)| !state.trim_start().starts_with('Z'))
}
