//! Large machines, and power: what the usual machine of tests does not have.

use super::bare::Bare;
use super::orders;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cargo::Profile;
use lab::cluster::Lab;
use lab::manager::{self, Manager};
use lab::{image, setup, tool};
use qemu::Qemu;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The longest silence of a manager on a busy host.
const LIMIT: Duration = Duration::from_secs(240);

/// The exit status of QEMU after the success of a self-test.
pub(super) const SUCCESS: i32 = 33;
/// A device by which a self-test ends QEMU.
pub(super) const EXIT: &str = "-device isa-debug-exit,iobase=0xf4,iosize=4";
/// The most memory, in KiB, that a machine with 900 GB may touch more than one with 1 GB until the
/// executor runs. All bitmaps have 88 MiB.
const MORE_KIB: u64 = 24 << 10;

/// The machine models, each with the options that it needs.
pub(super) const MODELS: [(&str, &str); 3] = [
    ("pc", "-machine pc,vmport=off,usb=off"),
    ("q35", "-machine q35,vmport=off,usb=off"),
    ("microvm", "-machine microvm,pcie=on,acpi=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off"),
];

/// Mistakes: the case's name, words of the command line, and the cause that is said.
const MISTAKES: [(&str, &str, &str); 3] = [
    ("unknown-key", "manger=10.0.2.2", "command line: unknown key `manger` in `manger=10.0.2.2`"),
    ("absent-card", "nic=mlx4", "nic=mlx4: this machine has no ConnectX-3"),
    ("wrong-value", "hardware-report=yes", "hardware-report=yes: want on or off"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (model, options) in MODELS {
        for (test, cause) in [("off", "guest-shutdown"), ("reset", "guest-reset"), ("panic", "guest-reset")] {
            let check = move |log: &Path| power(options, test, cause, log).map(|()| Outcome::Passed);
            cases.push(Case::new(format!("machine::power-{test}-{model}"), check));
        }
        let check = move |log: &Path| passes("stale", options, log).map(|()| Outcome::Passed);
        cases.push(Case::new(format!("machine::stale-interrupts-{model}"), check));
    }
    for (model, options) in [MODELS[0], MODELS[1]] {
        let check = move |log: &Path| passes("masters", options, log).map(|()| Outcome::Passed);
        cases.push(Case::new(format!("machine::bus-masters-{model}"), check));
    }
    for (model, options) in MODELS {
        let check = move |times| move |log: &Path| warm(options, times, log).map(|()| Outcome::Passed);
        cases.push(Case::new(format!("machine::warm-boot-{model}-5"), check(5)));
        cases.push(Case::new(format!("machine::warm-boot-{model}-100"), check(100)).full_if(true));
        for (mistake, words, says) in MISTAKES {
            let check = move |log: &Path| stays(options, words, says, log).map(|()| Outcome::Passed);
            cases.push(Case::new(format!("machine::{mistake}-does-not-reset-{model}"), check));
        }
        let check = move |log: &Path| former(options, log).map(|()| Outcome::Passed);
        cases.push(Case::new(format!("machine::former-end-reaches-the-manager-{model}"), check));
    }
    cases.push(Case::new("machine::hardware-report", |log| report(log).map(|()| Outcome::Passed)));
    let told = |log: &Path| report_to_manager(log).map(|()| Outcome::Passed);
    cases.push(Case::new("machine::hardware-report-reaches-the-manager", told));
    cases.extend(orders::cases());
    cases.push(Case::new("machine::numa-4-nodes", |log| numa(log).map(|()| Outcome::Passed)));
    let crowd = |log: &Path| crowd(log).map(|()| Outcome::Passed);
    cases.push(Case::new("machine::crowd-288cpu", crowd).full_if(true));
    let lazy = |log: &Path| memory(log).map(|()| Outcome::Passed);
    cases.push(Case::new("machine::memory-900G", lazy).full_if(true));
    cases
}

/// Returns the options of a machine that runs a self-test.
pub(super) fn options(machine: &str, processors: &str) -> Result<String> {
    let kernel = image::build_for_tests()?.elf;
    let accel = Lab::get()?.accel;
    let (accel, cpu) = match accel {
        qemu::vm::Accel::Tcg => ("tcg,thread=multi", "max"),
        qemu::vm::Accel::Kvm => ("kvm", "host"),
    };
    let kernel = kernel.to_str().context("a kernel whose path is no text")?;
    ensure!(!kernel.contains(' '), "the path of the kernel has a space");
    Ok(format!("{machine} -accel {accel} -cpu {cpu} {processors} -kernel {kernel}"))
}

/// Runs a self-test, which must succeed.
fn passes(test: &str, machine: &str, log: &Path) -> Result<()> {
    let options = options(machine, &format!("-smp 1 -m 64M {EXIT} -device virtio-rng-pci"))?;
    succeeds(&Lab::get()?.qemu, &options, test, log)
}

/// Runs a self-test on a machine with these options, which must succeed.
fn succeeds(qemu: &Qemu, options: &str, test: &str, log: &Path) -> Result<()> {
    let bare = Bare::start(qemu, options, &["-no-reboot", "-append", &format!("selftest={test}")], log)?;
    let status = bare.ends()?;
    ensure!(status.code() == Some(SUCCESS), "selftest={test}: {status}; see {}", log.display());
    Ok(())
}

/// Turns a machine off, or resets it, without the debug exit device. QEMU tells the cause.
fn power(machine: &str, test: &str, cause: &str, log: &Path) -> Result<()> {
    let options = options(machine, "-smp 2 -m 64M -device virtio-rng-pci")?;
    let append = format!("selftest={test}");
    let mut bare = Bare::start(&Lab::get()?.qemu, &options, &["-no-reboot", "-append", &append], log)?;
    let data = bare.event("SHUTDOWN")?;
    let reason = data.get("reason").and_then(|reason| reason.as_str());
    ensure!(reason == Some(cause), "the machine ended by {data}, not by {cause}");
    Ok(())
}

/// A machine with an IOMMU that is off prints what it consists of.
fn report(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[1];
    let options = options(machine, "-smp 2 -m 96M -device virtio-rng-pci -device intel-iommu")?;
    let rest = ["-no-reboot", "-append", "hardware-report=on"];
    let mut bare = Bare::start(&Lab::get()?.qemu, &options, &rest, log)?;
    bare.says("hardware report: end")?;
    let said = bare.said();
    for part in [
        "hardware report: begin (Ferrolite ",
        "processor: local APIC ids [0, 1], ",
        "memory: RAM 0x100000 to 0x",
        "acpi: FACP APIC ",
        "iommu: the IOMMU at 0xfed90000 (DMAR): status 0x00000000",
        "pci 00:00.0: 8086:29c0 subsystem 1af4:1100 class 060000",
    ] {
        ensure!(said.contains(part), "the report lacks `{part}`");
    }
    Ok(())
}

/// A node that has joined sends the report to the manager's log, in the order of its lines, and stays.
fn report_to_manager(log: &Path) -> Result<()> {
    let words = "nic=softroce hardware-report=on";
    let (mut manager, _bare, _dir) = node(MODELS[1].1, words, &["-no-reboot"], log)?;
    for part in
        ["report: begin (Ferrolite ", "acpi: FACP", "pci 00:00.0: ", "report: end", "report: Attributes"]
    {
        let is_there =
            manager.wait_for_line(part, LIMIT).is_some_and(|line| line.contains("(node0): hardware: "));
        ensure!(is_there, "the manager's log lacks `{part}`");
    }
    tool::run_ok(manager.client("nodes").args(["--wait", "1", "--timeout", "60"]), log, LIMIT).map(drop)
}

/// Four nodes with two processors each, and distances: memory comes from the node of its processor.
fn numa(log: &Path) -> Result<()> {
    let nodes: String = (0..4)
        .map(|n| {
            let first = 2 * n;
            format!(
                " -object memory-backend-ram,id=m{n},size=64M -numa node,nodeid={n},memdev=m{n},cpus={first}-{}",
                first + 1
            )
        })
        .collect();
    let distances: String = (0..4)
        .flat_map(|from| (0..4).map(move |to| (from, to)))
        .filter(|(from, to)| from < to)
        .map(|(from, to)| format!(" -numa dist,src={from},dst={to},val={}", 20 + from + to))
        .collect();
    let (_, machine) = MODELS[1];
    let options = options(machine, &format!("-smp 8 -m 256M {EXIT}{nodes}{distances}"))?;
    succeeds(&Lab::get()?.qemu, &options, "numa", log)
}

/// 288 processors, whose ids need x2APIC: all of them run tasks.
fn crowd(log: &Path) -> Result<()> {
    let qemu = setup::vfio_user_qemu()?;
    let (_, machine) = MODELS[1];
    let options = options(machine, &format!("-smp 288 -m 1G {EXIT} -device intel-iommu,eim=on,intremap=on"))?;
    succeeds(&qemu, &options, "crowd", log)?;
    let said = std::fs::read_to_string(log)?;
    ensure!(
        said.contains("288 processors ran tasks, APIC ids up to 287"),
        "not all of 288 processors ran tasks"
    );
    ensure!(said.contains("x2APIC"), "the local APICs are not in x2APIC mode");
    Ok(())
}

/// A machine with 900 GB starts without writing the bitmaps of its frames. The times are printed,
/// and the memory that the machine has touched is judged.
fn memory(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[1];
    let mut most = Vec::new();
    for size in ["1G", "900G"] {
        let memory = format!("-smp 1 -m {size} -object memory-backend-memfd,id=m,size={size},reserve=off");
        let options = options(&format!("{machine},memory-backend=m"), &memory)?;
        let log = log.with_extension(format!("{size}.log"));
        // The machine stays, because nothing ends it.
        let mut bare = Bare::start(
            &Lab::get()?.qemu,
            &options,
            &["-no-shutdown", "-no-reboot", "-append", "selftest=boot"],
            &log,
        )?;
        bare.says("selftest boot: ")?;
        let executor =
            bare.said().lines().find(|line| line.contains("bootchart: executor")).map(str::to_owned);
        let touched = bare.memory_kib()?;
        println!("{size}: {}, {touched} KiB touched", executor.unwrap_or_default());
        most.push(touched);
    }
    let more = most.last().zip(most.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
    ensure!(more < MORE_KIB, "a machine with 900 GB touches {more} KiB more than one with 1 GB");
    Ok(())
}

/// Boots the image from itself, again and again: each time all processors start, and memory is the same.
fn warm(machine: &str, times: usize, log: &Path) -> Result<()> {
    // The machine reads the file byte by byte, so it has no symbols.
    let stripped = log.with_extension("elf");
    setup::binutils()?;
    tool::output(Command::new("strip").arg("-o").arg(&stripped).arg(image::build_for_tests()?.elf))?;
    let file = format!("name=opt/ferrolite/image,file={}", stripped.display());
    let options = options(machine, &format!("-smp 3 -m 128M {EXIT} -device virtio-rng-pci"))?;
    let append = format!("selftest=warm selftest_s={times}");
    let rest = ["-no-reboot", "-append", &append, "-fw_cfg", &file];
    let status = Bare::start(&Lab::get()?.qemu, &options, &rest, log)?.ends()?;
    ensure!(status.code() == Some(SUCCESS), "selftest=warm: {status}; see {}", log.display());
    let said = std::fs::read_to_string(log)?;
    let boots: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("warm boot: ")).collect();
    ensure!(boots.len() == times + 1, "{} boots, not {}", boots.len(), times + 1);
    let memory: BTreeSet<_> =
        boots.iter().filter_map(|boot| boot.split_once(", ")).map(|(_, rest)| rest).collect();
    ensure!(memory.len() == 1, "processors and memory differ: {memory:?}");
    let places = said.lines().filter_map(|line| line.split_once("image at ")?.1.split_once(';'));
    let places: BTreeSet<_> = places.map(|(place, _)| place).collect();
    ensure!(places.len() > 1, "all kernels lay at {places:?}");
    Ok(())
}

/// A node panics once it has joined, and its machine is reset: when it joins again, the manager is
/// told why the former boot ended.
fn former(machine: &str, log: &Path) -> Result<()> {
    let append = "selftest=join selftest_s=100 app=panic nic=softroce";
    let (mut manager, _bare, _dir) = node(machine, append, &[], log)?;
    let said =
        manager.wait_for_line("former boot", LIMIT).context("the manager is not told of the former boot")?;
    for part in ["node0", "asked for by app=panic"] {
        ensure!(said.contains(part), "the manager says `{said}`, which lacks `{part}`");
    }
    Ok(())
}

/// Starts a manager, and a machine without the debug exit device whose node `node0` knows it. The directory
/// is the manager's.
pub(super) fn node(
    machine: &str,
    words: &str,
    rest: &[&str],
    log: &Path,
) -> Result<(Manager, Bare, TempDir)> {
    let dir = TempDir::with_prefix("ferrolite-")?;
    let manager = Manager::start(&manager::build(Profile::Dev)?, 0, dir.path())?;
    let nics: String = (0..2)
        .map(|n| {
            format!(" -netdev user,id=n{n} -device virtio-net-pci,netdev=n{n},disable-legacy=on,romfile=")
        })
        .collect();
    let options = options(machine, &format!("-smp 1 -m 128M -device virtio-rng-pci{nics}"))?;
    let append = format!("{words} node=node0 manager=10.0.2.2:{}", manager.port()?);
    let key = format!("name=opt/ferrolite/key,file={}", manager.key().display());
    let rest = [&["-append", &append, "-fw_cfg", &key], rest].concat();
    let bare = Bare::start(&Lab::get()?.qemu, &options, &rest, log)?;
    Ok((manager, bare, dir))
}

/// A node with a mistake in its settings says so on its console and to the manager, and its machine is
/// neither reset nor turned off.
fn stays(machine: &str, words: &str, says: &str, log: &Path) -> Result<()> {
    let (mut manager, mut bare, _dir) = node(machine, words, &["-no-reboot"], log)?;
    bare.says(&format!("this node does not start: {says}"))?;
    let told = manager.wait_for_line("does not start", LIMIT).context("the manager is not told")?;
    let told_well = told.contains("the node node0 does not start") && told.contains(says);
    ensure!(told_well, "the manager says `{told}`");
    bare.says("the manager knows why this node does not start")?;
    let status = bare.execute("query-status", &json!({}))?;
    ensure!(status.get("status").and_then(Value::as_str) == Some("running"), "the machine is {status}");
    Ok(())
}
