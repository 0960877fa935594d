//! Cuts a job's input into splits and assigns each to a node, as the bytes stream by.
//!
//! A split ends after the first byte that the application's rule allows once the split has its target
//! size, or at the end of its file. A longer record extends its split, so no record is ever cut in two. A new
//! split goes to the node that has the fewest bytes so far, so two nodes never differ by more than the
//! longest split.

use proto::{CutRule, InputFile};

/// The size of a node's share, in bytes, up to which it is one split.
const SMALL_SPLIT: u64 = 64 << 10;

/// The largest target size of a split, in bytes.
const LARGE_SPLIT: u64 = 4 << 20;

/// The number of splits of a node's share, unless they would be too small or too large.
const SPLITS_PER_NODE: u64 = 4;

/// Returns the total length of all files, in bytes, saturated: the lengths are a client's claim, and their
/// sum may overflow.
fn sum(files: &[u64]) -> u64 {
    files.iter().fold(0, |total, len| total.saturating_add(*len))
}

/// Returns the target size of a split, in bytes: each node gets the same whole number of splits, so that all
/// get about the same number of bytes.
#[must_use]
pub fn split_size(total: u64, nodes: usize) -> u64 {
    let share = total.div_ceil(nodes.max(1) as u64);
    let splits = (share / SMALL_SPLIT).clamp(1, SPLITS_PER_NODE).max(share.div_ceil(LARGE_SPLIT));
    share.div_ceil(splits).max(1)
}

/// A piece of a split of the input, to be sent to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The index of the node in the job.
    pub rank: usize,
    /// The index of the file.
    pub file: u32,
    /// The offset of the bytes in the file.
    pub offset: u64,
    /// The bytes, at least one.
    pub bytes: &'a [u8],
    /// True if the split ends after these bytes.
    pub end_of_split: bool,
}

/// The error of an input that is longer than announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more input than announced")]
pub struct Excess;

/// The state of the cutter of a job's input. It holds no bytes of the input.
#[derive(Debug)]
pub struct Cutter {
    rule: CutRule,
    /// The target size of a split, in bytes.
    target: u64,
    /// The lengths of the files, in bytes.
    files: Vec<u64>,
    /// The file of the next byte, and its offset in the file.
    file: usize,
    offset: u64,
    /// The open split, if any: the index of its node, and its length so far in bytes.
    open: Option<(usize, u64)>,
    /// The number of bytes assigned to each node.
    loads: Vec<u64>,
}

impl Cutter {
    /// Cuts `files`, of at most 2^64 bytes together, for `nodes` nodes (not zero).
    #[must_use]
    pub fn new(rule: CutRule, files: &[InputFile], nodes: usize) -> Self {
        let files: Vec<u64> = files.iter().map(|file| file.len).collect();
        let target = split_size(sum(&files), nodes);
        let mut cutter =
            Self { rule, target, files, file: 0, offset: 0, open: None, loads: vec![0; nodes.max(1)] };
        cutter.skip_ended_files();
        cutter
    }

    /// Returns the largest number of bytes that a node will get, if no record is longer than a split.
    #[must_use]
    pub fn share(&self) -> u64 {
        let total = sum(&self.files);
        let more = self.target.saturating_mul(2);
        total.min(total.div_ceil(self.loads.len() as u64).saturating_add(more))
    }

    /// Returns whether all files have been cut to their ends.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.file == self.files.len()
    }

    /// Returns the number of bytes assigned to each node so far, by rank.
    #[must_use]
    pub fn loads(&self) -> &[u64] {
        &self.loads
    }

    /// Cuts the next bytes of the input, and emits the pieces in order.
    pub fn push<'a>(&mut self, mut bytes: &'a [u8], mut emit: impl FnMut(Piece<'a>)) -> Result<(), Excess> {
        while !bytes.is_empty() {
            let left = self.files.get(self.file).ok_or(Excess)? - self.offset;
            let in_file = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (rank, so_far) = self.open.unwrap_or_else(|| (self.least_loaded(), 0));
            let cut = bytes.get(..in_file).and_then(|bytes| self.find_cut(so_far, bytes));
            let (piece, rest) = bytes.split_at(cut.unwrap_or(in_file));
            let len = piece.len() as u64;
            let end_of_split = cut.is_some() || len == left;
            emit(Piece { rank, file: self.file as u32, offset: self.offset, bytes: piece, end_of_split });
            self.open = (!end_of_split).then_some((rank, so_far + len));
            if let Some(load) = self.loads.get_mut(rank) {
                *load += len;
            }
            self.offset += len;
            self.skip_ended_files();
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the number of bytes that complete the split, which has `so_far` bytes before them; `None` if
    /// it continues after them.
    fn find_cut(&self, so_far: u64, bytes: &[u8]) -> Option<usize> {
        // The last byte of a split of exactly the target size.
        let first = usize::try_from((self.target - 1).saturating_sub(so_far)).ok()?;
        let candidates = bytes.get(first..)?;
        candidates.iter().position(|&byte| self.rule.allows(byte)).map(|at| first + at + 1)
    }

    /// Returns the node with the fewest bytes, or the one of the lowest rank among equals.
    fn least_loaded(&self) -> usize {
        (0..self.loads.len()).min_by_key(|&rank| self.loads.get(rank)).unwrap_or(0)
    }

    fn skip_ended_files(&mut self) {
        while self.files.get(self.file) == Some(&self.offset) {
            self.file += 1;
            self.offset = 0;
        }
    }
}
