//! The messages of a superstep: signals of ghosts, partial sums for hubs, and the numbers to add up.
//!
//! A message has as many words as the two nodes have agreed on when the graph was loaded. Words that have
//! not changed are left out if that is shorter.

use crate::bytes::Reader;
use crate::part::Part;
use crate::program::Global;
use alloc::vec::Vec;
use core::ops::Range;
use runtime::JobError;

/// The length of the head, in bytes: three numbers and the form, 8 bytes each, so that words are aligned.
const HEAD: usize = 32;

/// The form of a message with all words.
const ALL: u64 = 0;
/// The form of a message with a bit for each word, and then the words whose bits are set.
const BITS: u64 = 1;
/// The form of a message with pairs: the number of a word, in 4 bytes, and the word.
const PAIRS: u64 = 2;

/// Returns the length of the longest message of `words` words, in bytes.
pub(crate) fn longest(words: usize) -> usize {
    HEAD + 8 * words
}

/// The receiver of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The slot of a ghost.
    Slot(u32),
    /// An own hub, which gets a partial sum.
    Hub(u32),
}

/// Returns the messages to all nodes, by rank. `signal` returns the signal of an own vertex, `sum` the
/// partial sum for a hub of another node, counted from 0; both return `None` for what has not changed, which
/// is nothing if `is_whole`.
pub(crate) fn to_all(
    part: &Part,
    me: usize,
    own: &Global,
    unchanged: u64,
    is_whole: bool,
    signal: impl Fn(u32) -> Option<u64>,
    sum: impl Fn(usize) -> Option<u64>,
) -> Vec<Vec<u8>> {
    let first = part.len();
    let to = |(rank, (lent, cuts)): (usize, (&Vec<u32>, &Range<usize>))| {
        if rank == me {
            return Vec::new();
        }
        let word = |number: usize| match lent.get(number) {
            Some(vertex) => signal(*vertex),
            None => sum(cuts.start + number - lent.len() - first),
        };
        emit(own, unchanged, is_whole, (0..lent.len() + cuts.len()).map(word))
    };
    part.lent.iter().zip(&part.cuts).enumerate().map(to).collect()
}

/// Calls `each` for each word of the messages of all nodes, which are by rank. Returns the sums of the
/// numbers to add up.
pub(crate) fn from_all(
    part: &Part,
    me: usize,
    messages: &[Vec<u8>],
    mut each: impl FnMut(Heard, u64),
) -> Result<Global, JobError> {
    let mut all = Global::default();
    for (rank, message) in messages.iter().enumerate().filter(|(rank, _)| *rank != me) {
        let malformed = JobError::Malformed { rank };
        let ghosts = part.ghosts.get(rank).cloned().ok_or(malformed.clone())?;
        let hubs = part.hubs.get(rank).ok_or(malformed)?;
        let parsed = parse(rank, message, ghosts.len() + hubs.len(), |number, word| {
            match number.checked_sub(ghosts.len()) {
                None => each(Heard::Slot((ghosts.start + number) as u32), word),
                Some(hub) => hubs.get(hub).map_or((), |hub| each(Heard::Hub(*hub), word)),
            }
        });
        all.add(parsed?);
    }
    Ok(all)
}

