//! The durations of a test run: `cargo xtask test --timings`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub struct Row {
    pub name: String,
    /// The time from the beginning of the run to the beginning of the test.
    pub at: Duration,
    /// The duration of the test.
    pub took: Duration,
    /// The processor time of the programs that the test has run to their end: compilers, tests, whole runs.
    /// The processor time of machines that the test itself has started is not included.
    pub processor: Duration,
}

/// All tests of a run. The [`Display`](fmt::Display) is a table of groups and a table of tests, the longest
/// first.
#[derive(Default)]
pub struct Timings(Vec<Row>);

impl Timings {
    /// Adds a test that has ended.
    pub fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Returns the tests, in the order in which they ended.
    #[cfg(test)]
    pub fn rows(&self) -> &[Row] {
        &self.0
    }

    /// Returns the number of tests, the time and the processor time of each group, which is the part of the
    /// name before `::`.
    fn groups(&self) -> Vec<(&str, usize, Duration, Duration)> {
        let mut groups = BTreeMap::<&str, (usize, Duration, Duration)>::new();
        for row in &self.0 {
            let group = row.name.split("::").next().unwrap_or_default();
            let (count, took, processor) = groups.entry(group).or_default();
            *count += 1;
            *took += row.took;
            *processor += row.processor;
        }
        let mut groups: Vec<_> =
            groups.into_iter().map(|(name, (n, took, cpu))| (name, n, took, cpu)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.2));
        groups
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: &Duration| time.as_secs_f64();
        writeln!(f, "\n{:>9} {:>9} {:>9}  group", "time, s", "cpu, s", "tests")?;
        for (name, count, took, processor) in self.groups() {
            writeln!(f, "{:>9.1} {:>9.1} {count:>9}  {name}", seconds(&took), seconds(&processor))?;
        }
        writeln!(f, "\n{:>9} {:>9} {:>9}  test", "time, s", "cpu, s", "begun, s")?;
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.took));
        for Row { name, at, took, processor } in rows {
            writeln!(f, "{:>9.1} {:>9.1} {:>9.1}  {name}", seconds(took), seconds(processor), seconds(at))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_groups_and_sorts_by_time() {
        let row = |name: &str, took| Row {
            name: name.into(),
            at: Duration::ZERO,
            took: Duration::from_secs(took),
            processor: Duration::from_secs(1),
        };
        let timings = Timings(vec![row("a::x", 1), row("b::y", 5), row("a::z", 2)]);
        let (s, one, two) = (Duration::from_secs, Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(timings.groups(), [("b", 1, s(5), one), ("a", 2, s(3), two)]);
        let table = timings.to_string();
        let order: Vec<_> = ["b::y", "a::z", "a::x"].iter().filter_map(|name| table.find(name)).collect();
        assert!(order.len() == 3 && order.is_sorted(), "{table}");
    }
}
