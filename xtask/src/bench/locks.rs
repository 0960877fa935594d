//! `cargo xtask bench locks`: counts the locked instructions of an operation, which lock the bus or a cache
//! line: those with the prefix `lock`, and exchanges with memory. Each takes as long as several others, and
//! waits for all stores before it.

use super::callgrind::{self, Counted};
use super::program;
use super::table::{Table, maybe};
use anyhow::{Context, Result, ensure};
use lab::{tool, ui};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The number of operations of the shorter run. The longer run has twice as many; the difference is counted.
const COUNTED: u32 = 1000;

/// The operations, and the names of the same work by verbs alone.
const OPERATIONS: [(&str, &str); 4] =
    [("write", "bare-write"), ("read", "bare-read"), ("fetch-add", "bare-fetch-add"), ("call", "bare-call")];

/// A place counts if it executes at least this many locked instructions for an operation.
const LEAST: f64 = 0.5;

/// The directory of LITE's files, in the paths of the program's debugging information.
const SOURCES: &str = "/lite/src/";

/// The files of LITE whose code is not LITE's: the benchmark's RNIC, executor and memory, and the lock.
const OTHERS: [&str; 2] = ["testing/", "base/lock.rs"];

/// Locked instructions of one operation, by address.
type ByAddress = BTreeMap<u64, f64>;

/// Counts the locked instructions of an operation, at each of the addresses `locked`.
fn measure(program: &Path, operation: &str, locked: &BTreeSet<u64>) -> Result<ByAddress> {
    let run = |count: u32| {
        let arguments = ["--count", operation, "1", &count.to_string()];
        anyhow::Ok(callgrind::profile(&["--dump-instr=yes"], program, &arguments)?.executed)
    };
    let (once, twice) = (run(COUNTED)?, run(2 * COUNTED)?);
    let object = program.display().to_string();
    let each = |address: &u64| {
        let place = (object.clone(), *address);
        let [once, twice] = [&once, &twice].map(|run| run.get(&place).copied().unwrap_or(0));
        (*address, (twice as f64 - once as f64) / f64::from(COUNTED))
    };
    Ok(locked.iter().map(each).filter(|(_, count)| *count > 0.0).collect())
}

/// Returns the addresses of the locked instructions in the output of `objdump`.
fn locked(listing: &str) -> BTreeSet<u64> {
    let instruction = |line: &str| {
        let (address, text) = line.trim_start().split_once(":\t")?;
        let is_locked = text.starts_with("lock ") || (text.starts_with("xchg ") && text.contains('('));
        is_locked.then(|| u64::from_str_radix(address, 16).ok()).flatten()
    };
    listing.lines().filter_map(instruction).collect()
}

/// Returns the first place of LITE's own code in a group of `addr2line -i`: the innermost place comes first.
fn place<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    lines.find_map(|line| {
        let (_, file) = line.split_once(SOURCES)?;
        (!OTHERS.iter().any(|other| file.starts_with(other))).then(|| file.split(' ').next())?
    })
}

/// Returns the locked instructions of an operation at each place of LITE's code, the most first.
fn places(program: &Path, counts: &ByAddress) -> Result<Vec<(String, f64)>> {
    let mut command = Command::new("addr2line");
    command.args(["-a", "-i", "-e"]).arg(program);
    command.args(counts.keys().map(|address| format!("{address:#x}")));
    let output = String::from_utf8(tool::output(&mut command)?).context("the output of addr2line")?;
    let lines: Vec<&str> = output.lines().collect();
    // The line of an address precedes its group of places.
    let groups = lines.split(|line| line.starts_with("0x")).skip(1);
    let mut sums = BTreeMap::<&str, f64>::new();
    for (group, count) in groups.zip(counts.values()) {
        if let Some(place) = place(group.iter().copied()) {
            *sums.entry(place).or_default() += count;
        }
    }
    let mut sums: Vec<_> = sums.into_iter().map(|(place, sum)| (place.to_owned(), sum)).collect();
    sums.retain(|(_, sum)| *sum >= LEAST);
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(sums)
}

/// Counts all operations.
pub(super) fn count() -> Result<Counted> {
    let program = ui::step("the benchmark of LITE", || program::build("lite", "native"))?;
    let listing = tool::output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&program))?;
    let locked = locked(&String::from_utf8(listing).context("the output of objdump")?);
    let remark = "by valgrind, 64 B, one at a time, both ends; RNIC, executor and poller included; verbs alone are a \
                  task of the same executor; the difference is LITE's";
    let heads = ["operation", "with LITE", "verbs alone", "LITE"];
    let mut sums = Table::new("Locked instructions of an operation", remark, &heads);
    let heads = ["operation", "place", "locked instructions"];
    let mut by_place = Table::new("Locked instructions of LITE's own code", "lines of lite/src", &heads);
    ui::step("operations under callgrind", || {
        for (operation, bare) in OPERATIONS {
            let (with, alone) = (measure(&program, operation, &locked)?, measure(&program, bare, &locked)?);
            let [all, verbs] = [&with, &alone].map(|counts| counts.values().sum::<f64>());
            ensure!(verbs > 0.0, "{bare} executes no locked instruction: the addresses do not match");
            let [with_lite, alone, lite] = [all, verbs, all - verbs].map(|count| maybe(Some(count)));
            sums.row([operation.to_owned(), with_lite, alone, lite]);
            for (place, count) in places(&program, &with)? {
                by_place.row([operation.to_owned(), place, maybe(Some(count))]);
            }
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(Counted { tables: format!("{}\n{}", by_place.text(), sums.text()), verdict: Ok(()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_those_with_the_prefix_and_exchanges_with_memory() {
        let listing = "\n00000000000010c0 <main>:\n    10c0:\tlock incq 0x88(%rax)\n    10c8:\txchg   %ax,%ax\n    \
                       10ca:\txchg   %al,0xa0(%rdi)\n    10d0:\tmov    %rax,(%rdi)\n";
        assert_eq!(locked(listing), BTreeSet::from([0x10c0, 0x10ca]));
    }

    #[test]
    fn a_place_is_the_innermost_one_of_lites_own_code() {
        let group = "/rustc/library/atomic.rs:9\n/w/lite/src/base/lock.rs:3\n/w/lite/src/rpc/call.rs:7 (discriminator 2)\n\
                     /w/lite/src/rpc/client.rs:1";
        assert_eq!(place(group.lines()), Some("rpc/call.rs:7"));
        assert_eq!(place("/w/lite/src/testing/direct.rs:7\n??:0".lines()), None);
    }
}
