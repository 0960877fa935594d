//! `cargo xtask doctor`: describes a ConnectX-3 of this Linux host from sysfs, and what an appliance would do
//! with it. It writes nothing and does not access the card.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const VENDOR: u16 = 0x15b3;
/// The PCI device ids of the cards, with names.
const CARDS: [(u16, &str, Kind); 3] = [
    (0x1003, "ConnectX-3", Kind::Physical { pro: false }),
    (0x1007, "ConnectX-3 Pro", Kind::Physical { pro: true }),
    (0x1004, "virtual function of a ConnectX-3 or ConnectX-3 Pro", Kind::Virtual),
];

/// The size of BAR 0 of a physical function in bytes, and the least size of BAR 2, whose first 128 pages are
/// for events.
const REGISTERS: u64 = 1 << 20;
const LEAST_DOORBELLS: u64 = 1 << 20;
/// Capabilities of the configuration space.
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: usize = 0x34;
const PCI_EXPRESS: u8 = 0x10;
const MSIX: u8 = 0x11;
const MOST_CAPABILITIES: usize = 48;

/// The card, and the location of sysfs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PCI address of the card, as lspci prints it: `[DOMAIN:]BUS:DEVICE.FUNCTION`
    #[arg(long, value_name = "ADDRESS")]
    pci: String,
    /// Directory where sysfs is mounted
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
}

/// Prints the findings.
pub(crate) fn doctor(options: &Options) -> Result<()> {
    let address = address(&options.pci)?;
    print!("{}", examine(&options.sysfs, &address)?);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Physical { pro: bool },
    Virtual,
}

/// Returns a PCI address with its domain.
fn address(text: &str) -> Result<String> {
    let hex =
        |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split(':').collect();
    let (domain, bus, rest) = match parts[..] {
        [bus, rest] => ("0000", bus, rest),
        [domain, bus, rest] => (domain, bus, rest),
        _ => ("", "", ""),
    };
    let good = rest.split_once('.').is_some_and(|(device, function)| {
        hex(device, 2)
            && u8::from_str_radix(device, 16).is_ok_and(|device| device < 32)
            && function.len() == 1
            && function.bytes().all(|byte| (b'0'..=b'7').contains(&byte))
    });
    ensure!(
        hex(domain, 4) && hex(bus, 2) && good,
        "--pci {text}: want [DOMAIN:]BUS:DEVICE.FUNCTION, as in 0000:03:00.0"
    );
    Ok(format!("{domain}:{bus}:{rest}").to_lowercase())
}

/// A function as sysfs shows it.
struct Function {
    dir: PathBuf,
    address: String,
}

