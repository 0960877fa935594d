//! Nodes in one thread that exchange messages through memory.

use crate::{Bfs, Edge, Edges, Input, Net, Outcome, PageRank, Part, Triangles};
use crate::{components, load, run, shortest_paths, triangles};
use runtime::{BoxFuture, JobError};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::vec::Vec;

/// The messages of each exchange and sender that have not been received.
type Post = Arc<Mutex<BTreeMap<(u64, usize), Vec<Option<Vec<u8>>>>>>;

/// One of the nodes.
struct Node {
    rank: usize,
    nodes: usize,
    cpus: usize,
    exchanges: u64,
    post: Post,
}

impl Net for Node {
    fn rank(&self) -> usize {
        self.rank
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn exchange(&mut self, mut to: Vec<Vec<u8>>) -> BoxFuture<'_, Result<Vec<Vec<u8>>, JobError>> {
        to.resize(self.nodes, Vec::new());
        let exchange = self.exchanges;
        self.exchanges += 1;
        self.post.lock().unwrap().insert((exchange, self.rank), to.into_iter().map(Some).collect());
        Box::pin(poll_fn(move |_| {
            let mut post = self.post.lock().unwrap();
            let key = |from| (exchange, from);
            if !(0..self.nodes).all(|from| post.contains_key(&key(from))) {
                return Poll::Pending;
            }
            let mut take = |from| post.get_mut(&key(from))?[self.rank].take();
            Poll::Ready(Ok((0..self.nodes).map(|from| take(from).expect("a message")).collect()))
        }))
    }

    fn start(&self, task: crate::Task) -> crate::Task {
        task
    }
}

/// An algorithm that computes a number for each vertex.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    PageRank(PageRank),
    Components,
    Bfs { source: u64 },
    Sssp { source: u64 },
}

/// A graph and the way in which it is distributed.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    pub(super) nodes: usize,
    pub(super) cpus: usize,
    pub(super) hub: Option<u64>,
}

/// The edges of a graph, and vertices that need not have any.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) edges: Vec<(u64, u64, u32)>,
    pub(super) vertices: Vec<u64>,
}

impl Given {
    /// Returns the graph with each edge in both directions and without loops.
    pub(super) fn undirected(&self) -> Self {
        let (loops, mut edges): (Vec<_>, Vec<_>) = self.edges.iter().copied().partition(|(a, b, _)| a == b);
        let reverse: Vec<_> = edges.iter().map(|(a, b, weight)| (*b, *a, *weight)).collect();
        edges.extend(reverse);
        let vertices = self.vertices.iter().copied().chain(loops.iter().map(|(a, ..)| *a)).collect();
        Self { edges, vertices }
    }

    /// Returns the part of the input that one node reads: each `spread.nodes`th line.
    fn input(&self, rank: usize, spread: &Spread) -> Input {
        let mut edges = Edges::default();
        for (from, to, weight) in self.edges.iter().copied().skip(rank).step_by(spread.nodes) {
            edges.push(Edge { to, from, weight }).unwrap();
        }
        let vertices = self.vertices.iter().copied().skip(rank).step_by(spread.nodes).collect();
        Input { edges, vertices, weights: true, outgoing: true, hub: spread.hub }
    }

    /// Runs `each` on every node with the node's part of the graph. Returns the results by rank.
    fn on_nodes<T, F: Future<Output = Result<T, JobError>>>(
        &self,
        spread: &Spread,
        each: impl Fn(Box<dyn Net>, Part) -> F + Clone,
    ) -> Vec<T> {
        let post = Post::default();
        let mut tasks: Vec<_> = (0..spread.nodes)
            .map(|rank| {
                let (nodes, cpus) = (spread.nodes, spread.cpus);
                let mut node = Box::new(Node { rank, nodes, cpus, exchanges: 0, post: post.clone() });
                let (input, each) = (self.input(rank, spread), each.clone());
                let task = async move {
                    let part = load(&mut *node, input).await?;
                    each(node, part).await
                };
                (Box::pin(task), None)
            })
            .collect();
        let mut cx = Context::from_waker(Waker::noop());
        while tasks.iter().any(|(_, result)| result.is_none()) {
            for (task, result) in tasks.iter_mut().filter(|(_, result)| result.is_none()) {
                if let Poll::Ready(done) = task.as_mut().poll(&mut cx) {
                    *result = Some(done.unwrap());
                }
            }
        }
        tasks.into_iter().filter_map(|(_, result)| result).collect()
    }

    /// Runs an algorithm. Returns the value of each vertex, and the outcome of rank 0.
    pub(super) fn run(&self, spread: &Spread, task: Task) -> (BTreeMap<u64, u64>, Outcome) {
        let done = self.on_nodes(spread, |mut net, part| async move {
            let (part, net) = (Arc::new(part), &mut *net);
            let outcome = match task {
                Task::PageRank(program) => run(net, part.clone(), program).await?,
                Task::Components => components(net, &part).await?,
                Task::Bfs { source } => run(net, part.clone(), Bfs { source }).await?,
                Task::Sssp { source } => shortest_paths(net, &part, source).await?,
            };
            Ok((part, outcome))
        });
        let mut values = BTreeMap::new();
        for (part, outcome) in &done {
            assert_eq!(part.vertices, done.iter().map(|(part, _)| part.len() as u64).sum::<u64>());
            for (id, value) in part.ids.iter().zip(&outcome.values) {
                assert_eq!(values.insert(*id, *value), None, "two nodes own {id}");
            }
        }
        // The range of each node ends before that of the next one begins.
        assert!(done.iter().flat_map(|(part, _)| part.in_order().map(|(id, _)| id)).is_sorted());
        (values, done.into_iter().next().unwrap().1)
    }

    /// Counts triangles. Returns the total and the number at each vertex.
    pub(super) fn triangles(&self, spread: &Spread) -> (u64, BTreeMap<u64, u64>) {
        let done = self.on_nodes(spread, |mut net, part| async move {
            let found = triangles(&mut *net, &part).await?;
            Ok((part, found))
        });
        let mut each = BTreeMap::new();
        for (part, Triangles { each: counts, .. }) in &done {
            each.extend(part.ids.iter().copied().zip(counts.iter().copied()));
        }
        (done[0].1.total, each)
    }

    /// Returns the number of vertices and of edges of each node.
    pub(super) fn shares(&self, spread: &Spread) -> Vec<(usize, usize)> {
        self.on_nodes(spread, |_, part| async move { Ok((part.len(), part.held_edges())) })
    }
}
