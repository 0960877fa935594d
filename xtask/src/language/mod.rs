//! `cargo xtask lint`: counts the places where comments and functions break `docs/style.md`, and compares the
//! counts with budgets that only fall.

mod cycles;
mod draw;
mod imports;
mod layers;
mod modules;
mod source;
mod structure;
mod types;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
pub(crate) use cycles::lint as cycles;
use lab::paths;
pub(crate) use layers::lint as layers;
pub(crate) use source::each as each_source;
use source::{Comment, Source};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
pub(crate) use types::lint as types;

/// The longest permitted function outside of tests, in lines.
const LONGEST_FUNCTION: usize = 70;
/// The longest permitted line of a comment, in characters: as for code (`rustfmt.toml`). Tables are exempt.
const WIDEST_COMMENT: usize = 110;

/// First words of a doc comment that is the clause of a question instead of a noun phrase or a sentence.
const CLAUSES: &[&str] = &[
    "what",
    "how",
    "whether",
    "where",
    "who",
    "whoever",
    "whom",
    "when",
    "which",
    "why",
    "whose",
    "until when",
    "from when",
    "by how",
    "by what",
    "in what",
    "with which",
    "without which",
    "to whom",
    "for whom",
];
/// First words of a doc comment by which it depends on the line above.
const ELLIPSES: &[&str] = &[
    "of", "its", "it", "their", "they", "those", "that of", "the same", "so many", "so much", "and", "or",
    "but", "also", "as above", "this one", "likewise", "such",
];
/// Words and phrases that no comment may use, one per line. Those with a `^` are wrong only as the first word
/// of a doc comment.
const WORDS: &str = include_str!("words.txt");
/// The largest permitted count of each rule: `RULE COUNT`, one per line.
const BUDGETS: &str = include_str!("budgets.txt");

/// The options of `cargo xtask lint`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Lists the places that break this rule: `clause`, `ellipsis`, `word`, `wide`, `long`, `cycles` (of
    /// imports between files), `layers` (imports of an upper one) or `types` (with many fields or files);
    /// `draw` shows doc comments drawn at random [default: counts of the first five]
    #[arg(value_name = "RULE")]
    rule: Option<String>,
    /// Lists only files whose path begins with this
    #[arg(long, value_name = "PATH", default_value = "")]
    under: String,
    /// The seed of `draw`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of comments that `draw` shows
    #[arg(long, value_name = "N", default_value_t = 50)]
    count: usize,
    /// Lowers the budgets to the present counts
    #[arg(long)]
    tighten: bool,
}

/// A place that breaks a rule.
struct Finding {
    rule: &'static str,
    file: PathBuf,
    line: usize,
    text: String,
}

/// The findings in the repository, and the number of its doc comments.
pub(crate) struct Report {
    findings: Vec<Finding>,
    docs: usize,
}

/// Prints counts, and the places that break a rule if one is given. Lowers budgets if that is requested.
/// Fails if a count is over its budget.
pub(crate) fn lint(options: &Options) -> Result<()> {
    match options.rule.as_deref() {
        Some("draw") => {
            return draw::draw(options.seed, options.count, &options.under, &mut io::stdout());
        }
        Some("cycles") => return cycles::lint(&options.under, &mut io::stdout()),
        Some("layers") => return layers::lint(&options.under, &mut io::stdout()),
        Some("types") => return types::lint(&options.under, &mut io::stdout()),
        _ => {}
    }
    let report = Report::of_the_repository()?;
    let budgets = budgets()?;
    if let Some(rule) = &options.rule
        && !budgets.contains_key(rule.as_str())
    {
        bail!(
            "there is no rule `{rule}`: want one of {}, cycles, layers, types, draw",
            budgets.keys().copied().collect::<Vec<_>>().join(", ")
        );
    }
    match print(options, &report, &budgets, &mut io::stdout().lock()) {
        // The reader of a pipe has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    if options.tighten {
        tighten(&report, &budgets)?;
        structure::tighten(|rule, budget| {
            let source = paths::root().join(&budget.source);
            Ok(match rule {
                "cycles" => cycles::Cycle::largest_of(&source)?.len(),
                _ => types::large_types(&source)?.len(),
            })
        })?;
    }
    let over = report.over_budget()?;
    ensure!(over.is_empty(), "{}", over.join("\n"));
    Ok(())
}

/// Writes the places that break the given rule, and the counts of all rules.
fn print(
    options: &Options,
    report: &Report,
    budgets: &BTreeMap<&str, usize>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    if let Some(rule) = &options.rule {
        for finding in report.findings.iter().filter(|f| f.rule == rule && f.file.starts_with(&options.under))
        {
            writeln!(out, "{}:{}: {}", finding.file.display(), finding.line, finding.text)?;
        }
    }
    for (rule, budget) in budgets {
        writeln!(out, "{rule:<9} {:>5} of at most {budget}", report.count(rule))?;
    }
    writeln!(out, "among {} doc comments", report.docs)
}

