//! The machine of a Linux guest: QEMU's arguments, and the initramfs with files of the host.

use super::cpio::Cpio;
use super::guest::{Card, GuestConfig, Network};
use super::image::Image;
use super::tsc;
use anyhow::{Context, Result};
use fabric::Plug;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The sockets of a guest's ports, in the guest's directory.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Sockets on which the host listens: two command channels; standard input, output and error of a
    /// command.
    pub ports: [PathBuf; 5],
    /// The terminal's socket, on which QEMU listens.
    pub terminal: PathBuf,
}

impl Sockets {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            ports: ["command", "side", "in", "out", "err"].map(|name| dir.join(name)),
            terminal: dir.join("terminal"),
        }
    }
}

const INIT: &[u8] = include_bytes!("init.sh");
const MLX4: &[u8] = include_bytes!("mlx4.sh");

/// Copies the image's initramfs and appends an archive with the init program and further files.
pub(super) fn initramfs(image: &Image, files: &[(String, PathBuf)], dir: &Path) -> Result<PathBuf> {
    let path = dir.join("initramfs.cpio");
    let mut whole = BufWriter::new(File::create(&path)?);
    io::copy(&mut File::open(&image.initramfs).context("cannot read the initramfs")?, &mut whole)?;
    let mut extra = Cpio::new(whole);
    extra.file("init", 0o755, INIT)?;
    extra.file("bin/mlx4", 0o755, MLX4)?;
    for (guest, host) in files {
        let content = fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
        extra.file(guest, fs::metadata(host)?.permissions().mode(), &content)?;
    }
    extra.finish()?;
    Ok(path)
}

/// Returns QEMU's arguments for a guest.
pub(super) fn arguments(
    image: &Image,
    initramfs: &Path,
    config: &GuestConfig,
    sockets: &Sockets,
    console: &Path,
) -> Result<Vec<String>> {
    let mut parts = Parts::new()?;
    // The server of a card, or of a fabric's port with shared memory, needs access to the guest's memory.
    let plugged = matches!(&config.network, Some(Network { plug: Plug::Memory(_), .. }));
    let shared = plugged || config.card.is_some();
    let machine = if shared { "q35,memory-backend=memory" } else { "q35" };
    if shared {
        let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", config.memory_mib);
        parts.devices(["-object", &memory]);
    }
    if config.iommu {
        parts.add_iommu();
    }
    if config.management {
        parts.add_management()?;
    }
    if let Some(network) = &config.network {
        parts.add_network(network)?;
    }
    if let Some(card) = &config.card {
        parts.add_card(card)?;
    }
    if let Some(disk) = &config.system {
        parts.add_system(disk)?;
    }
    for parameter in &config.module_parameters {
        write!(parts.cmdline, " {parameter}")?;
    }
    let memory = format!("{}M", config.memory_mib);
    // With one possible processor, QEMU before 8.1 leaves out the guest's barriers under TCG (its commit
    // c914d46d), and a virtio device of Linux that shares its memory with another process stops.
    let cpus = format!("{},maxcpus={}", config.cpus, config.cpus.max(2));
    let kernel = text(&image.kernel)?;
    let serial = format!("file:{}", option(console)?);
    let mut arguments: Vec<String> = [
        ["-machine", machine],
        ["-accel", "tcg,thread=multi"],
        ["-cpu", "max"],
        ["-smp", &cpus],
        ["-m", &memory],
        ["-name", &config.name],
        ["-kernel", kernel],
        ["-initrd", text(initramfs)?],
        ["-append", &parts.cmdline],
        ["-display", "none"],
        ["-monitor", "none"],
        ["-serial", &serial],
        ["-device", "virtio-serial-pci,disable-legacy=on,max_ports=8"],
    ]
    .iter()
    .flatten()
    .map(|&argument| argument.to_owned())
    .collect();
    arguments.extend(ports(sockets)?);
    arguments.extend(parts.devices);
    arguments.extend(["-nodefaults", "-no-user-config"].map(str::to_owned));
    if !config.reboots {
        // The guest ends by rebooting, because it has no ACPI to power off.
        arguments.push("-no-reboot".to_owned());
    }
    Ok(arguments)
}

/// The parts of QEMU's arguments that depend on the guest's devices.
struct Parts {
    /// The kernel command line.
    cmdline: String,
    /// The arguments for the devices.
    devices: Vec<String>,
    /// The property of a network card that puts it behind the machine's IOMMU; empty without one.
    behind_iommu: &'static str,
}

