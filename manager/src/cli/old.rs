//! The words of the command line before it had nouns, which programs and documents still use.

use std::ffi::OsString;

/// The old words, with the noun and the verb of each.
const WORDS: [(&str, &str, &str); 10] = [
    ("daemon", "manager", "run"),
    ("nodes", "node", "ls"),
    ("power", "node", "power"),
    ("boot", "node", "boot"),
    ("submit", "job", "submit"),
    ("jobs", "job", "ls"),
    ("cancel", "job", "cancel"),
    ("datasets", "data", "ls"),
    ("drop", "data", "rm"),
    ("shutdown", "cluster", "shutdown"),
];

/// The old words that are nouns today, with the verb that is meant if none follows.
const NOUNS: [(&str, &str); 2] = [("key", "make"), ("pxe", "serve")];

/// Returns the words of a command line with an old word replaced by its noun and verb.
pub(super) fn translated(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let Some(first) = words.get(1).and_then(|word| word.to_str()) else { return words };
    if let Some((_, noun, verb)) = WORDS.iter().find(|(old, ..)| *old == first) {
        words.splice(1..2, [(*noun).into(), (*verb).into()]);
    } else if let Some((_, verb)) = NOUNS.iter().find(|(noun, _)| *noun == first) {
        let is_old = match words.get(2).and_then(|word| word.to_str()) {
            None => first == "key",
            Some(next) => next.starts_with('-') && !matches!(next, "-h" | "--help"),
        };
        if is_old {
            words.insert(2, (*verb).into());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, want: &str) {
        let words = words.split(' ').map(OsString::from);
        let want: Vec<OsString> = want.split(' ').map(OsString::from).collect();
        assert_eq!(translated(words), want);
    }

    #[test]
    fn old_words_have_nouns_and_verbs() {
        check("f nodes --wait 3", "f node ls --wait 3");
        check("f power off a", "f node power off a");
        check("f submit --app daemon", "f job submit --app daemon");
        check("f key", "f key make");
        check("f key --public", "f key make --public");
        check("f pxe --interface e", "f pxe serve --interface e");
    }

    #[test]
    fn words_of_today_stay() {
        for words in ["f", "f node ls", "f key make --public", "f key --help", "f pxe", "f pxe -h"] {
            check(words, words);
        }
    }
}
