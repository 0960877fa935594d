//! Tests that map, shuffle, reduce and merge over any number of nodes return the result of one processor.

use super::finish;
use crate::key::{SHORT, Seed};
use crate::merge::{Merge, Source};
use crate::reduce::reduce;
use crate::region::InMemory;
use crate::run::{RunReader, RunWriter, record_len};
use crate::sort::Sorted;
use crate::table::{Entries, Table};
use crate::{Args, Emitter, MapReduce, Split, push_decimal, run_local};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use proto::{CutRule, JobStart};

/// A job that adds the lengths of equal lines, and sorts by sum, descending.
#[derive(Debug)]
struct Lines;

impl MapReduce for Lines {
    type Value = u64;
    const NAME: &'static str = "lines";
    const ABOUT: &'static str = "";

    fn new(_: &JobStart, _: &Args<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    fn cut() -> CutRule {
        CutRule::after(|byte| byte == b'\n')
    }
    fn map(&self, split: Split<'_>, emit: &mut Emitter<'_, Self>) {
        for line in split.bytes.split_inclusive(|&byte| byte == b'\n') {
            emit.add(line, line.len() as u64);
        }
    }
    fn combine(&self, into: &mut u64, more: u64) {
        *into += more;
    }
    fn rank(&self, value: &u64) -> u64 {
        !value
    }
    fn format(&self, key: &[u8], value: &u64, out: &mut Vec<u8>) {
        out.extend_from_slice(key);
        push_decimal(*value, out);
    }
}

const SHARES: usize = 3;

/// Returns one worker's entries for each share.
fn map(splits: &[Split<'_>], shares: usize) -> Vec<Entries<u64>> {
    let mut table = Table::new(Seed::KNOWN);
    for split in splits {
        Lines.map(*split, &mut Emitter::new(&Lines, &mut table));
    }
    table.into_entries().unwrap().partition(shares, Seed::KNOWN).unwrap()
}

/// Stores one worker's shares in a region, one run per share.
fn store<'a>(lists: impl Iterator<Item = &'a Entries<u64>> + Clone) -> InMemory {
    let mut room = Vec::new();
    let lens: Vec<u64> = lists
        .clone()
        .map(|list| list.list.iter().map(|e| record_len(e.key_len(), &e.value, &mut room)).sum())
        .collect();
    let region = InMemory::default();
    let mut writer = RunWriter::new(region.clone(), &lens);
    finish(async {
        for list in lists {
            for entry in &list.list {
                writer.push(entry.key(&list.arena, &mut [0; SHORT]), &entry.value).await.unwrap();
            }
        }
        writer.finish().await.unwrap();
    });
    region
}

/// Runs a job on `nodes` nodes with one mapping and one reducing worker each.
fn run(nodes: usize, splits: &[Split<'_>]) -> Vec<u8> {
    let shares = nodes * SHARES;
    let mapped: Vec<_> = (0..nodes)
        .map(|node| {
            let own: Vec<_> = splits.iter().skip(node).step_by(nodes).copied().collect();
            store(map(&own, shares).iter())
        })
        .collect();
    let mut sources: Vec<Source<Lines, InMemory>> = Vec::new();
    for node in 0..nodes {
        let sorted: Sorted<u64> = finish(async {
            let mut readers = Vec::new();
            for (rank, region) in mapped.iter().enumerate() {
                let range = node * SHARES..(node + 1) * SHARES;
                readers.push(RunReader::open(region.clone(), rank, shares, range, 50).await.unwrap());
            }
            reduce(&Lines, Seed::KNOWN, vec![], readers).await.unwrap()
        });
        if node == 0 {
            sources.push(Source::local(sorted));
        } else {
            sources.push(offer(sorted));
        }
    }
    drain(sources)
}

/// Publishes a sorted list, and returns it as another node reads it.
fn offer(sorted: Sorted<u64>) -> Source<Lines, InMemory> {
    let mut room = Vec::new();
    let lens = [sorted.entries().iter().map(|e| record_len(e.key_len(), &e.value, &mut room)).sum()];
    let region = InMemory::default();
    finish(async {
        let mut writer = RunWriter::new(region.clone(), &lens);
        let mut merge = Merge::new(&Lines, vec![Source::<Lines, InMemory>::local(sorted)]).await.unwrap();
        while let Some((key, value)) = merge.peek(&mut [0; SHORT]) {
            writer.push(key, value).await.unwrap();
            merge.advance(&Lines).await.unwrap();
        }
        writer.finish().await.unwrap();
        Source::remote(RunReader::open(region, 0, 1, 0..1, 70).await.unwrap())
    })
}

fn drain(sources: Vec<Source<Lines, InMemory>>) -> Vec<u8> {
    finish(async {
        let mut merge = Merge::new(&Lines, sources).await.unwrap();
        let mut out = Vec::new();
        while let Some((key, value)) = merge.peek(&mut [0; SHORT]) {
            Lines.format(key, value, &mut out);
            merge.advance(&Lines).await.unwrap();
        }
        out
    })
}

proptest! {
    #[test]
    fn any_number_of_nodes_gives_the_same(
        lines in proptest::collection::vec("[ab]{0,3}\n|[a-c]{14,20}\n", 0..200),
        nodes in 1usize..6)
    {
        let splits: Vec<_> =
            lines.chunks(3).map(<[String]>::concat).collect();
        let splits: Vec<_> =
            splits.iter().map(|text| Split { file: 0, offset: 0, bytes: text.as_bytes() }).collect();
        prop_assert_eq!(run(nodes, &splits), run_local(&Lines, &splits).unwrap());
    }

    #[test]
    fn lists_of_several_workers_and_runs_combine(
        lines in proptest::collection::vec("[ab]{0,3}\n|[a-c]{14,20}\n", 0..100), workers in 1usize..4)
    {
        let splits: Vec<_> =
            lines.iter().map(|text| Split { file: 0, offset: 0, bytes: text.as_bytes() }).collect();
        let (near, far) = splits.split_at(splits.len() / 2);
        let lists = (0..workers)
            .flat_map(|worker| map(&near.iter().skip(worker).step_by(workers).copied().collect::<Vec<_>>(), 1))
            .collect();
        let sorted = finish(async {
            let run = RunReader::open(store(map(far, 1).iter()), 0, 1, 0..1, 64).await.unwrap();
            reduce(&Lines, Seed::KNOWN, lists, vec![run]).await.unwrap()
        });
        prop_assert_eq!(drain(vec![Source::local(sorted)]), run_local(&Lines, &splits).unwrap());
    }
}
