//! Counts instructions by callgrind, and parses its profiles (its manual, "Callgrind Format Specification"):
//! the callers and callees, and the instructions of each call.

use super::program;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// Runs a program under callgrind and returns the number of its instructions.
pub(super) fn count(program: &Path, arguments: &[&str]) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).args(arguments);
    collected(&program::run(&mut valgrind)?).context("valgrind tells no count")
}

/// Parses `==1234== Collected : 123456`.
fn collected(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A function, and the program or library that contains it. In a library without symbols, names are numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Site {
    pub object: String,
    pub function: String,
}

/// The calls of one function by another, and the instructions of the callee with everything that it called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub caller: Site,
    pub callee: Site,
    pub count: u64,
    pub instructions: u64,
}

/// Returns all calls of a profile. Lines that do not belong to the format are skipped.
pub(super) fn calls(profile: &str) -> Vec<Calls> {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let (mut here, mut there) = (Site::default(), Site::default());
    let (mut calls, mut count) = (Vec::new(), None);
    for line in profile.lines() {
        if let Some(n) = count.take() {
            let instructions = line.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            calls.push(Calls { caller: here.clone(), callee: there.clone(), count: n, instructions });
            there.object.clone_from(&here.object);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        match key {
            "ob" => {
                here.object = name(&mut objects, value);
                there.object.clone_from(&here.object);
            }
            "fn" => here.function = name(&mut functions, value),
            "cob" => there.object = name(&mut objects, value),
            "cfn" => there.function = name(&mut functions, value),
            "calls" => count = value.split(' ').next().and_then(|n| n.parse().ok()),
            _ => {}
        }
    }
    calls
}

/// Resolves a name: `(7) name` defines 7, and `(7)` refers to it.
pub(super) fn name(known: &mut HashMap<String, String>, value: &str) -> String {
    let (number, name) = value.split_once(' ').unwrap_or((value, ""));
    if !name.is_empty() {
        known.insert(number.to_owned(), name.to_owned());
    }
    known.get(number).cloned().unwrap_or_else(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("nothing"), None);
    }

    #[test]
    fn calls_are_told_with_their_objects() {
        let profile = "positions: line\nevents: Ir\n\nob=(1) /bin/a\nfl=(1) a.c\nfn=(1) main\n5 10\ncob=(2) /lib/b.so\n\
            cfi=(2) b.c\ncfn=(2) 0x10\ncalls=3 0\n6 300\ncfn=(3) own\ncalls=1 9\n7 5\n\nfn=(3)\n9 5\n\nob=(2)\nfn=(2)\n0 300\n";
        let site = |object: &str, function: &str| Site { object: object.into(), function: function.into() };
        let main = site("/bin/a", "main");
        let to = |callee, count, instructions| Calls { caller: main.clone(), callee, count, instructions };
        assert_eq!(calls(profile), [to(site("/lib/b.so", "0x10"), 3, 300), to(site("/bin/a", "own"), 1, 5)]);
    }
}
