//! The specification of a virtual machine, and the QEMU command line for it.

use fabric::Plug;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The machine model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Minimal and quick to start: ACPI is the only firmware table, PCIe is configured by ECAM only, and no
    /// firmware assigns BARs.
    Microvm,
    /// A PC of 2007 with PCIe; SeaBIOS assigns BARs.
    Q35,
    /// The machine of [`Q35`](Self::Q35) with an Intel IOMMU, which SeaBIOS leaves off.
    Q35Iommu,
}

/// The accelerator, which executes the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// Translation in software, which works everywhere.
    Tcg,
    /// The host's processor.
    Kvm,
}

/// A file that the guest reads through the firmware configuration device. Secrets are passed in this way,
/// because a command line is readable by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FwCfg {
    /// The name of the file in the device, `opt/...`.
    pub name: String,
    /// The file on the host.
    pub file: PathBuf,
}

/// A network device: a virtio device unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nic {
    /// A device on QEMU's user-mode network, with DHCP; the host is 10.0.2.2.
    Management,
    /// A device as [`Management`](Self::Management), from which the firmware boots: its boot program comes by
    /// TFTP.
    Netboot {
        /// The directory with the files for TFTP.
        tftp: PathBuf,
        /// The name of the boot program, which DHCP tells.
        file: String,
        /// The device's option ROM; without one the firmware must have a driver.
        rom: Option<PathBuf>,
    },
    /// A device on a port of the fabric.
    Fabric {
        /// The port.
        plug: Plug,
    },
    /// A ConnectX-3, which another process serves on this socket ([`crate::Cx3`]). QEMU must support
    /// vfio-user devices ([`crate::Qemu::has_vfio_user`]).
    Card {
        /// The socket.
        socket: PathBuf,
    },
}

/// The largest IP packet on the fabric, in bytes: RoCE's path MTU of 4096 and its headers.
const FABRIC_MTU: u32 = 4200;

/// The specification of a virtual machine.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// The machine's name in messages and of its console file.
    pub name: String,
    /// The machine's number in the cluster, from which its MAC addresses are derived.
    pub index: u16,
    /// The machine model.
    pub machine: Machine,
    /// The accelerator.
    pub accel: Accel,
    /// The number of processors.
    pub cpus: u32,
    /// The memory in MiB.
    pub memory_mb: u32,
    /// The kernel image: an ELF file with a PVH entry note.
    pub kernel: PathBuf,
    /// The kernel command line. Any user of the host can read it.
    pub cmdline: String,
    /// Files for the guest.
    pub fw_cfg: Vec<FwCfg>,
    /// A file that is loaded next to the kernel, as a boot module.
    pub initrd: Option<PathBuf>,
    /// Network devices, in the order of their PCI device numbers.
    pub nics: Vec<Nic>,
    /// True for a machine that boots again after a reset, and that resets itself after a failure. Otherwise a
    /// reset ends QEMU, and the image ends it with a status.
    pub boots_again: bool,
}

/// Returns the MAC address of a machine's port on the fabric.
fn fabric_mac(index: u16) -> [u8; 6] {
    let [high, low] = index.to_be_bytes();
    [0x52, 0x54, 0x00, 0xfe, high, low]
}

/// Returns the MAC address of a machine's management port.
fn management_mac(index: u16) -> [u8; 6] {
    let [high, low] = index.to_be_bytes();
    [0x52, 0x54, 0x00, 0xfd, high, low]
}

/// The PCI device number of the random number generator. Network devices follow it.
const RNG_SLOT: usize = 1;

