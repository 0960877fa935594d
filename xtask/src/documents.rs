//! Checks of the documents: links lead somewhere, files that are named exist, no page is a wall of text, and
//! the table of tests names the tests that exist.

use anyhow::{Context, Result};
use lab::paths;
use std::path::{Path, PathBuf};

/// The page that lists the requirements, each with its tests.
const TESTS: &str = "docs/reference/tests.md";
/// The page that lists what applications must do, each with its tests.
const CHECKS: &str = "docs/reference/applications-checks.md";
/// The largest number of lines of a page below `docs/`. Lines of tables do not count.
const LONGEST_PAGE: usize = 200;
/// The longest line of prose, in characters, as for comments.
pub(crate) const WIDEST_LINE: usize = 110;
/// Directories without documents of ours.
const SKIPPED: [&str; 3] = ["target", ".git", ".library"];

/// Returns one line for each fault of the documents. `cases` are the names of all tests of
/// `cargo xtask test`.
pub(crate) fn faults(cases: &[String]) -> Result<Vec<String>> {
    let root = paths::root();
    let mut pages = Vec::new();
    collect(&root, &mut pages)?;
    let mut faults = Vec::new();
    for path in &pages {
        let page = Page::read(&root, path)?;
        faults.extend(page.broken_links(&root));
        faults.extend(page.absent_files(&root));
        faults.extend(page.wide_lines());
        if page.name.starts_with("docs/") && page.lines() > LONGEST_PAGE {
            faults.push(format!("{}: {} lines, {LONGEST_PAGE} are allowed", page.name, page.lines()));
        }
    }
    let tests = std::fs::read_to_string(root.join(TESTS)).with_context(|| format!("cannot read {TESTS}"))?;
    faults.extend(crate::findings::faults(&root)?);
    faults.extend(differences(&tests, cases).into_iter().map(|fault| format!("{TESTS}: {fault}")));
    let checks =
        std::fs::read_to_string(root.join(CHECKS)).with_context(|| format!("cannot read {CHECKS}"))?;
    faults.extend(unknown(&checks, cases).iter().map(|name| format!("{CHECKS}: there is no test `{name}`")));
    Ok(faults)
}

/// Adds the Markdown files below a directory.
fn collect(dir: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && !path.is_symlink() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// A Markdown file.
struct Page {
    path: PathBuf,
    /// The path of the page, relative to the top of the repository.
    name: String,
    text: String,
}

impl Page {
    fn read(root: &Path, path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        Ok(Self { path: path.to_owned(), name, text })
    }

    /// Returns the number of lines that are not part of a table.
    fn lines(&self) -> usize {
        self.text.lines().filter(|line| !line.starts_with('|')).count()
    }

    /// Returns one line for each relative link whose file or heading does not exist.
    fn broken_links(&self, root: &Path) -> Vec<String> {
        let mut broken = Vec::new();
        for link in links(&self.text).filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => self.path.clone(),
                file => self.path.parent().unwrap_or(root).join(file),
            };
            let known = target.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&target)
                        .is_ok_and(|text| headings(&text).any(|h| h == heading)));
            if !known {
                broken.push(format!("{}: the link {link} leads nowhere", self.name));
            }
        }
        broken
    }

    /// Returns one line for each line of prose that is too wide. Tables are exempt.
    fn wide_lines(&self) -> Vec<String> {
        let wide =
            prose(&self.text).filter(|line| line.chars().count() > WIDEST_LINE && !line.starts_with('|'));
        wide.map(|line| format!("{}: a line is wider than {WIDEST_LINE} characters: {line}", self.name))
            .collect()
    }

    /// Returns one line for each path in backticks, from the top of the repository, that does not exist.
    fn absent_files(&self, root: &Path) -> Vec<String> {
        let directories = top(root);
        let is_path = |word: &&str| {
            let (directory, rest) = word.split_once('/').unwrap_or_default();
            // `tests/it` is the program with the tests of any crate.
            let is_ours = directories.iter().any(|known| known == directory) && directory != "target";
            is_ours && !rest.is_empty() && *word != "tests/it" && !rest.contains([' ', '*', '{', '$'])
        };
        let words = prose(&self.text).flat_map(|line| line.split('`').skip(1).step_by(2));
        let absent = words.filter(is_path).filter(|path| !root.join(path).exists());
        absent.map(|path| format!("{}: there is no {path}", self.name)).collect()
    }
}

/// Returns the names of the directories at the top of the repository.
fn top(root: &Path) -> Vec<String> {
    let entries =
        std::fs::read_dir(root).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the lines of a text that are not in blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the targets of the links of a text, as in `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = String> {
    prose(text).flat_map(|line| {
        // Every second part is code.
        let plain: String = line.split('`').step_by(2).collect();
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(|(target, _)| target.to_owned()).collect::<Vec<_>>()
    })
}

