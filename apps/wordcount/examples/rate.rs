//! Measures the speed at which one processor counts words, from the input in memory to the sorted output:
//! `rate FILE [ROUNDS]`.

use anyhow::{Context, Result};
use mapreduce::Split;
use std::time::Instant;
use wordcount::WordCount;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().context("usage: rate FILE [ROUNDS]")?;
    let rounds: usize = args.next().map_or(Ok(5), |n| n.parse()).context("ROUNDS must be a number")?;
    let text = std::fs::read(&file).with_context(|| file.clone())?;
    let mut seconds = Vec::new();
    let mut distinct = 0;
    for _ in 0..rounds.max(1) {
        let start = Instant::now();
        let output = mapreduce::run_local(&WordCount, &[Split { file: 0, offset: 0, bytes: &text }])?;
        seconds.push(start.elapsed().as_secs_f64());
        distinct = output.iter().filter(|&&b| b == b'\n').count();
    }
    seconds.sort_by(f64::total_cmp);
    let rate = |s: f64| text.len() as f64 / s / 1e6;
    let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
    println!(
        "{} bytes, {distinct} distinct words: best {best:.3} s ({:.0} MB/s), median {median:.3} s ({:.0} MB/s)",
        text.len(),
        rate(best),
        rate(median)
    );
    Ok(())
}
