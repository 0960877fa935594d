//! A running Linux guest.

use super::channel::{Channel, Output, RunError, Status};
use super::image::Image;
use super::machine::{self, Sockets};
use super::streams::{Input, Streams};
use crate::{Qemu, die_with_this_thread};
use anyhow::{Context, Result, bail, ensure};
use fabric::Plug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The interval at which a machine that has not connected yet is checked for having ended.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The length of the console's output that an error message quotes, in bytes.
const CONSOLE_TAIL: usize = 2000;

/// A guest's network card on a port of a fabric: `eth0` in the guest.
#[derive(Clone, Debug)]
pub struct Network {
    /// The port (see [`fabric::Fabric::plug`]).
    pub plug: Plug,
    /// The MAC address of the card.
    pub mac: [u8; 6],
    /// The IP address of the guest.
    pub address: Ipv4Addr,
    /// The prefix length of the network, in bits.
    pub prefix: u8,
    /// The largest IP packet, in bytes. 4200 results in a RoCE path MTU of 4096, and Ethernet's 1500 in one
    /// of 1024.
    pub mtu: u16,
    /// True to create a SoftRoCE device, `rxe0`, on the card. Its GID 0 is the link-local IPv6 address
    /// derived from the MAC address, GID 1 the IPv4 address.
    pub rxe: bool,
}

impl Network {
    /// Returns card `number` (1 to 254) of a fabric: address `10.0.0.number/24`, MTU 4200, with SoftRoCE.
    #[must_use]
    pub fn numbered(number: u8, plug: Plug) -> Self {
        Self {
            plug,
            mac: [0x52, 0x54, 0, 0, 0, number],
            address: Ipv4Addr::new(10, 0, 0, number),
            prefix: 24,
            mtu: 4200,
            rxe: true,
        }
    }
}

/// A ConnectX-3 in a guest, which another process serves by vfio-user ([`crate::Cx3`]). QEMU must support
/// vfio-user devices ([`Qemu::has_vfio_user`]).
#[derive(Clone, Debug)]
pub struct Card {
    /// The socket at which the card is served.
    pub socket: PathBuf,
    /// The IP address of the first port's Ethernet interface, `mlx0` in the guest, and its prefix length in
    /// bits. If `None`, the interface is named and left down.
    pub address: Option<(Ipv4Addr, u8)>,
    /// The largest IP packet of the guest's interface, in bytes.
    pub mtu: u16,
    /// True to load the drivers at boot. Their order is in the guest's `/modules/mlx4`.
    pub load: bool,
}

impl Card {
    /// Returns card `number` (1 to 254): address `10.9.0.number/24`, MTU 4200, with its drivers loaded.
    #[must_use]
    pub fn numbered(number: u8, socket: PathBuf) -> Self {
        Self { socket, address: Some((Ipv4Addr::new(10, 9, 0, number), 24)), mtu: 4200, load: true }
    }
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The name of the guest's process, without commas.
    pub name: String,
    /// The number of processors.
    pub cpus: u32,
    /// The memory in MiB, including the contents of the initramfs, which needs twice its size while the guest
    /// starts. The plain image needs at least 128; see [`Image::size_mib`].
    pub memory_mib: u32,
    /// The guest's network card, if any.
    pub network: Option<Network>,
    /// The guest's ConnectX-3, if any.
    pub card: Option<Card>,
    /// Parameters of kernel modules, in the format of the kernel's command line: `MODULE.NAME=VALUE`.
    pub module_parameters: Vec<String>,
    /// True if the guest restarts when it reboots ([`Guest::reboot`]); otherwise it ends.
    pub reboots: bool,
    /// True if the guest has a card on QEMU's user-mode network, `mgmt0` in the guest, where the host is
    /// 10.0.2.2.
    pub management: bool,
    /// True if the machine has an Intel IOMMU, which the guest turns on. The network cards are behind it,
    /// except one that shares memory with the fabric.
    pub iommu: bool,
    /// A disk image (ext4) with an installed system, if any. Its systemd is the first process, once the
    /// network is up; commands still run in the initramfs ([`in_system`]). Changes to the disk are lost with
    /// the guest.
    pub system: Option<PathBuf>,
    /// Files to be put into the guest: the path there, and the file on the host, whose permissions are kept.
    /// A program may be linked to the libraries of the image (C library, libgcc, libibverbs, librdmacm) and
    /// of the packages given to [`Image::build_with`].
    pub files: Vec<(String, PathBuf)>,
    /// The file for the console's output. By default it is a file that is removed with the guest.
    pub console: Option<PathBuf>,
    /// The time limit for the boot.
    pub boot_within: Duration,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            name: "linux".into(),
            cpus: 1,
            memory_mib: 256,
            network: None,
            card: None,
            module_parameters: Vec::new(),
            reboots: false,
            management: false,
            iommu: false,
            system: None,
            files: Vec::new(),
            console: None,
            boot_within: Duration::from_secs(90),
        }
    }
}