/// Writes the budgets. None becomes larger.
fn tighten(report: &Report, budgets: &BTreeMap<&str, usize>) -> Result<()> {
    let mut text = String::new();
    for (rule, budget) in budgets {
        writeln!(text, "{rule} {}", report.count(rule).min(*budget))?;
    }
    let path = paths::root().join("xtask/src/language/budgets.txt");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the highest count that each rule may have.
fn budgets() -> Result<BTreeMap<&'static str, usize>> {
    let parse = |line: &'static str| {
        let (rule, count) = line.split_once(' ').context("a budget is a rule and a count")?;
        Ok((rule, count.parse().with_context(|| format!("the budget of `{rule}` is no number"))?))
    };
    BUDGETS.lines().map(parse).collect()
}

impl Report {
    /// Checks all Rust files of the repository.
    pub(crate) fn of_the_repository() -> Result<Self> {
        let root = paths::root();
        let mut report = Self { findings: Vec::new(), docs: 0 };
        source::each(&root, &mut |path, text| {
            report.look_at(path.strip_prefix(&root).unwrap_or(path), text);
        })?;
        Ok(report)
    }

    /// Returns the number of places that a rule finds.
    fn count(&self, rule: &str) -> usize {
        self.findings.iter().filter(|f| f.rule == rule).count()
    }

    /// Returns one line for each rule whose count is above its budget.
    pub(crate) fn over_budget(&self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (rule, budget) in budgets()? {
            let count = self.count(rule);
            if count > budget {
                lines.push(format!(
                    "{rule}: {count} places, {budget} are allowed; `cargo xtask lint {rule}` lists them"
                ));
            }
        }
        Ok(lines)
    }

    fn look_at(&mut self, path: &Path, text: &str) {
        let source = Source::parse(text);
        for comment in &source.comments {
            self.docs += usize::from(comment.is_doc);
            for rule in rules_broken_by(comment) {
                let text: String = comment.text.chars().take(100).collect();
                self.findings.push(Finding { rule, file: path.into(), line: comment.line, text });
            }
        }
        for line in source.wide_comments(WIDEST_COMMENT) {
            let text = format!("a comment is wider than {WIDEST_COMMENT} characters");
            self.findings.push(Finding { rule: "wide", file: path.into(), line, text });
        }
        // The cases of the end-to-end tests are lists, which may be long.
        if path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests"))) {
            return;
        }
        for (line, length, name) in
            source.functions.iter().filter(|(_, length, _)| *length > LONGEST_FUNCTION)
        {
            let text = format!("`{name}` has {length} lines");
            self.findings.push(Finding { rule: "long", file: path.into(), line: *line, text });
        }
    }
}

/// Returns the rules that a comment breaks.
fn rules_broken_by(comment: &Comment) -> Vec<&'static str> {
    let text = comment.text.to_lowercase();
    let mut broken = Vec::new();
    if comment.is_doc && CLAUSES.iter().any(|words| begins_with(&text, words)) {
        broken.push("clause");
    }
    if comment.is_doc && ELLIPSES.iter().any(|words| begins_with(&text, words)) {
        broken.push("ellipsis");
    }
    let uses = |word: &&str| match word.strip_prefix('^') {
        Some(word) => comment.is_doc && begins_with(&text, word),
        None => contains_word(&text, word),
    };
    broken.extend(WORDS.lines().filter(uses).map(|_| "word"));
    broken
}

fn begins_with(text: &str, words: &str) -> bool {
    text.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<(&'static str, usize)> {
        let mut report = Report { findings: Vec::new(), docs: 0 };
        report.look_at(Path::new("lite/src/x.rs"), text);
        report.findings.iter().map(|f| (f.rule, f.line)).collect()
    }

    #[test]
    fn each_rule_finds_its_places_and_no_other() {
        assert_eq!(broken("/// Whether it is so.\nfn f() {}\n"), [("clause", 1)]);
        assert_eq!(broken("//! Of a block.\n"), [("ellipsis", 1)]);
        assert_eq!(broken("fn f() {\n    // Whoever has it.\n}\n"), [("word", 2)]);
        assert_eq!(broken(&format!("/// {}\n", "long ".repeat(30))), [("wide", 1)]);
        assert_eq!(broken(&format!("/// | {}|\n", "long ".repeat(30))), []);
        let long = format!("    fn long() {{\n{}    }}\n", "        x();\n".repeat(LONGEST_FUNCTION - 1));
        assert_eq!(broken(&long), [("long", 1)]);
        let fits = format!("    fn fits() {{\n{}    }}\n", "        x();\n".repeat(LONGEST_FUNCTION - 2));
        assert_eq!(broken(&fits), []);
        assert_eq!(
            broken("/// Returns whether it is so. Offset: bytes. Howard.\nlet url = \"//what\";\n"),
            []
        );
    }

    #[test]
    fn a_comment_of_several_lines_is_one() {
        assert_eq!(broken("/// The number of\n/// whatever is there.\nfn f() {}\n"), []);
        assert_eq!(broken("/// The part that is under\n/// way.\nfn f() {}\n"), [("word", 1)]);
    }
}
