//! Measures the size of a node: its image, and the memory that it needs.

use super::lab::Lab;
use super::table::Table;
use super::target::{Bound, Target};
use anyhow::Result;
use lab::{image, interrupt, ui};
use serde::Serialize;

/// Memory sizes to try, in MiB, smallest first.
const TRIED_MIB: [u32; 6] = [4, 6, 8, 16, 24, 32];
/// The memory in which a node must run, in MiB.
const TARGET_MIB: u32 = 32;
/// The time limit of one attempt, in seconds.
const TIMEOUT_S: &str = "30";
/// A text whose word count is known, and the number of its repetitions.
const TEXT: (&str, usize) = ("one two two three three three\n", 1000);

/// The length of a node's image, and the least memory in which a node runs.
#[derive(Debug, Serialize)]
pub(super) struct Size {
    /// The length of the image without symbols, in bytes.
    image_bytes: u64,
    /// The length of the small text that is counted, in bytes.
    text_bytes: usize,
    /// The least memory, of the sizes that were tried, in which a node joined and counted, in MiB; absent if
    /// there was none.
    memory_floor_mib: Option<u32>,
    /// The memory sizes that were too small, each with the error.
    too_small: Vec<(u32, String)>,
}

/// Reads the image's size and tries memory sizes.
pub(super) fn measure(lab: &Lab) -> Result<Size> {
    let (text, expected) = known();
    let input = lab.dir().join("small");
    std::fs::write(&input, &text)?;
    let mut size = Size {
        image_bytes: lab.stripped_bytes,
        text_bytes: text.len(),
        memory_floor_mib: None,
        too_small: Vec::new(),
    };
    for mib in TRIED_MIB {
        interrupt::check()?;
        let outcome = ui::step(&format!("a node with {mib} MiB"), || {
            let memory = mib.to_string();
            let args = ["--nodes", "1", "--cpus", "1", "--memory", &memory, "--timeout", TIMEOUT_S];
            Ok(match lab.job(&args, &input) {
                Ok(job) if job.output == expected.as_bytes() => None,
                Ok(_) => Some("the result is wrong".to_owned()),
                Err(why) => Some(reason(&ui::one_line(&why)).to_owned()),
            })
        })?;
        match outcome {
            None => {
                size.memory_floor_mib = Some(mib);
                break;
            }
            Some(why) => size.too_small.push((mib, why)),
        }
    }
    Ok(size)
}

/// Removes the prefix of a run's error, which says that it is one of a run.
fn reason(why: &str) -> &str {
    why.split_once("error: ").map_or(why, |(_, reason)| reason)
}

/// Returns the small text and its count.
fn known() -> (String, String) {
    let (line, times) = TEXT;
    let counts = [("three", 3 * times), ("two", 2 * times), ("one", times)];
    (line.repeat(times), counts.map(|(word, count)| format!("{word}\t{count}\n")).concat())
}

impl Size {
    /// Returns the table of both figures.
    pub(super) fn table(&self) -> Table {
        let tried = TRIED_MIB.map(|mib| mib.to_string()).join(", ");
        let why =
            self.too_small.iter().map(|(mib, why)| format!("; with {mib} MiB: {why}")).collect::<String>();
        let remark = format!(
            "memory tried: {tried} MiB, counting {} on one node of microvm{why}",
            ui::bytes(self.text_bytes as u64)
        );
        let mut table = Table::new("Size", remark, &["figure", "measured"]);
        table.row(["image with all applications, stripped".into(), ui::bytes(self.image_bytes)]);
        let floor =
            self.memory_floor_mib.map_or_else(|| "none of those tried".into(), |mib| format!("{mib} MiB"));
        table.row(["least memory of a node that joins and counts".into(), floor]);
        table
    }

    /// Returns the targets of both figures.
    pub(super) fn targets(&self) -> Vec<Target> {
        let budget = Bound::AtMost(image::BUDGET as f64 / 1e6);
        let image = self.image_bytes as f64 / 1e6;
        let memory = self.memory_floor_mib.map(f64::from);
        vec![
            Target::new("stripped image", Some(image), "MB", budget),
            Target::new("memory of a node", memory, "MiB", Bound::AtMost(TARGET_MIB.into())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_count_is_that_of_the_text() {
        let (text, counts) = known();
        for line in counts.lines() {
            let (word, count) = line.split_once('\t').unwrap();
            assert_eq!(text.split_whitespace().filter(|w| *w == word).count().to_string(), count);
        }
    }

    #[test]
    fn the_reason_is_what_the_run_said() {
        assert_eq!(
            reason("exe failed (exit status: 1): error: node 1: too little memory"),
            "node 1: too little memory"
        );
        assert_eq!(reason("exe did not end within 300 s"), "exe did not end within 300 s");
    }

    #[test]
    fn no_size_that_works_misses_the_target() {
        let size = |floor| Size {
            image_bytes: 1_400_000,
            text_bytes: 1,
            memory_floor_mib: floor,
            too_small: Vec::new(),
        };
        assert!(size(Some(32)).targets().iter().all(|t| t.met));
        assert!(!size(None).targets()[1].met);
    }
}
