//! `cargo xtask bench path`: counts the files of LITE through which a WRITE goes, by callgrind's records of
//! files and functions, with code that the compiler has inlined.
//!
//! The path has two halves. The poller's half is all that runs inside `Lite::poll`; the task's half is all
//! else: the task posts the WRITE, and takes its result after the poller has woken it. Checks that the poller
//! makes at each turn belong to its half. A file is on a half if its instructions there grow with the number
//! of WRITEs. Instructions that other crates own, Rust's library included, belong to no file of LITE.
//!
//! A half passes through a file once for each compiled function with code of that file that no such
//! function calls. A return to the file within one compiled function is not in the records, so this is the
//! least number of passages.

use super::callgrind::{self, Counted, Profile};
use super::program;
use super::table::{Table, number};
use anyhow::{Result, ensure};
use lab::{paths, ui};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The number of WRITEs of the shorter run. The longer run has twice as many; the difference is counted.
const COUNTED: u32 = 1000;
/// Set-up may differ between two runs by less than this share of an instruction per WRITE.
const LEAST: f64 = 0.1;
/// The function that separates the halves, as a pattern of callgrind.
const POLLER: &str = "*Lite::poll";
/// The directory of LITE's files.
const SOURCES: &str = "lite/src";
/// The section of ARCHITECTURE.md that lists the files.
const HEADING: &str = "## The path of a WRITE\n";

/// A number that must not rise.
struct Budget {
    name: &'static str,
    /// The largest permitted number. Lower it when the count falls.
    most: usize,
    aim: usize,
    count: fn(&[Row]) -> usize,
}

const BUDGETS: [Budget; 2] = [
    Budget { name: "files", most: 8, aim: 8, count: files },
    Budget { name: "files with several passages in a half", most: 0, aim: 0, count: repeated },
];

/// A half of the path: the task's, or the poller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Task,
    Poller,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Poller => "poller",
        }
    }
}

/// A file on a half of the path.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    /// The file, below `lite/src`.
    file: String,
    half: Half,
    /// Instructions per WRITE.
    instructions: f64,
    passages: usize,
}

/// Returns the number of different files.
fn files(rows: &[Row]) -> usize {
    rows.iter().map(|row| &row.file).collect::<BTreeSet<_>>().len()
}

/// Returns the number of files through which a half passes several times.
fn repeated(rows: &[Row]) -> usize {
    rows.iter().filter(|row| row.passages > 1).map(|row| &row.file).collect::<BTreeSet<_>>().len()
}

/// The instructions and the calls of one or several runs.
#[derive(Default)]
struct Passed {
    /// Instructions, by file and function.
    costs: BTreeMap<(String, String), u64>,
    /// Numbers of calls, by caller and callee.
    calls: BTreeMap<(String, String), u64>,
}

impl Passed {
    fn new(profile: Profile) -> Self {
        let mut calls = BTreeMap::new();
        for call in profile.calls {
            *calls.entry((call.caller.function, call.callee.function)).or_default() += call.count;
        }
        Self { costs: profile.costs, calls }
    }

    /// Returns the part of this profile by which it exceeds `other`.
    fn beyond(mut self, other: &Self) -> Self {
        for (mine, theirs) in [(&mut self.costs, &other.costs), (&mut self.calls, &other.calls)] {
            for (key, n) in mine.iter_mut() {
                *n = n.saturating_sub(theirs.get(key).copied().unwrap_or(0));
            }
            mine.retain(|_, n| *n > 0);
        }
        self
    }

    /// Returns the rows of a half: LITE's files below `sources` without those for tests, the most expensive
    /// file first. This profile is that of `operations` WRITEs.
    fn rows(&self, half: Half, sources: &Path, operations: u32) -> Vec<Row> {
        let mut by_file = BTreeMap::<String, (u64, BTreeSet<&str>)>::new();
        for ((file, function), cost) in &self.costs {
            let Ok(file) = Path::new(file).strip_prefix(sources) else { continue };
            if file.starts_with("testing") {
                continue;
            }
            let (sum, functions) = by_file.entry(file.display().to_string()).or_default();
            *sum += cost;
            functions.insert(function);
        }
        let row = |(file, (sum, functions)): (String, (u64, BTreeSet<&str>))| {
            let instructions = sum as f64 / f64::from(operations);
            Row { file, half, instructions, passages: self.passages(&functions) }
        };
        let mut rows: Vec<_> = by_file.into_iter().map(row).filter(|row| row.instructions >= LEAST).collect();
        rows.sort_by(|a, b| b.instructions.total_cmp(&a.instructions));
        rows
    }

