//! The reading of files in the form `FLG1`, whose records may be cut anywhere among the nodes.

use crate::bytes::Reader;
use crate::flg1::{Header, term};
use crate::net::Net;
use alloc::vec;
use alloc::vec::Vec;
use runtime::{JobError, Split};

/// The number of records after which other tasks run.
const TURN: usize = 1 << 13;

/// A fault of a file: its number, the offset, and the reason for users. The order is that of the places.
pub(crate) type FaultAt = (u32, u64, alloc::string::String);

/// Bytes of a file: its number, their offset, and the bytes.
type Fragment = (u32, u64, Vec<u8>);

/// The files in this form, and the parts of their records that this node cannot read alone.
pub(crate) struct Binary {
    /// The header of each file; `None` for one in another form.
    headers: Vec<Option<Header>>,
    /// The first fault of a header.
    pub(crate) fault: Option<FaultAt>,
    /// Parts of records at the ends of splits.
    cut: Vec<Fragment>,
    /// This node's part of each file's checksum.
    sums: Vec<u64>,
}

/// Receives source, target and weight of an edge.
pub(crate) type Each<'a> = &'a mut (dyn FnMut(u64, u64, u32) -> Result<(), JobError> + Send);

impl Binary {
    /// Finds the files in this form, whose lengths are `lens`. All nodes pass their splits. With `weights`
    /// records must have weights.
    pub(crate) async fn open(
        net: &mut dyn Net,
        lens: &[u64],
        splits: &[Split],
        weights: bool,
    ) -> Result<Self, JobError> {
        let mut found = Self { headers: vec![], fault: None, cut: vec![], sums: vec![0; lens.len()] };
        if lens.is_empty() {
            return Ok(found);
        }
        let first = splits.iter().filter(|split| split.offset < Header::LEN as u64).map(|split| {
            let len = split.bytes.len().min(Header::LEN - split.offset as usize);
            (split.file, split.offset, split.bytes.get(..len).unwrap_or_default())
        });
        let mut own = Vec::new();
        first.for_each(|(file, offset, bytes)| emit(&mut own, file, offset, bytes));
        let nodes = net.nodes();
        let mut begins: Vec<Fragment> = Vec::new();
        for (rank, bytes) in net.exchange(vec![own; nodes]).await?.iter().enumerate() {
            read(rank, bytes, &mut begins)?;
        }
        begins.sort_unstable();
        for (file, len) in (0u32..).zip(lens) {
            let begin: Vec<u8> =
                begins.iter().filter(|(of, ..)| *of == file).flat_map(|(.., bytes)| bytes.clone()).collect();
            let header = Header::is_begin(&begin).then(|| Header::parse(&begin, *len)).transpose();
            let (header, fault) = match header {
                Ok(Some(header)) if weights && !header.weights => {
                    (Some(header), Some((file, 4, "the edges have no weights".into())))
                }
                Ok(header) => (header, None),
                Err(fault) => (None, Some((file, fault.offset as u64, fault.reason))),
            };
            found.headers.push(header);
            found.fault = found.fault.take().or(fault);
        }
        Ok(found)
    }

    /// Returns true if a file has this form.
    pub(crate) fn has(&self, file: u32) -> bool {
        self.headers.get(file as usize).is_some_and(Option::is_some)
    }

    /// Reads the whole records of a split of such a file. Parts of records are kept.
    pub(crate) async fn split(&mut self, split: &Split, each: Each<'_>) -> Result<(), JobError> {
        let file = split.file;
        let Some(header) = self.headers.get(file as usize).copied().flatten() else { return Ok(()) };
        let end = split.offset + split.bytes.len() as u64;
        let (first, last) = (header.first_from(split.offset), end.saturating_sub(Header::LEN as u64));
        let last = last / header.record() as u64;
        let at = |offset: u64| (offset.clamp(split.offset, end) - split.offset) as usize;
        let bytes = |from: u64, to: u64| split.bytes.get(at(from)..at(to)).unwrap_or_default();
        let (begin, behind) = match first < last {
            true => (header.offset_of(first), header.offset_of(last)),
            // No record is whole.
            false => (end, end),
        };
        let own = split.offset.max(Header::LEN as u64).min(end);
        for (from, to) in [(own, begin), (behind, end)] {
            if from < to {
                self.cut.push((file, from, bytes(from, to).into()));
            }
        }
        let mut number = first;
        for block in bytes(begin, behind).chunks(TURN * header.record()) {
            for record in block.chunks_exact(header.record()) {
                self.add(file, &header, number, record, each)?;
                number += 1;
            }
            platform::yield_now().await;
        }
        Ok(())
    }

    fn add(
        &mut self,
        file: u32,
        header: &Header,
        number: u64,
        record: &[u8],
        each: Each<'_>,
    ) -> Result<(), JobError> {
        let Some(edge) = header.read(record) else { return Ok(()) };
        if let Some(sum) = self.sums.get_mut(file as usize) {
            *sum = sum.wrapping_add(term(number, edge));
        }
        each(edge.0, edge.1, edge.2)
    }

    /// Reads the records that were cut, on rank 0, and compares the checksums. Returns the first fault, which
    /// is the same on all nodes. All nodes call this after their splits.
    pub(crate) async fn finish(
        mut self,
        net: &mut dyn Net,
        each: Each<'_>,
    ) -> Result<Option<FaultAt>, JobError> {
        if self.fault.is_some() || self.headers.iter().all(Option::is_none) {
            return Ok(self.fault);
        }
        let mut to = vec![Vec::new(); net.nodes()];
        if let Some(to) = to.first_mut() {
            self.cut.iter().for_each(|(file, offset, bytes)| emit(to, *file, *offset, bytes));
        }
        let mut cut = Vec::new();
        for (rank, bytes) in net.exchange(to).await?.iter().enumerate() {
            read(rank, bytes, &mut cut)?;
        }
        cut.sort_unstable();
        let (mut record, mut next) = (Vec::new(), (0, 0));
        for (file, offset, bytes) in cut {
            let Some(header) = self.headers.get(file as usize).copied().flatten() else { continue };
            if next != (file, offset) {
                record.clear();
            }
            next = (file, offset + bytes.len() as u64);
            for (byte, offset) in bytes.iter().zip(offset..) {
                record.push(*byte);
                if record.len() == header.record() {
                    let number = header.first_from(offset + 1) - 1;
                    self.add(file, &header, number, &record, each)?;
                    record.clear();
                }
            }
        }
        let sums: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let nodes = net.nodes();
        let mut all = vec![0u64; self.sums.len()];
        for (rank, bytes) in net.exchange(vec![sums; nodes]).await?.iter().enumerate() {
            let mut reader = Reader::new(rank, bytes);
            for sum in &mut all {
                *sum = sum.wrapping_add(reader.u64()?);
            }
        }
        let wrong = (0u32..)
            .zip(&self.headers)
            .zip(&all)
            .find_map(|((file, header), sum)| (header.as_ref()?.checksum != *sum).then_some(file));
        Ok(wrong.map(|file| (file, 16, "the checksum is not that of the edges".into())))
    }
}

fn emit(out: &mut Vec<u8>, file: u32, offset: u64, bytes: &[u8]) {
    out.extend_from_slice(&file.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn read(rank: usize, bytes: &[u8], into: &mut Vec<Fragment>) -> Result<(), JobError> {
    let mut reader = Reader::new(rank, bytes);
    while !reader.bytes.is_empty() {
        let (file, offset, len) = (reader.u32()?, reader.u64()?, reader.u32()?);
        crate::edge::push(into, (file, offset, reader.slice(len as usize)?.into()))?;
    }
    Ok(())
}