/// A running guest. It ends as by a power cut when this value is dropped, and when the thread that started it
/// ends.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    pub(super) channel: Channel,
    /// A second channel, for commands while the first one is busy.
    pub(super) side: Channel,
    streams: Streams,
    pub(super) terminal: PathBuf,
    /// The number of background commands so far.
    pub(super) jobs: u32,
    console: PathBuf,
    boot_time: Duration,
    // Holds sockets and logs. It is the last field, so that it is dropped after the machine.
    _dir: TempDir,
}

/// A guest that has been started and may not accept commands yet, so that several can start in parallel.
#[derive(Debug)]
pub struct Starting {
    machine: Machine,
    listeners: [UnixListener; 5],
    sockets: Sockets,
    console: PathBuf,
    complaints: PathBuf,
    begin: Instant,
    deadline: Instant,
    dir: TempDir,
}

/// A QEMU process, killed on drop.
#[derive(Debug)]
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // The process may have ended already; then nothing remains to be done.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Starting {
    /// Waits until the guest accepts commands.
    pub fn ready(mut self) -> Result<Guest> {
        let ([channel, side], streams) = self.connected().with_context(|| {
            let complaints = fs::read_to_string(&self.complaints).unwrap_or_default();
            format!(
                "a Linux guest did not start; QEMU: {}; console: {}",
                complaints.trim(),
                tail(&self.console)
            )
        })?;
        let Self { machine, sockets, console, begin, dir, .. } = self;
        let (terminal, boot_time) = (sockets.terminal, begin.elapsed());
        Ok(Guest { machine, channel, side, streams, terminal, jobs: 0, console, boot_time, _dir: dir })
    }

    fn connected(&mut self) -> Result<([Channel; 2], Streams)> {
        let mut accept = |port: usize| connect(&self.listeners[port], &mut self.machine, self.deadline);
        let mut channels = [Channel::new(accept(0)?), Channel::new(accept(1)?)];
        let streams = Streams { input: accept(2)?, output: accept(3)?, error: accept(4)? };
        for channel in &mut channels {
            channel.wait_ready(self.deadline)?;
        }
        Ok((channels, streams))
    }
}

