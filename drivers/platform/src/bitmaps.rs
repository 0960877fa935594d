//! The bitmaps of a frame allocator, over memory of any size: a part of them is written only when its frames
//! are first used, so that a machine with terabytes starts as fast as a small one.
//!
//! Frames are counted in chunks of [`CHUNK`]. A chunk is out of use, or all its frames are free and its bits
//! do not matter yet, or its bits are valid.

use core::ops::Range;

/// The number of frames in a chunk: 128 MiB of frames of 4 KiB, whose bits fill a frame in each bitmap.
pub const CHUNK: u64 = 1 << 15;
/// The number of words of a bitmap for a chunk.
pub const CHUNK_WORDS: u64 = CHUNK / 64;

/// The state of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Chunk {
    /// None of the frames can be used. The bits do not matter.
    #[default]
    Absent = 0,
    /// All frames are free. The bits do not matter.
    Free = 1,
    /// The bits are valid.
    Valid = 2,
}

/// Two bits for each frame: whether it is taken, and whether an allocated run begins there.
#[derive(Debug)]
pub struct Bitmaps<'a> {
    taken: &'a mut [u64],
    first: &'a mut [u64],
    chunks: &'a mut [Chunk],
}

impl<'a> Bitmaps<'a> {
    /// Returns bitmaps without frames. `taken` and `first` have [`CHUNK_WORDS`] words for each of `chunks`,
    /// with any contents; a chunk beyond either has no frames. All `chunks` must be [`Chunk::Absent`].
    #[must_use]
    pub const fn new(taken: &'a mut [u64], first: &'a mut [u64], chunks: &'a mut [Chunk]) -> Self {
        Self { taken, first, chunks }
    }

    /// Returns the number of frames for which there are bits.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK
    }

    /// Adds free frames, each once.
    pub fn add(&mut self, frames: Range<u64>) {
        let mut at = frames.start;
        while at < frames.end {
            let chunk = at / CHUNK;
            let end = ((chunk + 1) * CHUNK).min(frames.end);
            let whole = end - at == CHUNK;
            match self.state(at) {
                Chunk::Absent if whole => self.set_state(chunk, Chunk::Free),
                Chunk::Absent => {
                    self.fill(chunk, u64::MAX);
                    set(self.taken, at..end, false);
                }
                Chunk::Free => {}
                Chunk::Valid => set(self.taken, at..end, false),
            }
            at = end;
        }
    }

    fn state(&self, frame: u64) -> Chunk {
        self.chunks.get((frame / CHUNK) as usize).copied().unwrap_or_default()
    }

    fn set_state(&mut self, chunk: u64, state: Chunk) {
        if let Some(slot) = self.chunks.get_mut(chunk as usize) {
            *slot = state;
        }
    }

    /// Writes the bits of a chunk: `taken` for all words of the first bitmap, and no first frames.
    fn fill(&mut self, chunk: u64, taken: u64) {
        let words = (chunk * CHUNK_WORDS) as usize..((chunk + 1) * CHUNK_WORDS) as usize;
        if let (Some(t), Some(f)) = (self.taken.get_mut(words.clone()), self.first.get_mut(words)) {
            t.fill(taken);
            f.fill(0);
            self.set_state(chunk, Chunk::Valid);
        }
    }

    /// Returns the first free frame at or after `from`, or [`frames`](Self::frames) if there is none.
    #[must_use]
    pub fn next_free(&self, from: u64) -> u64 {
        self.next(from, Chunk::Free, self.taken, false)
    }

    /// Returns the first frame at or after `from` that is not free, or [`frames`](Self::frames) if there is
    /// none.
    #[must_use]
    pub fn next_taken(&self, from: u64) -> u64 {
        self.next(from, Chunk::Absent, self.taken, true)
    }

    /// Returns the first frame at or after `from` at which a run begins, or [`frames`](Self::frames) if there
    /// is none.
    #[must_use]
    pub fn next_first(&self, from: u64) -> u64 {
        self.next(from, Chunk::Valid, self.first, true)
    }

    /// Returns the first frame at or after `from` that is in a chunk of the state `all`, or whose bit is
    /// `value` in a chunk with valid bits.
    fn next(&self, from: u64, all: Chunk, bits: &[u64], value: bool) -> u64 {
        let mut at = from;
        while at < self.frames() {
            let end = (at / CHUNK + 1) * CHUNK;
            let state = self.state(at);
            if state == Chunk::Valid {
                if let Some(found) = scan(bits, at..end, value) {
                    return found;
                }
            } else if state == all {
                return at;
            }
            at = end;
        }
        self.frames()
    }

    /// Returns whether an allocated run begins at `frame`.
    #[must_use]
    pub fn is_first(&self, frame: u64) -> bool {
        self.next_first(frame) == frame && frame < self.frames()
    }

    /// Marks a free run as taken.
    pub fn take(&mut self, run: Range<u64>) {
        for chunk in run.start / CHUNK..run.end.div_ceil(CHUNK) {
            if self.state(chunk * CHUNK) == Chunk::Free {
                self.fill(chunk, 0);
            }
        }
        set(self.first, run.start..run.start + 1, true);
        set(self.taken, run, true);
    }

    /// Marks a run that was taken as free.
    pub fn release(&mut self, run: Range<u64>) {
        set(self.first, run.start..run.start + 1, false);
        set(self.taken, run, false);
    }
}

