//! The driver's commands, compared with Linux's: each command, with its fields, and each doorbell occurs in a
//! record of Linux, except those that docs/design/mlx4-unproven.md lists as unproven, with their reasons.

use crate::common::DATA;
use crate::common::nodes::{Nodes, on_every_card};
use crate::common::pair::{datagrams, every_verb};
use connectx3::trace::{Line, Record, Value};
use mlx4::{Config, FramePort, Hardware, Remote};
use platform::IoAddr;
use std::collections::BTreeSet;
use std::path::Path;
use verbs::{LinkKind, MacAddr};

/// The fields of commands in which the driver differs from Linux, as listed in docs/design/mlx4-unproven.md.
const UNPROVEN: &[(&str, &[&str])] = &[
    ("INIT_HCA", &["log_cqs", "log_mpts", "log_srqs", "log_mcgs", "log_mcg_hash", "rdmarc_base"]),
    ("SW2HW_MPT", &["flags", "pd_flags"]),
    ("RST2INIT_QP", &["receive_stride", "peer_reads", "peer_atomics"]),
    ("INIT2RTR_QP", &["receive_stride", "mtu", "rnr_timer", "source_gid", "traffic_class"]),
    ("RTR2RTS_QP", &["receive_stride", "ack_timeout", "rnr_retries"]),
    ("RST2INIT_QP (UD)", &["receive_stride", "send_stride"]),
    ("INIT2RTR_QP (UD)", &["receive_stride", "send_stride", "link_type", "forces", "counter"]),
    ("RTR2RTS_QP (UD)", &["receive_stride", "send_stride"]),
    ("RST2INIT_QP (MLX)", &["send_stride", "path_control", "path_flags"]),
    ("INIT2RTR_QP (MLX)", &["send_stride", "path_control", "path_flags"]),
    ("RTR2RTS_QP (MLX)", &["send_stride", "path_control", "path_flags"]),
    ("doorbell events", &["arm"]),
];

/// Returns everything that Linux was seen to do with cards of all profiles whose function is of the same
/// kind.
fn linux(is_virtual: bool) -> Vec<Line> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../qemu/connectx3/tests/linux-traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let known = texts.filter(|path| (path.file_stem().unwrap() == "vf") == is_virtual);
    known.flat_map(|path| Record::parse(&std::fs::read_to_string(path).unwrap()).unwrap().lines).collect()
}

/// Returns the name of a line in the list.
fn title(line: &Line) -> String {
    match (line.kind.as_str(), line.values.get("service")) {
        ("command", Some(Value::Always(3))) => format!("{} (UD)", line.name),
        ("command", Some(Value::Always(7))) => format!("{} (MLX)", line.name),
        ("command", _) => line.name.clone(),
        (kind, _) => format!("{kind} {}", line.name),
    }
}

/// Removes the fields that are listed for the driver's line, and returns them too.
fn without_listed(line: &Line) -> (Line, BTreeSet<&'static str>) {
    let title = title(line);
    let listed = UNPROVEN.iter().filter(|(command, _)| title == *command).flat_map(|(_, fields)| *fields);
    let mut rest = line.clone();
    let mut gone = BTreeSet::new();
    for field in listed {
        rest.values.remove(*field);
        gone.insert(*field);
    }
    (rest, gone)
}

/// Returns true if a line of Linux equals one of the driver's except for the listed fields.
fn admits(known: &Line, line: &Line, listed: &BTreeSet<&str>) -> bool {
    let mut known = known.clone();
    known.values.retain(|name, _| !listed.contains(name.as_str()));
    known.admits(line)
}