impl Parts {
    fn new() -> Result<Self> {
        // no_timer_check: the kernel checks that the timer interrupts by comparing ticks with a loop of the
        // processor. On a busy host this check panics ("IO-APIC + timer doesn't work!").
        let mut cmdline = String::from(
            "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable no_timer_check nokaslr mitigations=off audit=0 \
             random.trust_cpu=on",
        );
        if let Some(khz) = tsc::khz() {
            write!(cmdline, " tsc_early_khz={khz}")?;
        }
        Ok(Self { cmdline, devices: Vec::new(), behind_iommu: "" })
    }

    fn devices<const N: usize>(&mut self, arguments: [&str; N]) {
        self.devices.extend(arguments.map(str::to_owned));
    }

    /// Adds an IOMMU. It must precede the devices that are behind it.
    fn add_iommu(&mut self) {
        self.cmdline.push_str(" intel_iommu=on");
        self.devices(["-device", "intel-iommu"]);
        self.behind_iommu = ",iommu_platform=on";
    }

    fn add_management(&mut self) -> Result<()> {
        let mac = colons(MANAGEMENT_MAC);
        write!(self.cmdline, " fl.management={mac}")?;
        let device = format!(
            "virtio-net-pci,netdev=management,mac={mac},addr=0x10,romfile=,disable-legacy=on,ioeventfd=off{}",
            self.behind_iommu
        );
        self.devices(["-netdev", "user,id=management,ipv6=off", "-device", &device]);
        Ok(())
    }

    fn add_system(&mut self, disk: &Path) -> Result<()> {
        self.cmdline.push_str(" fl.system=1");
        let drive = format!("if=none,id=system,format=raw,snapshot=on,file={}", option(disk)?);
        self.devices(["-drive", &drive, "-device", "virtio-blk-pci,drive=system,disable-legacy=on"]);
        Ok(())
    }

    fn add_network(&mut self, network: &Network) -> Result<()> {
        let Network { address, prefix, mtu, rxe, .. } = network;
        let mac = colons(network.mac);
        let rxe = u8::from(*rxe);
        write!(self.cmdline, " fl.ip={address}/{prefix} fl.mtu={mtu} fl.mac={mac} fl.rxe={rxe}")?;
        // The same device as the appliances', so that a comparison is one of guests.
        let device = format!(
            "virtio-net-pci,netdev=fabric,mac={mac},host_mtu={mtu},addr=0x11,romfile=,disable-legacy=on"
        );
        match &network.plug {
            Plug::Memory(socket) => {
                let fabric = format!("socket,id=fabric,server=off,path={}", option(socket)?);
                self.devices(["-chardev", &fabric]);
                // QEMU 7.2 under TCG crashes when such a device starts with an MSI-X vector unmasked, as
                // Linux leaves it. An interrupt by pin costs Linux one more register access.
                let device = format!("{device},vectors=0");
                self.devices(["-netdev", "vhost-user,id=fabric,chardev=fabric", "-device", &device]);
            }
            Plug::Stream(socket) => {
                let netdev =
                    format!("stream,id=fabric,server=off,addr.type=unix,addr.path={}", option(socket)?);
                let device = format!("{device},ioeventfd=off{}", self.behind_iommu);
                self.devices(["-netdev", &netdev, "-device", &device]);
            }
        }
        Ok(())
    }

    fn add_card(&mut self, card: &Card) -> Result<()> {
        if card.load {
            self.cmdline.push_str(" fl.mlx4=1");
        }
        if let Some((address, prefix)) = card.address {
            write!(self.cmdline, " fl.mlx4.ip={address}/{prefix} fl.mlx4.mtu={}", card.mtu)?;
        }
        let device = json!({
            "driver": "vfio-user-pci",
            "bus": "root-port",
            "socket": { "type": "unix", "path": text(&card.socket)? },
        });
        // The card is in a slot. On the root bus it would be a part of the chip set, without a link.
        let port = "pcie-root-port,id=root-port,bus=pcie.0,addr=0x12,chassis=1";
        self.devices(["-device", port, "-device", &device.to_string()]);
        Ok(())
    }
}

/// Returns the arguments for the guest's serial ports and its terminal.
fn ports(sockets: &Sockets) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    for (n, socket) in (1..).zip(&sockets.ports) {
        arguments.extend([
            "-chardev".to_owned(),
            format!("socket,id=port{n},server=off,path={}", option(socket)?),
            "-device".to_owned(),
            format!("virtserialport,chardev=port{n},name=port{n},nr={n}"),
        ]);
    }
    let terminal = option(&sockets.terminal)?;
    arguments.extend([
        "-chardev".to_owned(),
        format!("socket,id=terminal,server=on,wait=off,path={terminal}"),
        "-device".to_owned(),
        "virtconsole,chardev=terminal,nr=0".to_owned(),
    ]);
    Ok(arguments)
}

