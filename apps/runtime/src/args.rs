//! The arguments of applications, as `KEY=VALUE` or as words: one description of them gives the usage and
//! reads them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::str::FromStr;
use proto::{AppManifest, CutRule};

/// An argument that an application accepts.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    key: &'static str,
    value: &'static str,
    kind: Kind,
}

/// The form of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Optional,
    Required,
    /// The key alone.
    Switch,
    /// Any word, without a key.
    Word,
    OptionalWord,
    /// Any number of words.
    Words,
}

impl Arg {
    /// Returns an argument that may be absent. `value` stands for its value in the usage: `BYTES`, or
    /// `rmat|uniform`.
    #[must_use]
    pub const fn optional(key: &'static str, value: &'static str) -> Self {
        Self { key, value, kind: Kind::Optional }
    }

    /// Returns an argument that must be present.
    #[must_use]
    pub const fn required(key: &'static str, value: &'static str) -> Self {
        Self { key, value, kind: Kind::Required }
    }

    /// Returns an argument that is present or absent, as `-i`.
    #[must_use]
    pub const fn switch(key: &'static str) -> Self {
        Self { key, value: "", kind: Kind::Switch }
    }

    /// Returns an argument that is a word of any form, and must be present. `key` is its name in the usage.
    /// Words have the order of their descriptions.
    #[must_use]
    pub const fn word(key: &'static str) -> Self {
        Self { key, value: "", kind: Kind::Word }
    }

    /// Returns an argument that is a word of any form, and may be absent.
    #[must_use]
    pub const fn optional_word(key: &'static str) -> Self {
        Self { key, value: "", kind: Kind::OptionalWord }
    }

    /// Returns an argument that stands for all words that are left.
    #[must_use]
    pub const fn words(key: &'static str) -> Self {
        Self { key, value: "", kind: Kind::Words }
    }

    fn usage(&self) -> String {
        let Self { key, value, kind } = self;
        match kind {
            Kind::Optional => format!("[{key}={value}]"),
            Kind::Required => format!("{key}={value}"),
            Kind::Switch | Kind::OptionalWord => format!("[{key}]"),
            Kind::Word | Kind::Words => (*key).to_string(),
        }
    }

    /// Returns true if the argument is `KEY=VALUE`.
    fn has_key(&self) -> bool {
        matches!(self.kind, Kind::Optional | Kind::Required)
    }

    fn is_missing(&self, values: &[(&str, &str)]) -> bool {
        matches!(self.kind, Kind::Required | Kind::Word) && !self.is_in(values)
    }

    fn is_in(&self, values: &[(&str, &str)]) -> bool {
        values.iter().any(|(key, _)| *key == self.key)
    }
}

/// The name, the purpose and the arguments of an application. It makes the manifest, and reads arguments in
/// [`App::check`](crate::App::check), which is before any input is sent.
///
/// ```
/// use proto::CutRule;
/// use runtime::{Arg, Syntax};
///
/// const SYNTAX: Syntax = Syntax {
///     name: "count-lines",
///     about: "counts lines",
///     args: &[Arg::required("color", "red|blue"), Arg::optional("least", "BYTES")],
/// };
///
/// let read = |args: &[&str]| {
///     let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
///     let args = SYNTAX.read(&args)?;
///     let color = args.one_of("color", &[("red", 1), ("blue", 2)])?;
///     Ok::<_, String>((color, args.number("least", 0..=1000)?.unwrap_or(80)))
/// };
/// assert_eq!(read(&["color=blue"]), Ok((Some(2), 80)));
/// assert_eq!(
///     read(&["color=blue", "least=2k"]).unwrap_err(),
///     "count-lines: least=2k: want a number from 0 to 1000; usage: color=red|blue [least=BYTES]",
/// );
/// assert_eq!(
///     SYNTAX.manifest(CutRule::Anywhere).about,
///     "counts lines: color=red|blue [least=BYTES]",
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Syntax {
    /// The name of the application, as in `--app`.
    pub name: &'static str,
    /// The purpose, in one line.
    pub about: &'static str,
    /// The arguments, in the order of the usage.
    pub args: &'static [Arg],
}

