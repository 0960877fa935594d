//! The parts of the report: bus, ports, host.

use super::Kind;
use super::sysfs::{Function, MSIX, PCI_EXPRESS, capability};
use anyhow::Result;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The size of BAR 0 of a physical function, in bytes.
const REGISTERS: u64 = 1 << 20;
/// The least size of BAR 2, in bytes. Its first 128 pages are for events.
const LEAST_DOORBELLS: u64 = 1 << 20;

/// Describes the function's windows and its connection to the bus.
pub(super) fn describe_bus(
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
pub(super) fn describe_ports(function: &Function, report: &mut String) -> Result<()> {
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
pub(super) fn describe_host(
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
