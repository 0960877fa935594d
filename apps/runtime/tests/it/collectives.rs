//! Tests of collective operations, and of output from all nodes.

use lite::testing::{Fabric, Host, Hub, Poller, World};
use lite::{Config, Lite};
use platform::{ControlLink, Instant, IoAddr, LinkDown, Platform};
use proto::{AppManifest, CutRule, InputFile, JobId, JobReport, JobStart, NodeId, ToManager, ToNode};
use runtime::{App, BoxFuture, JobContext, JobError, Reduce};
use spin::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use verbs::{Gid, MacAddr, PortAddress, Rnic};

/// The most bytes that fit a message.
const INLINE: usize = 4000;
/// The room for messages in the test.
const ROOM: usize = 20_000;

/// The messages of the nodes about jobs.
type Seen = Arc<Mutex<Vec<(NodeId, ToManager)>>>;

/// A control connection that hands the nodes' output and ends of jobs to the test.
struct Tap {
    inner: Arc<dyn ControlLink>,
    node: NodeId,
    seen: Seen,
}

impl ControlLink for Tap {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        match proto::decode::<ToManager>(message).unwrap() {
            message @ (ToManager::JobOutput { .. }
            | ToManager::JobDone { .. }
            | ToManager::JobFailed { .. }) => self.seen.lock().push((self.node, message)),
            _ => return self.inner.poll_send(cx, message),
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        self.inner.poll_recv(cx)
    }

    fn lease_until(&self) -> Instant {
        self.inner.lease_until()
    }
}

/// An application that runs `test` on every node.
struct Test<F>(F);

impl<F> App for Test<F>
where
    F: Fn(JobContext) -> BoxFuture<'static, Result<(), JobError>> + Send + Sync,
{
    fn manifest(&self) -> AppManifest {
        AppManifest { name: "test".into(), about: String::new(), cut: CutRule::Anywhere }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move { (self.0)(job).await.map(|()| JobReport::default()) })
    }
}

/// Nodes that serve one job each.
struct Nodes {
    world: World,
    hub: Arc<Hub>,
    nodes: Vec<(Arc<Host>, Lite)>,
    seen: Seen,
}

impl Nodes {
    fn new<F>(count: u8, test: F) -> Self
    where
        F: Fn(JobContext) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static,
    {
        let (mut world, fabric, hub, seen) = (World::new(1), Fabric::new(), Hub::new(), Seen::default());
        let mut nodes = Vec::new();
        for i in 1..=count {
            let host = world.host(IoAddr(u64::from(i) << 32), 16 << 20);
            let gid = Gid::from_ipv4([10, 0, 0, i]);
            let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid, lid: 0 };
            let rnic: Arc<dyn Rnic> = fabric.rnic(port, host.clone());
            let (inner, welcome) = hub.join(&*rnic);
            let link = Arc::new(Tap { inner, node: welcome.node, seen: seen.clone() });
            let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, Config::default()).unwrap();
            world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
            let (served, apps) = (lite.clone(), vec![Box::new(Test(test.clone())) as Box<dyn App>]);
            host.spawn("serve", Box::pin(async move { _ = runtime::serve(served, apps).await }));
            nodes.push((host, lite));
        }
        world.run_for(Duration::from_millis(10));
        Self { world, hub, nodes, seen }
    }

    /// Runs a job with one input file, cut into pieces. Returns its output.
    fn run(&mut self, number: u64, file: &[u8]) -> Vec<u8> {
        let job = JobId(number);
        let nodes: Vec<NodeId> = self.nodes.iter().map(|(_, lite)| lite.node_id()).collect();
        let inputs = vec![InputFile { name: "file".into(), len: file.len() as u64 }];
        let (app, args) = ("test".into(), Vec::new());
        let start = JobStart {
            job,
            app,
            args,
            nodes: nodes.clone(),
            inputs,
            datasets: vec![],
            share: 0,
            keep: false,
        };
        nodes.iter().for_each(|node| self.hub.send(*node, &ToNode::JobStart(start.clone())));
        for (number, piece) in file.chunks(1000).enumerate() {
            let (offset, bytes) = (number as u64 * 1000, piece.to_vec());
            let input = ToNode::JobInput { job, file: 0, offset, bytes, end_of_split: true };
            self.hub.send(nodes[number % nodes.len()], &input);
        }
        nodes.iter().for_each(|node| self.hub.send(*node, &ToNode::JobInputEnd { job }));
        let (mut output, mut ended) = (Vec::new(), 0);
        while ended < nodes.len() {
            let seen = self.seen.clone();
            let end = self.world.now() + Duration::from_secs(60);
            self.world.run_until(end, || !seen.lock().is_empty());
            let (node, message) = self.seen.lock().remove(0);
            match message {
                ToManager::JobOutput { bytes, .. } => {
                    assert_eq!(node, nodes[0]);
                    let taken = bytes.len() as u64;
                    output.extend(bytes);
                    self.hub.send(node, &ToNode::JobOutputAck { job, bytes: taken });
                }
                ToManager::JobDone { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        output
    }

    /// Checks that nothing of a job is left, and returns the free memory.
    fn free(&mut self) -> Vec<u64> {
        self.world.run_for(Duration::from_secs(5));
        let free = |(_, lite): &(_, Lite)| {
            assert_eq!(lite.audit(), []);
            lite.platform().memory().stats().free
        };
        self.nodes.iter().map(free).collect()
    }
}

/// Returns the data that one node sends to another one.
fn data(from: usize, to: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + from * 50 + to) as u8).collect()
}

