//! How much memory a job may count on.

use alloc::vec::Vec;
use platform::Memory;

/// The heap is probed in pieces of this size.
const PIECE: usize = 64 << 10;

/// Bytes that jobs can get, counted no further than `wanted`: what `memory` has free, and what the heap has free within.
///
/// In an appliance the heap grows out of `memory` and keeps what it has, so that after a large job most free memory may
/// lie in it. Nobody tells how much: it is found by taking pieces until the heap grows.
pub(crate) fn available(memory: &dyn Memory, wanted: u64) -> u64 {
    let free = memory.stats().free;
    let Some(missing) = wanted.checked_sub(free).filter(|&m| m > 0) else { return free };
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let count = missing.div_ceil(PIECE as u64);
    if usize::try_from(count).map_or(true, |count| pieces.try_reserve_exact(count).is_err()) {
        return free;
    }
    for _ in 0..count {
        let mut piece = Vec::new();
        if piece.try_reserve_exact(PIECE).is_err() || memory.stats().free < free {
            break;
        }
        pieces.push(piece);
    }
    free + (pieces.len() * PIECE) as u64
}
