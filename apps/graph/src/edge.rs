//! Edges by the identifiers of their vertices.

use alloc::vec::Vec;
use runtime::JobError;

/// The number of edges in a chunk.
const CHUNK: usize = 1 << 15;

/// A directed edge. Edges are in the order of the vertex that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// The vertex that the edge leads to.
    pub to: u64,
    /// The vertex that the edge comes from.
    pub from: u64,
    /// The weight; 1 in a graph without weights.
    pub weight: u32,
}

/// A list of edges in chunks, so that it grows without moving, and its memory is freed as it is read.
#[derive(Clone, Debug, Default)]
pub struct Edges(Vec<Vec<Edge>>);

impl Edges {
    /// Appends an edge.
    ///
    /// # Errors
    /// [`JobError::OutOfMemory`].
    pub fn push(&mut self, edge: Edge) -> Result<(), JobError> {
        if self.0.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.0.push(with_room(CHUNK)?);
        }
        if let Some(chunk) = self.0.last_mut() {
            chunk.push(edge);
        }
        Ok(())
    }

    /// Returns the number of edges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Returns true if there are no edges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all edges.
    pub fn iter(&self) -> impl Iterator<Item = &Edge> {
        self.0.iter().flatten()
    }

    /// Removes and returns a chunk of edges.
    pub(crate) fn pop(&mut self) -> Option<Vec<Edge>> {
        self.0.pop()
    }

    /// Returns all edges in order, without duplicates. Of duplicates the one with the least weight stays.
    pub(crate) fn into_set(mut self) -> Result<Vec<Edge>, JobError> {
        let mut all = with_room(self.len())?;
        while let Some(chunk) = self.pop() {
            all.extend_from_slice(&chunk);
        }
        all.sort_unstable();
        all.dedup_by_key(|edge| (edge.to, edge.from));
        Ok(all)
    }
}

/// Returns an empty list with room for `len` elements.
pub(crate) fn with_room<T>(len: usize) -> Result<Vec<T>, JobError> {
    let mut list = Vec::new();
    let wanted = (len as u64).saturating_mul(size_of::<T>() as u64);
    list.try_reserve_exact(len).map_err(|_| JobError::OutOfMemory { wanted, has: 0 })?;
    Ok(list)
}

/// Returns a list of `len` elements that are `value`.
pub(crate) fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>, JobError> {
    let mut list = with_room(len)?;
    list.resize(len, value);
    Ok(list)
}

/// Appends an element to a list.
pub(crate) fn push<T>(list: &mut Vec<T>, element: T) -> Result<(), JobError> {
    reserve(list, 1)?;
    list.push(element);
    Ok(())
}

/// Makes room for `more` elements in a list, which grows by doubling.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), JobError> {
    let wanted = (list.len().max(more) as u64).saturating_mul(2 * size_of::<T>() as u64);
    list.try_reserve(more).map_err(|_| JobError::OutOfMemory { wanted, has: 0 })
}
