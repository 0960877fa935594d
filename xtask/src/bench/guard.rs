//! `cargo xtask bench guard`: counts the instructions and the wire operations of single operations, and
//! compares them with a committed table. It is quick, because the programs are compiled as the tests are; the
//! counts of instructions are therefore not those of what ships (`cargo xtask bench instructions`, `shares`).
//!
//! The counted crates are compiled at level 2 (`Cargo.toml`), so that they have their own instances of
//! generic functions of the standard library. At level 1 they use those of any crate below them, optimised or
//! not, and each new dependency of the workspace may choose another one: one choice cost a call 2,500
//! instructions.

use super::callgrind::{self, Count, Counted};
use super::post;
use super::program;
use super::table::{Table, number};
use anyhow::{Result, anyhow};
use lab::ui;
use std::path::PathBuf;
use std::process::Command;

/// The compiler with which the committed instructions were counted.
const COMPILER: &str = "rustc 1.95.";
/// The part by which the instructions may differ from the committed ones: those of most operations, those of
/// the driver of a card, whose target in the shipped build is met by less than a hundredth, and those of
/// another compiler.
const TOLERANCE: f64 = 0.04;
const OF_THE_DRIVER: f64 = 0.01;
const OTHER_COMPILER: f64 = 0.25;

/// An operation, and its cost: for both ends together, or for the driver of a card.
struct Operation {
    /// The operation's name in its program.
    name: &'static str,
    program: Program,
    /// Operations of the shorter run. The longer run has twice as many; the difference is counted. A card has
    /// one run.
    counted: u32,
    instructions: f64,
    /// Frames and doorbells between software RNICs; work requests and calls that post them by LITE; work
    /// requests and doorbells of a card.
    wire: [f64; 2],
}

/// The program that does an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// Two software RNICs: the benchmark `operations` of softroce.
    Rnic,
    /// Two nodes of LITE over an RNIC that costs next to nothing: the benchmark `native` of lite.
    Lite,
    /// The mlx4 driver on a card that costs nothing: the benchmark `post` of cards. Only the driver's
    /// instructions count, for posting and polling.
    Card,
}

impl Program {
    /// Returns the tolerance of instructions for the compiler that is used.
    fn tolerance(self, compiler: &str) -> f64 {
        match self {
            _ if !compiler.starts_with(COMPILER) => OTHER_COMPILER,
            Self::Card => OF_THE_DRIVER,
            Self::Rnic | Self::Lite => TOLERANCE,
        }
    }
}

const fn rnic(name: &'static str, counted: u32, instructions: f64, wire: [f64; 2]) -> Operation {
    Operation { name, program: Program::Rnic, counted, instructions, wire }
}

const fn lite(name: &'static str, counted: u32, instructions: f64, wire: [f64; 2]) -> Operation {
    Operation { name, program: Program::Lite, counted, instructions, wire }
}

const fn card(name: &'static str, instructions: f64, wire: [f64; 2]) -> Operation {
    Operation { name, program: Program::Card, counted: post::COUNTED, instructions, wire }
}

const OPERATIONS: [Operation; 14] = [
    rnic("write-8", 100, 7_046.0, [2.0, 2.0]),
    // One acknowledgement for all.
    rnic("write-8-by-16", 160, 3_363.0, [1.0625, 0.125]),
    rnic("write-64k", 10, 119_568.0, [17.0, 2.0]),
    rnic("read-8", 100, 7_271.0, [2.0, 2.0]),
    // Two requests: the window grows to what one READ uses, and a request is at most a quarter of it.
    rnic("read-64k", 10, 126_546.0, [18.0, 2.0]),
    rnic("send-8", 100, 7_508.0, [2.0, 2.0]),
    rnic("fetch-add", 100, 7_192.0, [2.0, 2.0]),
    lite("write", 200, 1_362.0, [1.0, 1.0]),
    lite("read", 200, 1_688.0, [1.0, 1.0]),
    lite("fetch-add", 200, 1_747.0, [1.0, 1.0]),
    lite("call", 256, 6_020.0, [2.0, 2.0]),
    card("write-64", 442.0, [1.0, 1.0]),
    card("write-64-by-16", 293.0, [1.0, 0.0625]),
    card("receive-by-16", 208.0, [1.0, 0.0]),
];

impl Operation {
    /// Counts one operation by a program, which has been built.
    fn count(&self, programs: &[PathBuf; 3]) -> Result<Count> {
        let [rnic, lite, card] = programs;
        match self.program {
            Program::Rnic => callgrind::count(rnic, &["--count", self.name], self.counted),
            Program::Lite => callgrind::count(lite, &["--count", self.name, "1"], self.counted),
            Program::Card => post::count(card, self.name),
        }
    }

