//! The share of a node in the datasets of its job.

use super::name;
use crate::error::During;
use crate::{JobContext, JobError, Split};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use lite::{Lmr, Permissions};
use proto::{CutRule, Dataset, NodeId};

/// The bytes that are read at once, and the length from which on a split ends as soon as it may.
const PIECE: u64 = 1 << 20;
/// The bytes that are read at once to find the end of a record.
const PROBE: u64 = 16 << 10;

/// A piece of a dataset.
struct Piece {
    node: NodeId,
    /// The number of the piece among those of its node.
    number: usize,
    /// The position of the first byte in the dataset, and the number of bytes.
    begin: u64,
    len: u64,
    region: Option<Lmr>,
}

/// A dataset from which this node reads.
struct Reader<'a> {
    job: &'a JobContext,
    dataset: &'a Dataset,
    pieces: Vec<Piece>,
}

/// Reads this node's share of each dataset of the job.
pub(crate) async fn load(job: &JobContext, cut: &CutRule) -> Result<Vec<Split>, JobError> {
    let (datasets, rank, nodes) = (&job.start().datasets, job.rank() as u64, job.nodes().len() as u64);
    let first = job.start().inputs.len() - datasets.len().min(job.start().inputs.len());
    let mut splits = Vec::new();
    for (number, dataset) in datasets.iter().enumerate() {
        let mut reader = Reader::new(job, dataset);
        let len = dataset.len();
        let share = |rank: u64| (u128::from(len) * u128::from(rank) / u128::from(nodes)) as u64;
        let begin = reader.end_of_record(share(rank), cut).await?;
        let end = reader.end_of_record(share(rank + 1), cut).await?;
        let file = (first + number) as u32;
        splits.extend(reader.splits(begin, end, cut).await?.into_iter().map(|split| Split { file, ..split }));
    }
    Ok(splits)
}

impl<'a> Reader<'a> {
    fn new(job: &'a JobContext, dataset: &'a Dataset) -> Self {
        let (mut numbers, mut begin) = (BTreeMap::<NodeId, usize>::new(), 0);
        let piece = |&(node, len): &(NodeId, u64)| {
            let count = numbers.entry(node).or_default();
            let piece = Piece { node, number: *count, begin, len, region: None };
            *count += 1;
            begin += len;
            piece
        };
        let pieces = dataset.pieces.iter().map(piece).collect();
        Self { job, dataset, pieces }
    }

    /// Returns the first position, from `at` on, at which the rule allows a cut: the start, the end, and
    /// behind a byte that it names.
    async fn end_of_record(&mut self, at: u64, cut: &CutRule) -> Result<u64, JobError> {
        let len = self.dataset.len();
        if at == 0 || at >= len || *cut == CutRule::Anywhere {
            return Ok(at.min(len));
        }
        let mut from = at - 1;
        while from < len {
            let mut bytes = vec![0; PROBE.min(len - from) as usize];
            self.read(from, &mut bytes).await?;
            if let Some(found) = bytes.iter().position(|&byte| cut.allows(byte)) {
                return Ok(from + found as u64 + 1);
            }
            from += bytes.len() as u64;
        }
        Ok(len)
    }

    /// Reads the bytes from `begin` to `end`, between which all records lie.
    async fn splits(&mut self, begin: u64, end: u64, cut: &CutRule) -> Result<Vec<Split>, JobError> {
        let (mut splits, mut bytes, mut offset) = (Vec::new(), Vec::new(), begin);
        let mut at = begin;
        while at < end {
            let (had, more) = (bytes.len(), PIECE.min(end - at) as usize);
            bytes.try_reserve_exact(more).map_err(|_| self.job.out_of_memory((had + more) as u64))?;
            bytes.resize(had + more, 0);
            self.read(at, bytes.get_mut(had..).unwrap_or_default()).await?;
            at += more as u64;
            let last = bytes.iter().rposition(|&byte| cut.allows(byte)).map(|last| last + 1);
            let whole = (at == end).then_some(bytes.len());
            let Some(len) = whole.or(last) else { continue };
            let rest = bytes.split_off(len);
            splits.push(Split { file: 0, offset, bytes });
            offset += len as u64;
            bytes = rest;
        }
        Ok(splits)
    }

    /// Reads from position `at` on.
    async fn read(&mut self, mut at: u64, mut into: &mut [u8]) -> Result<(), JobError> {
        let (job, dataset) = (self.job, self.dataset);
        let begin = at;
        for piece in self.pieces.iter_mut().skip_while(|piece| piece.begin + piece.len <= begin) {
            if into.is_empty() {
                break;
            }
            let inside = at - piece.begin;
            let now = into.len().min(usize::try_from(piece.len - inside).unwrap_or(usize::MAX));
            let (front, rest) = core::mem::take(&mut into).split_at_mut(now);
            let region = match &piece.region {
                Some(region) => region,
                None => {
                    let name = name(dataset.job, piece.node, piece.number);
                    let mapped = job.waiting_lite().map(&name, Permissions::READ).await;
                    piece.region.insert(mapped.during("reading a dataset")?)
                }
            };
            region.read(inside, front).await.during("reading a dataset")?;
            (at, into) = (at + now as u64, rest);
        }
        Ok(())
    }
}
