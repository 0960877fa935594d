//! SNAP edge lists: `from to [weight]` in each line, separated by blanks or tabs.
//!
//! Lines that begin with `#` or `%` are comments. Empty lines and carriage returns are ignored. Anything
//! else is an error.

use alloc::format;
use alloc::string::String;

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// True if each line must have a weight; otherwise a third number is ignored.
    pub weights: bool,
}

/// A line that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The offset of the wrong field, or of the end of a line that is too short, in bytes.
    pub offset: usize,
    /// The reason, for users.
    pub reason: String,
}

/// A field of a line, and its offset in the text.
type Field<'a> = (usize, &'a [u8]);

/// The most characters of a wrong field that are shown.
const SHOWN: usize = 32;

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Returns the fields of a line that begins at `at`: at most four, which is one too many.
fn fields<'a>(at: usize, line: &'a [u8]) -> ([Field<'a>; 4], usize) {
    let (mut fields, mut count) = ([(at + line.len(), &[][..]); 4], 0);
    let mut next = 0;
    for field in &mut fields {
        let rest = line.get(next..).unwrap_or_default();
        let Some(begin) = rest.iter().position(|byte| !is_blank(*byte)) else { break };
        let rest = rest.get(begin..).unwrap_or_default();
        let len = rest.iter().position(|byte| is_blank(*byte)).unwrap_or(rest.len());
        *field = (at + next + begin, rest.get(..len).unwrap_or_default());
        next += begin + len;
        count += 1;
    }
    (fields, count)
}

/// Returns the value of a decimal number that is at most `max`.
fn number((offset, digits): Field<'_>, what: &str, max: u64) -> Result<u64, Fault> {
    let fault = |reason| Err(Fault { offset, reason });
    if digits.is_empty() {
        return fault(format!("the line has no {what}"));
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return fault(format!("{} is not a {what}, which is a number from 0 to {max}", shown(digits)));
    }
    let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    match digits.iter().try_fold(0, add).filter(|value| *value <= max) {
        Some(value) => Ok(value),
        None => fault(format!("the {what} {} is greater than {max}", shown(digits))),
    }
}

/// Returns a field in quotes, shortened and printable.
fn shown(field: &[u8]) -> String {
    let text = field.get(..SHOWN).unwrap_or(field).escape_ascii();
    let more = if field.len() > SHOWN { " and more" } else { "" };
    format!("\"{text}\"{more}")
}

/// Calls `each` for the fields of each line that has any and is no comment.
fn lines<'a>(
    text: &'a [u8],
    mut each: impl FnMut([Field<'a>; 4], usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut at = 0;
    for line in text.split(|byte| *byte == b'\n') {
        let (fields, count) = fields(at, line);
        let [(_, first), ..] = fields;
        if count > 0 && !matches!(first.first(), Some(b'#' | b'%')) {
            each(fields, count)?;
        }
        at += line.len() + 1;
    }
    Ok(())
}

/// Returns the fault of a line with a field too many.
fn surplus((offset, field): Field<'_>) -> Fault {
    Fault { offset, reason: format!("{} is one field too many", shown(field)) }
}

/// Calls `each` with source, target and weight of each edge of a text, in order. The weight is 1 if the
/// format has none.
///
/// # Errors
/// The first line that is not as the format says.
pub fn parse_edges(text: &[u8], format: Format, mut each: impl FnMut(u64, u64, u32)) -> Result<(), Fault> {
    lines(text, |[from, to, weight, more], count| {
        if count > 3 {
            return Err(surplus(more));
        }
        let (from, to) = (number(from, "source", u64::MAX)?, number(to, "target", u64::MAX)?);
        let weight = match (format.weights, count) {
            (true, _) => number(weight, "weight", u64::from(u32::MAX))? as u32,
            (false, 3) => number(weight, "third number", u64::MAX).map(|_| 1)?,
            (false, _) => 1,
        };
        each(from, to, weight);
        Ok(())
    })
}

/// Calls `each` with the vertex of each line of a text.
///
/// # Errors
/// The first line that is not one number.
pub fn parse_vertices(text: &[u8], mut each: impl FnMut(u64)) -> Result<(), Fault> {
    lines(text, |[vertex, more, ..], count| {
        if count > 1 {
            return Err(surplus(more));
        }
        each(number(vertex, "vertex", u64::MAX)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const PLAIN: Format = Format { weights: false };
    const WEIGHTED: Format = Format { weights: true };

    type Parsed = Result<Vec<(u64, u64, u32)>, (usize, String)>;

    fn edges(text: &str, format: Format) -> Parsed {
        let mut edges = Vec::new();
        let parsed = parse_edges(text.as_bytes(), format, |from, to, weight| edges.push((from, to, weight)));
        parsed.map(|()| edges).map_err(|fault| (fault.offset, fault.reason))
    }

    #[test]
    fn lines_of_all_kinds() {
        let text = "# Nodes: 3\n%x\n\n1 2\r\n 3\t4 \n\r\n18446744073709551615   0 7\n5 5";
        let expected = [(1, 2, 1), (3, 4, 1), (u64::MAX, 0, 1), (5, 5, 1)];
        assert_eq!(edges(text, PLAIN).unwrap(), expected);
        assert_eq!(edges("1 2 0\n1 2 4294967295\n", WEIGHTED).unwrap(), [(1, 2, 0), (1, 2, u32::MAX)]);
        assert_eq!(edges("", PLAIN).unwrap(), []);
    }

    #[test]
    fn the_offset_of_a_fault_is_that_of_the_field() {
        for (text, format, offset, reason) in [
            (
                "1 2\n3 x\n",
                PLAIN,
                6,
                "\"x\" is not a target, which is a number from 0 to 18446744073709551615",
            ),
            ("1 2\n34\n", PLAIN, 6, "the line has no target"),
            ("1 2\n34", PLAIN, 6, "the line has no target"),
            ("-1 2\n", PLAIN, 0, "\"-1\" is not a source, which is a number from 0 to 18446744073709551615"),
            (
                "1 18446744073709551616\n",
                PLAIN,
                2,
                "the target \"18446744073709551616\" is greater than 18446744073709551615",
            ),
            ("1 2\n1 2\n", WEIGHTED, 3, "the line has no weight"),
            ("1 2 4294967296", WEIGHTED, 4, "the weight \"4294967296\" is greater than 4294967295"),
            ("1 2 3 4\n", PLAIN, 6, "\"4\" is one field too many"),
            (
                "1 \u{0}\n",
                PLAIN,
                2,
                "\"\\x00\" is not a target, which is a number from 0 to 18446744073709551615",
            ),
        ] {
            assert_eq!(edges(text, format), Err((offset, reason.into())), "{text:?}");
        }
    }

    #[test]
    fn vertices_stand_alone() {
        let parse = |text: &str| {
            let mut ids = Vec::new();
            parse_vertices(text.as_bytes(), |id| ids.push(id)).map(|()| ids).map_err(|fault| fault.offset)
        };
        assert_eq!(parse("1\n# x\n\n2\r\n3"), Ok(std::vec![1, 2, 3]));
        assert_eq!(parse("1\n2 3\n"), Err(4));
    }
}