impl Syntax {
    /// Returns the manifest of the application, whose description has the usage.
    #[must_use]
    pub fn manifest(&self, cut: CutRule) -> AppManifest {
        let about = format!("{}: {}", self.about, self.usage());
        AppManifest { name: self.name.to_string(), about, cut }
    }

    /// Returns the arguments in one line; those in brackets may be absent.
    #[must_use]
    pub fn usage(&self) -> String {
        let all: Vec<String> = self.args.iter().map(Arg::usage).collect();
        if all.is_empty() { "no arguments".to_string() } else { all.join(" ") }
    }

    /// Returns a complaint of the application, with the usage, in one line.
    #[must_use]
    pub fn complaint(&self, why: &str) -> String {
        format!("{}: {why}; usage: {}", self.name, self.usage())
    }

    /// Reads the arguments of a job.
    ///
    /// # Errors
    /// A [complaint](Self::complaint) if an argument is unknown, given twice, or missing.
    pub fn read<'a>(&'a self, args: &'a [String]) -> Result<Args<'a>, String> {
        let mut values: Vec<(&str, &str)> = Vec::new();
        for arg in args {
            let Some((arg, value)) = self.find(arg, &values) else {
                return Err(self.complaint(&format!("unknown argument {arg:?}")));
            };
            if arg.kind != Kind::Words && arg.is_in(&values) {
                return Err(self.complaint(&format!("{}= is given twice", arg.key)));
            }
            values.push((arg.key, value));
        }
        if let Some(arg) = self.args.iter().find(|arg| arg.is_missing(&values)) {
            return Err(self.complaint(&format!("{} is missing", arg.usage())));
        }
        Ok(Args { syntax: self, values })
    }

    /// Returns the argument that `text` is, and its value. `values` are the arguments before it.
    fn find<'a>(&'a self, text: &'a str, values: &[(&str, &str)]) -> Option<(&'a Arg, &'a str)> {
        if let Some((key, value)) = text.split_once('=')
            && let Some(arg) = self.args.iter().find(|arg| arg.key == key && arg.has_key())
        {
            return Some((arg, value));
        }
        let fits = |arg: &&Arg| match arg.kind {
            Kind::Optional | Kind::Required => false,
            Kind::Switch => arg.key == text && !arg.is_in(values),
            Kind::Word | Kind::OptionalWord => !arg.is_in(values),
            Kind::Words => true,
        };
        self.args.iter().find(fits).map(|arg| (arg, text))
    }
}

/// The arguments of a job. Each method returns a [complaint](Syntax::complaint) about a wrong value.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    syntax: &'a Syntax,
    values: Vec<(&'a str, &'a str)>,
}