impl VmSpec {
    /// Returns the arguments for QEMU, which loads the kernel itself. The console is QEMU's standard output.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut args = self.arguments_without_kernel();
        args.extend(["-kernel".into(), self.kernel.clone().into()]);
        if let Some(initrd) = &self.initrd {
            args.extend(["-initrd".into(), initrd.into()]);
        }
        if !self.cmdline.is_empty() {
            args.extend(["-append".into(), (&self.cmdline).into()]);
        }
        args
    }

    /// Returns the arguments for QEMU except those for the kernel, its command line and its module: a machine
    /// that boots from something else needs other arguments.
    #[must_use]
    pub fn arguments_without_kernel(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut arg = |option: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            args.push(option.into());
            args.push(value.as_ref().into());
        };
        if self.shares_memory() {
            let object = format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mb);
            arg("-object", &object);
            arg("-machine", &format!("{},memory-backend=memory", self.machine.options()));
        } else {
            arg("-machine", &self.machine.options());
        }
        arg("-accel", &self.accel.option());
        arg("-cpu", &self.accel.cpu());
        arg("-smp", &self.cpus.to_string());
        arg("-m", &format!("{}M", self.memory_mb));
        arg("-name", &self.name);
        arg("-display", &"none");
        arg("-chardev", &"stdio,id=console,signal=off");
        arg("-serial", &"chardev:console");
        if !self.boots_again {
            arg("-device", &"isa-debug-exit,iobase=0xf4,iosize=4");
        }
        if let Some(device) = self.machine.extra_device() {
            arg("-device", &device);
        }
        arg("-object", &"rng-random,id=random,filename=/dev/urandom");
        arg(
            "-device",
            &format!("virtio-rng-pci,rng=random,bus=pcie.0,addr={RNG_SLOT:#x},disable-legacy=on,romfile="),
        );
        for (n, nic) in self.nics.iter().enumerate() {
            if let Nic::Fabric { plug: Plug::Memory(socket) } = nic {
                arg("-chardev", &option(&format!("socket,id=port{n},server=off,path="), socket));
            }
            if let Some(netdev) = nic.netdev(n) {
                arg("-netdev", &netdev);
            }
            arg("-device", &nic.device(n, self.index, self.accel));
        }
        for file in &self.fw_cfg {
            arg("-fw_cfg", &option(&format!("name={},file=", file.name), &file.file));
        }
        args.extend(["-nodefaults", "-no-user-config"].map(OsString::from));
        args.extend((!self.boots_again).then(|| "-no-reboot".into()));
        args
    }

    /// Returns whether the fabric or a card in another process accesses the machine's memory.
    fn shares_memory(&self) -> bool {
        let reaches = |nic: &Nic| matches!(nic, Nic::Fabric { plug: Plug::Memory(_) } | Nic::Card { .. });
        self.nics.iter().any(reaches)
    }
}

impl Machine {
    fn options(self) -> &'static str {
        match self {
            // auto-kernel-cmdline would add keys for virtio-mmio devices, which the kernel does not know.
            Self::Microvm => "microvm,pcie=on,acpi=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off",
            Self::Q35 | Self::Q35Iommu => "q35,vmport=off,usb=off",
        }
    }

    /// Returns a device in addition to those of the model. A device that serves others must precede them.
    const fn extra_device(self) -> Option<&'static str> {
        match self {
            Self::Microvm | Self::Q35 => None,
            Self::Q35Iommu => Some("intel-iommu"),
        }
    }
}

impl Accel {
    fn option(self) -> &'static str {
        match self {
            Self::Tcg => "tcg,thread=multi",
            Self::Kvm => "kvm",
        }
    }

    /// Returns the doorbell option of a virtio device that QEMU itself serves. Under TCG a doorbell write is
    /// already inside QEMU, and an eventfd would only add a detour through QEMU's main loop.
    pub(crate) fn doorbell(self) -> &'static str {
        match self {
            Self::Tcg => ",ioeventfd=off",
            Self::Kvm => "",
        }
    }

    fn cpu(self) -> &'static str {
        match self {
            Self::Tcg => "max",
            Self::Kvm => "host",
        }
    }
}

impl Nic {
    fn netdev(&self, n: usize) -> Option<OsString> {
        Some(match self {
            Self::Management => format!("user,id=net{n},ipv6=off").into(),
            Self::Netboot { tftp, file, .. } => {
                option(&format!("user,id=net{n},ipv6=off,bootfile={file},tftp="), tftp)
            }
            Self::Fabric { plug: Plug::Memory(_) } => format!("vhost-user,id=net{n},chardev=port{n}").into(),
            Self::Fabric { plug: Plug::Stream(socket) } => {
                option(&format!("stream,id=net{n},server=off,addr.type=unix,addr.path="), socket)
            }
            Self::Card { .. } => return None,
        })
    }

    fn device(&self, n: usize, index: u16, accel: Accel) -> String {
        let slot = RNG_SLOT + 1 + n;
        let (mac, more) = match self {
            Self::Card { socket } => return card(socket, slot),
            Self::Management => (management_mac(index), String::new()),
            Self::Netboot { rom, .. } => {
                let rom = rom.as_deref().map(|rom| rom.to_string_lossy().replace(',', ",,"));
                (management_mac(index), format!("{},bootindex=0", rom.unwrap_or_default()))
            }
            Self::Fabric { .. } => (fabric_mac(index), format!(",host_mtu={FABRIC_MTU}")),
        };
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        // The fabric learns of a doorbell by an eventfd.
        let doorbell = match self {
            Self::Fabric { plug: Plug::Memory(_) } => "",
            _ => accel.doorbell(),
        };
        format!(
            "virtio-net-pci,netdev=net{n},mac={mac},bus=pcie.0,addr={slot:#x},disable-legacy=on,romfile={more}{doorbell}"
        )
    }
}