fn set(bits: &mut [u64], range: Range<u64>, value: bool) {
    let mut i = range.start;
    while i < range.end {
        let (word, shift) = ((i / 64) as usize, i % 64);
        let n = (64 - shift).min(range.end - i);
        let mask = (u64::MAX >> (64 - n)) << shift;
        if let Some(w) = bits.get_mut(word) {
            *w = if value { *w | mask } else { *w & !mask };
        }
        i += n;
    }
}

/// Returns the first bit of `range` that is `value`. The range ends at a multiple of 64.
fn scan(bits: &[u64], range: Range<u64>, value: bool) -> Option<u64> {
    let mut i = range.start;
    while i < range.end {
        let word = *bits.get((i / 64) as usize)?;
        let word = if value { word } else { !word } >> (i % 64);
        if word != 0 {
            return Some(i + u64::from(word.trailing_zeros()));
        }
        i = (i / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const CHUNKS: usize = 4;
    const FRAMES: u64 = CHUNKS as u64 * CHUNK;

    /// A generator of pseudo-random numbers.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    /// Compares the bitmaps, whose memory holds rubbish at first, with a model that has a byte for
    /// each frame.
    fn compare(seed: u64) {
        let mut numbers = Numbers(seed);
        let words = CHUNKS * CHUNK_WORDS as usize;
        let mut rubbish = || (0..words).map(|_| numbers.below(u64::MAX)).collect::<Vec<_>>();
        let (mut taken, mut first) = (rubbish(), rubbish());
        let mut chunks = vec![Chunk::Absent; CHUNKS];
        let mut maps = Bitmaps::new(&mut taken, &mut first, &mut chunks);
        // (taken, first)
        let mut model = vec![(true, false); FRAMES as usize];
        let mut edge = 0;
        while edge < FRAMES {
            let start = edge + numbers.below(CHUNK);
            let end = (start + numbers.below(2 * CHUNK)).min(FRAMES);
            if start < end {
                maps.add(start..end);
                model[start as usize..end as usize].fill((false, false));
            }
            edge = end.max(start) + 1;
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for _ in 0..200 {
            if numbers.below(3) > 0 {
                let start = maps.next_free(numbers.below(FRAMES));
                let room = maps.next_taken(start) - start;
                if start < FRAMES {
                    let run = start..start + 1 + numbers.below(room.min(CHUNK + 100));
                    maps.take(run.clone());
                    model[run.start as usize..run.end as usize].fill((true, false));
                    model[run.start as usize].1 = true;
                    runs.push(run);
                }
            } else if !runs.is_empty() {
                let run = runs.swap_remove(numbers.below(runs.len() as u64) as usize);
                assert!(maps.is_first(run.start), "{run:?}");
                maps.release(run.clone());
                model[run.start as usize..run.end as usize].fill((false, false));
            }
            let from = numbers.below(FRAMES);
            let find = |wanted: &dyn Fn(&(bool, bool)) -> bool| {
                let rest = model[from as usize..].iter();
                rest.clone().position(wanted).map_or(FRAMES, |n| from + n as u64)
            };
            assert_eq!(maps.next_free(from), find(&|(taken, _)| !taken), "seed {seed}");
            assert_eq!(maps.next_taken(from), find(&|(taken, _)| *taken), "seed {seed}");
            assert_eq!(maps.next_first(from), find(&|(_, first)| *first), "seed {seed}");
            assert_eq!(maps.is_first(from), model[from as usize].1, "seed {seed}");
        }
    }

    #[test]
    fn bitmaps_agree_with_a_model() {
        (0..24).for_each(compare);
    }

    #[test]
    fn free_chunks_are_not_written() {
        let words = CHUNKS * CHUNK_WORDS as usize;
        let (mut taken, mut first) = (vec![0x55; words], vec![0xaa; words]);
        let mut chunks = vec![Chunk::Absent; CHUNKS];
        let mut maps = Bitmaps::new(&mut taken, &mut first, &mut chunks);
        maps.add(0..FRAMES);
        assert_eq!((maps.next_free(7), maps.next_taken(7), maps.next_first(0)), (7, FRAMES, FRAMES));
        maps.take(CHUNK + 5..CHUNK + 6);
        assert_eq!((maps.next_taken(0), maps.next_free(CHUNK + 5)), (CHUNK + 5, CHUNK + 6));
        let written = |bits: &[u64], rubbish| bits.iter().filter(|word| **word != rubbish).count() as u64;
        assert_eq!((written(&taken, 0x55), written(&first, 0xaa)), (CHUNK_WORDS, CHUNK_WORDS));
        assert_eq!(chunks, [Chunk::Free, Chunk::Valid, Chunk::Free, Chunk::Free]);
    }
}
