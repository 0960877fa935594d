//! A record of a driver's use of a card: each kind of command, doorbell, event and completion once, with the
//! values that never varied. Records serve to compare drivers.
//!
//! A line is `kind name key=value... field=value...`. A value is hexadecimal, or `*` if the driver chooses it
//! or if it varied. Lines that begin with `#` are comments.

use super::entry::Entry;
use super::layout::Kind;
use std::collections::BTreeMap;
use std::fmt;

/// The value of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The field always had this value.
    Always(u32),
    /// The driver chooses the value, or the value varied.
    Any,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always(value) => write!(f, "{value:#x}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// The observations of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The kind: `command`, `doorbell`, ...
    pub kind: String,
    /// The name.
    pub name: String,
    /// All values. A key field always has one value.
    pub values: BTreeMap<String, Value>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        self.values.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl Line {
    /// Returns whether this line covers another one: kind and name are equal, and each value is equal or
    /// arbitrary in this line. A missing value is zero.
    #[must_use]
    pub fn admits(&self, other: &Self) -> bool {
        let value = |line: &Self, name: &str| line.values.get(name).copied().unwrap_or(Value::Always(0));
        let admits = |name: &String| {
            let here = value(self, name);
            here == Value::Any || here == value(other, name)
        };
        self.kind == other.kind
            && self.name == other.name
            && self.values.keys().chain(other.values.keys()).all(admits)
    }
}

/// The identity of a line.
type Key = (String, String, Vec<(String, u32)>);

/// A record, in the order of first observation.
#[derive(Clone, Default, Debug)]
pub struct Record {
    indices: BTreeMap<Key, usize>,
    /// The lines of the record.
    pub lines: Vec<Line>,
}

/// The reason why a text is not a record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    line: usize,
    what: String,
}

impl Record {
    /// Adds an observation.
    pub fn add(&mut self, entry: &Entry) {
        let key = (entry.kind.to_owned(), entry.name.clone(), entry.key.clone());
        let fields = entry.fields.iter().filter(|(.., kind)| *kind != Kind::Listed);
        let fields = fields.map(|(name, value, kind)| {
            let value = if *kind == Kind::Picked { Value::Any } else { Value::Always(*value) };
            (name.clone(), value)
        });
        let Some(line) = self.indices.get(&key).and_then(|place| self.lines.get_mut(*place)) else {
            self.indices.insert(key, self.lines.len());
            let key = entry.key.iter().map(|(name, value)| (name.clone(), Value::Always(*value)));
            let values = key.chain(fields).collect();
            self.lines.push(Line { kind: entry.kind.to_owned(), name: entry.name.clone(), values });
            return;
        };
        // An entry omits fields that are zero, so a field that is missing was zero so far.
        let fields: BTreeMap<_, _> = fields.collect();
        for (name, value) in &mut line.values {
            let in_key = entry.key.iter().any(|(key, _)| key == name);
            if !in_key && fields.get(name) != Some(value) {
                *value = Value::Any;
            }
        }
        for name in fields.into_keys() {
            line.values.entry(name).or_insert(Value::Any);
        }
    }

    /// Returns the differences of another record from this one, regardless of order: its lines that no line
    /// of this record [admits](Line::admits), each prefixed with `+`, and the lines of this record that admit
    /// none of its lines, each prefixed with `-`.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let new = other.lines.iter().filter(|line| !self.lines.iter().any(|known| known.admits(line)));
        let gone = self.lines.iter().filter(|known| !other.lines.iter().any(|line| known.admits(line)));
        new.map(|line| format!("+{line}")).chain(gone.map(|line| format!("-{line}"))).collect()
    }

    /// Parses a record.
    ///
    /// # Errors
    /// Fails if a line does not have the format above.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let error = |what: String| ParseError { line: index + 1, what };
            if text.starts_with('#') || text.is_empty() {
                continue;
            }
            let mut words = text.split(' ');
            let (Some(kind), Some(name)) = (words.next(), words.next()) else {
                return Err(error("a kind and a name are expected".to_owned()));
            };
            let values = words.map(|word| {
                let (name, value) =
                    word.split_once('=').ok_or_else(|| error(format!("\"{word}\" has no value")))?;
                let number = value.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let value = match (value, number) {
                    ("*", _) => Value::Any,
                    (_, Some(number)) => Value::Always(number),
                    (_, None) => return Err(error(format!("\"{value}\" is no value"))),
                };
                Ok((name.to_owned(), value))
            });
            let values = values.collect::<Result<_, _>>()?;
            lines.push(Line { kind: kind.to_owned(), name: name.to_owned(), values });
        }
        Ok(Self { indices: BTreeMap::new(), lines })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &[(&str, u32, Kind)]) -> Entry {
        Entry {
            kind: "command",
            name: "SW2HW_CQ".to_owned(),
            key: vec![("op_mod".to_owned(), 1)],
            fields: fields.iter().map(|(name, value, kind)| ((*name).to_owned(), *value, *kind)).collect(),
        }
    }

    #[test]
    fn values_that_vary_are_any_value() {
        let mut record = Record::default();
        record.add(&entry(&[("a", 1, Kind::Meant), ("b", 2, Kind::Meant), ("c", 3, Kind::Picked)]));
        record.add(&entry(&[("a", 1, Kind::Meant), ("b", 4, Kind::Meant), ("d", 5, Kind::Meant)]));
        record.add(&entry(&[("a", 1, Kind::Meant), ("e", 6, Kind::Listed)]));
        assert_eq!(record.to_string(), "command SW2HW_CQ a=0x1 b=* c=* d=* op_mod=0x1\n");
        let again = Record::parse(&format!("# of what\n\n{record}")).unwrap();
        assert_eq!(again.lines, record.lines);
    }

    #[test]
    fn records_are_compared_by_what_their_lines_admit() {
        let record = |text: &str| Record::parse(text).unwrap();
        let known = record("command A a=* b=0x1\nevent B\n");
        for same in [
            "event B\ncommand A b=0x1\n",
            "command A a=0x7 b=0x1\nevent B\n",
            "command A a=* b=0x1\nevent B c=0x0\n",
        ] {
            assert_eq!(known.differences(&record(same)), Vec::<String>::new(), "{same}");
        }
        for (other, differences) in [
            ("command A b=0x1\n", vec!["-event B"]),
            ("command A b=0x2\nevent B\n", vec!["+command A b=0x2", "-command A a=* b=0x1"]),
            ("command A b=*\nevent B\n", vec!["+command A b=*", "-command A a=* b=0x1"]),
            ("command A b=0x1\nevent B\nevent B c=0x1\n", vec!["+event B c=0x1"]),
            ("command A b=0x1\nevent B\ndoorbell B\n", vec!["+doorbell B"]),
        ] {
            assert_eq!(known.differences(&record(other)), differences, "{other}");
        }
    }

    #[test]
    fn what_is_no_record_is_refused_by_its_line() {
        for (text, says) in [
            ("command A a=0x1\ncommand", "line 2: a kind and a name"),
            ("command A a", "line 1: \"a\" has no value"),
            ("command A a=12", "line 1: \"12\" is no value"),
        ] {
            let error = Record::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