/// Returns the fields in which a line differs from the most similar line of Linux.
fn nearest(known: &[Line], line: &Line) -> Vec<String> {
    let differing = |known: &Line| {
        let names: BTreeSet<_> = known.values.keys().chain(line.values.keys()).collect();
        let value = |line: &Line, name: &str| line.values.get(name).copied().unwrap_or(Value::Always(0));
        let differs = names.into_iter().filter(|name| {
            let here = value(known, name);
            here != Value::Any && here != value(line, name)
        });
        differs
            .map(|name| format!("{name}={} (Linux {})", value(line, name), value(known, name)))
            .collect::<Vec<_>>()
    };
    let same = known.iter().filter(|known| known.kind == line.kind && known.name == line.name);
    same.map(differing).min_by_key(Vec::len).unwrap_or_else(|| vec!["Linux never does it".to_owned()])
}

#[test]
fn the_driver_does_with_a_card_what_linux_does() {
    let (physical, mut of_slaves) = (linux(false), linux(true));
    // The records of Linux on a virtual function contain no programs that send datagrams. Their queue pairs
    // are compared with those of a physical function.
    of_slaves.extend(physical.iter().filter(|line| title(line).ends_with("(UD)")).cloned());
    let mut strange = BTreeSet::new();
    let mut commands = BTreeSet::new();
    let mut compare = |profile: &str, link, nodes: Nodes| {
        let known = if profile == "vf" { &of_slaves } else { &physical };
        let [machine, _] = nodes.machines.clone();
        {
            let [a, b] = nodes.connect(link);
            every_verb(&a, &b, &nodes.stations());
            let [a, b] = nodes.posts();
            datagrams(&a, &b, link, &nodes.stations());
            while a.rnic.progress(machine.plug().now(), 64) {}
            assert!(!a.rnic.arm());
            a.rnic.destroy_qp(a.qp.number()).unwrap();
        }
        drop(nodes);
        for line in &machine.record.lock().unwrap().lines {
            if line.kind == "command" {
                assert_eq!(line.values.get("status"), Some(&Value::Always(0)), "{profile}: {line}");
            }
            if line.kind == "event" || line.kind == "completion" {
                // Skips the card's replies.
                continue;
            }
            commands.insert(title(line));
            let (rest, listed) = without_listed(line);
            if !known.iter().any(|known| admits(known, &rest, &listed)) {
                strange.insert(format!(
                    "{profile}: {} {}: {:?}",
                    line.kind,
                    line.name,
                    nearest(known, &rest)
                ));
            }
        }
    };
    on_every_card(&mut compare);
    for (profile, link) in [("pro", LinkKind::RoceV2), ("vf", LinkKind::RoceV1)] {
        let remote = |number| Remote::part(IoAddr(DATA * u64::from(number)), 8 << 20);
        let nodes = Nodes::with(profile, |number| Config { remote: remote(number), ..Config::default() });
        compare(profile, link, nodes);
    }
    for (profile, link) in [
        ("pro", LinkKind::RoceV2),
        ("cx3", LinkKind::RoceV1),
        ("a0", LinkKind::RoceV2),
        ("vf", LinkKind::RoceV1),
    ] {
        let nodes = Nodes::with(profile, |_| Config { frames: true, ..Config::default() });
        let [driver, _] = &nodes.drivers;
        driver.join_group(FramePort::Rdma, MacAddr([0x33, 0x33, 0, 0, 0, 1])).unwrap();
        assert!(driver.transmit_frame(FramePort::Rdma, 60, &mut |place| place.len()));
        compare(profile, link, nodes);
    }
    assert!(
        strange.is_empty(),
        "neither in a record of Linux nor in docs/design/mlx4-unproven.md: {strange:#?}"
    );
    // Each listed field is used, and is in the document.
    let document = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/mlx4-unproven.md"),
    );
    let document = document.unwrap();
    for (command, fields) in UNPROVEN {
        assert!(commands.contains(*command), "{command} is not given");
        for field in *fields {
            let row =
                document.lines().any(|line| line.contains(command) && line.contains(&format!("`{field}`")));
            assert!(row, "docs/design/mlx4-unproven.md does not say that {command} differs in {field}");
        }
    }
}