impl Function {
    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, name: &str) -> Result<u16> {
        let text = self.text(name).with_context(|| format!("{}: sysfs has no `{name}`", self.address))?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16)
            .with_context(|| format!("{}: `{name}` is `{text}`", self.address))
    }

    /// Returns the last component of a symbolic link's target.
    fn link(&self, name: &str) -> Option<String> {
        Some(fs::read_link(self.dir.join(name)).ok()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the names in a directory, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the bytes of a memory window; 0 if it is absent.
    fn window(&self, bar: usize) -> u64 {
        let all = self.text("resource").unwrap_or_default();
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let sized = || {
            let mut words = all.lines().nth(bar)?.split_whitespace();
            let (start, end) = (number(words.next()?)?, number(words.next()?)?);
            (start != 0).then(|| end.checked_sub(start)?.checked_add(1))?
        };
        sized().unwrap_or(0)
    }
}

/// Returns the bytes at a capability of the configuration space. Only root sees more than its first 64 bytes.
fn capability(config: &[u8], id: u8) -> Option<&[u8]> {
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    if word(STATUS)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = usize::from(*config.get(CAPABILITIES)?);
    for _ in 0..MOST_CAPABILITIES {
        let here = config.get(at & !3..).filter(|_| at >= 0x40)?;
        match here {
            [found, _, ..] if *found == id => return Some(here),
            [_, next, ..] => at = usize::from(*next),
            _ => return None,
        }
    }
    None
}

/// Returns the report about the function at `address`.
fn examine(sysfs: &Path, address: &str) -> Result<String> {
    let dir = sysfs.join("bus/pci/devices").join(address);
    ensure!(dir.exists(), "there is no PCI function {address} on this host: no {}", dir.display());
    let function = Function { dir, address: address.to_owned() };
    let (vendor, device) = (function.number("vendor")?, function.number("device")?);
    let card = CARDS.iter().find(|(number, ..)| (vendor, device) == (VENDOR, *number));
    let Some((_, name, kind)) = card else {
        bail!("PCI function {address} is {vendor:04x}:{device:04x}, not a ConnectX-3 or ConnectX-3 Pro");
    };
    let mut report = String::new();
    let mut problems = Vec::new();
    writeln!(report, "card:       Mellanox {name} ({vendor:04x}:{device:04x}) at {address}")?;
    describe_bus(&function, *kind, &mut report, &mut problems)?;
    describe_ports(&function, &mut report)?;
    describe_host(&function, sysfs, *kind, &mut report, &mut problems)?;
    writeln!(report, "\nnic=mlx4 on it would:")?;
    for step in outcome(*kind) {
        writeln!(report, "  - {step}")?;
    }
    if problems.is_empty() {
        writeln!(report, "\nready to be passed through:\n  -device vfio-pci,host={address}")?;
    } else {
        writeln!(report, "\nto be done first:")?;
        for problem in problems {
            writeln!(report, "  - {problem}")?;
        }
    }
    Ok(report)
}

/// Describes the function's windows and its connection to the bus.
fn describe_bus(
    function: &Function,
    kind: Kind,
    report: &mut String,
    problems: &mut Vec<String>,
) -> Result<()> {
    let [registers, doorbells] = [0, 2].map(|bar| function.window(bar));
    let kib = |bytes: u64| if bytes == 0 { "none".to_owned() } else { format!("{} KiB", bytes >> 10) };
    writeln!(report, "windows:    registers {}, doorbells {}", kib(registers), kib(doorbells))?;
    if kind != Kind::Virtual && registers < REGISTERS {
        problems
            .push("the host's firmware assigns no address to BAR 0 (1 MiB): check its PCI settings".into());
    }
    if doorbells < LEAST_DOORBELLS {
        problems.push(
            "the host's firmware assigns no address to BAR 2: allow 64-bit windows (\"above 4G decoding\")"
                .into(),
        );
    }
    let config = fs::read(function.dir.join("config")).unwrap_or_default();
    match capability(&config, MSIX) {
        Some([_, _, low, high, ..]) => {
            writeln!(report, "interrupts: {} by MSI-X", (u16::from_le_bytes([*low, *high]) & 0x7ff) + 1)?;
        }
        _ if config.len() <= 64 => writeln!(report, "interrupts: shown to root only")?,
        _ => problems.push("it has no MSI-X, and without it an idle node is not woken".into()),
    }
    if let (Some(speed), Some(width)) =
        (function.text("current_link_speed"), function.text("current_link_width"))
    {
        writeln!(report, "bus:        {speed}, {width} lanes")?;
    } else if let Some(express) = capability(&config, PCI_EXPRESS)
        && let [low, high] = express.get(0x12..0x14).unwrap_or_default()
    {
        let link = u16::from_le_bytes([*low, *high]);
        writeln!(report, "bus:        PCI Express generation {}, {} lanes", link & 0xf, link >> 4 & 0x3f)?;
    }
    Ok(())
}

/// Describes firmware and ports, as far as Linux's driver reports them.
fn describe_ports(function: &Function, report: &mut String) -> Result<()> {
    let devices = function.names("infiniband");
    for device in &devices {
        let base = format!("infiniband/{device}");
        let of = |name: &str| function.text(&format!("{base}/{name}")).unwrap_or_else(|| "unknown".into());
        writeln!(report, "firmware:   {}, board {}", of("fw_ver"), of("board_id"))?;
        for port in function.names(&format!("{base}/ports")) {
            let [state, layer, rate] =
                ["state", "link_layer", "rate"].map(|name| of(&format!("ports/{port}/{name}")));
            writeln!(report, "port {port}:     {layer}, {state}, {rate}")?;
        }
    }
    if devices.is_empty() {
        writeln!(
            report,
            "firmware:   unknown: no Linux driver is bound to the card (an appliance's console shows it)"
        )?;
    }
    Ok(())
}

/// Describes the card's present driver and the steps for passing it through.
fn describe_host(
    function: &Function,
    sysfs: &Path,
    kind: Kind,
    report: &mut String,
    problems: &mut Vec<String>,
) -> Result<()> {
    let address = &function.address;
    let driver = function.link("driver");
    writeln!(report, "driver:     {}", driver.as_deref().unwrap_or("none"))?;
    match (kind, function.link("physfn")) {
        (Kind::Virtual, Some(master)) => {
            writeln!(report, "master:     {master}")?;
            let of_master = sysfs.join("bus/pci/devices").join(&master).join("driver");
            let driven = fs::read_link(of_master).ok().and_then(|to| Some(to.file_name()?.to_owned()));
            if driven.is_none_or(|name| name != "mlx4_core") {
                problems.push(format!(
                    "its master {master} must be driven by mlx4_core: modprobe mlx4_core num_vfs=1"
                ));
            }
        }
        (Kind::Virtual, None) => {
            writeln!(report, "master:     not on this host (the function was passed through to it)")?;
        }
        (Kind::Physical { .. }, _) => {
            let functions = function.text("sriov_totalvfs").unwrap_or_else(|| "0".into());
            let made = function.text("sriov_numvfs").unwrap_or_else(|| "0".into());
            writeln!(report, "SR-IOV:     {made} of {functions} virtual functions")?;
            if made != "0" {
                problems.push(format!(
                    "it has {made} virtual functions, which disappear when it is reset: echo 0 >/sys/bus/pci/devices/{address}/sriov_numvfs"
                ));
            }
        }
    }
    match function.link("iommu_group") {
        Some(group) => {
            let mut others = function.names("iommu_group/devices");
            others.retain(|other| other != address);
            writeln!(
                report,
                "IOMMU:      group {group}, shared with {}",
                match &others[..] {
                    [] => "nobody".to_owned(),
                    others => others.join(", "),
                }
            )?;
            if !others.is_empty() {
                problems
                    .push(format!("vfio-pci must have all functions of its IOMMU group: also {}", others.join(", ")));
            }
        }
        None => problems.push(
            "the host's IOMMU is off: boot with intel_iommu=on or amd_iommu=on, and turn it on in the firmware".into(),
        ),
    }
    if driver.as_deref() != Some("vfio-pci") {
        let mut commands =
            format!("modprobe vfio-pci; echo vfio-pci >/sys/bus/pci/devices/{address}/driver_override");
        if driver.is_some() {
            write!(commands, "; echo {address} >/sys/bus/pci/devices/{address}/driver/unbind")?;
        }
        write!(commands, "; echo {address} >/sys/bus/pci/drivers_probe")?;
        problems.push(format!("bind it to vfio-pci: {commands}"));
    }
    Ok(())
}

/// Returns the steps that the driver would take.
fn outcome(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Physical { pro: true } => &[
            "reset it, and bring it up with memory for its tables of less than 512 KiB, and 3 MiB with 256 peers",
            "open its first port: RoCE v2 and RoCE v1 on Ethernet, or InfiniBand once a subnet manager has given it a LID (not tried on an appliance yet)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
        Kind::Physical { pro: false } => &[
            "reset it, and bring it up with memory for its tables of less than 512 KiB, and 3 MiB with 256 peers",
            "open its first port: RoCE v1 on Ethernet (no RoCE v2: peers that have nothing else are refused), or InfiniBand once a subnet manager has given it a LID (not tried on an appliance yet)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
        Kind::Virtual => &[
            "ask its master for queue pairs, keys and completion queues; no reset of the card",
            "use RoCE v1 (a master lets its virtual functions have no RoCE v2)",
            "give up the start after 10 s without a link, and with nic=auto use softroce",
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// Returns a sysfs tree with a card at 0000:03:00.0.
    fn tree(device: &str, driver: Option<&str>) -> TempDir {
        let tree = TempDir::new().unwrap();
        let at = tree.path().join("bus/pci/devices/0000:03:00.0");
        let write = |name: &str, text: &str| {
            let path = at.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("vendor", "0x15b3\n");
        write("device", &format!("{device}\n"));
        let line =
            |start: u64, len: u64| format!("{start:#018x} {:#018x} 0x0000000000040200\n", start + len - 1);
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        write(
            "resource",
            &format!("{}{none}{}{none}", line(0xf000_0000, 1 << 20), line(0x38_0000_0000, 8 << 20)),
        );
        write("sriov_totalvfs", "8\n");
        write("sriov_numvfs", "0\n");
        write("infiniband/mlx4_0/fw_ver", "2.42.5000\n");
        write("infiniband/mlx4_0/board_id", "MT_1200111019\n");
        write("infiniband/mlx4_0/ports/1/state", "4: ACTIVE\n");
        write("infiniband/mlx4_0/ports/1/link_layer", "Ethernet\n");
        write("infiniband/mlx4_0/ports/1/rate", "40 Gb/sec (4X QDR)\n");
        let group = tree.path().join("kernel/iommu_groups/17");
        fs::create_dir_all(group.join("devices")).unwrap();
        fs::write(group.join("devices/0000:03:00.0"), "").unwrap();
        symlink(&group, at.join("iommu_group")).unwrap();
        if let Some(driver) = driver {
            symlink(tree.path().join(driver), at.join("driver")).unwrap();
        }
        let mut config = vec![0u8; 256];
        config[STATUS] = 0x10;
        config[CAPABILITIES] = 0x60;
        config[0x60..0x62].copy_from_slice(&[PCI_EXPRESS, 0x9c]);
        config[0x72..0x74].copy_from_slice(&[0x83, 0]);
        config[0x9c..0xa0].copy_from_slice(&[MSIX, 0, 127, 0]);
        fs::write(at.join("config"), config).unwrap();
        tree
    }

    #[test]
    fn a_card_that_is_ready() {
        let tree = tree("0x1007", Some("vfio-pci"));
        let report = examine(tree.path(), "0000:03:00.0").unwrap();
        for part in [
            "ConnectX-3 Pro (15b3:1007) at 0000:03:00.0",
            "registers 1024 KiB, doorbells 8192 KiB",
            "128 by MSI-X",
            "generation 3, 8 lanes",
            "2.42.5000, board MT_1200111019",
            "Ethernet, 4: ACTIVE",
            "group 17, shared with nobody",
            "RoCE v2",
            "-device vfio-pci,host=0000:03:00.0",
        ] {
            assert!(report.contains(part), "no `{part}` in\n{report}");
        }
        assert!(!report.contains("to be done first"), "{report}");
    }

    #[test]
    fn what_is_to_be_done_is_said() {
        let tree = tree("0x1003", Some("mlx4_core"));
        let at = tree.path().join("bus/pci/devices/0000:03:00.0");
        fs::write(at.join("sriov_numvfs"), "4").unwrap();
        fs::write(tree.path().join("kernel/iommu_groups/17/devices/0000:00:01.0"), "").unwrap();
        let report = examine(tree.path(), "0000:03:00.0").unwrap();
        for part in
            ["no RoCE v2", "4 virtual functions", "also 0000:00:01.0", "driver_override", "driver/unbind"]
        {
            assert!(report.contains(part), "no `{part}` in\n{report}");
        }
        fs::remove_file(at.join("iommu_group")).unwrap();
        fs::write(at.join("resource"), "").unwrap();
        let report = examine(tree.path(), "0000:03:00.0").unwrap();
        for part in ["IOMMU is off", "BAR 0", "BAR 2"] {
            assert!(report.contains(part), "no `{part}` in\n{report}");
        }
    }

    #[test]
    fn a_virtual_function_needs_its_master() {
        let tree = tree("0x1004", Some("vfio-pci"));
        let master = tree.path().join("bus/pci/devices/0000:02:00.0");
        fs::create_dir_all(&master).unwrap();
        symlink(&master, tree.path().join("bus/pci/devices/0000:03:00.0/physfn")).unwrap();
        let report = examine(tree.path(), "0000:03:00.0").unwrap();
        assert!(report.contains("master 0000:02:00.0 must be driven by mlx4_core"), "{report}");
        symlink(tree.path().join("mlx4_core"), master.join("driver")).unwrap();
        let report = examine(tree.path(), "0000:03:00.0").unwrap();
        assert!(report.contains("master:     0000:02:00.0") && report.contains("ready to be"), "{report}");
    }

    #[test]
    fn what_is_no_card_is_an_error() {
        let tree = tree("0x1019", None);
        let error = |address: &str| examine(tree.path(), address).unwrap_err().to_string();
        assert!(error("0000:03:00.0").contains("is 15b3:1019, not a ConnectX-3"));
        assert!(error("0000:04:00.0").contains("there is no PCI function 0000:04:00.0"));
        fs::remove_file(tree.path().join("bus/pci/devices/0000:03:00.0/vendor")).unwrap();
        assert!(error("0000:03:00.0").contains("no `vendor`"));
    }

    #[test]
    fn addresses() {
        for (text, full) in [("03:00.0", "0000:03:00.0"), ("0001:AF:1f.7", "0001:af:1f.7")] {
            assert_eq!(address(text).unwrap(), full);
        }
        for wrong in [
            "",
            "3:0.0",
            "03:00",
            "03:20.0",
            "03:00.8",
            "00:00:03:00.0",
            "../03:00.0",
            "03:00.0/..",
            "xx:00.0",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    /// Parses random configuration spaces: the walk must end, and stay inside.
    #[test]
    fn capabilities_that_go_round_end() {
        let mut config = vec![0u8; 256];
        config[STATUS] = 0x10;
        config[CAPABILITIES] = 0x40;
        config[0x40..0x42].copy_from_slice(&[1, 0x40]);
        assert_eq!(capability(&config, MSIX), None);
        config[CAPABILITIES] = 0xff;
        assert_eq!(capability(&config, MSIX), None);
        assert_eq!(capability(&[], MSIX), None);
        assert_eq!(capability(&config[..64], MSIX), None);
    }
}