    /// Returns the complaints about a count that differs from the committed one.
    fn complaints(&self, count: &Count, compiler: &str) -> Vec<String> {
        let Self { name, program, instructions, wire, .. } = self;
        let mut complaints = Vec::new();
        if (count.instructions / instructions - 1.0).abs() > program.tolerance(compiler) {
            let counted = count.instructions;
            complaints.push(format!(
                "{program:?} {name}: {counted:.0} instructions; {instructions:.0} are committed"
            ));
        }
        if count.wire.iter().zip(wire).any(|(counted, committed)| (counted - committed).abs() > 0.005) {
            let counted = count.wire;
            complaints
                .push(format!("{program:?} {name}: {counted:?} wire operations; {wire:?} are committed"));
        }
        complaints
    }
}

fn table(counts: &[Count]) -> Table {
    let remark = "both ends, or the driver of a card, compiled as the tests are; on the wire: frames and doorbells of \
                  software RNICs, work requests and calls that post them by LITE, work requests and doorbells of a card";
    let heads = ["program", "operation", "instructions", "committed", "wire", "doorbells", "committed"];
    let mut table = Table::new("Instructions and wire operations of an operation", remark, &heads);
    for (operation, count) in OPERATIONS.iter().zip(counts) {
        let Operation { name, program, instructions, wire, .. } = operation;
        let wire_of = |wire: &[f64; 2]| wire.map(|value| format!("{value:.2}"));
        let ([on_wire, doorbells], committed) = (wire_of(&count.wire), wire_of(wire).join(" and "));
        let [counted, instructions] = [count.instructions, *instructions].map(number);
        table.row([
            format!("{program:?}"),
            (*name).to_owned(),
            counted,
            instructions,
            on_wire,
            doorbells,
            committed,
        ]);
    }
    table
}

/// Counts all operations. A count that differs from the committed one is out of its bounds.
pub(crate) fn count() -> Result<Counted> {
    let programs = ui::step("the benchmarks, compiled as the tests are", || {
        Ok::<_, anyhow::Error>([
            program::as_tested("softroce", "operations")?,
            program::as_tested("lite", "native")?,
            program::as_tested("cards", "post")?,
        ])
    })?;
    let count = |operation: &Operation| operation.count(&programs);
    let counts =
        ui::step("operations under callgrind", || OPERATIONS.iter().map(count).collect::<Result<Vec<_>>>())?;
    let compiler = program::run(Command::new("rustc").arg("--version"))?;
    let both = OPERATIONS.iter().zip(&counts);
    let complaints: Vec<_> =
        both.flat_map(|(operation, count)| operation.complaints(count, &compiler)).collect();
    let verdict = if complaints.is_empty() { Ok(()) } else { Err(anyhow!(complaints.join("; "))) };
    Ok(Counted { tables: table(&counts).text(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of the compiler with which the instructions were counted.
    const COUNTED_WITH: &str = "rustc 1.95.0 (59807616e 2026-04-14)";

    #[test]
    fn each_difference_is_a_complaint() {
        let operation = rnic("write-8", 1, 1000.0, [2.0, 1.0]);
        for (instructions, wire, complaints) in [
            (1000.0, [2.0, 1.0], 0),
            (1039.0, [2.0, 1.0], 0),
            (1041.0, [2.0, 1.0], 1),
            (959.0, [2.0, 1.0], 1),
            (1000.0, [2.01, 1.0], 1),
            (1000.0, [2.0, 0.9], 1),
            (1100.0, [1.0, 1.0], 2),
        ] {
            let count = Count { instructions, wire };
            assert_eq!(operation.complaints(&count, COUNTED_WITH).len(), complaints, "{count:?}");
        }
    }

    #[test]
    fn another_compiler_may_differ_more_and_the_driver_less() {
        for program in [Program::Rnic, Program::Lite, Program::Card] {
            assert!(program.tolerance(COUNTED_WITH) < program.tolerance("rustc 1.96.0"));
        }
        let count = |instructions| Count { instructions, wire: [1.0, 1.0] };
        let complaints = |instructions| {
            card("write-64", 400.0, [1.0, 1.0]).complaints(&count(instructions), COUNTED_WITH).len()
        };
        assert_eq!([403.0, 405.0].map(complaints), [0, 1]);
    }
}
