//! The committed records of how Linux uses a card (`linux-traces/`): each is read, and the device knows every command in it.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::driver::Node;
use connectx3::device::Profile;
use connectx3::trace::{Record, Value, names};
use std::collections::BTreeSet;
use std::path::Path;

const BAD_OPCODE: u8 = 0x02;

fn records() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/linux-traces");
    let mut records: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let profile = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (profile, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    records.sort();
    records
}

#[test]
fn each_record_is_of_a_profile_and_says_the_same_when_it_is_written_again() {
    let records = records();
    assert!(records.len() >= 10);
    for (profile, text) in records {
        // After the profile's name a file may say how the drivers were loaded.
        let card = profile.split('.').next().unwrap();
        assert!(Profile::NAMES.contains(&card), "{profile}");
        let record = Record::parse(&text).unwrap_or_else(|e| panic!("{profile}: {e}"));
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(record.to_string().lines().collect::<Vec<_>>(), lines, "{profile}");
    }
}

#[test]
fn linux_comes_up_moves_data_and_leaves_without_a_command_that_fails() {
    for (profile, text) in records() {
        let record = Record::parse(&text).unwrap();
        let named = |kind: &str, name: &str| {
            record.lines.iter().filter(|line| line.kind == kind && line.name == name).count()
        };
        for command in
            ["QUERY_FW", "INIT_HCA", "SW2HW_EQ", "INIT_PORT", "RTR2RTS_QP", "CLOSE_HCA", "UNMAP_FA"]
        {
            assert!(named("command", command) > 0, "{profile}: {command}");
        }
        assert!(named("doorbell", "arm") > 0 && named("completion", "send") > 0, "{profile}");
        for line in record.lines.iter().filter(|line| line.kind == "command") {
            assert_eq!(line.values.get("status"), Some(&Value::Always(0)), "{profile}: {line}");
        }
    }
}

#[test]
fn the_device_knows_every_command_that_linux_gives() {
    let mut seen = BTreeSet::new();
    for (_, text) in records() {
        for line in Record::parse(&text).unwrap().lines.iter().filter(|line| line.kind == "command") {
            let Some(Value::Always(op_mod)) = line.values.get("op_mod") else { panic!("{line}") };
            seen.insert((line.name.clone(), *op_mod));
        }
    }
    for (name, op_mod) in seen {
        let known = names::COMMANDS.iter().find(|known| known.name == name);
        let opcode = known.unwrap_or_else(|| panic!("{name} has no opcode")).opcode;
        // With an empty mailbox it may well fail, but not because there is no such command.
        let status = Node::new(1).try_command(u32::from(opcode), op_mod, 1, &[]);
        assert_ne!(status, BAD_OPCODE, "{name} {op_mod}");
    }
}