/// Returns the option for a card in JSON, the only format in which its socket can be stated.
fn card(socket: &Path, slot: usize) -> String {
    let path = socket.to_string_lossy();
    json!({
        "driver": "vfio-user-pci",
        "bus": "pcie.0",
        "addr": format!("{slot:#x}"),
        "socket": { "type": "unix", "path": path },
    })
    .to_string()
}

/// Returns a QEMU option that ends with a path, in which commas are doubled.
fn option(before: &str, path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut bytes = before.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        bytes.push(*byte);
        if *byte == b',' {
            bytes.push(b',');
        }
    }
    OsString::from_vec(bytes)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Microvm => "microvm",
            Self::Q35 => "q35",
            Self::Q35Iommu => "q35-iommu",
        })
    }
}

impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "microvm" => Ok(Self::Microvm),
            "q35" => Ok(Self::Q35),
            _ => Err(format!("unknown machine `{text}` (known: microvm, q35)")),
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_command_line() {
        let spec = VmSpec {
            name: "node3".into(),
            index: 3,
            machine: Machine::Q35,
            accel: Accel::Tcg,
            cpus: 2,
            memory_mb: 96,
            kernel: "k".into(),
            cmdline: "a=b c=d".into(),
            fw_cfg: vec![FwCfg { name: "opt/x".into(), file: "a,b".into() }],
            initrd: Some("i,j".into()),
            nics: vec![Nic::Management, Nic::Fabric { plug: Plug::Stream("s".into()) }],
            boots_again: false,
        };
        let line = |spec: &VmSpec| {
            let args: Vec<_> = spec.arguments().into_iter().map(|a| a.into_string().unwrap()).collect();
            args.join(" ")
        };
        let streamed = line(&spec);
        for part in [
            "-machine q35,vmport=off,usb=off -accel tcg,thread=multi -cpu max -smp 2 -m 96M",
            "-netdev user,id=net0,ipv6=off -device virtio-net-pci,netdev=net0,mac=52:54:00:fd:00:03,bus=pcie.0,addr=0x2",
            "-netdev stream,id=net1,server=off,addr.type=unix,addr.path=s",
            "mac=52:54:00:fe:00:03,bus=pcie.0,addr=0x3,disable-legacy=on,romfile=,host_mtu=4200,ioeventfd=off",
            "-fw_cfg name=opt/x,file=a,,b",
            "-nodefaults -no-user-config -no-reboot -kernel k -initrd i,j -append a=b c=d",
        ] {
            assert!(streamed.contains(part), "{part}\nnot in\n{streamed}");
        }
        let shared = line(&VmSpec {
            nics: vec![Nic::Management, Nic::Fabric { plug: Plug::Memory("s,t".into()) }],
            ..spec.clone()
        });
        for part in [
            "-object memory-backend-memfd,id=memory,size=96M,share=on -machine q35,vmport=off,usb=off,memory-backend=memory",
            "-chardev socket,id=port1,server=off,path=s,,t -netdev vhost-user,id=net1,chardev=port1",
            "mac=52:54:00:fe:00:03,bus=pcie.0,addr=0x3,disable-legacy=on,romfile=,host_mtu=4200 -fw_cfg",
        ] {
            assert!(shared.contains(part), "{part}\nnot in\n{shared}");
        }
        let again = line(&VmSpec { boots_again: true, ..spec.clone() });
        assert!(!again.contains("-no-reboot") && !again.contains("isa-debug-exit"), "{again}");
        let carded = line(&VmSpec { nics: vec![Nic::Management, Nic::Card { socket: "c".into() }], ..spec });
        for part in [
            "-machine q35,vmport=off,usb=off,memory-backend=memory",
            r#"addr=0x2,disable-legacy=on,romfile=,ioeventfd=off -device {"addr":"0x3","bus":"pcie.0","driver":"vfio-user-pci""#,
            r#""socket":{"path":"c","type":"unix"}} -fw_cfg"#,
        ] {
            assert!(carded.contains(part), "{part}\nnot in\n{carded}");
        }
    }
}
