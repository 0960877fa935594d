//! Configuration files in TOML. An error names the file, the line and the key, and the nearest name if the
//! key is unknown.

use super::context::nearest;
use anyhow::{Context, Error, Result, anyhow};
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// The text of a file, for errors about its parts.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Parses the text.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(self.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            let message = error.message().lines().next().unwrap_or_default();
            self.mistake(&span, self.named(&span, message))
        })
    }

    /// Returns an error about a part of the text.
    pub(super) fn mistake(&self, span: &Range<usize>, what: impl Display) -> Error {
        anyhow!("{}:{}: {what}", self.path.display(), 1 + self.before(span).matches('\n').count())
    }

    /// Parses the value of a key, if the file has it. A mistake is an error at its place, with the key.
    pub(super) fn value<T, V>(
        &self,
        key: &str,
        part: Option<&Spanned<T>>,
        parse: impl FnOnce(&T) -> Result<V, String>,
    ) -> Result<Option<V>> {
        let Some(part) = part else { return Ok(None) };
        let parsed = parse(part.get_ref());
        parsed.map(Some).map_err(|why| self.mistake(&part.span(), format!("{key}: {why}")))
    }

    fn before(&self, span: &Range<usize>) -> &str {
        self.text.get(..span.start).unwrap_or(self.text)
    }

    /// Returns a message of the parser with the key to which it belongs.
    fn named(&self, span: &Range<usize>, message: &str) -> String {
        let mut quoted = message.split('`').skip(1).step_by(2);
        if let (true, Some(key)) = (message.starts_with("unknown field"), quoted.next()) {
            let near = nearest(key, quoted);
            let hint = near.map_or_else(String::new, |near| format!("; is it {near}?"));
            return format!("unknown key {key}{hint}");
        }
        let start = self.before(span).rfind('\n').map_or(0, |at| at + 1);
        let line = self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        match line.split_once('=') {
            Some((key, _)) if !message.contains("field") => format!("{}: {message}", key.trim()),
            _ => message.into(),
        }
    }
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
