//! Runs the commands of `README.md`, in their order, and compares what they print with the page.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../README.md");

/// A block of the documentation page: commands, and the output of the last one.
struct Block {
    commands: Vec<String>,
    output: String,
}

/// Returns the blocks of the page whose language is `console`.
fn blocks() -> Vec<Block> {
    let texts = PAGE.split("```console\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    texts
        .map(|text| {
            let commands = text.lines().map_while(|line| line.strip_prefix("$ ")).map(String::from).collect();
            let output = text.lines().filter(|line| !line.starts_with("$ ")).map(|line| format!("{line}\n"));
            Block { commands, output: output.collect() }
        })
        .collect()
}

/// Returns the directory in which cargo has placed the programs of this profile, such as `target/debug`.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_local-cluster")).parent().unwrap().to_owned()
}

/// Returns the program that a command of the page starts. Cargo has built what the commands build, so
/// `cargo build` is left out, and `cargo run` is replaced by the program that it runs.
fn program(command: &str) -> Option<Command> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (dir, top) = (programs(), Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    let (mut program, arguments) = match &words[..] {
        ["cargo", "build", ..] => return None,
        ["cargo", "run", "-q", "-p", "examples", "--example", name] => {
            (Command::new(dir.join("examples").join(name)), &[][..])
        }
        ["cargo", "run", "-q", "-p", "examples", "--", rest @ ..] => {
            (Command::new(env!("CARGO_BIN_EXE_local-cluster")), rest)
        }
        [program, rest @ ..] => (Command::new(program), rest),
        [] => panic!("an empty command"),
    };
    // The library of this build lies among its dependencies, and programs must not collide with a user's.
    for argument in arguments {
        match *argument {
            "target/debug" => program.arg(dir.join("deps")),
            argument => match argument.strip_prefix("target/") {
                Some(name) => program.arg(dir.join("examples").join(name)),
                None => program.arg(argument),
            },
        };
    }
    program.current_dir(top).env("PYTHONDONTWRITEBYTECODE", "1");
    Some(program)
}

/// Runs the commands of the block whose text contains `name`.
#[track_caller]
fn check(name: &str) {
    let blocks = blocks();
    let block = blocks.iter().find(|block| block.commands.iter().any(|command| command.contains(name)));
    let block = block.unwrap_or_else(|| panic!("README.md has no command for {name}"));
    let mut printed = String::new();
    for mut program in block.commands.iter().filter_map(|command| program(command)) {
        let done = program.output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
        let errors = String::from_utf8_lossy(&done.stderr);
        printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{program:?}:\n{printed}{errors}");
    }
    assert_eq!(printed, block.output, "{name} prints something else than README.md shows");
}

#[test]
fn remote_memset() {
    check("remote_memset");
}

#[test]
fn rpc_echo() {
    check("rpc_echo");
}

#[test]
fn lock() {
    check("--example lock");
}

#[test]
fn mapreduce() {
    check("mapreduce");
}

#[test]
fn c() {
    check("remote_memory");
}

#[test]
fn python() {
    check("shared_names.py");
}

#[test]
fn the_page_has_no_other_commands_and_no_example_is_long() {
    assert_eq!(blocks().len(), 6);
    let mut examples = 0;
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "rs" || kind == "c" || kind == "py") {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= 80, "{} has {lines} lines", path.display());
            examples += 1;
        }
    }
    assert_eq!(examples, 6);
}
