//! `cargo xtask linux-peer`: a Linux machine with SoftRoCE (`rdma_rxe`) on a fabric.

mod options;

pub(crate) use options::Options;

use anyhow::{Context, Result, bail, ensure};
use lab::peer::Peer;
use lab::{interrupt, paths, setup, ui};
use qemu::linux::{Image, Input, Network, RunError, SessionEnd, Status};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The limit of a command without `--timeout`; the guest counts in seconds.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The interval at which an interrupt is checked.
const TICK: Duration = Duration::from_millis(50);

/// Boots the peer and runs there what the options ask for. The returned status is that of the command or
/// shell.
pub(crate) fn linux_peer(options: &Options) -> Result<ExitCode> {
    check(options)?;
    let qemu = setup::qemu()?;
    let packages: Vec<&str> = options.package.iter().map(String::as_str).collect();
    let cache = paths::target().join("linux-guest");
    let image = ui::step("Linux image", || Image::build_with(&cache, &packages))?;
    interrupt::watch()?;
    let mut peer = ui::step("booting", || Peer::boot(&qemu, &image, &options.plan()))?;
    interrupt::check()?;
    let describe = |peer: &Peer, status: Option<Status>| match &options.json {
        Some(path) => {
            let text = serde_json::to_vec_pretty(&description(peer, &image, status))?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    };
    describe(&peer, None)?;
    let status = match &options.run {
        Some(command) => run(&mut peer, command, options.timeout.map_or(FOR_EVER, Duration::from_secs))?,
        None if options.shell => shell(&mut peer)?,
        None => {
            print(&peer);
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

/// Returns the peer's description as JSON, with the status of a command that has ended.
fn description(peer: &Peer, image: &Image, status: Option<Status>) -> serde_json::Value {
    let Network { plug, mac, address, prefix, mtu, .. } = &peer.network;
    json!({
        "boot_ms": peer.guest.boot_time().as_secs_f64() * 1e3,
        "pid": peer.guest.pid(),
        "ip": address.to_string(),
        "prefix": prefix,
        "mac": mac.map(|byte| format!("{byte:02x}")).join(":"),
        "mtu": mtu,
        "rdma_device": "rxe0",
        "fabric": plug.socket(),
        "free_ports": peer.free_ports(),
        "console": peer.guest.console(),
        "packages": image.packages,
        "status": status.map(|status| status.0),
    })
}

/// Prints the peer's address and how others join its fabric.
fn print(peer: &Peer) {
    let Network { plug, address, prefix, mtu, .. } = &peer.network;
    println!("Linux is up: {address}/{prefix}, MTU {mtu}, RDMA device rxe0 (GID 1 is the address)");
    println!("fabric:  {}", plug.socket().display());
    for socket in peer.free_ports() {
        println!("join it: cargo xtask linux-peer --ip 10.0.0.2 --fabric {}", socket.display());
    }
    println!("the host is 10.0.2.2 for it; console: {}", peer.guest.console().display());
    println!("--shell opens a shell, --run CMD runs a command; Ctrl-C ends the machine");
}

/// Runs a command with this program's streams. An interrupt ends the machine.
fn run(peer: &mut Peer, command: &str, within: Duration) -> Result<Status> {
    let pid = i32::try_from(peer.guest.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
    let guest = &mut peer.guest;
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

/// Opens a shell, and returns its status.
fn shell(peer: &mut Peer) -> Result<Status> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return run(peer, "exec sh", FOR_EVER);
    }
    eprintln!("  Ctrl-] or `exit` ends shell and machine");
    let kind = std::env::var("TERM").unwrap_or_else(|_| "dumb".into());
    let end = peer.guest.shell(stdin.as_fd(), &mut io::stdout(), &kind)?;
    Ok(match end {
        SessionEnd::Shell(status) => status,
        SessionEnd::Escape => Status(0),
    })
}

/// Returns true if a process has not ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, state)| !state.trim_start().starts_with('Z'))
}
