//! Tables, for the terminal and for a page.

use std::fmt::Write;

/// A table with a title and a remark.
pub(crate) struct Table {
    pub title: &'static str,
    /// An explanation of the columns; may be empty.
    pub remark: String,
    pub heads: Vec<String>,
    /// The rows, each as long as `heads`. The first column is text, the others are numbers.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table.
    pub(crate) fn new(title: &'static str, remark: impl Into<String>, heads: &[&str]) -> Self {
        let heads = heads.iter().map(ToString::to_string).collect();
        Self { title, remark: remark.into(), heads, rows: Vec::new() }
    }

    /// Moves the table out.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new("", "", &[]))
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Returns the table as text with aligned columns.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for row in self.all() {
            text.push_str("  ");
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                // Writing to a string cannot fail.
                let _ = match column {
                    0 => write!(text, "{cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        if !self.remark.is_empty() {
            let _ = writeln!(text, "  ({})", self.remark);
        }
        text
    }

    /// Returns the table as a section of a Markdown page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.title);
        for (n, row) in self.all().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if n == 0 {
                let rule: Vec<_> = (0..row.len()).map(|c| if c == 0 { "---" } else { "---:" }).collect();
                let _ = writeln!(text, "| {} |", rule.join(" | "));
            }
        }
        if !self.remark.is_empty() {
            let (first, rest) = self.remark.split_at(self.remark.chars().next().map_or(0, char::len_utf8));
            let _ = writeln!(text, "\n{}{rest}.", first.to_uppercase());
        }
        text
    }

    fn all(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.heads).chain(&self.rows)
    }

    fn width(&self, column: usize) -> usize {
        self.all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// Formats a number with three significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a number with three significant digits, or `-` if it is absent.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let mut table = Table::new("Times", "shorter is better", &["what", "ms"]);
        table.row(["a".into(), number(1.234)]);
        table.row(["long".into(), number(123.4)]);
        assert_eq!(table.text(), "Times\n  what    ms\n  a     1.23\n  long   123\n  (shorter is better)\n");
        assert_eq!(
            table.markdown(),
            "### Times\n\n| what | ms |\n| --- | ---: |\n| a | 1.23 |\n| long | 123 |\n\nShorter is better.\n"
        );
        assert_eq!(maybe(None), "-");
    }
}