impl<'a> Args<'a> {
    /// Returns the value of an argument, if it is present.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|(of, _)| *of == key).map(|(_, value)| *value)
    }

    /// Returns true if a switch is present.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.text(key).is_some()
    }

    /// Returns all values of an argument, which is one of [`Arg::words`].
    pub fn all(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.values.iter().filter(move |(of, _)| *of == key).map(|(_, value)| *value)
    }

    /// Returns a number in a range.
    ///
    /// # Errors
    /// A complaint if the value is no number, or outside of the range.
    pub fn number<T>(&self, key: &str, range: RangeInclusive<T>) -> Result<Option<T>, String>
    where
        T: FromStr + PartialOrd + ToString,
    {
        let want = || format!("a number from {} to {}", range.start().to_string(), range.end().to_string());
        self.parsed(key, want, |value| value.parse().ok().filter(|number| range.contains(number)))
    }

    /// Returns `true` or `false`; false if the argument is absent.
    ///
    /// # Errors
    /// A complaint if the value is neither.
    pub fn flag(&self, key: &str) -> Result<bool, String> {
        let parsed = self.parsed(key, || "true or false".to_string(), |value| value.parse().ok())?;
        Ok(parsed.unwrap_or(false))
    }

    /// Returns the meaning of a word.
    ///
    /// # Errors
    /// A complaint if the value is none of `words`.
    pub fn one_of<T: Clone>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
        let want = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        let meaning = |value: &str| words.iter().find(|(word, _)| *word == value).map(|(_, of)| of.clone());
        self.parsed(key, want, meaning)
    }

    /// Returns the result of `parse`; `want` says what it accepts.
    fn parsed<T>(
        &self,
        key: &str,
        want: impl Fn() -> String,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.text(key) else { return Ok(None) };
        let given = match self.syntax.args.iter().any(|arg| arg.key == key && arg.has_key()) {
            true => format!("{key}={value}"),
            false => format!("{key} {value:?}"),
        };
        let wrong = || self.syntax.complaint(&format!("{given}: want {}", want()));
        parse(value).map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNTAX: Syntax = Syntax {
        name: "app",
        about: "does something",
        args: &[Arg::required("source", "ID"), Arg::optional("each", "true"), Arg::optional("size", "N")],
    };

    fn error(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let read = SYNTAX.read(&args).and_then(|args| {
            args.number("source", 0..=u64::MAX)?;
            args.flag("each")?;
            args.number("size", 1..=8u8)?;
            Ok(())
        });
        read.unwrap_err()
    }

    #[test]
    fn complaints_have_one_line_and_the_usage() {
        let usage = "; usage: source=ID [each=true] [size=N]";
        for (args, says) in [
            (&[][..], "app: source=ID is missing"),
            (&["size=3"], "app: source=ID is missing"),
            (&["source=-1"], "app: source=-1: want a number from 0 to 18446744073709551615"),
            (&["source=1", "source=2"], "app: source= is given twice"),
            (&["source=1", "each=yes"], "app: each=yes: want true or false"),
            (&["source=1", "size=9"], "app: size=9: want a number from 1 to 8"),
            (&["source=1", "size="], "app: size=: want a number from 1 to 8"),
            (&["source=1", "help"], "app: unknown argument \"help\""),
            (&["source=1", "a\nb=3"], "app: unknown argument \"a\\nb=3\""),
        ] {
            assert_eq!(error(args), format!("{says}{usage}"));
        }
    }

    #[test]
    fn words_have_no_key() {
        const GREP: Syntax = Syntax {
            name: "grep",
            about: "",
            args: &[Arg::switch("-i"), Arg::word("PATTERN"), Arg::optional_word("MOST")],
        };
        let read = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            let args = GREP.read(&args)?;
            let pattern = args.text("PATTERN").unwrap_or_default().to_string();
            Ok((args.has("-i"), pattern, args.number("MOST", 1..=9u8)?))
        };
        let found = |is, pattern: &str, most| Ok::<_, String>((is, pattern.to_string(), most));
        assert_eq!(read(&["a=b"]), found(false, "a=b", None));
        assert_eq!(read(&["-i", "-i", "3"]), found(true, "-i", Some(3)));
        assert_eq!(read(&["", "-i"]), found(true, "", None));
        for (args, says) in [
            (&[][..], "PATTERN is missing"),
            (&["-i"], "PATTERN is missing"),
            (&["a", "b"], "MOST \"b\": want a number from 1 to 9"),
            (&["a", "1", "c"], "unknown argument \"c\""),
        ] {
            let says = format!("grep: {says}; usage: [-i] PATTERN [MOST]");
            assert_eq!(read(args), Err(says));
        }
        const ALL: Syntax = Syntax { name: "all", about: "", args: &[Arg::words("WORDS")] };
        let args = ["x=1".to_string(), "-y".to_string()];
        assert_eq!(ALL.read(&args).unwrap().all("WORDS").collect::<Vec<_>>(), ["x=1", "-y"]);
    }

    #[test]
    fn without_arguments_nothing_is_accepted() {
        let syntax = Syntax { name: "echo", about: "echoes", args: &[] };
        assert_eq!(syntax.manifest(CutRule::Anywhere).about, "echoes: no arguments");
        assert!(syntax.read(&[]).is_ok());
        assert!(syntax.read(&["x=1".to_string()]).is_err());
    }
}
