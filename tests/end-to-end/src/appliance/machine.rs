//! Large machines, and power: what the usual machine of tests does not have.

use super::bare::Bare;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cluster::Lab;
use lab::{image, setup};
use qemu::Qemu;
use serde_json::json;
use std::path::Path;

/// The exit status of QEMU after the success of a self-test.
const SUCCESS: i32 = 33;
/// A device by which a self-test ends QEMU.
const EXIT: &str = "-device isa-debug-exit,iobase=0xf4,iosize=4";
/// The most memory, in KiB, that a machine with 900 GB may touch more than one with 1 GB until the
/// executor runs. All bitmaps have 88 MiB.
const MORE_KIB: u64 = 24 << 10;

/// The machine models, each with the options that it needs.
const MODELS: [(&str, &str); 3] = [
    ("pc", "-machine pc,vmport=off,usb=off"),
    ("q35", "-machine q35,vmport=off,usb=off"),
    ("microvm", "-machine microvm,pcie=on,acpi=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off"),
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
    cases.push(Case::new("machine::consoles-alike", |log| consoles(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("machine::console-second-port", |log| second_port(log).map(|()| Outcome::Passed)));
    cases.push(Case::new("machine::numa-4-nodes", |log| numa(log).map(|()| Outcome::Passed)));
    let crowd = |log: &Path| crowd(log).map(|()| Outcome::Passed);
    cases.push(Case::new("machine::crowd-288cpu", crowd).full_if(true));
    let lazy = |log: &Path| memory(log).map(|()| Outcome::Passed);
    cases.push(Case::new("machine::memory-900G", lazy).full_if(true));
    cases
}

/// Returns the options of a machine that runs a self-test.
fn options(machine: &str, processors: &str) -> Result<String> {
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

/// The serial ports COM1 to COM4 get the same bytes, and the screen shows the last lines of them.
fn consoles(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[0];
    let ports: Vec<_> = (2..=4).map(|n| log.with_extension(format!("com{n}.log"))).collect();
    let all = std::iter::once(log).chain(ports.iter().map(|port| port.as_path()));
    let serial: String = all.map(|port| format!(" -serial file:{}", port.display())).collect();
    let options = options(machine, "-smp 1 -m 64M -vga std -no-shutdown")?;
    let append = "selftest=halt console=com1,com2,com3,com4,vga";
    let mut rest = vec!["-append", append];
    rest.extend(serial.split_ascii_whitespace());
    let mut bare = Bare::start_with(&Lab::get()?.qemu, &options, &rest, log)?;
    bare.says(HALTED)?;
    let said = bare.said();
    for port in &ports {
        let other = std::fs::read_to_string(port)?;
        ensure!(other == said, "{} differs from {}", port.display(), log.display());
    }
    let screen = screen(&mut bare, log)?;
    let shown: Vec<_> = screen.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect();
    let rows = said.lines().flat_map(|line| match line.len() {
        0 => vec![],
        _ => line
            .as_bytes()
            .chunks(COLUMNS)
            .map(|row| String::from_utf8_lossy(row).trim_end().to_owned())
            .collect(),
    });
    let rows: Vec<_> = rows.filter(|row| !row.is_empty()).collect();
    let last = rows.get(rows.len().saturating_sub(shown.len())..).unwrap_or_default();
    ensure!(shown.len() > 10 && last == shown, "the screen shows {shown:#?}, not {last:#?}");
    Ok(())
}

/// The last line of a self-test that halts.
const HALTED: &str = "selftest halt: the end";
const COLUMNS: usize = 80;

/// Returns the lines of a VGA's screen, from its memory and the address of the window.
fn screen(bare: &mut Bare, log: &Path) -> Result<Vec<String>> {
    let file = log.with_extension("screen");
    let name = file.to_str().context("a log whose path is no text")?;
    bare.execute("pmemsave", &json!({ "val": 0xb_8000, "size": 0x8000, "filename": name }))?;
    let cells = std::fs::read(&file)?;
    let text: Vec<u8> = cells.iter().step_by(2).copied().collect();
    let rows: Vec<_> = text.chunks(COLUMNS).map(|row| String::from_utf8_lossy(row).into_owned()).collect();
    // The window ends with the last row that holds text.
    let last = rows.iter().rposition(|row| row.contains(HALTED)).context("the screen lacks the last line")?;
    Ok(rows.get(last.saturating_sub(23)..=last).unwrap_or_default().to_vec())
}

/// A machine whose only serial port is COM2 writes there.
fn second_port(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[1];
    let options =
        options(machine, &format!("-smp 1 -m 64M {EXIT} -chardev file,id=c,path={}", log.display()))?;
    let rest = ["-append", "selftest=boot", "-device", "isa-serial,chardev=c,index=1", "-serial", "none"];
    let bare = Bare::start_with(&Lab::get()?.qemu, &options, &rest, log)?;
    let status = bare.ends()?;
    ensure!(status.code() == Some(SUCCESS), "selftest=boot: {status}; see {}", log.display());
    let said = std::fs::read_to_string(log)?;
    ensure!(said.contains("bootchart: executor"), "the second serial port lacks the boot chart");
    Ok(())
}
