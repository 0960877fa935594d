//! Writes tables into a page.

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
        std::fs::write(path, format!("{before}{BEGIN}{text}{END}{after}"))
            .with_context(|| format!("cannot write {}", path.display()))
    }
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
}
