//! A record of how a driver uses a card: each kind of command, doorbell, event and completion once, with the values that
//! were always the same. Drivers can be held against one another by it.
//!
//! A line is `kind name key=value... field=value...`; a value is hexadecimal, or `*` if the driver picks it or it varied.
//! Lines that begin with `#` say what the record is of.

use super::entry::Entry;
use super::layout::Kind;
use std::collections::BTreeMap;
use std::fmt;

/// The value of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// Always this.
    Always(u32),
    /// Whatever the driver likes, or more than one.
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

/// What was seen of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// `command`, `doorbell`, ...
    pub kind: String,
    /// Its name.
    pub name: String,
    /// All values. Those of the key have one value each.
    pub values: BTreeMap<String, Value>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        self.values.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl Line {
    /// Whether what another line says is within what this one says: the same kind and name, and every value is the same or
    /// is any value here. A value that a line lacks is zero.
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

/// What tells lines apart.
type Key = (String, String, Vec<(String, u32)>);

/// A record, in the order in which things were seen first.
#[derive(Clone, Default, Debug)]
pub struct Record {
    places: BTreeMap<Key, usize>,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// Why a text is no record.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    line: usize,
    what: String,
}

impl Record {
    /// Adds what happened.
    pub fn add(&mut self, entry: &Entry) {
        let key = (entry.kind.to_owned(), entry.name.clone(), entry.key.clone());
        let fields = entry.fields.iter().filter(|(.., kind)| *kind != Kind::Listed);
        let fields = fields.map(|(name, value, kind)| {
            let value = if *kind == Kind::Picked { Value::Any } else { Value::Always(*value) };
            (name.clone(), value)
        });
        let Some(line) = self.places.get(&key).and_then(|place| self.lines.get_mut(*place)) else {
            self.places.insert(key, self.lines.len());
            let key = entry.key.iter().map(|(name, value)| (name.clone(), Value::Always(*value)));
            let values = key.chain(fields).collect();
            self.lines.push(Line { kind: entry.kind.to_owned(), name: entry.name.clone(), values });
            return;
        };
        // A field that is zero is not in an entry, and one that was not there so far was zero.
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

    /// In what another record differs from this one, in whatever order things came: its lines that none of this one
    /// [admits](Line::admits), each behind a `+`, and those of this one that admit none of its, each behind a `-`.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let new = other.lines.iter().filter(|line| !self.lines.iter().any(|known| known.admits(line)));
        let gone = self.lines.iter().filter(|known| !other.lines.iter().any(|line| known.admits(line)));
        new.map(|line| format!("+{line}")).chain(gone.map(|line| format!("-{line}"))).collect()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If a line is not as described above.
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
        Ok(Self { places: BTreeMap::new(), lines })
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
