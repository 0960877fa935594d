//! A running Linux guest.

use super::channel::{Channel, Output, RunError};
use super::cpio::Cpio;
use super::image::Image;
use crate::{Qemu, die_with_this_thread};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often a machine that has not connected yet is checked for having ended.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Of a console, this much is shown when something fails.
const CONSOLE_TAIL: usize = 2000;

/// A guest's network card, on a port of a fabric.
#[derive(Clone, Debug)]
pub struct Network {
    /// The port's socket (see [`crate::fabric::Fabric::socket`]).
    pub socket: PathBuf,
    /// The card's address.
    pub mac: [u8; 6],
    /// The guest's address, in a network of 24 bits.
    pub address: Ipv4Addr,
    /// Largest IP packet, in bytes. 4200 gives RoCE a path MTU of 4096, Ethernet's 1500 one of 1024.
    pub mtu: u16,
    /// Whether to put a SoftRoCE device, `rxe0`, on the card.
    pub rxe: bool,
}

impl Network {
    /// Card `number` (1 to 254) of a fabric: address `10.0.0.number`, MTU 4200, with SoftRoCE.
    #[must_use]
    pub fn numbered(number: u8, socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            mac: [0x52, 0x54, 0, 0, 0, number],
            address: Ipv4Addr::new(10, 0, 0, number),
            mtu: 4200,
            rxe: true,
        }
    }
}

/// What a guest is to be.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Number of processors.
    pub cpus: u32,
    /// Memory in MiB, the extra files included (which need twice their size while the guest starts). 128 is the least.
    pub memory_mib: u32,
    /// Its network card, if it is to have one.
    pub network: Option<Network>,
    /// Files to put into the guest: path there, and the file on the host, with its permissions.
    pub files: Vec<(String, PathBuf)>,
    /// Where its console output goes; by default to a file that is removed with the guest.
    pub console: Option<PathBuf>,
    /// How long it may take to start.
    pub boot_within: Duration,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            cpus: 1,
            memory_mib: 256,
            network: None,
            files: Vec::new(),
            console: None,
            boot_within: Duration::from_secs(90),
        }
    }
}

/// A running guest. It ends when this is dropped, and when the thread that started it does.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    channel: Channel,
    console: PathBuf,
    boot_time: Duration,
    // Holds sockets and logs; last, so that it goes after the machine.
    _dir: TempDir,
}

/// A guest that has been started and may not take commands yet, so that several can start at once.
#[derive(Debug)]
pub struct Starting {
    machine: Machine,
    listener: UnixListener,
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
        // It may have ended already; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Starting {
    /// Waits until the guest takes commands.
    pub fn ready(mut self) -> Result<Guest> {
        let channel = self.channel().with_context(|| {
            let complaints = fs::read_to_string(&self.complaints).unwrap_or_default();
            format!(
                "a Linux guest did not start; QEMU: {}; console: {}",
                complaints.trim(),
                tail(&self.console)
            )
        })?;
        let Self { machine, console, begin, dir, .. } = self;
        Ok(Guest { machine, channel, console, boot_time: begin.elapsed(), _dir: dir })
    }

    fn channel(&mut self) -> Result<Channel> {
        let stream = connect(&self.listener, &mut self.machine, self.deadline)?;
        let mut channel = Channel::new(stream);
        channel.wait_ready(self.deadline)?;
        Ok(channel)
    }
}

/// The end of a console's output.
fn tail(console: &Path) -> String {
    let output = fs::read(console).unwrap_or_default();
    let tail = &output[output.len().saturating_sub(CONSOLE_TAIL)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}

impl Guest {
    /// Starts a guest under TCG. The calling thread must live as long as the guest shall.
    pub fn start(qemu: &Qemu, image: &Image, config: &GuestConfig) -> Result<Starting> {
        let dir = tempfile::Builder::new().prefix("linux-guest-").tempdir()?;
        let console = config.console.clone().unwrap_or_else(|| dir.path().join("console"));
        let initramfs = initramfs(image, &config.files, dir.path())?;
        let socket = dir.path().join("channel");
        let listener =
            UnixListener::bind(&socket).context("cannot listen for the guest's command channel")?;
        let complaints = dir.path().join("qemu");

        let begin = Instant::now();
        let mut command = Command::new(&qemu.program);
        command.args(arguments(image, &initramfs, config, &socket, &console)?);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&complaints)?);
        let started = die_with_this_thread(&mut command).spawn();
        let machine = Machine(started.with_context(|| format!("cannot start {}", qemu.program.display()))?);
        Ok(Starting {
            machine,
            listener,
            console,
            complaints,
            begin,
            deadline: begin + config.boot_within,
            dir,
        })
    }

    /// Starts a guest under TCG and waits until it takes commands.
    pub fn boot(qemu: &Qemu, image: &Image, config: &GuestConfig) -> Result<Self> {
        Self::start(qemu, image, config)?.ready()
    }

    /// Runs a shell command and waits for its end, at most `within`; then it is killed.
    ///
    /// Its standard input is empty. What it leaves running in the background goes on.
    pub fn run(&mut self, command: &str, within: Duration) -> Result<Output, RunError> {
        self.channel.run(command, within)
    }

    /// Runs a shell command that must succeed, and returns what it printed.
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

    /// Time from starting QEMU until the guest took commands, network and `rxe0` up if it has them.
    #[must_use]
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// The file with its console output.
    #[must_use]
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// The QEMU process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.machine.0.id()
    }
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
        ensure!(Instant::now() < deadline, "it did not begin in time");
        std::thread::sleep(CHECK_EVERY);
    }
}