/// Returns the headings of a text as a link names them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let marked =
        prose(text).filter_map(|line| line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' '));
    marked.map(|heading| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    })
}

/// Compares the tests that a page names, in backticks and with `*` for any text, with the tests that exist.
/// Returns one line for each name without a test, and for each test without a name.
fn differences(page: &str, cases: &[String]) -> Vec<String> {
    let named = names(page, cases);
    let unlisted = cases.iter().filter(|case| !named.iter().any(|name| fits(name, case)));
    unknown(page, cases)
        .into_iter()
        .map(|name| format!("there is no test `{name}`"))
        .chain(unlisted.map(|case| format!("the test `{case}` is not listed")))
        .collect()
}

/// Returns the names of tests on a page that fit no test.
fn unknown<'a>(page: &'a str, cases: &[String]) -> Vec<&'a str> {
    names(page, cases).into_iter().filter(|name| !cases.iter().any(|case| fits(name, case))).collect()
}

/// Returns the words in backticks whose group is one of the groups of the tests.
fn names<'a>(page: &'a str, cases: &[String]) -> Vec<&'a str> {
    let group = |name: &str| name.split_once("::").map(|(group, _)| group.to_owned());
    let groups: Vec<_> = cases.iter().filter_map(|case| group(case)).collect();
    let is_test = |name: &&str| {
        name.split("::").count() == 2
            && !name.ends_with("::")
            && group(name).is_some_and(|group| groups.contains(&group))
    };
    page.split('`').skip(1).step_by(2).filter(is_test).collect()
}

/// Returns true if a name in which `*` stands for any text fits a test.
fn fits(name: &str, test: &str) -> bool {
    match name.split_once('*') {
        None => name == test,
        Some((start, rest)) => test.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices().map(|(at, _)| at).chain([tail.len()]).any(|at| fits(rest, &tail[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn read(path: &str) -> String {
        std::fs::read_to_string(paths::root().join(path)).unwrap()
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let page = |text: &str| {
            let path = dir.path().join("page.md");
            std::fs::write(&path, text).unwrap();
            Page::read(dir.path(), &path).unwrap().broken_links(dir.path()).len()
        };
        assert_eq!(
            page("# One two: three\n[a](page.md), [b](#one-two-three), [c](https://example.org/x)\n"),
            0
        );
        assert_eq!(page("`[a](x.md)`\n```\n[b](y.md)\n# Code\n```\n"), 0);
        assert_eq!(page("[a](x.md) and [b](page.md#two), [c](#code)\n```\n# Code\n```\n"), 3);
    }

    #[test]
    fn a_file_that_does_not_exist_is_found_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lite")).unwrap();
        let text = "`lite/`, `lite/none.rs`, `other/none.rs`, `lite/*.rs`\n```\n`lite/code.rs`\n```\n".into();
        let page = Page { path: dir.path().join("page.md"), name: "page.md".into(), text };
        assert_eq!(page.absent_files(dir.path()), ["page.md: there is no lite/none.rs"]);
        assert_eq!(page.wide_lines(), [""; 0]);
    }

    #[test]
    fn only_prose_is_too_wide() {
        let long = "x".repeat(WIDEST_LINE + 1);
        let text = format!("{long}\n| {long} |\n```\n{long}\n```\n");
        let page = Page { path: "page.md".into(), name: "page.md".into(), text };
        assert_eq!(page.wide_lines().len(), 1);
    }

    #[test]
    fn names_and_tests_are_compared_both_ways() {
        let cases = ["run::a", "run::b-1", "run::b-2", "host::c"].map(String::from);
        let page = |text: &str| differences(text, &cases);
        assert_eq!(page("`run::a`, `run::b-*`, `host::c`*, the group `run::`, `other::x`"), [""; 0]);
        assert_eq!(
            page("`run::a`, `run::*-1`, `run::d`"),
            [
                "there is no test `run::d`",
                "the test `run::b-2` is not listed",
                "the test `host::c` is not listed",
            ]
        );
    }

    #[test]
    fn the_page_of_xtask_lists_every_command() {
        let page = read("docs/reference/xtask.md");
        for command in crate::Cli::command().get_subcommands() {
            assert!(page.contains(&format!("| `{}` |", command.get_name())), "{}", command.get_name());
        }
    }

    #[test]
    fn the_page_of_the_kernels_command_line_lists_every_key() {
        let page = read("docs/reference/kernel-command-line.md");
        for key in bootconfig::KEYS {
            assert!(page.contains(&format!("| `{}` |", key.name)), "{}", key.name);
        }
    }
}
