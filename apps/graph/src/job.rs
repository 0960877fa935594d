//! The applications: from the input of a job to its output.

use crate::args::{Algorithm, Args};
use crate::compact::Compact;
use crate::components::components;
use crate::edge::with_room;
use crate::engine::{Outcome, run};
use crate::load::{Input, load};
use crate::output::{in_order, push_decimal, push_line, push_rank_line};
use crate::part::Part;
use crate::paths::shortest_paths;
use crate::programs::{Bfs, PageRank};
use crate::read::{Source, vertices_file};
use crate::triangles::triangles;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use platform::Instant;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, BoxFuture, Collective, JobContext, JobError};

/// The room for a message from each node while the graph is loaded, in bytes.
pub(crate) const ROOM: usize = 64 << 10;
/// The bytes of memory for each byte of text of an edge list: an edge has 24 bytes, is there twice while
/// edges are sorted, and its line has at least some 10 bytes.
const PER_BYTE: u64 = 5;
/// The bytes of memory for each generated edge.
const PER_EDGE: u64 = 60;
/// The bytes of memory that a part of a job needs for anything else.
const LEAST: u64 = 4 << 20;

/// A graph application.
#[derive(Clone, Copy, Debug)]
pub struct Graph(pub Algorithm);

/// Returns all graph applications.
#[must_use]
pub fn apps() -> Vec<Box<dyn App>> {
    let algorithms = Algorithm::ALL.into_iter().map(|algorithm| Box::new(Graph(algorithm)) as Box<dyn App>);
    algorithms.chain([Box::new(Compact) as Box<dyn App>]).collect()
}

impl Graph {
    fn args(self, start: &JobStart) -> Result<Args, JobError> {
        let args = Args::parse(self.0, &start.args).map_err(JobError::Refused)?;
        if let Some(file) = &args.vertices
            && vertices_file(start, file).is_none()
        {
            return Err(JobError::Refused(format!("vertices={file}: the job has no such input")));
        }
        Ok(args)
    }
}

impl App for Graph {
    fn manifest(&self) -> AppManifest {
        self.0.syntax().manifest(CutRule::after(|byte| byte == b'\n'))
    }

    fn memory_needed(&self, start: &JobStart) -> u64 {
        self.args(start).map_or(0, |args| memory_needed(start, &args))
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        self.args(start).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        let algorithm = self.0;
        Box::pin(async move {
            let args = self.args(job.start())?;
            let mut times = Times { last: job.now(), report: Vec::new() };
            let node = Node { job: &job, algorithm, args: &args };
            match node.run(&mut times).await {
                Err(JobError::OutOfMemory { wanted, .. }) => Err(job.out_of_memory(wanted)),
                other => Ok(JobReport { counts: other?, times_us: times.report, ..JobReport::default() }),
            }
        })
    }
}

/// Returns the bytes of memory that a node needs for its part of a job.
pub(crate) fn memory_needed(start: &JobStart, args: &Args) -> u64 {
    let nodes = start.nodes.len().max(1) as u64;
    let generated = args.generator.map_or(0, |generator| generator.edges().saturating_mul(PER_EDGE) / nodes);
    let needed = start.share.saturating_mul(PER_BYTE).saturating_add(generated);
    needed.saturating_mul(if args.undirected { 2 } else { 1 }).saturating_add(LEAST)
}

/// The counts of a report.
type Counts = Vec<(String, u64)>;

/// The duration of each phase in microseconds, and the end of the latest.
struct Times {
    last: Instant,
    report: Vec<(String, u64)>,
}

impl Times {
    fn tick(&mut self, job: &JobContext, phase: &str) {
        let now = job.now();
        let us = u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX);
        self.report.push((phase.to_string(), us));
        self.last = now;
    }
}

/// One node's part of a job.
struct Node<'a> {
    job: &'a JobContext,
    algorithm: Algorithm,
    args: &'a Args,
}

