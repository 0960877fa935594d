//! The command line: nouns and verbs, the former words, the form of lists, and the exit status.

use crate::daemon::{BINARY, Daemon, Directory, error_line, join_as};
use serde_json::Value;
use std::process::{Command, Output};

/// Runs a command of words that the daemon's clients share, with the daemon's address and key.
fn run(daemon: &Daemon, words: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.args(words.split(' ')).args(["--manager", &daemon.address, "--key-file"]).arg(&daemon.key_file);
    command.output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn each_kind_of_failure_has_a_status() {
    let directory = Directory::new("exit-status");
    let daemon = Daemon::start(&directory, &[]);
    assert_eq!(status(&run(&daemon, "node ls")), 0);
    let usage = Command::new(BINARY).args(["node", "ls", "--wait", "many"]).output().unwrap();
    assert_eq!(status(&usage), 2);
    for (words, want) in [
        ("node ls --wait 1 --timeout 0", 6),
        ("node power off nobody", 5),
        ("job cancel 77", 5),
        ("data rm nothing", 5),
        ("job submit --app nothing --output /nonexistent/x", 1),
    ] {
        let ended = run(&daemon, words);
        assert_eq!(status(&ended), want, "{words}: {}", error_line(&ended));
    }
    let other = directory.join("other");
    assert_eq!(
        status(&Command::new(BINARY).args(["key", "make", "--key-file"]).arg(&other).output().unwrap()),
        0
    );
    let ask = |address: &str| {
        let mut command = Command::new(BINARY);
        command.args(["node", "ls", "--manager", address, "--key-file"]).arg(&other).output().unwrap()
    };
    assert_eq!(status(&ask(&daemon.address)), 4, "another cluster's key");
    assert_eq!(status(&ask("127.0.0.1:1")), 3, "no manager");
}

#[test]
fn lists_have_two_forms() {
    let directory = Directory::new("forms");
    let daemon = Daemon::start(&directory, &[]);
    let (_node, _) = join_as(&daemon, "a");
    let table = run(&daemon, "node ls");
    assert!(String::from_utf8(table.stdout).unwrap().starts_with("id  name  state"));
    let json = run(&daemon, "node ls -o json");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["nodes"][0]["name"], "a");
    for (words, key) in [("job ls -o json", "jobs"), ("data ls -o json", "datasets")] {
        let json: Value = serde_json::from_slice(&run(&daemon, words).stdout).unwrap();
        assert!(json[key].as_array().unwrap().is_empty(), "{words}");
    }
}

#[test]
fn the_former_name_and_words_go_on_working() {
    let directory = Directory::new("former");
    let daemon = Daemon::start(&directory, &[]);
    let words = ["nodes", "--manager", &daemon.address, "--key-file"];
    let former = env!("CARGO_BIN_EXE_ferrolite-manager");
    for program in [former, BINARY] {
        let listed = Command::new(program).args(words).arg(&daemon.key_file).output().unwrap();
        assert!(listed.status.success() && listed.stdout.starts_with(b"id  name"), "{listed:?}");
    }
    let wrong = Command::new(former).args(["nodes", "--key-file", "/nonexistent"]).output().unwrap();
    assert_eq!(status(&wrong), 1, "the status is that of the program");
}
