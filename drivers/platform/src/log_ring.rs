//! The last lines of a node's log, in a buffer of fixed length, until the manager has them.

use core::fmt::{self, Write};

/// The maximum length of a line, in bytes.
const LINE: usize = 240;

/// A ring of lines, each ended by a line feed. A line that finds no room replaces the oldest ones, which are
/// counted. Nothing here allocates.
#[derive(Debug)]
pub struct LogRing<const N: usize> {
    bytes: [u8; N],
    /// The index of the first byte in use.
    start: usize,
    /// The number of bytes in use.
    len: usize,
    dropped: u64,
}

/// A line of text with a maximum length; what exceeds it is missing. Line feeds become spaces.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let Some(slot) = self.bytes.get_mut(self.len) else { return Ok(()) };
            *slot = if byte == b'\n' || byte == b'\r' { b' ' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

impl<const N: usize> LogRing<N> {
    /// Returns an empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], start: 0, len: 0, dropped: 0 }
    }

    /// Appends a line: the first letter of `level`, the time in microseconds, and the text.
    pub fn push(&mut self, level: &str, at_us: u64, text: fmt::Arguments<'_>) {
        let mut line = Line { bytes: [0; LINE], len: 0 };
        let letter = level.chars().next().map_or('I', |c| c.to_ascii_uppercase());
        let _ = write!(line, "{letter} {at_us} {text}");
        // A character that was cut in the middle is left out.
        let whole = line.bytes.get(..line.len).unwrap_or_default();
        let valid = core::str::from_utf8(whole).map_or_else(|error| error.valid_up_to(), str::len);
        let bytes = whole.get(..valid).unwrap_or_default();
        if bytes.len() + 1 > N {
            self.dropped += 1;
            return;
        }
        while self.len + bytes.len() + 1 > N {
            self.drop_first();
        }
        for byte in bytes.iter().chain(b"\n") {
            let at = (self.start + self.len) % N;
            if let Some(slot) = self.bytes.get_mut(at) {
                *slot = *byte;
            }
            self.len += 1;
        }
    }

    fn byte(&self, offset: usize) -> u8 {
        self.bytes.get((self.start + offset) % N).copied().unwrap_or_default()
    }

    /// Returns the length of the first line with its line feed; 0 if there is none.
    fn first(&self) -> usize {
        (0..self.len).position(|offset| self.byte(offset) == b'\n').map_or(0, |end| end + 1)
    }

    fn forget(&mut self, bytes: usize) {
        self.start = (self.start + bytes) % N;
        self.len -= bytes.min(self.len);
    }

    fn drop_first(&mut self) {
        let first = self.first();
        self.forget(first.max(1));
        self.dropped += 1;
    }

    /// Moves whole lines, the oldest first, to the beginning of `into`. Returns the number of bytes.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let mut taken = 0;
        loop {
            let first = self.first();
            let Some(room) = into.get_mut(taken..taken + first).filter(|room| !room.is_empty()) else {
                return taken;
            };
            for (offset, slot) in room.iter_mut().enumerate() {
                *slot = self.bytes.get((self.start + offset) % N).copied().unwrap_or_default();
            }
            self.forget(first);
            taken += first;
        }
    }

    /// Moves whole lines, the newest ones that fit, to the beginning of `into`, and drops the others. Returns
    /// the number of bytes.
    pub fn take_last(&mut self, into: &mut [u8]) -> usize {
        while self.len > into.len() {
            self.drop_first();
        }
        self.take(into)
    }

    /// Returns the number of lines that were replaced before they were taken.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<const N: usize> Default for LogRing<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::String;
    use std::vec;

    fn text<const N: usize>(ring: &mut LogRing<N>, room: usize) -> String {
        let mut into = vec![0; room];
        let taken = ring.take(&mut into);
        into.truncate(taken);
        String::from_utf8(into).expect("text")
    }

    #[test]
    fn lines_come_out_whole_and_in_order() {
        let mut ring = LogRing::<64>::new();
        ring.push("WARN", 7, format_args!("a {}\nb", 1));
        ring.push("info", 8, format_args!("second"));
        assert_eq!(text(&mut ring, 12), "W 7 a 1 b\n");
        assert_eq!(text(&mut ring, 12), "", "the next line is longer than that");
        assert_eq!(text(&mut ring, 64), "I 8 second\n");
        assert_eq!((text(&mut ring, 64).as_str(), ring.dropped()), ("", 0));
    }

    #[test]
    fn the_newest_lines_replace_the_oldest_and_are_counted() {
        let mut ring = LogRing::<64>::new();
        for number in 0..1000 {
            ring.push("info", number, format_args!("line {number}"));
        }
        let mut last = [0; 20];
        let len = ring.take_last(&mut last);
        assert_eq!(&last[..len], b"I 999 line 999\n");
        assert_eq!(ring.dropped(), 999);
        ring.push("info", 1, format_args!("{}", "é".repeat(200)));
        assert_eq!(ring.dropped(), 1000, "a line that is longer than the ring");
        let mut large = LogRing::<512>::new();
        large.push("info", 1, format_args!("{}", "é".repeat(200)));
        assert!(text(&mut large, 512).ends_with("é\n"), "no half of a character");
    }
}
