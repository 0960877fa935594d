//! Measures the machine without LITE: the time of an access to a random cache line, by the number of
//! instructions between two accesses. A cache that processors share keeps the lines that are used again soon,
//! and evicts others.

use crate::scale::{Line, chain};
use crate::{Effort, median};
use serde_json::{Value, json};
use std::hint::black_box;

/// The number of lines: as many as 100,000 handles fill.
const LINES: u32 = 25_000;
/// The dependent additions between two lines.
const WORK: [u32; 4] = [0, 100, 200, 400];

/// Visits `count` lines, each of which is known once the work after the one before is done.
fn walk(lines: &[Line], at: &mut u32, work: u32, count: u32) {
    for _ in 0..count {
        let mut number = lines[*at as usize].0;
        for _ in 0..work {
            number = black_box(number.wrapping_add(1));
        }
        *at = number.wrapping_sub(work);
    }
}

/// Returns the median of one step, in nanoseconds, when all lines have been visited several times.
fn step(lines: &[Line], work: u32, effort: Effort) -> f64 {
    let mut at = 0;
    walk(lines, &mut at, work, 8 * lines.len() as u32);
    let mut samples: Vec<_> = (0..effort.rounds)
        .map(|_| crate::time(effort.operations, || walk(lines, &mut at, work, effort.operations)))
        .collect();
    median(&mut samples)
}

/// Measures and prints the table.
pub(crate) fn measure(effort: Effort) -> Vec<Value> {
    let (many, one) = (chain(LINES), chain(1));
    println!("one of {} KiB of lines at random, by what lies between two: medians, in ns", LINES / 16);
    println!("{:>14}{:>14}", "between", "a line");
    let rows = WORK.map(|work| {
        let between = step(&one, work, effort);
        let line = step(&many, work, effort) - between;
        println!("{between:>14.0}{line:>14.0}");
        json!({ "between_ns": between, "line_ns": line })
    });
    rows.to_vec()
}
