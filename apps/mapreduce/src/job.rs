//! The phases of a MapReduce job on one node.

use crate::key::{SHORT, Seed};
use crate::map::{self, Queue};
use crate::merge::{Merge, Source};
use crate::reduce::reduce;
use crate::run::{RunReader, RunWriter, record_len, table_len};
use crate::seed;
use crate::sort::Sorted;
use crate::table::Entries;
use crate::{MapReduce, OutOfMemory};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use lite::Lmr;
use platform::{Instant, yield_now};
use proto::{AppManifest, JobReport, JobStart};
use runtime::{App, BoxFuture, JobContext, JobError, Region, Syntax};

/// Shares of the hash space per node, in a job of several nodes: the number of a node's processors that can
/// reduce.
const SHARES: usize = 8;
/// The largest read of another node's result, in bytes. With many nodes, reads are smaller.
const READ_BLOCK: usize = 64 << 10;
/// The approximate size of all read buffers of a node, in bytes.
const READ_BUFFERS: usize = 2 << 20;
/// Bytes of output that are formatted between two awaits.
const OUTPUT_BLOCK: usize = 64 << 10;

/// Expected bytes of an output line in addition to the key.
const LINE_ROOM: usize = 256;

/// The application that runs a [`MapReduce`].
pub struct Job<M>(PhantomData<fn() -> M>);

impl<M> Default for Job<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: MapReduce> fmt::Debug for Job<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job<{}>", M::NAME)
    }
}

impl<M: MapReduce> App for Job<M> {
    fn manifest(&self) -> AppManifest {
        syntax::<M>().manifest(M::cut())
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        new::<M>(start).map(|_| ())
    }

    fn run(&self, context: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            let job: M = new(context.start())?;
            let result = Node { nodes: context.nodes().len(), job: Arc::new(job), context: context.clone() };
            match result.run().await {
                Err(JobError::OutOfMemory { wanted, .. }) => Err(context.out_of_memory(wanted)),
                other => other,
            }
        })
    }
}

fn syntax<M: MapReduce>() -> Syntax {
    Syntax { name: M::NAME, about: M::ABOUT, args: M::ARGS }
}

/// Reads the arguments, and returns the job.
fn new<M: MapReduce>(start: &JobStart) -> Result<M, JobError> {
    let syntax = syntax::<M>();
    let job = syntax.read(&start.args).and_then(|args| M::new(start, &args));
    job.map_err(JobError::Refused)
}

/// The state of a MapReduce job on one node.
struct Node<M> {
    context: JobContext,
    job: Arc<M>,
    nodes: usize,
}

/// The lists of all workers of a node, or their parts for one share of the hash space.
type Lists<M> = Vec<Entries<<M as MapReduce>::Value>>;

impl<M: MapReduce> Node<M> {
    async fn run(&self) -> Result<JobReport, JobError> {
        let mut times = Times { last: self.context.now(), report: Vec::new() };
        let queue = Arc::new(Queue::new(self.context.take_splits(), &M::cut()));
        let agreeing = self.context.spawn("seed", seed::agree(self.context.clone()));
        let mapped = self.map(&queue).await?;
        let agreed = agreeing.await??;
        let mut shares = self.partition(mapped, agreed.seed).await?;
        self.tick(&mut times, "map");
        let shuffled = self.shuffle(&mut shares).await?;
        self.tick(&mut times, "shuffle");
        let sorted = self.reduce(shares).await?;
        self.context.barrier("reduced").await?;
        for region in shuffled.into_iter().chain(agreed.region) {
            self.context.free(region).await?;
        }
        self.tick(&mut times, "reduce");
        let keys = sorted.iter().map(Sorted::len).sum::<usize>() as u64;
        if self.context.rank() == 0 {
            self.context.barrier("sorted").await?;
            self.output(sorted).await?;
        } else {
            self.offer(sorted).await?;
            self.context.barrier("sorted").await?;
        }
        self.context.barrier("merged").await?;
        self.tick(&mut times, "merge");
        let count = |name: &str, number: u64| (name.to_string(), number);
        let counts = [
            count(M::RECORDS, queue.records()),
            count("distinct", keys),
            count("mapped_bytes", queue.mapped()),
            count("reduced_keys", keys),
        ];
        Ok(JobReport { counts: counts.into(), times_us: times.report, ..JobReport::default() })
    }