async fn exchange(job: JobContext) -> Result<(), JobError> {
    let (me, nodes) = (job.rank(), job.nodes().len());
    // One peer has room for long messages, the others have not.
    let rooms: Vec<usize> = (0..nodes).map(|rank| if rank % 2 == 0 { ROOM } else { 0 }).collect();
    let mut group = job.collective(&rooms).await?;
    let mut second = job.collective(&vec![0; nodes]).await?;
    for len in [0, 1, INLINE, INLINE + 1, ROOM, ROOM + 1, 3 * ROOM, 5] {
        // Nodes send different amounts, and some send nothing.
        let len = |from: usize, to: usize| len * ((from + 2 * to) % 3);
        let to = (0..nodes).map(|to| data(me, to, len(me, to))).collect();
        let from = group.exchange(to).await?;
        assert!((0..nodes).all(|rank| from[rank] == data(rank, me, len(rank, me))), "{me} {nodes}");
        let numbers = [me as u64 + 1, u64::MAX];
        let sums = second.all_reduce(&numbers, Reduce::Sum).await?;
        assert_eq!(sums[0], (nodes * (nodes + 1) / 2) as u64);
        assert_eq!(sums[1], 0u64.wrapping_sub(nodes as u64));
        assert_eq!(second.all_reduce(&numbers, Reduce::Min).await?, [1, u64::MAX]);
        assert_eq!(second.all_reduce(&[me as u64], Reduce::Max).await?, [nodes as u64 - 1]);
        let told = group.broadcast(nodes - 1, data(me, 0, 10_000)).await?;
        assert_eq!(told, data(nodes - 1, 0, 10_000));
    }
    group.close().await
}

#[test]
fn every_node_gets_what_is_sent_to_it() {
    for count in 1..=5 {
        let mut nodes = Nodes::new(count, |job| Box::pin(exchange(job)));
        nodes.run(1, b"");
        // The first job has opened the connections, which keep memory.
        let free = nodes.free();
        for number in 2..4 {
            nodes.run(number, b"");
            assert_eq!(nodes.free(), free);
        }
    }
}

async fn whole_file(job: JobContext) -> Result<(), JobError> {
    let mut group = job.collective(&vec![ROOM; job.nodes().len()]).await?;
    let whole = group.whole_file(0).await?;
    assert_eq!(whole, data(1, 2, 54_321));
    assert!(job.take_splits().is_empty());
    group.close().await
}

#[test]
fn a_file_can_be_had_by_every_node() {
    for count in 1..=4 {
        Nodes::new(count, |job| Box::pin(whole_file(job))).run(1, &data(1, 2, 54_321));
    }
}

/// Returns a node's part of the output: nothing, little, or more than the window of output.
fn part(rank: usize) -> Vec<u8> {
    data(rank, 0, [10, 0, 1_300_000, 1][rank % 4])
}

#[test]
fn output_is_in_the_order_of_ranks() {
    for count in 1..=5 {
        let mut nodes =
            Nodes::new(count, |job| Box::pin(async move { job.output_in_order(part(job.rank())).await }));
        let expected: Vec<u8> = (0..usize::from(count)).flat_map(part).collect();
        assert!(nodes.run(1, b"") == expected, "{count} nodes");
        let free = nodes.free();
        assert!(nodes.run(2, b"") == expected, "{count} nodes");
        assert_eq!(nodes.free(), free);
    }
}
