//! Writes tables and prose into a page.

use crate::documents::WIDEST_LINE;
use anyhow::{Context, Result, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- /bench -->";

/// A page with a section for tables between two marks.
pub(super) struct Page {
    path: PathBuf,
    before: String,
    after: String,
}

impl Page {
    /// Reads a page. An absent file is created; a file without the marks is not overwritten.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => format!("{BEGIN}{END}\n"),
            Err(e) => bail!("cannot read {}: {e}", path.display()),
        };
        let place = || format!("{} has no place for tables: {}, {END}", path.display(), BEGIN.trim());
        let (before, rest) = text.split_once(BEGIN).with_context(place)?;
        let (_, after) = rest.split_once(END).with_context(place)?;
        Ok(Self { path: path.to_owned(), before: before.to_owned(), after: after.to_owned() })
    }

    /// Replaces the section by `text`, which must end with a newline.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        let Self { path, before, after } = self;
        let text = wrapped(text);
        std::fs::write(path, format!("{before}{BEGIN}{text}{END}{after}"))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Breaks the lines of prose that are wider than a page may be. Tables stay as they are.
pub(super) fn wrapped(text: &str) -> String {
    let mut page = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split_inclusive(' ') {
            let len = word.trim_end().chars().count();
            if width > 0 && width + len > WIDEST_LINE && !line.starts_with('|') {
                page.truncate(page.trim_end().len());
                page.push('\n');
                width = 0;
            }
            page.push_str(word);
            width += word.chars().count();
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_what_is_between_the_marks_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.md");
        let read = || std::fs::read_to_string(&path).unwrap();
        Page::open(&path).unwrap().write("one\n").unwrap();
        assert_eq!(read(), "<!-- bench -->\none\n<!-- /bench -->\n");
        std::fs::write(&path, format!("above\n{}below\n", read())).unwrap();
        Page::open(&path).unwrap().write("two\n").unwrap();
        assert_eq!(read(), "above\n<!-- bench -->\ntwo\n<!-- /bench -->\nbelow\n");
        std::fs::write(&path, "precious").unwrap();
        assert!(Page::open(&path).is_err());
        assert!(Page::open(dir.path()).is_err());
    }

    #[test]
    fn prose_is_broken_and_tables_are_not() {
        let (word, row) = ("x".repeat(40), format!("| {} |", "y ".repeat(80)));
        let text = format!("{word} {word} {word} a\n\n{row}\n");
        assert_eq!(wrapped(&text), format!("{word} {word}\n{word} a\n\n{row}\n"));
        let long = "z".repeat(WIDEST_LINE + 1);
        assert_eq!(wrapped(&long), format!("{long}\n"));
    }
}