    /// Returns the number of functions in a set that no other function of the set calls, and at least 1.
    fn passages(&self, functions: &BTreeSet<&str>) -> usize {
        let called = |function: &str| {
            let mut calls = self.calls.keys().filter(|(_, callee)| callee == function);
            calls.any(|(caller, _)| caller != function && functions.contains(caller.as_str()))
        };
        functions.iter().filter(|function| !called(function)).count().max(1)
    }
}

/// Counts the path: the task's half, then the poller's.
fn measure() -> Result<Vec<Row>> {
    let program = ui::step("the benchmark of LITE", || program::build("lite", "native"))?;
    let only_poller = format!("--toggle-collect={POLLER}");
    let run = |count: u32, options: &[&str]| {
        let arguments = ["--count", "write", "1", &count.to_string()];
        anyhow::Ok(Passed::new(callgrind::profile(options, &program, &arguments)?))
    };
    let growth = |options: &[&str]| anyhow::Ok(run(2 * COUNTED, options)?.beyond(&run(COUNTED, options)?));
    ui::step("WRITEs under callgrind", || {
        let poller = growth(&[&only_poller])?;
        let task = growth(&[])?.beyond(&poller);
        let sources = paths::root().join(SOURCES);
        let [task, poller] = [(task, Half::Task), (poller, Half::Poller)]
            .map(|(profile, half)| profile.rows(half, &sources, COUNTED));
        ensure!(!poller.is_empty(), "the program has no function {POLLER}: it has been inlined");
        ensure!(!task.is_empty(), "no file of {} is in the profile", sources.display());
        Ok([task, poller].concat())
    })
}

fn tables(rows: &[Row]) -> [Table; 2] {
    let remark = "instructions of LITE's own files per WRITE, inlined code included, by callgrind; \
                  the task's half: posting, and taking the result; the poller's: Lite::poll; \
                  passages: at least so many";
    let mut path =
        Table::new("The path of a 64 B WRITE in lite", remark, &["file", "half", "instructions", "passages"]);
    for row in rows {
        let passages = row.passages.to_string();
        path.row([row.file.clone(), row.half.name().to_owned(), number(row.instructions), passages]);
    }
    let sum = rows.iter().map(|row| row.instructions).sum();
    path.row(["sum".to_owned(), String::new(), number(sum), String::new()]);
    let on = |half| rows.iter().filter(|row| row.half == half).count();
    let (task, poller) = (on(Half::Task), on(Half::Poller));
    let remark = format!(
        "{task} files on the task's half, {poller} on the poller's, {} on both",
        task + poller - files(rows)
    );
    let mut budgets = Table::new("Budgets", remark, &["", "counted", "budget", "aim"]);
    for budget in &BUDGETS {
        let numbers = [(budget.count)(rows), budget.most, budget.aim].map(|n| n.to_string());
        let [counted, most, aim] = numbers;
        budgets.row([budget.name.to_owned(), counted, most, aim]);
    }
    [path, budgets]
}

/// Returns the files in the table of the section about a WRITE.
fn documented(page: &str) -> BTreeSet<&str> {
    let section = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let first_cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    first_cells.filter_map(|(file, _)| file.strip_prefix(SOURCES)?.strip_prefix('/')).collect()
}

/// Fails if a budget is exceeded, or if the table of ARCHITECTURE.md is that of other files.
fn judge(rows: &[Row]) -> Result<()> {
    for budget in &BUDGETS {
        let counted = (budget.count)(rows);
        ensure!(counted <= budget.most, "{}: {counted}, and at most {} may be", budget.name, budget.most);
    }
    let page = std::fs::read_to_string(paths::root().join("ARCHITECTURE.md"))?;
    let (told, found) = (documented(&page), rows.iter().map(|row| row.file.as_str()).collect());
    let [absent, extra] = [(&found, &told), (&told, &found)]
        .map(|(these, those): (&BTreeSet<_>, _)| these.difference(those).copied().collect::<Vec<_>>());
    ensure!(
        absent.is_empty() && extra.is_empty(),
        "the path of a WRITE in ARCHITECTURE.md lacks {absent:?} and has {extra:?}, which are not on the path"
    );
    Ok(())
}

