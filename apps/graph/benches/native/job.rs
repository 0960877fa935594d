//! The job: an application that keeps the graph and runs algorithms as it is ordered to.

use crate::text::Pair;
use graph::{Bfs, Edge, Edges, Input, Net, PageRank, Part, Stop};
use proto::{AppManifest, CutRule, JobReport};
use runtime::{App, BoxFuture, Collective, JobContext, JobError};
use std::future::poll_fn;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

/// The iterations of PageRank.
const ITERATIONS: u32 = 20;

/// An order to all nodes.
pub(crate) enum Order {
    Run(String),
}

/// The begin and the end of a run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

/// The place where a node gets its orders and leaves its results.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    order: Option<Order>,
    waker: Option<Waker>,
    ended: Option<Run>,
    result: Vec<u8>,
}

impl Desk {
    pub(crate) fn order(&self, order: Order) {
        let waker = {
            let mut state = self.state.lock().unwrap();
            state.order = Some(order);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits until the run has ended.
    pub(crate) fn ended(&self) -> Run {
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| state.ended.is_none()).unwrap();
        state.ended.take().unwrap()
    }

    pub(crate) fn with_result(&self, each: impl FnOnce(&[u8])) {
        each(&self.state.lock().unwrap().result);
    }

    async fn next(&self) -> Order {
        poll_fn(|cx| {
            let mut state = self.state.lock().unwrap();
            state.waker = Some(cx.waker().clone());
            state.order.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn end(&self, run: Run, result: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        (state.ended, state.result) = (Some(run), result);
        self.changed.notify_all();
    }
}

/// The application.
pub(crate) struct Bench {
    pub(crate) graph: Arc<Vec<Pair>>,
    pub(crate) source: u64,
    pub(crate) desk: Arc<Desk>,
}

impl App for Bench {
    fn manifest(&self) -> AppManifest {
        AppManifest { name: "bench".into(), about: String::new(), cut: CutRule::Anywhere }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            let mut loaded: Option<(String, Arc<Part>)> = None;
            loop {
                let Order::Run(algorithm) = self.desk.next().await;
                let part = match &loaded {
                    Some((of, part)) if *of == algorithm => part.clone(),
                    _ => {
                        drop(loaded.take());
                        let part = Arc::new(self.load(&job, &algorithm).await?);
                        loaded = Some((algorithm.clone(), part.clone()));
                        part
                    }
                };
                let mut net = job.collective(&part.rooms()).await?;
                let (run, result) = self.measure(&mut net, part, &algorithm).await?;
                net.close().await?;
                self.desk.end(run, result);
            }
        })
    }
}

impl Bench {
    /// Distributes the graph as the algorithm wants it.
    async fn load(&self, job: &JobContext, algorithm: &str) -> Result<Part, JobError> {
        let mut net = job.collective(&vec![64 << 10; job.nodes().len()]).await?;
        let mut edges = Edges::default();
        for (a, b, weight) in self.graph.iter().skip(job.rank()).step_by(job.nodes().len()) {
            let (to, from) = (u64::from(*a), u64::from(*b));
            let weight = if algorithm == "sssp" { *weight } else { 1 };
            edges.push(Edge { to, from, weight })?;
            edges.push(Edge { to: from, from: to, weight })?;
        }
        let hub = (algorithm == "tc").then_some(u64::MAX);
        let outgoing = matches!(algorithm, "bfs" | "sssp" | "tc");
        let weights = algorithm == "sssp";
        let input = Input { edges, vertices: Vec::new(), weights, outgoing, hub };
        let part = graph::load(&mut net, input).await?;
        net.close().await?;
        Ok(part)
    }

    async fn measure(
        &self,
        net: &mut Collective,
        part: Arc<Part>,
        algorithm: &str,
    ) -> Result<(Run, Vec<u8>), JobError> {
        // All nodes begin together.
        Net::exchange(net, Vec::new()).await?;
        let begin = Instant::now();
        let source = self.source;
        let values = match algorithm {
            "pagerank" => {
                let program = PageRank { stop: Stop::Iterations(ITERATIONS) };
                graph::run(net, part.clone(), program).await?.values
            }
            "cc" => graph::components(net, &part).await?.values,
            "bfs" => graph::run(net, part.clone(), Bfs { source }).await?.values,
            "sssp" => graph::shortest_paths(net, &part, source).await?.values,
            "tc" => vec![graph::triangles(net, &part).await?.total],
            _ => return Err(JobError::Refused(format!("{algorithm:?} is no algorithm"))),
        };
        let run = Run { begin, end: Instant::now() };
        Ok((run, text(algorithm, &part, &values, net.rank())))
    }
}

/// Returns the result as text: a line for each vertex that has been reached, or one number.
fn text(algorithm: &str, part: &Part, values: &[u64], rank: usize) -> Vec<u8> {
    let mut text = Vec::new();
    if algorithm == "tc" {
        return if rank == 0 { format!("{}\n", values[0]).into_bytes() } else { text };
    }
    for (id, at) in part.in_order().filter(|(_, at)| values[*at] != u64::MAX) {
        write!(text, "{id} ").unwrap();
        match algorithm {
            "pagerank" => graph::push_rank(values[at], &mut text),
            _ => write!(text, "{}", values[at]).unwrap(),
        }
        text.push(b'\n');
    }
    text
}