impl Node<'_> {
    async fn run(&self, times: &mut Times) -> Result<Counts, JobError> {
        let rooms = vec![ROOM; self.job.nodes().len()];
        let mut net = self.job.collective(&rooms).await?;
        let input = self.read(&mut net).await?;
        times.tick(self.job, "read");
        let part = Arc::new(load(&mut net, input).await?);
        self.check_source(&mut net, &part).await?;
        net.close().await?;
        let mut net = self.job.collective(&part.rooms()).await?;
        times.tick(self.job, "load");
        let (text, rounds) = self.compute(&mut net, part.clone(), times).await?;
        times.tick(self.job, "format");
        let held = part.held_edges() as u64;
        let own = part.len() as u64;
        drop(part);
        net.close().await?;
        self.job.output_in_order(text).await?;
        times.tick(self.job, "output");
        let mut counts = vec![("vertices".to_string(), own), ("edges".to_string(), held)];
        if self.job.rank() == 0 {
            counts.push(("supersteps".to_string(), rounds.into()));
        }
        Ok(counts)
    }

    /// Reads or generates this node's part of the graph.
    async fn read(&self, net: &mut Collective) -> Result<Input, JobError> {
        let outgoing = matches!(self.algorithm, Algorithm::Bfs | Algorithm::Sssp | Algorithm::Triangles);
        // Triangles need all neighbours of a vertex on one node, so there must be no hubs.
        let hub = if self.algorithm == Algorithm::Triangles { Some(u64::MAX) } else { self.args.hub };
        let loops = self.algorithm == Algorithm::PageRank;
        let input = Source { job: self.job, args: self.args, loops }.read(net).await?;
        Ok(Input { outgoing, hub, ..input })
    }

    /// Fails on all nodes if there is no vertex from which to search.
    async fn check_source(&self, net: &mut Collective, part: &Part) -> Result<(), JobError> {
        if !matches!(self.algorithm, Algorithm::Bfs | Algorithm::Sssp) {
            return Ok(());
        }
        let source = self.args.source;
        let [found] = crate::net::sums(net, [part.find(source).is_some().into()]).await?;
        if found > 0 {
            return Ok(());
        }
        Err(JobError::Refused(format!("source={source}: the graph has no such vertex")))
    }

    /// Runs the algorithm. Returns this node's part of the output, and the number of supersteps.
    async fn compute(
        &self,
        net: &mut Collective,
        part: Arc<Part>,
        times: &mut Times,
    ) -> Result<(Vec<u8>, u32), JobError> {
        let source = self.args.source;
        match self.algorithm {
            Algorithm::PageRank => {
                let done = run(net, part.clone(), PageRank { stop: self.args.stop }).await?;
                times.tick(self.job, "compute");
                let mut ranked = with_room(part.len())?;
                ranked.extend(done.values.iter().copied().map(Reverse).zip(part.ids.iter().copied()));
                let mut text = Vec::new();
                for (Reverse(rank), vertex) in in_order(net, ranked).await? {
                    push_rank_line(vertex, rank, &mut text)?;
                }
                Ok((text, done.rounds))
            }
            // Every vertex has a component, and every number can be that of a component, so no value stands
            // for a vertex without a result.
            Algorithm::Components => {
                let done = components(net, &part).await?;
                self.print(&part, done, None, times)
            }
            Algorithm::Bfs => {
                let done = run(net, part.clone(), Bfs { source }).await?;
                self.print(&part, done, Some(u64::MAX), times)
            }
            Algorithm::Sssp => {
                let done = shortest_paths(net, &part, source).await?;
                self.print(&part, done, Some(u64::MAX), times)
            }
            Algorithm::Triangles => {
                let found = triangles(net, &part).await?;
                times.tick(self.job, "compute");
                let mut text = Vec::new();
                if self.args.each {
                    for (id, at) in part.in_order() {
                        push_line(id, found.each.get(at).copied().unwrap_or(0), &mut text)?;
                    }
                } else if self.job.rank() == 0 {
                    push_decimal(found.total, &mut text);
                    text.push(b'\n');
                }
                Ok((text, 1))
            }
        }
    }

    /// Returns the values of all own vertices but those whose value is `none`, as text, and the number of
    /// supersteps.
    fn print(
        &self,
        part: &Part,
        done: Outcome,
        none: Option<u64>,
        times: &mut Times,
    ) -> Result<(Vec<u8>, u32), JobError> {
        times.tick(self.job, "compute");
        let mut text = Vec::new();
        for (id, at) in part.in_order() {
            let value = done.values.get(at).copied();
            if let Some(value) = value.filter(|_| value != none) {
                push_line(id, value, &mut text)?;
            }
        }
        Ok((text, done.rounds))
    }
}
