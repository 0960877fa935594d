//! The text of results, and the order of ranks over all nodes.

use crate::bytes::Reader;
use crate::edge::{push, reserve, with_room};
use crate::net::{BLOCK, Net, stream};
use crate::programs::ONE;
use alloc::vec;
use alloc::vec::Vec;
use runtime::JobError;

/// The number of pairs of a rank and a vertex that each node sends as a sample of its ranks.
const SAMPLE: usize = 256;
/// The number of digits behind the point. With fewer digits, different ranks could be printed alike.
const DIGITS: usize = 19;

/// Appends a decimal number.
pub(crate) fn push_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut count = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(20 - count..).unwrap_or_default());
}

/// The length of the longest line, in bytes.
const LINE: usize = 44;

/// Appends a line of a vertex and a number.
pub(crate) fn push_line(vertex: u64, number: u64, out: &mut Vec<u8>) -> Result<(), JobError> {
    reserve(out, LINE)?;
    push_decimal(vertex, out);
    out.push(b'\t');
    push_decimal(number, out);
    out.push(b'\n');
    Ok(())
}

/// Appends a line of a vertex and its rank.
pub(crate) fn push_rank_line(vertex: u64, rank: u64, out: &mut Vec<u8>) -> Result<(), JobError> {
    reserve(out, LINE)?;
    push_decimal(vertex, out);
    out.push(b'\t');
    push_rank(rank, out);
    out.push(b'\n');
    Ok(())
}

/// Appends a rank, which is in parts of [`ONE`], as a decimal fraction of 19 digits, rounded to the nearest.
pub fn push_rank(rank: u64, out: &mut Vec<u8>) {
    let scale = 10u128.pow(DIGITS as u32);
    let mut rest = (u128::from(rank) * scale + u128::from(ONE / 2)) / u128::from(ONE);
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    push_decimal(rest as u64, out);
    out.push(b'.');
    out.extend_from_slice(&digits);
}

/// A rank and its vertex. Pairs are ordered by rank, the greatest first, then by vertex.
pub(crate) type Ranked = (core::cmp::Reverse<u64>, u64);

/// Distributes the ranks of all nodes so that they are in order: those of one node before those of the next.
pub(crate) async fn in_order(net: &mut dyn Net, mut own: Vec<Ranked>) -> Result<Vec<Ranked>, JobError> {
    own.sort_unstable();
    let nodes = net.nodes();
    if nodes == 1 {
        return Ok(own);
    }
    let step = own.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<u8> = own.iter().step_by(step).flat_map(emit).collect();
    let mut samples = Vec::new();
    for (rank, bytes) in net.exchange(vec![sample; nodes]).await?.iter().enumerate() {
        read(rank, bytes, &mut samples)?;
    }
    samples.sort_unstable();
    let firsts: Vec<Ranked> =
        (1..nodes).filter_map(|part| samples.get(samples.len() * part / nodes).copied()).collect();
    let mut got = with_room(own.len())?;
    let fill = |blocks: &mut [Vec<u8>]| {
        while let Some(ranked) = own.pop() {
            let to = firsts.partition_point(|first| *first <= ranked);
            let Some(block) = blocks.get_mut(to) else { continue };
            block.extend_from_slice(&emit(&ranked));
            if block.len() >= BLOCK {
                return Ok(true);
            }
        }
        Ok(false)
    };
    stream(net, fill, |rank, bytes| read(rank, bytes, &mut got)).await?;
    got.sort_unstable();
    Ok(got)
}

fn emit((core::cmp::Reverse(rank), vertex): &Ranked) -> [u8; 16] {
    (u128::from(*rank) << 64 | u128::from(*vertex)).to_le_bytes()
}

fn read(rank: usize, bytes: &[u8], into: &mut Vec<Ranked>) -> Result<(), JobError> {
    let mut reader = Reader::new(rank, bytes);
    while !reader.bytes.is_empty() {
        let vertex = reader.u64()?;
        push(into, (core::cmp::Reverse(reader.u64()?), vertex))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    fn rank(rank: u64) -> String {
        let mut out = Vec::new();
        push_rank(rank, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ranks_are_fractions() {
        assert_eq!(rank(ONE), "1.0000000000000000000");
        assert_eq!(rank(ONE / 4), "0.2500000000000000000");
        assert_eq!(rank(0), "0.0000000000000000000");
        // Two ranks that differ by the least possible amount are printed differently.
        assert_eq!((rank(1), rank(2)), ("0.0000000000000000002".into(), "0.0000000000000000004".into()));
        assert_ne!(rank(ONE / 3), rank(ONE / 3 + 1));
    }

    #[test]
    fn numbers_are_decimal() {
        let mut out = Vec::new();
        push_line(u64::MAX, 0, &mut out).unwrap();
        push_line(10, 905, &mut out).unwrap();
        assert_eq!(out, b"18446744073709551615\t0\n10\t905\n");
    }
}