/// Counts the path. A path that is longer than permitted, or another than documented, is out of its bounds.
pub(crate) fn count() -> Result<Counted> {
    let rows = measure()?;
    let [path, budgets] = tables(&rows).map(|table| table.text());
    Ok(Counted { tables: format!("{path}\n{budgets}"), verdict: judge(&rows) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `post` of a.rs has inlined code of b.rs; it calls `end` of c.rs twice, and `helper` of b.rs.
    const TEXT: &str = "version: 1\npositions: line\nevents: Ir\nsummary: 999\n\n\
        fl=(1) /x/lite/src/a.rs\nfn=(1) post\n5 10\nfi=(2) /x/lite/src/b.rs\n+3 7\nfe=(1)\n* 2\n\
        cfi=(3) /x/lite/src/c.rs\ncfn=(2) end\ncalls=2 40\n-1 300\ncfi=(2)\ncfn=(3) helper\ncalls=1 9\n9 50\n6 1\n\n\
        fl=(3)\nfn=(2)\n40 4\n+1 6\n\nfl=(2)\nfn=(3)\n9 20\nfi=(4) /rust/core.rs\n1 30\n\n\
        fl=(5) /x/lite/src/testing/rnic.rs\nfn=(4) poll\n1 9\n\nfl=(3)\nfn=(5) drop\n50 8\n\ntotals: 97\n";

    fn parsed(text: &str) -> Passed {
        Passed::new(Profile::parse(text))
    }

    fn cost(profile: &Passed, file: &str, function: &str) -> Option<u64> {
        profile.costs.get(&(file.to_owned(), function.to_owned())).copied()
    }

    #[test]
    fn costs_belong_to_the_file_that_they_were_inlined_from() {
        let profile = parsed(TEXT);
        assert_eq!(cost(&profile, "/x/lite/src/a.rs", "post"), Some(13));
        assert_eq!(cost(&profile, "/x/lite/src/b.rs", "post"), Some(7));
        assert_eq!(cost(&profile, "/x/lite/src/b.rs", "helper"), Some(20));
        assert_eq!(cost(&profile, "/rust/core.rs", "helper"), Some(30));
        assert_eq!(cost(&profile, "/x/lite/src/c.rs", "end"), Some(10));
        assert_eq!(profile.costs.values().sum::<u64>(), 97);
    }

    #[test]
    fn rows_are_the_files_of_lite_with_their_passages() {
        let row = |file: &str, instructions, passages| Row {
            file: file.to_owned(),
            half: Half::Task,
            instructions,
            passages,
        };
        let rows = parsed(TEXT).rows(Half::Task, Path::new("/x/lite/src"), 10);
        // `post` calls `helper`, so b.rs has one passage; nothing with code of c.rs calls `end` or `drop`.
        assert_eq!(rows, [row("b.rs", 2.7, 1), row("c.rs", 1.8, 2), row("a.rs", 1.3, 1)]);
        assert_eq!((files(&rows), repeated(&rows)), (3, 1));
        // A hundredth of an instruction is no growth.
        assert_eq!(parsed(TEXT).rows(Half::Task, Path::new("/x/lite/src"), 1800), []);
    }

    #[test]
    fn only_growth_is_left() {
        let twice = TEXT.replace("40 4\n", "40 24\n").replace("calls=2", "calls=3");
        let growth = parsed(&twice).beyond(&parsed(TEXT));
        assert_eq!(growth.costs.len(), 1);
        assert_eq!(cost(&growth, "/x/lite/src/c.rs", "end"), Some(20));
        assert_eq!(growth.calls, BTreeMap::from([(("post".to_owned(), "end".to_owned()), 1)]));
    }

    #[test]
    fn files_of_the_section_are_read() {
        let page = "## A\n\n| `lite/src/x.rs` |\n\n## The path of a WRITE\n\n| file |\n| --- |\n\
                    | `lite/src/a.rs` | posts |\n| `lite/src/b/c.rs` | |\n\n## B\n| `lite/src/y.rs` |\n";
        assert_eq!(documented(page), BTreeSet::from(["a.rs", "b/c.rs"]));
    }
}
