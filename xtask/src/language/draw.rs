//! `cargo xtask lint draw`: doc comments drawn at random, to be read alone.

use super::source::{self, Source};
use anyhow::Result;
use lab::paths;
use std::io;
use std::path::PathBuf;

/// A doc comment, and the first line of code below it.
struct Drawn {
    file: PathBuf,
    line: usize,
    text: String,
    item: String,
}

/// Writes `count` doc comments of the files below a path, drawn with a seed: the same files and seed give the
/// same comments.
pub(super) fn draw(seed: u64, count: usize, under: &str, out: &mut dyn io::Write) -> Result<()> {
    let root = paths::root();
    let mut all = Vec::new();
    source::each(&root, &mut |path, text| {
        let file = path.strip_prefix(&root).unwrap_or(path);
        if file.starts_with(under) {
            all.extend(comments(text).map(|(line, text, item)| Drawn {
                file: file.into(),
                line,
                text,
                item,
            }));
        }
    })?;
    for drawn in chosen(all, seed, count) {
        writeln!(out, "{}:{}\n    {}\n        {}", drawn.file.display(), drawn.line, drawn.text, drawn.item)?;
    }
    Ok(())
}

/// Returns the doc comments of a file: line, text, and the first line of code below.
fn comments(text: &str) -> impl Iterator<Item = (usize, String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let item = move |line: usize| {
        let below = lines.iter().skip(line).map(|line| line.trim());
        below
            .into_iter()
            .find(|line| !line.starts_with("//") && !line.starts_with('#'))
            .unwrap_or("")
            .to_owned()
    };
    let docs = Source::parse(text).comments.into_iter().filter(|comment| comment.is_doc);
    docs.map(move |comment| (comment.line, comment.text, item(comment.line)))
}

/// Returns `count` of the elements, drawn without putting back (Fisher and Yates).
fn chosen<T>(mut all: Vec<T>, seed: u64, count: usize) -> Vec<T> {
    let mut state = seed;
    let count = count.min(all.len());
    for at in 0..count {
        let rest = (all.len() - at) as u64;
        all.swap(at, at + (next(&mut state) % rest) as usize);
    }
    all.truncate(count);
    all
}

/// Returns the next number of the generator SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_has_each_element_once_and_repeats_with_its_seed() {
        let mut drawn = chosen((0..100).collect(), 7, 100);
        assert_eq!(drawn, chosen((0..100).collect(), 7, 100));
        assert_ne!(drawn, chosen((0..100).collect(), 8, 100));
        drawn.sort_unstable();
        assert_eq!(drawn, (0..100).collect::<Vec<_>>());
        assert_eq!(chosen((0..100).collect(), 7, 5).len(), 5);
    }

    #[test]
    fn a_comment_comes_with_the_item_below_it() {
        let found: Vec<_> =
            comments("/// The sum,\n/// in bytes.\n#[inline]\nfn sum() {\n    // No doc.\n}\n").collect();
        assert_eq!(found, [(1, "The sum, in bytes.".into(), "fn sum() {".into())]);
    }
}