    /// Returns the number of shares of the hash space. The node of rank r reduces the r-th part of them.
    fn shares(&self) -> usize {
        if self.nodes == 1 { self.context.cpus().min(SHARES) } else { self.nodes * SHARES }
    }

    /// Returns the shares that this node reduces.
    fn own(&self) -> Range<usize> {
        let each = self.shares() / self.nodes;
        self.context.rank() * each..(self.context.rank() + 1) * each
    }

    /// Maps all input on all processors. Returns one list per worker.
    async fn map(&self, queue: &Arc<Queue>) -> Result<Lists<M>, JobError> {
        let workers: Vec<_> = (0..self.context.cpus().min(queue.len()))
            .map(|_| {
                let (context, job, queue) = (self.context.clone(), self.job.clone(), queue.clone());
                self.context.spawn("map", map::worker(context, job, queue))
            })
            .collect();
        let mut mapped = Vec::new();
        for worker in workers {
            mapped.push(worker.await??);
        }
        Ok(mapped)
    }

    /// Splits the workers' lists by share on all processors. All nodes of the job split alike.
    async fn partition(&self, mapped: Lists<M>, seed: Seed) -> Result<Vec<Lists<M>>, JobError> {
        let parts = self.shares();
        let workers: Vec<_> = mapped
            .into_iter()
            .map(|entries| self.context.spawn("partition", async move { entries.partition(parts, seed) }))
            .collect();
        let mut shares: Vec<Lists<M>> = (0..self.shares()).map(|_| Vec::new()).collect();
        for worker in workers {
            for (share, list) in shares.iter_mut().zip(worker.await??) {
                share.push(list);
            }
        }
        Ok(shares)
    }

    /// Publishes one run per share for the other nodes. This node's own shares stay in `shares`.
    async fn shuffle(&self, shares: &mut [Lists<M>]) -> Result<Option<Region>, JobError> {
        if self.nodes == 1 {
            return Ok(None);
        }
        let own = self.own();
        let mut room = Vec::new();
        let mut lens = Vec::with_capacity(shares.len());
        for (number, share) in shares.iter().enumerate() {
            let entries = share.iter().flat_map(|list| &list.list).filter(|_| !own.contains(&number));
            lens.push(entries.map(|e| record_len(e.key_len(), &e.value, &mut room)).sum());
        }
        let region = self.region(&lens).await?;
        let mut writer = RunWriter::new(region.lmr.clone(), &lens);
        for (number, share) in shares.iter_mut().enumerate().filter(|(number, _)| !own.contains(number)) {
            for list in share.drain(..) {
                for entry in &list.list {
                    writer.push(entry.key(&list.arena, &mut [0; SHORT]), &entry.value).await?;
                }
            }
            self.context.progress("shuffle", number as u64, lens.len() as u64).await?;
            yield_now().await;
        }
        writer.finish().await?;
        self.context.publish(&region, &format!("mapped/{}", self.context.rank())).await?;
        self.context.barrier("mapped").await?;
        Ok(Some(region))
    }

    /// Allocates memory for runs of the given lengths.
    async fn region(&self, lens: &[u64]) -> Result<Region, JobError> {
        self.context.alloc(table_len(lens.len()) + lens.iter().sum::<u64>()).await
    }