/// Returns a message of `words`: `None` for a word that has not changed. If most words have changed,
/// `unchanged` is sent for the others. With `is_whole` no word is `None`.
pub(crate) fn emit(
    global: &Global,
    unchanged: u64,
    is_whole: bool,
    words: impl ExactSizeIterator<Item = Option<u64>> + Clone,
) -> Vec<u8> {
    let count = words.len();
    let changed = if is_whole { count } else { words.clone().flatten().count() };
    let lens = [(8 * count, ALL), (count.div_ceil(8) + 8 * changed, BITS), (12 * changed, PAIRS)];
    let (len, form) = lens.into_iter().min().unwrap_or((8 * count, ALL));
    let mut out = Vec::with_capacity(HEAD + len);
    for number in [global.changed, global.mass, global.delta, form] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    match form {
        ALL => {
            out.resize(HEAD + 8 * count, 0);
            let (into, _) = out.get_mut(HEAD..).unwrap_or_default().as_chunks_mut();
            into.iter_mut().zip(words).for_each(|(to, word)| *to = word.unwrap_or(unchanged).to_le_bytes());
        }
        BITS => {
            let bits = out.len();
            out.resize(bits + count.div_ceil(8), 0);
            for (number, word) in words.enumerate() {
                let Some(word) = word else { continue };
                if let Some(byte) = out.get_mut(bits + number / 8) {
                    *byte |= 1 << (number % 8);
                }
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        _ => {
            for (number, word) in (0u32..).zip(words) {
                let Some(word) = word else { continue };
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
    }
    out
}

/// Calls `each` for the number and value of each word of a message. Returns the numbers to add up.
pub(crate) fn parse(
    rank: usize,
    message: &[u8],
    count: usize,
    mut each: impl FnMut(usize, u64),
) -> Result<Global, JobError> {
    let mut reader = Reader::new(rank, message);
    let global = Global { changed: reader.u64()?, mass: reader.u64()?, delta: reader.u64()? };
    match reader.u64()? {
        ALL => {
            let (words, _) = reader.slice(8 * count)?.as_chunks();
            words.iter().enumerate().for_each(|(number, word)| each(number, u64::from_le_bytes(*word)));
        }
        BITS => {
            let bits = reader.slice(count.div_ceil(8))?;
            for number in 0..count {
                if bits.get(number / 8).is_some_and(|byte| byte >> (number % 8) & 1 != 0) {
                    each(number, reader.u64()?);
                }
            }
        }
        PAIRS => {
            while !reader.bytes.is_empty() {
                let number = reader.u32()? as usize;
                let word = reader.u64()?;
                if number >= count {
                    return Err(reader.malformed());
                }
                each(number, word);
            }
        }
        _ => return Err(reader.malformed()),
    }
    if reader.bytes.is_empty() { Ok(global) } else { Err(reader.malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_form_has_all_that_has_changed() {
        let global = Global { changed: 1, mass: 2, delta: u64::MAX };
        for (count, every, form) in
            [(0, 1, ALL), (100, 1, ALL), (100, 3, BITS), (1000, 100, PAIRS), (100, 1000, PAIRS)]
        {
            let words = (0..count).map(|n: usize| (n % every == every - 1).then_some(n as u64 * 7));
            let message = emit(&global, u64::MAX, false, words.clone());
            assert_eq!(u64::from(message[HEAD - 8]), form, "{count} {every}");
            assert!(message.len() <= longest(count));
            let mut got = std::vec![None; count];
            let parsed = parse(3, &message, count, |number, word| got[number] = Some(word));
            assert_eq!(parsed, Ok(global));
            assert!(got.into_iter().eq(words.map(|word| word.or((form == ALL).then_some(u64::MAX)))));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let global = Global::default();
        let message = emit(&global, 0, false, [Some(5), None, None, None].into_iter());
        let parse = |message: &[u8], count| parse(3, message, count, |_, _| {});
        assert_eq!(parse(&message, 4), Ok(global));
        let malformed = Err(JobError::Malformed { rank: 3 });
        assert_eq!(parse(&message[..message.len() - 1], 4), malformed);
        assert_eq!(parse(&[&message[..], &[0]].concat(), 4), malformed);
        assert_eq!(parse(&[], 4), malformed);
        let mut pairs = emit(&global, 0, false, (0..1000).map(|n| (n == 999).then_some(1)));
        assert_eq!(parse(&pairs, 999), malformed);
        pairs[HEAD - 8] = 3;
        assert_eq!(parse(&pairs, 1000), malformed);
    }
}