/// The image's initramfs, or a copy of it with an archive of further files behind it.
fn initramfs(image: &Image, files: &[(String, PathBuf)], dir: &Path) -> Result<PathBuf> {
    if files.is_empty() {
        return Ok(image.initramfs.clone());
    }
    let path = dir.join("initramfs.cpio");
    let mut whole = BufWriter::new(File::create(&path)?);
    io::copy(&mut File::open(&image.initramfs).context("cannot read the initramfs")?, &mut whole)?;
    let mut extra = Cpio::new(whole);
    for (guest, host) in files {
        let content = fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
        extra.file(guest, fs::metadata(host)?.permissions().mode(), &content)?;
    }
    extra.finish()?;
    Ok(path)
}

fn arguments(
    image: &Image,
    initramfs: &Path,
    config: &GuestConfig,
    channel: &Path,
    console: &Path,
) -> Result<Vec<String>> {
    let mut cmdline = String::from(
        "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable nokaslr mitigations=off audit=0 random.trust_cpu=on",
    );
    let mut card = Vec::new();
    if let Some(network) = &config.network {
        let Network { address, mtu, rxe, .. } = network;
        write!(cmdline, " fl.ip={address}/24 fl.mtu={mtu} fl.rxe={}", u8::from(*rxe))?;
        let mac = network.mac.map(|byte| format!("{byte:02x}")).join(":");
        card = vec![
            "-netdev".into(),
            format!("stream,id=fabric,server=off,addr.type=unix,addr.path={}", option(&network.socket)?),
            "-device".into(),
            // As the appliances' card, so that a comparison is between guests.
            format!(
                "virtio-net-pci,netdev=fabric,mac={mac},host_mtu={mtu},romfile=,disable-legacy=on,ioeventfd=off"
            ),
        ];
    }
    let memory = format!("{}M", config.memory_mib);
    let cpus = config.cpus.to_string();
    let kernel = text(&image.kernel)?;
    let serial = format!("file:{}", option(console)?);
    let chardev = format!("socket,id=channel,server=off,path={}", option(channel)?);
    let mut arguments: Vec<String> = [
        ["-machine", "q35"],
        ["-accel", "tcg,thread=multi"],
        ["-cpu", "max"],
        ["-smp", &cpus],
        ["-m", &memory],
        ["-kernel", kernel],
        ["-initrd", text(initramfs)?],
        ["-append", &cmdline],
        ["-display", "none"],
        ["-monitor", "none"],
        ["-serial", &serial],
        ["-chardev", &chardev],
        ["-device", "virtio-serial-pci,disable-legacy=on,max_ports=2"],
        ["-device", "virtserialport,chardev=channel,name=command,nr=1"],
    ]
    .iter()
    .flatten()
    .map(|&argument| argument.to_owned())
    .collect();
    arguments.extend(card);
    // The guest ends by rebooting: it has no ACPI to power off with.
    arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    Ok(arguments)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}

/// A path inside an option of QEMU, where a comma ends a value unless doubled.
fn option(path: &Path) -> Result<String> {
    Ok(text(path)?.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_described_to_qemu_and_to_the_guest() {
        let image = Image { kernel: "k".into(), initramfs: "i".into(), packages: Vec::new() };
        let network = Network::numbered(7, Path::new("/f,1"));
        let config = GuestConfig { network: Some(network), ..GuestConfig::default() };
        let arguments =
            arguments(&image, Path::new("i"), &config, Path::new("/c"), Path::new("/log")).unwrap();
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| argument == flag).unwrap();
            arguments[at + 1].clone()
        };
        assert_eq!(after("-netdev"), "stream,id=fabric,server=off,addr.type=unix,addr.path=/f,,1");
        assert!(after("-append").ends_with(" fl.ip=10.0.0.7/24 fl.mtu=4200 fl.rxe=1"));
        assert!(arguments.iter().any(|a| a.contains("mac=52:54:00:00:00:07,host_mtu=4200")));
    }

    #[test]
    fn extra_files_follow_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        fs::write(&base, [7; 512]).unwrap();
        let tool = dir.path().join("tool");
        fs::write(&tool, "#!").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o750)).unwrap();
        let image = Image { kernel: "k".into(), initramfs: base, packages: Vec::new() };
        let path = initramfs(&image, &[("/opt/tool".into(), tool)], dir.path()).unwrap();
        let whole = fs::read(path).unwrap();
        assert_eq!(whole[..512], [7; 512]);
        let mut expected = Cpio::new(Vec::new());
        expected.file("opt/tool", 0o750, b"#!").unwrap();
        assert_eq!(whole[512..], expected.finish().unwrap());
    }
}
