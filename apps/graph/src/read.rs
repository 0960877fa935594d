//! The reading of a job's graph: its files, its datasets, and what it generates.

use crate::args::Args;
use crate::binary::{Binary, FaultAt};
use crate::edge::{Edge, push};
use crate::generate::Generator;
use crate::load::Input;
use crate::snap::{Fault, Format, parse_edges, parse_vertices};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use platform::yield_now;
use proto::JobStart;
use runtime::{Collective, JobContext, JobError, Split};

/// The bytes of text that are parsed between two awaits.
const TURN: usize = 256 << 10;
/// The number of edges that are generated between two awaits.
const TURN_EDGES: u64 = 1 << 14;

/// Returns the index of the input file that is called `name`, with or without its directory.
pub(crate) fn vertices_file(start: &JobStart, name: &str) -> Option<usize> {
    let is_it = |full: &str| full == name || full.rsplit('/').next() == Some(name);
    start.inputs.iter().position(|file| is_it(&file.name))
}

/// One node's part of the reading of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) job: &'a JobContext,
    pub(crate) args: &'a Args,
    /// True if an edge from a vertex to itself is an edge.
    pub(crate) loops: bool,
}

impl Source<'_> {
    /// Reads or generates this node's part of the edges. Fails on all nodes with the first wrong line.
    pub(crate) async fn read(&self, net: &mut Collective) -> Result<Input, JobError> {
        let mut input = Input { weights: self.args.weights, ..Input::default() };
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

    /// Adds an edge, and the reverse edge of an undirected graph. A loop only adds its vertex, unless loops
    /// count as edges.
    fn add(&self, input: &mut Input, edge: Edge) -> Result<(), JobError> {
        if edge.to == edge.from && !self.loops {
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
}