/// Returns the end of a console's output.
fn tail(console: &Path) -> String {
    let output = fs::read(console).unwrap_or_default();
    let tail = &output[output.len().saturating_sub(CONSOLE_TAIL)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}

impl Guest {
    /// Starts a guest under TCG. The calling thread must outlive the guest.
    pub fn start(qemu: &Qemu, image: &Image, config: &GuestConfig) -> Result<Starting> {
        let dir = tempfile::Builder::new().prefix("linux-guest-").tempdir()?;
        let console = config.console.clone().unwrap_or_else(|| dir.path().join("console"));
        let initramfs = machine::initramfs(image, &config.files, dir.path())?;
        let sockets = Sockets::new(dir.path());
        let listen = |path| UnixListener::bind(path).context("cannot listen for the guest's ports");
        let [a, b, c, d, e] = &sockets.ports;
        let listeners = [listen(a)?, listen(b)?, listen(c)?, listen(d)?, listen(e)?];
        let complaints = dir.path().join("qemu");

        let begin = Instant::now();
        let mut command = qemu.command();
        command.args(machine::arguments(image, &initramfs, config, &sockets, &console)?);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&complaints)?);
        let started = die_with_this_thread(&mut command).spawn();
        let machine = Machine(started.context("cannot start QEMU")?);
        let deadline = begin + config.boot_within;
        Ok(Starting { machine, listeners, sockets, console, complaints, begin, deadline, dir })
    }

    /// Starts a guest under TCG and waits until it accepts commands.
    pub fn boot(qemu: &Qemu, image: &Image, config: &GuestConfig) -> Result<Self> {
        Self::start(qemu, image, config)?.ready()
    }

    /// Runs a shell command and waits for its end. A command that takes longer than `within` is killed.
    ///
    /// Its standard input is empty. Background processes that it starts continue to run.
    pub fn run(&mut self, command: &str, within: Duration) -> Result<Output, RunError> {
        self.channel.run(command, within)
    }

    /// Runs a shell command, passing its output and its input on while it runs.
    pub fn stream(
        &mut self,
        command: &str,
        within: Duration,
        input: Input<'_>,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Status, RunError> {
        self.streams.run(&mut self.channel, command, within, input, stdout, stderr)
    }

    /// Runs a shell command that must succeed, and returns its output.
    pub fn check(&mut self, command: &str, within: Duration) -> Result<String> {
        let output = self.run(command, within).with_context(|| format!("`{command}` in a Linux guest"))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "`{command}` in a Linux guest: status {}: {} {}",
            output.status.0,
            stdout.trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(stdout)
    }

    /// Returns the contents of a file in the guest.
    pub fn read_file(&mut self, path: &str, within: Duration) -> Result<Vec<u8>> {
        let output = self.run(&format!("cat {}", quoted(path)), within)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(output.stdout)
    }

    /// Copies a file of the host into the guest, with its permissions, and creates its directory.
    pub fn copy_in(&mut self, host: &Path, path: &str, within: Duration) -> Result<()> {
        let file = File::open(host).with_context(|| format!("cannot read {}", host.display()))?;
        let meta = file.metadata()?;
        ensure!(meta.is_file(), "cannot copy {}: not a file", host.display());
        let (mode, size, to) = (meta.permissions().mode() & 0o777, meta.len(), quoted(path));
        let command = format!(
            "mkdir -p \"$(dirname {to})\" && head -c {size} >{to} && chmod {mode:o} {to} && stat -c %s {to}"
        );
        let (mut said, mut complaint) = (Vec::new(), Vec::new());
        let status = self.stream(&command, within, Input::File(file.as_fd()), &mut said, &mut complaint)?;
        ensure!(
            status.success() && String::from_utf8_lossy(&said).trim() == size.to_string(),
            "cannot copy {} to {path} in a Linux guest: {}",
            host.display(),
            String::from_utf8_lossy(&complaint).trim()
        );
        Ok(())
    }

    /// Reboots the guest, whose configuration must allow it, and waits until it accepts commands again.
    pub fn reboot(&mut self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        self.channel.send_last("reboot -f", deadline).context("a Linux guest does not reboot")?;
        for channel in [&mut self.channel, &mut self.side] {
            channel.wait_ready(deadline).context("a Linux guest does not start after a reboot")?;
        }
        Ok(())
    }

    /// Ends the guest immediately, as by a power cut.
    pub fn kill(self) {
        drop(self);
    }

    /// Returns the time from the start of QEMU until the guest accepted commands, with the network and `rxe0`
    /// up if it has them.
    #[must_use]
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns the file with the console's output.
    #[must_use]
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Returns the id of the QEMU process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.machine.0.id()
    }
}

/// Quotes text as one word of the shell.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a shell command that runs another one in the system of the guest's disk ([`GuestConfig::system`]).
#[must_use]
pub fn in_system(command: &str) -> String {
    // The root directory of the first process is the disk.
    format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot /proc/1/root /bin/sh -c {}", quoted(command))
}

/// Waits until the machine connects to the command channel's socket.
fn connect(listener: &UnixListener, machine: &mut Machine, deadline: Instant) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        if let Some(status) = machine.0.try_wait()? {
            bail!("it ended with {status}");
        }
        ensure!(Instant::now() < deadline, "it did not connect in time");
        std::thread::sleep(CHECK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_the_shell() {
        let text = "it's \\n $HOME `x` \"y\"\nz";
        let said = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("printf %s {}", quoted(text)))
            .output()
            .unwrap();
        assert_eq!(said.stdout, text.as_bytes());
    }
}
