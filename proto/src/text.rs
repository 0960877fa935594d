//! Text received from peers, before it reaches a log or a terminal.

use crate::Reason;
use alloc::format;
use alloc::string::String;

/// The maximum length of a line that [`printable`] returns, in characters.
const LONGEST_LINE: usize = 2000;

/// Returns true unless a character is a control character (C0, DEL, C1), a line or paragraph separator, or
/// one that changes the direction of the text around it.
const fn shows_as_itself(c: char) -> bool {
    !matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns true if the text is one line without characters that control a terminal or a log.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    text.chars().all(shows_as_itself)
}

/// Returns the text as one line for a log or a terminal: trimmed, at most 2000 characters, with a space for
/// each character that [`is_printable`] rejects.
#[must_use]
pub fn printable(text: &str) -> String {
    let characters = text.trim().chars().take(LONGEST_LINE);
    characters.map(|c| if shows_as_itself(c) { c } else { ' ' }).collect()
}

/// Checks a peer's text that is stored and shown: at most `longest` bytes, and printable.
///
/// # Errors
/// A reason, in which the text is called `what`.
pub fn check_text(what: &str, text: &str, longest: usize) -> Result<(), Reason> {
    if text.len() > longest {
        return Err(format!("{what} has {} bytes, and may have {longest}", text.len()));
    }
    if !is_printable(text) {
        return Err(format!("{what} has control characters: {:?}", printable(text)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_become_spaces() {
        assert_eq!(
            printable(" panic at x.rs:1:\nindex \u{1b}[31m\u{202e}\u{9b}é\n"),
            "panic at x.rs:1: index  [31m  é"
        );
        assert_eq!(printable(&"é".repeat(3000)).chars().count(), 2000);
        assert!(is_printable("naïve 日本 – \u{a0}"));
        for text in ["\t", "a\0", "\u{7f}", "\u{85}", "\u{2028}", "\u{2066}", "\u{feff}"] {
            assert!(!is_printable(text), "{text:?}");
        }
    }

    #[test]
    fn refusals_name_the_text_and_are_printable() {
        assert_eq!(check_text("the driver", "mlx4", 4), Ok(()));
        assert_eq!(
            check_text("the driver", "mlx45", 4),
            Err("the driver has 5 bytes, and may have 4".into())
        );
        let reason = check_text("the driver", "a\u{1b}", 4).unwrap_err();
        assert!(reason.starts_with("the driver has control characters") && is_printable(&reason));
    }
}