/// The MAC address on the management network. Each machine is alone on its management network.
const MANAGEMENT_MAC: [u8; 6] = [0x52, 0x54, 0, 0xfd, 0xff, 1];

fn colons(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}

/// Quotes a path for an option of QEMU, in which a comma ends a value unless it is doubled.
fn option(path: &Path) -> Result<String> {
    Ok(text(path)?.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::Card;

    #[test]
    fn a_card_is_described_to_qemu_and_to_the_guest() {
        let image = Image { kernel: "k".into(), initramfs: "i".into(), packages: Vec::new() };
        let network = Network::numbered(7, Plug::Stream("/f,1".into()));
        let config = GuestConfig { network: Some(network), management: true, ..GuestConfig::default() };
        let sockets = Sockets::new(Path::new("/s"));
        let arguments = arguments(&image, Path::new("i"), &config, &sockets, Path::new("/log")).unwrap();
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| argument == flag).unwrap();
            arguments[at + 1].clone()
        };
        assert_eq!(after("-netdev"), "user,id=management,ipv6=off");
        let fabric = "stream,id=fabric,server=off,addr.type=unix,addr.path=/f,,1";
        assert!(arguments.iter().any(|argument| argument == fabric));
        assert!(after("-append").ends_with(
            " fl.management=52:54:00:fd:ff:01 fl.ip=10.0.0.7/24 fl.mtu=4200 fl.mac=52:54:00:00:00:07 fl.rxe=1"
        ));
        assert_eq!(after("-chardev"), "socket,id=port1,server=off,path=/s/command");
        assert!(arguments.iter().any(|a| a == "socket,id=port3,server=off,path=/s/in"));
        assert!(arguments.iter().any(|a| a.contains("mac=52:54:00:00:00:07,host_mtu=4200")));
    }

    #[test]
    fn the_network_cards_are_behind_the_iommu() {
        let image = Image { kernel: "k".into(), initramfs: "i".into(), packages: Vec::new() };
        let network = Network::numbered(7, Plug::Stream("/f".into()));
        let config =
            GuestConfig { network: Some(network), management: true, iommu: true, ..GuestConfig::default() };
        let sockets = Sockets::new(Path::new("/s"));
        let arguments = arguments(&image, Path::new("i"), &config, &sockets, Path::new("/log")).unwrap();
        let line = arguments.join(" ");
        let (before, after) = line.split_once("-device intel-iommu").unwrap();
        assert!(before.contains(" intel_iommu=on ") && !before.contains("virtio-net-pci"), "{before}");
        assert_eq!(after.matches(",ioeventfd=off,iommu_platform=on").count(), 2, "{after}");
    }

    #[test]
    fn a_connectx3_is_behind_its_socket_and_has_the_memory() {
        let image = Image { kernel: "k".into(), initramfs: "i".into(), packages: Vec::new() };
        let config = GuestConfig {
            card: Some(Card::numbered(3, "/c,3".into())),
            module_parameters: vec!["mlx4_core.debug_level=1".into()],
            reboots: true,
            system: Some("/d,1".into()),
            ..GuestConfig::default()
        };
        let sockets = Sockets::new(Path::new("/s"));
        let arguments = arguments(&image, Path::new("i"), &config, &sockets, Path::new("/log")).unwrap();
        let line = arguments.join(" ");
        for part in [
            "-machine q35,memory-backend=memory ",
            "-object memory-backend-memfd,id=memory,size=256M,share=on ",
            r#""socket":{"path":"/c,3","type":"unix"}"#,
            " fl.mlx4=1 fl.mlx4.ip=10.9.0.3/24 fl.mlx4.mtu=4200 fl.system=1 mlx4_core.debug_level=1",
            "-drive if=none,id=system,format=raw,snapshot=on,file=/d,,1 ",
        ] {
            assert!(line.contains(part), "{part}\nnot in\n{line}");
        }
        assert!(!line.contains("-no-reboot"));
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
        expected.file("init", 0o755, INIT).unwrap();
        expected.file("bin/mlx4", 0o755, MLX4).unwrap();
        expected.file("opt/tool", 0o750, b"#!").unwrap();
        assert_eq!(whole[512..], expected.finish().unwrap());
    }
}