    /// Reduces this node's shares, on all processors.
    async fn reduce(&self, mut shares: Vec<Lists<M>>) -> Result<Vec<Sorted<M::Value>>, JobError> {
        let own = self.own();
        let mut regions = Vec::new();
        // Each node begins with its neighbour, so that not all read from one node at once.
        for step in 1..self.nodes {
            let rank = (self.context.rank() + step) % self.nodes;
            regions.push((rank, self.context.open(&format!("mapped/{rank}")).await?));
        }
        let count = self.context.cpus().min(own.len());
        let workers: Vec<_> = (0..count)
            .map(|worker| {
                let range =
                    own.start + own.len() * worker / count..own.start + own.len() * (worker + 1) / count;
                let lists = shares.get_mut(range.clone()).unwrap_or_default().iter_mut();
                let lists: Lists<M> = lists.flat_map(core::mem::take).collect();
                let (job, regions, runs) = (self.job.clone(), regions.clone(), self.shares());
                let seed = Seed::random(&**self.context.lite().platform());
                self.context.spawn("reduce", async move {
                    let mut readers = Vec::new();
                    for (rank, region) in regions {
                        readers.push(RunReader::open(region, rank, runs, range.clone(), READ_BLOCK).await?);
                    }
                    reduce::<M, Lmr>(&job, seed, lists, readers).await
                })
            })
            .collect();
        drop(shares);
        let mut sorted = Vec::new();
        for (done, worker) in workers.into_iter().enumerate() {
            sorted.push(worker.await??);
            self.context.progress("reduce", done as u64 + 1, count as u64).await?;
        }
        Ok(sorted)
    }

    /// Publishes this node's result for rank 0, as one sorted run.
    async fn offer(&self, sorted: Vec<Sorted<M::Value>>) -> Result<(), JobError> {
        let mut room = Vec::new();
        let entries = sorted.iter().flat_map(Sorted::entries);
        let lens = [entries.map(|e| record_len(e.key_len(), &e.value, &mut room)).sum()];
        let region = self.region(&lens).await?;
        let mut writer = RunWriter::new(region.lmr.clone(), &lens);
        let sources = sorted.into_iter().map(Source::<M, Lmr>::local).collect();
        let mut merge = Merge::new(&*self.job, sources).await?;
        let mut written = 0usize;
        while let Some((key, value)) = merge.peek(&mut [0; SHORT]) {
            writer.push(key, value).await?;
            merge.advance(&*self.job).await?;
            written += 1;
            if written.is_multiple_of(4096) {
                yield_now().await;
            }
        }
        writer.finish().await?;
        self.context.publish(&region, &format!("sorted/{}", self.context.rank())).await
    }

    /// Merges all nodes' results into the output.
    async fn output(&self, sorted: Vec<Sorted<M::Value>>) -> Result<(), JobError> {
        let total = sorted.iter().map(Sorted::len).sum::<usize>() as u64 * self.nodes as u64;
        let mut sources: Vec<_> = sorted.into_iter().map(Source::<M, Lmr>::local).collect();
        let block = (READ_BUFFERS / (3 * self.nodes)).min(READ_BLOCK);
        for rank in 1..self.nodes {
            let region = self.context.open(&format!("sorted/{rank}")).await?;
            sources.push(Source::remote(RunReader::open(region, rank, 1, 0..1, block).await?));
        }
        let mut merge = Merge::new(&*self.job, sources).await?;
        let mut output = self.context.output();
        let mut text = Vec::new();
        let mut done = 0u64;
        while let Some((key, value)) = merge.peek(&mut [0; SHORT]) {
            // Reserves room for a key of any size and for the rest of its line.
            let wanted = key.len() + LINE_ROOM;
            text.try_reserve(wanted).map_err(|_| OutOfMemory { wanted })?;
            self.job.format(key, value, &mut text);
            merge.advance(&*self.job).await?;
            done += 1;
            if text.len() >= OUTPUT_BLOCK {
                output.write(&text).await?;
                text.clear();
                // The total is an estimate: all nodes have nearly the same number of keys.
                self.context.progress("merge", done, total.max(done + 1)).await?;
                yield_now().await;
            }
        }
        output.write(&text).await?;
        output.finish().await
    }

    /// Records the duration of a phase that ends now.
    fn tick(&self, times: &mut Times, phase: &str) {
        let now = self.context.now();
        let us = u64::try_from((now - times.last).as_micros()).unwrap_or(u64::MAX);
        times.report.push((phase.to_string(), us));
        times.last = now;
    }
}

/// The end of the latest phase, and the duration of each phase in microseconds.
struct Times {
    last: Instant,
    report: Vec<(alloc::string::String, u64)>,
}
