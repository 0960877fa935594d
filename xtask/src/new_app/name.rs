//! Names of new applications.

use anyhow::{Context, Result, ensure};
use lab::paths;
use std::fmt;
use std::str::FromStr;

/// The length of the longest name.
const LONGEST: usize = 32;
/// Names that are valid identifiers but mean something else to cargo or the compiler.
const RESERVED: [&str; 7] = ["alloc", "core", "default", "proc-macro", "self", "std", "test"];

/// The name of an application, which is also that of a crate and of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let shaped = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(known)
            && !text.ends_with('-')
            && !text.contains("--");
        if !shaped {
            return Err("want lower-case letters, digits and single hyphens, and a letter first".into());
        }
        if text.len() > LONGEST {
            return Err(format!("want at most {LONGEST} characters"));
        }
        let name = Self(text.to_owned());
        if RESERVED.contains(&text) || syn::parse_str::<syn::Ident>(&name.identifier()).is_err() {
            return Err("the name is reserved in Rust".into());
        }
        Ok(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Name {
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the name as an identifier, as in `word_length` for `word-length`.
    pub(super) fn identifier(&self) -> String {
        self.0.replace('-', "_")
    }

    /// Returns the name of the type, as in `WordLength` for `word-length`.
    pub(super) fn type_name(&self) -> String {
        let capital = |word: &str| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
        };
        self.0.split('-').map(capital).collect::<Vec<String>>().concat()
    }

    /// Checks that neither a crate of the workspaces nor a folder below `apps/` has the name.
    pub(super) fn check_crates(&self) -> Result<()> {
        let root = paths::root();
        ensure!(!root.join("apps").join(&self.0).exists(), "apps/{self} exists already");
        for file in ["Cargo.lock", "kernel/Cargo.lock"] {
            let lock =
                std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
            let same = |line: &str| {
                let package = line.strip_prefix("name = \"").and_then(|rest| rest.strip_suffix('"'));
                package.is_some_and(|package| package.replace('_', "-") == self.0)
            };
            ensure!(!lock.lines().any(same), "the name {self} is taken: {file} has a crate of that name");
        }
        Ok(())
    }

    /// Checks that no application has the name.
    pub(super) fn check_applications(&self, names: &[String]) -> Result<()> {
        ensure!(!names.contains(&self.0), "the name {self} is taken by an application");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_all_their_forms() {
        let name: Name = "word-length-2".parse().unwrap();
        assert_eq!(name.identifier(), "word_length_2");
        assert_eq!(name.type_name(), "WordLength2");
        assert_eq!(name.to_string(), "word-length-2");
    }

    #[test]
    fn bad_names_are_refused() {
        let refused = |text: &str| text.parse::<Name>().unwrap_err();
        for text in ["", "Demo", "2d", "a_b", "-a", "a-", "a--b", "a b", "a/b", "../a", "ä"] {
            assert!(refused(text).contains("a letter first"), "{text}");
        }
        for text in ["fn", "match", "async", "std", "core", "default", "proc-macro"] {
            assert_eq!(refused(text), "the name is reserved in Rust", "{text}");
        }
        assert!(refused(&"a".repeat(33)).contains("at most 32"));
    }

    #[test]
    fn taken_names_are_refused() {
        let why = |text: &str| text.parse::<Name>().unwrap().check_crates().unwrap_err().to_string();
        assert!(why("graph").contains("exists already"));
        assert!(why("spin").contains("Cargo.lock has a crate of that name"));
        assert!(why("proc-macro2").contains("Cargo.lock has a crate of that name"));
        let name: Name = "pagerank".parse().unwrap();
        assert!(name.check_applications(&["pagerank".to_owned()]).is_err());
        assert!(name.check_applications(&["page".to_owned()]).is_ok() && name.check_crates().is_ok());
    }
}
