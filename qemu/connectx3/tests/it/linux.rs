//! The committed records of Linux's use of a card (`linux-traces/`): each is parsed, and the device knows
//! every command in it.

use connectx3::device::Profile;
use connectx3::trace::{Record, Value, names};
use connectx3_testdriver::driver::Node;
use std::collections::BTreeSet;
use std::path::Path;

/// The address of a management packet in a machine of the minimal driver.
const PACKET: u64 = 0x8000;
/// The card's status for an unknown command; also a master's for a command that a slave may not use.
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
    let of = |name: &str| records.iter().any(|(profile, _)| profile == name);
    assert!(Profile::NAMES.iter().all(|name| of(name)), "a profile has no record");
    for (profile, text) in records {
        // After the profile's name, a file name may contain the way in which the drivers were loaded.
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
        // A virtual function gets resources from its master, where a physical function starts the card.
        let own: &[_] = if profile == "vf" {
            &["QUERY_FUNC_CAP", "ALLOC_RES", "FREE_RES"]
        } else {
            &["MAP_FA", "INIT_HCA", "CLOSE_HCA", "UNMAP_FA"]
        };
        for command in ["QUERY_FW", "SW2HW_EQ", "INIT_PORT", "RTR2RTS_QP", "CLOSE_PORT"].iter().chain(own) {
            assert!(named("command", command) > 0, "{profile}: {command}");
        }
        assert!(named("doorbell", "arm") > 0 && named("completion", "send") > 0, "{profile}");
        for line in record.lines.iter().filter(|line| line.kind == "command") {
            if profile == "vf"
                && line.name == "FREE_RES"
                && line.values.get("in_mod") == Some(&Value::Always(0))
            {
                // With one ring, mlx4_en sets the number of its queue pair to that of its receive queue
                // (mlx4_en_config_rss_steer) and therefore frees that number twice at its end. The master
                // refuses the second time.
                continue;
            }
            assert_eq!(line.values.get("status"), Some(&Value::Always(0)), "{profile}: {line}");
        }
    }
}

#[test]
fn the_device_knows_every_command_that_linux_gives() {
    let mut seen = BTreeSet::new();
    for (profile, text) in records() {
        for line in Record::parse(&text).unwrap().lines.iter().filter(|line| line.kind == "command") {
            let Some(Value::Always(op_mod)) = line.values.get("op_mod") else { panic!("{line}") };
            seen.insert((profile == "vf", line.name.clone(), *op_mod));
        }
    }
    for (slave, name, op_mod) in seen {
        let known = names::COMMANDS.iter().find(|known| known.name == name);
        let opcode = u32::from(known.unwrap_or_else(|| panic!("{name} has no opcode")).opcode);
        // With an empty mailbox the command may fail, but not as an unknown command.
        let status = if slave {
            let mut node = Node::slave(1);
            // A master parses management packets: this one reads the port's information.
            node.machine.put(PACKET, &[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x15]);
            let mailbox = if name == "MAD_IFC" { PACKET } else { 0 };
            node.slave_command(opcode, op_mod, 1, mailbox).0
        } else {
            Node::new(1).try_command(opcode, op_mod, 1, &[])
        };
        assert_ne!(status, BAD_OPCODE, "{name} {op_mod}, slave: {slave}");
    }
}
