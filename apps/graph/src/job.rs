//! The applications: from the input of a job to its output.

use crate::args::{Algorithm, Args};
use crate::binary::{Binary, FaultAt};
use crate::components::components;
use crate::edge::{Edge, push, with_room};
use crate::engine::{Outcome, run};
use crate::generate::Generator;
use crate::load::{Input, load};
use crate::output::{in_order, push_decimal, push_line, push_rank_line};
use crate::part::Part;
use crate::paths::shortest_paths;
use crate::programs::{Bfs, PageRank};
use crate::snap::{Fault, Format, parse_edges, parse_vertices};
use crate::triangles::triangles;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use platform::{Instant, yield_now};
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, BoxFuture, Collective, JobContext, JobError, Split};

/// The room for a message from each node while the graph is loaded, in bytes.
const ROOM: usize = 64 << 10;
/// The bytes of memory for each byte of text of an edge list: an edge has 24 bytes, is there twice while
/// edges are sorted, and its line has at least some 10 bytes.
const PER_BYTE: u64 = 5;
/// The bytes of memory for each generated edge.
const PER_EDGE: u64 = 60;
/// The bytes of memory that a part of a job needs for anything else.
const LEAST: u64 = 4 << 20;
/// The bytes of text that are parsed between two awaits.
const TURN: usize = 256 << 10;
/// The number of edges that are generated between two awaits.
const TURN_EDGES: u64 = 1 << 14;

/// A graph application.
#[derive(Clone, Copy, Debug)]
pub struct Graph(pub Algorithm);

/// Returns all graph applications.
#[must_use]
pub fn apps() -> Vec<Box<dyn App>> {
    Algorithm::ALL.into_iter().map(|algorithm| Box::new(Graph(algorithm)) as Box<dyn App>).collect()
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
        let Ok(args) = self.args(start) else { return 0 };
        let nodes = start.nodes.len().max(1) as u64;
        let generated =
            args.generator.map_or(0, |generator| generator.edges().saturating_mul(PER_EDGE) / nodes);
        let needed = start.share.saturating_mul(PER_BYTE).saturating_add(generated);
        needed.saturating_mul(if args.undirected { 2 } else { 1 }).saturating_add(LEAST)
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

/// Returns the index of the input file that is called `name`, with or without its directory.
fn vertices_file(start: &JobStart, name: &str) -> Option<usize> {
    let is_it = |full: &str| full == name || full.rsplit('/').next() == Some(name);
    start.inputs.iter().position(|file| is_it(&file.name))
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

    /// Reads or generates this node's part of the edges. Fails on all nodes with the first wrong line.
    async fn read(&self, net: &mut Collective) -> Result<Input, JobError> {
        let outgoing = matches!(self.algorithm, Algorithm::Bfs | Algorithm::Sssp | Algorithm::Triangles);
        let mut input =
            Input { weights: self.args.weights, outgoing, hub: self.args.hub, ..Input::default() };
        if self.algorithm == Algorithm::Triangles {
            // The algorithm needs all neighbours of a vertex on one node, so there must be no hubs.
            input.hub = Some(u64::MAX);
        }
        let mut fault: Option<FaultAt> = None;
        let splits = self.job.take_splits();
        let lens: Vec<u64> = self.job.start().inputs.iter().map(|file| file.len).collect();
        let mut binary = Binary::open(net, &lens, &splits, self.args.weights).await?;
        for split in splits {
            if binary.has(split.file) {
                let mut add = |from, to, weight| self.add_weighed(&mut input, from, to, weight);
                binary.split(&split, &mut add).await?;
                continue;
            }
            // A file with a wrong header is in no form.
            if binary.fault.is_some() {
                break;
            }
            let found = self.parse(split, &mut input).await?;
            fault = [fault, found].into_iter().flatten().min();
        }
        let mut add = |from, to, weight| self.add_weighed(&mut input, from, to, weight);
        let found = binary.finish(net, &mut add).await?;
        fault = [fault, found].into_iter().flatten().min();
        if let Some(generator) = self.args.generator {
            self.generate(generator, &mut input).await?;
        }
        self.agree(net, fault).await?;
        Ok(input)
    }

    /// Parses a split. Returns the first wrong line.
    async fn parse(&self, split: Split, input: &mut Input) -> Result<Option<FaultAt>, JobError> {
        let vertices = self.args.vertices.as_deref().and_then(|name| vertices_file(self.job.start(), name));
        let of_vertices = vertices == Some(split.file as usize);
        let format = Format { weights: self.args.weights };
        let mut begin = 0;
        while begin < split.bytes.len() {
            let rest = split.bytes.get(begin..).unwrap_or_default();
            let tail = rest.get(TURN..).unwrap_or_default();
            let len = tail.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |feed| TURN + feed + 1);
            let text = rest.get(..len).unwrap_or_default();
            let mut full = Ok(());
            let mut note = |added: Result<(), JobError>| {
                if full.is_ok() {
                    full = added;
                }
            };
            let parsed = if of_vertices {
                parse_vertices(text, |id| note(push(&mut input.vertices, id)))
            } else {
                parse_edges(text, format, |from, to, weight| note(self.add(input, Edge { to, from, weight })))
            };
            full?;
            if let Err(Fault { offset, reason }) = parsed {
                return Ok(Some((split.file, split.offset + (begin + offset) as u64, reason)));
            }
            begin += len;
            yield_now().await;
        }
        Ok(None)
    }

    async fn generate(&self, generator: Generator, input: &mut Input) -> Result<(), JobError> {
        for number in generator.share(self.job.rank(), self.job.nodes().len()) {
            let mut edge = generator.edge(number);
            if !self.args.weights {
                edge.weight = 1;
            }
            self.add(input, edge)?;
            if number % TURN_EDGES == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Adds an edge with its weight, if weights count.
    fn add_weighed(&self, input: &mut Input, from: u64, to: u64, weight: u32) -> Result<(), JobError> {
        let weight = if self.args.weights { weight } else { 1 };
        self.add(input, Edge { to, from, weight })
    }

    /// Adds an edge, and the reverse edge of an undirected graph. A loop only adds its vertex, except for
    /// PageRank.
    fn add(&self, input: &mut Input, edge: Edge) -> Result<(), JobError> {
        if edge.to == edge.from && self.algorithm != Algorithm::PageRank {
            return push(&mut input.vertices, edge.to);
        }
        if self.args.undirected {
            input.edges.push(Edge { to: edge.from, from: edge.to, ..edge })?;
        }
        input.edges.push(edge)
    }

    /// Fails on all nodes if a node has found a wrong line. The first wrong line of all nodes counts.
    async fn agree(&self, net: &mut Collective, fault: Option<FaultAt>) -> Result<(), JobError> {
        let mut bytes = Vec::new();
        if let Some((file, offset, reason)) = fault {
            bytes.extend_from_slice(&file.to_le_bytes());
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(reason.as_bytes());
        }
        let faults = net.all_gather(bytes).await?;
        let parsed = faults.iter().filter_map(|bytes| {
            let (file, rest) = bytes.split_first_chunk()?;
            let (offset, reason) = rest.split_first_chunk()?;
            Some((u32::from_le_bytes(*file), u64::from_le_bytes(*offset), reason))
        });
        match parsed.min() {
            None => Ok(()),
            Some((file, offset, reason)) => {
                let name = self.job.start().inputs.get(file as usize).map_or("", |input| &input.name);
                let reason = String::from_utf8_lossy(reason);
                Err(JobError::Refused(format!("{name}: byte {offset}: {reason}")))
            }
        }
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
