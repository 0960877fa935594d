//! The input of a job on this node, received in pieces.

use crate::JobError;
use alloc::vec::Vec;
use proto::ToNode;

/// A contiguous part of one input file, cut where the application's rule allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Index of the file in the job's inputs.
    pub file: u32,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The bytes of the split.
    pub bytes: Vec<u8>,
}

/// Assembles pieces into splits.
#[derive(Debug)]
pub(crate) struct Input {
    /// Lengths of the files, in bytes.
    files: Vec<u64>,
    /// The most bytes that are reserved ahead for one split.
    limit: u64,
    splits: Vec<Split>,
    open: Option<Split>,
    /// Bytes received so far.
    pub(crate) bytes: u64,
}

/// Counts the input of a job that this node has received, and the input that it is ready to receive. Both are
/// sums of charges ([`ToNode::input_charge`]) since the job's first byte.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    taken: u64,
    promised: u64,
}

impl Intake {
    /// The least increase of the promise that is sent to the manager. A smaller one is not worth a message; a
    /// much larger one would make the manager wait.
    const STEP: u64 = ToNode::INPUT_WINDOW / 4;

    /// Counts a received piece of `bytes` bytes.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(ToNode::input_charge(bytes));
    }

    /// Returns the new promise, if one is due: the sum of charges, since the first byte, that this node is
    /// ready to receive.
    pub(crate) fn promise(&mut self) -> Option<u64> {
        let ready = self.taken.saturating_add(ToNode::INPUT_WINDOW);
        let due = ready - self.promised >= Self::STEP;
        if due {
            self.promised = ready;
        }
        due.then_some(ready)
    }
}

/// A split grows by at least this many bytes.
const MIN_GROWTH: usize = 256 << 10;
/// A split larger than this contains one very long record, because the manager aims at smaller splits. The
/// record may well reach to the end of the file.
const LARGE: usize = 8 << 20;

impl Input {
    /// Returns an empty input for files of the given lengths on a node with `memory` bytes.
    pub(crate) fn new(files: Vec<u64>, memory: u64) -> Self {
        Self { files, limit: memory / 4, splits: Vec::new(), open: None, bytes: 0 }
    }

    /// Appends the next piece. If memory runs out, the error holds the number of bytes that could not be
    /// allocated.
    pub(crate) fn push(&mut self, file: u32, offset: u64, piece: &[u8], end: bool) -> Result<(), InputError> {
        let split = self.open.get_or_insert_with(|| Split { file, offset, bytes: Vec::new() });
        if split.file != file || split.offset.checked_add(split.bytes.len() as u64) != Some(offset) {
            return Err(InputError::Gap);
        }
        let bytes = &mut split.bytes;
        if bytes.capacity() - bytes.len() < piece.len() {
            // Old and new block exist at once while a large split moves, so it must move rarely.
            let left = self.files.get(file as usize).map_or(0, |len| len.saturating_sub(offset));
            let to_end = usize::try_from(left.min(self.limit)).unwrap_or(0);
            let half = (bytes.len() / 2).max(MIN_GROWTH);
            let more = if bytes.len() >= LARGE { half.max(to_end) } else { half };
            let reserved = [more, half, piece.len()]
                .into_iter()
                .filter(|more| *more >= piece.len())
                .any(|more| bytes.try_reserve_exact(more).is_ok());
            if !reserved {
                return Err(InputError::NoMemory { wanted: (bytes.len() + piece.len()) as u64 });
            }
        }
        bytes.extend_from_slice(piece);
        self.bytes += piece.len() as u64;
        if end {
            self.close();
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some(mut split) = self.open.take() {
            split.bytes.shrink_to_fit();
            self.splits.push(split);
        }
    }

    /// Returns all splits, in order of arrival.
    pub(crate) fn finish(mut self) -> Vec<Split> {
        self.close();
        self.splits
    }
}

/// The reason for which a piece of input was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputError {
    /// The piece does not continue the open split.
    Gap,
    /// The piece could not be stored.
    NoMemory {
        /// The length of the allocation that failed, in bytes.
        wanted: u64,
    },
}

impl InputError {
    pub(crate) fn into_job_error(self, has: u64) -> JobError {
        match self {
            Self::Gap => JobError::Refused("a piece of input does not follow the one before".into()),
            Self::NoMemory { wanted } => JobError::OutOfMemory { wanted, has },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn pieces_become_splits() {
        let mut input = Input::new(vec![20, 1 << 30], 1 << 20);
        assert_eq!(input.push(0, 10, b"ab", false), Ok(()));
        assert_eq!(input.push(0, 12, b"c", true), Ok(()));
        assert_eq!(input.push(1, 0, b"", true), Ok(()));
        assert_eq!(input.push(1, 7, b"xyz", false), Ok(()));
        assert_eq!(input.bytes, 6);
        let split = |file, offset, bytes: &[u8]| Split { file, offset, bytes: bytes.to_vec() };
        assert_eq!(input.finish(), vec![split(0, 10, b"abc"), split(1, 0, b""), split(1, 7, b"xyz")]);
    }

    #[test]
    fn a_very_long_record_moves_once() {
        let piece = [b'x'; 48 << 10];
        let mut input = Input::new(vec![32 << 20], 256 << 20);
        let mut capacities = Vec::new();
        for number in 0..(32 << 20) / piece.len() {
            input.push(0, (number * piece.len()) as u64, &piece, false).unwrap();
            let capacity = input.open.as_ref().map_or(0, |split| split.bytes.capacity());
            if number * piece.len() > LARGE && capacities.last() != Some(&capacity) {
                capacities.push(capacity);
            }
        }
        assert_eq!(capacities.len(), 2, "{capacities:?}");
        assert!(capacities[1] <= 33 << 20);
    }

    #[test]
    fn promises_follow_what_was_taken() {
        let window = ToNode::INPUT_WINDOW;
        let mut intake = Intake::default();
        assert_eq!((intake.promise(), intake.promise()), (Some(window), None));
        let (mut promised, mut promises) = (window, 0);
        for taken in 1..=100u64 {
            intake.take(48 << 10);
            let ready = taken * (48 << 10) + window;
            if let Some(promise) = intake.promise() {
                assert_eq!(promise, ready);
                (promised, promises) = (promise, promises + 1);
            }
            // A manager that has sent all that was taken can always go on with the next piece.
            assert!(promised - taken * (48 << 10) >= window - Intake::STEP);
        }
        assert!(promises <= 20, "{promises}");
        // An empty or one-byte piece is charged the minimum.
        intake.take(1);
        let before = intake.taken;
        intake.take(0);
        assert_eq!(intake.taken - before, ToNode::MIN_CHARGE);
    }

    #[test]
    fn gaps_are_refused() {
        for (file, offset) in [(0, 3), (0, 1), (1, 2)] {
            let mut input = Input::new(vec![20, 1 << 30], 1 << 20);
            assert_eq!(input.push(0, 0, b"ab", false), Ok(()));
            assert_eq!(input.push(file, offset, b"c", false), Err(InputError::Gap));
        }
        let mut input = Input::new(vec![20, 1 << 30], 1 << 20);
        assert_eq!(input.push(0, u64::MAX, b"ab", false), Ok(()));
        assert_eq!(input.push(0, 1, b"c", false), Err(InputError::Gap));
    }
}
