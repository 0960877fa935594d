//! Scatter and gather: several parts of a region in one call.

use crate::context::{Context, RW, all_of, pattern};
use crate::failure::{Outcome, fails, same_bytes};
use alloc::vec;
use alloc::vec::Vec;
use lite::Error;

/// Pieces of any number and length, more than are in flight at a time, are written and read in one call each.
pub(crate) async fn pieces_of_any_number_and_length(cx: &Context) -> Outcome {
    const LEN: usize = 400_000;
    for (_, lmr) in cx.everywhere(LEN as u64).await? {
        let data: Vec<_> = (0..20).map(|i| pattern([0, 1, 64, 300, 5_000, 19_000][i % 6], i)).collect();
        let at = |i: usize| i * 20_000 + i * 7 % 900;
        let mut model = vec![0; LEN];
        for (i, piece) in data.iter().enumerate() {
            model.splice(at(i)..at(i) + piece.len(), piece.iter().copied());
        }
        let pieces: Vec<_> = data.iter().enumerate().map(|(i, piece)| (at(i) as u64, &piece[..])).collect();
        lmr.write_vectored(&pieces).await?;
        same_bytes(&all_of(&lmr).await?, &model)?;
        // In another order, and overlapping.
        let mut got: Vec<_> = (0..20).map(|i| vec![0xaa; [3, 70_000, 64][i % 3]]).collect();
        let mut into: Vec<_> =
            got.iter_mut().enumerate().rev().map(|(i, b)| (at(i / 2) as u64, &mut b[..])).collect();
        lmr.read_vectored(&mut into).await?;
        for (i, bytes) in got.iter().enumerate() {
            same_bytes(bytes, model.get(at(i / 2)..at(i / 2) + bytes.len()).unwrap_or_default())?;
        }
        lmr.free().await?;
    }
    Ok(())
}

/// A call without pieces does nothing, and pieces of zero length do nothing.
pub(crate) async fn nothing_is_nothing(cx: &Context) -> Outcome {
    for (_, lmr) in cx.everywhere(64).await? {
        lmr.read_vectored(&mut []).await?;
        lmr.write_vectored(&[]).await?;
        lmr.write_vectored(&[(64, &[]), (0, &[])]).await?;
        lmr.read_vectored(&mut [(64, &mut [])]).await?;
        same_bytes(&all_of(&lmr).await?, &[0; 64])?;
        lmr.free().await?;
    }
    Ok(())
}

/// All pieces are checked before any transfer: if one is out of bounds, none is transferred.
pub(crate) async fn nothing_is_done_if_one_is_wrong(cx: &Context) -> Outcome {
    for node in [cx.me(), cx.next()] {
        let lmr = cx.lite.alloc(node, 1000, RW).await?;
        let good = [(0, &[0xff; 8][..]); 30];
        for bad in [(993, &[1; 8][..]), (1000, &[1]), (u64::MAX, &[1, 2])] {
            let mut pieces = good.to_vec();
            pieces.push(bad);
            fails(lmr.write_vectored(&pieces).await, Error::OutOfBounds)?;
        }
        same_bytes(&all_of(&lmr).await?, &[0; 1000])?;
        lmr.memset(0, 1000, 7).await?;
        let mut first = [0; 8];
        fails(lmr.read_vectored(&mut [(0, &mut first), (1000, &mut [0])]).await, Error::OutOfBounds)?;
        same_bytes(&first, &[0; 8])?;
        lmr.free().await?;
    }
    Ok(())
}
