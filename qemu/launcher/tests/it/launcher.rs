//! Tests of the launcher with real QEMUs and a guest of a few instructions, which is assembled here with the
//! binutils that linking needs anyway. Without QEMU the tests report that and end.

use fabric::{Fabric, FabricConfig, Plug};
use qemu::Qemu;
use qemu::vm::{Accel, EventKind, Exit, Machine, Nic, Vm, VmSpec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Ample time for a TCG guest of ten instructions on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Assembles a PVH guest that writes `text` to the serial port and then executes `then`.
fn guest(dir: &Path, text: &str, then: &str) -> PathBuf {
    let (source, object, elf) = (dir.join("g.s"), dir.join("g.o"), dir.join("g.elf"));
    let code = format!(
        ".section .note.pvh,\"a\",@note\n.long 4, 4, 18\n.asciz \"Xen\"\n.long _start\n.text\n.globl _start\n_start:\n\
         cld\nmov $text, %esi\nmov $0x3f8, %dx\n1: lodsb\ntest %al, %al\njz 2f\noutb %al, %dx\njmp 1b\n2:\n{then}\n\
         3: hlt\njmp 3b\ntext: .asciz \"{text}\"\n"
    );
    std::fs::write(&source, code).unwrap();
    let mut assemble = Command::new("as");
    assert!(assemble.arg("--32").arg(&source).arg("-o").arg(&object).status().unwrap().success());
    let mut link = Command::new("ld");
    link.args(["-m", "elf_i386", "-Ttext=0x100000", "-e", "_start"]).arg(&object).arg("-o").arg(&elf);
    assert!(link.status().unwrap().success());
    elf
}

const EXIT_16: &str = "mov $0xf4, %dx\nmov $16, %eax\noutl %eax, %dx";
const HANG: &str = "cli";

fn spec(kernel: PathBuf, machine: Machine) -> VmSpec {
    VmSpec {
        name: "guest".into(),
        index: 0,
        machine,
        accel: Accel::Tcg,
        cpus: 1,
        memory_mb: 32,
        kernel,
        cmdline: String::new(),
        fw_cfg: Vec::new(),
        initrd: None,
        nics: vec![Nic::Management],
        boots_again: false,
    }
}

fn qemu() -> Option<Qemu> {
    let found = Qemu::find().unwrap();
    if found.is_none() {
        eprintln!("skipped: no qemu-system-x86_64");
    }
    found
}

fn next(events: &Receiver<qemu::vm::Event>) -> EventKind {
    events.recv_timeout(LIMIT).expect("an event in time").kind
}

#[test]
fn console_and_exit_status_on_both_machines() {
    let Some(qemu) = qemu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let kernel = guest(dir.path(), "one\\r\\ntwo", EXIT_16);
    for machine in [Machine::Microvm, Machine::Q35] {
        let (events, inbox) = channel();
        let console = dir.path().join("console");
        let vm = Vm::start(&qemu, spec(kernel.clone(), machine), Some(&console), events).unwrap();
        let mut seen = Vec::new();
        let exit = loop {
            match next(&inbox) {
                EventKind::Line(line) => seen.push(line),
                EventKind::Exited(exit) => break exit,
                EventKind::RestartedUnderTcg => panic!("TCG is not watched for silence"),
            }
        };
        assert_eq!(exit, Exit::Guest(16), "{machine}");
        // SeaBIOS may have written to the same console before.
        assert_eq!(seen[seen.len() - 2..], ["one", "two"], "{machine}");
        assert_eq!(vm.tail(), seen);
        assert!(std::fs::read_to_string(&console).unwrap().ends_with("one\ntwo\n"));
    }
}

#[test]
fn a_fabric_port_is_connected_and_a_killed_machine_says_so() {
    let Some(qemu) = qemu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = FabricConfig {
        ports: 1,
        dir: dir.path().into(),
        faults: netfault::Faults::NONE,
        seed: 0,
        pcap: None,
    };
    let fabric = Fabric::start(&config).unwrap();
    let kernel = guest(dir.path(), "up\\n", HANG);
    let plugs = [fabric.plug(0), Plug::Stream(fabric.socket(0).to_owned())];
    for (machine, plug) in
        [Machine::Microvm, Machine::Q35].into_iter().flat_map(|m| plugs.clone().map(|p| (m, p)))
    {
        let mut spec = spec(kernel.clone(), machine);
        spec.nics.push(Nic::Fabric { plug });
        let (events, inbox) = channel();
        let vm = Vm::start(&qemu, spec, None, events).unwrap();
        // SeaBIOS may write to the same console before.
        loop {
            match next(&inbox) {
                EventKind::Line(line) if line == "up" => break,
                EventKind::Line(_) => {}
                other => panic!("{other:?}"),
            }
        }
        vm.kill();
        assert_eq!(next(&inbox), EventKind::Exited(Exit::Killed(9)));
    }
}

#[test]
fn what_qemu_complains_about_is_told() {
    let Some(qemu) = qemu() else { return };
    let (events, inbox) = channel();
    let _vm = Vm::start(&qemu, spec("/nowhere/kernel".into(), Machine::Microvm), None, events).unwrap();
    match next(&inbox) {
        EventKind::Exited(Exit::Failed(said)) => assert!(said.contains("/nowhere/kernel"), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dropped_machine_is_gone() {
    let Some(qemu) = qemu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (events, inbox) = channel();
    let vm =
        Vm::start(&qemu, spec(guest(dir.path(), "up\\n", HANG), Machine::Microvm), None, events).unwrap();
    while next(&inbox) != EventKind::Line("up".into()) {}
    drop(vm);
    assert_eq!(inbox.try_iter().last().map(|e| e.kind), Some(EventKind::Exited(Exit::Killed(9))));
}
