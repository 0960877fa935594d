//! Tests of collective operations, and of output from all nodes.

use proto::{AppManifest, CutRule, JobReport};
use runtime::testing::{JobCluster, Outcome};
use runtime::{App, BoxFuture, JobContext, JobError, Reduce};

/// The most bytes that fit a message.
const INLINE: usize = 4000;
/// The room for messages in the test.
const ROOM: usize = 20_000;

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

/// Nodes that run one application.
struct Nodes(JobCluster);

impl Nodes {
    fn new<F>(count: u8, test: F) -> Self
    where
        F: Fn(JobContext) -> BoxFuture<'static, Result<(), JobError>> + Clone + Send + Sync + 'static,
    {
        let apps = || vec![Box::new(Test(test.clone())) as Box<dyn App>];
        Self(JobCluster::new(1, 16 << 20, &vec![1; count.into()], apps))
    }

    /// Runs a job with one input file, cut into pieces. Returns its output.
    fn run(&mut self, file: &[u8]) -> Vec<u8> {
        let files = [("file", file)];
        let job = self.0.start("test", &[], &files, 0).unwrap();
        self.0.load(job, &files, &CutRule::Anywhere, |_| 1000);
        match self.0.finish(job) {
            Outcome::Done { output, .. } => output,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that nothing of a job is left, and returns the free memory.
    fn free(&mut self) -> Vec<u64> {
        let free = self.0.free();
        for (_, lite) in &self.0.nodes {
            assert_eq!(lite.audit(), []);
        }
        free
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
        nodes.run(b"");
        // The first job has opened the connections, which keep memory.
        let free = nodes.free();
        for _ in 2..4 {
            nodes.run(b"");
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
        Nodes::new(count, |job| Box::pin(whole_file(job))).run(&data(1, 2, 54_321));
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
        assert!(nodes.run(b"") == expected, "{count} nodes");
        let free = nodes.free();
        assert!(nodes.run(b"") == expected, "{count} nodes");
        assert_eq!(nodes.free(), free);
    }
}

/// Each job has numbers of its own for mailboxes, which are the same on all its nodes and end with it.
#[test]
fn ports_are_of_the_job() {
    let ports: std::sync::Arc<std::sync::Mutex<Vec<u32>>> = std::sync::Arc::default();
    let seen = ports.clone();
    let mut nodes = Nodes::new(3, move |job| {
        let seen = seen.clone();
        Box::pin(async move {
            let lite = |error| JobError::Lite { during: "using a port", error };
            let port = job.port(7);
            let mailbox = job.lite().open_mailbox(port, lite::RpcOptions::default()).map_err(lite)?;
            job.barrier("open").await?;
            let next = job.nodes()[(job.rank() + 1) % 3];
            job.lite().send(next, port, b"to the next").await.map_err(lite)?;
            let message = mailbox.receive().await.map_err(lite)?;
            assert_eq!(message.from(), job.nodes()[(job.rank() + 2) % 3]);
            seen.lock().unwrap().push(port);
            // The mailbox ends with the job, although nobody closes it.
            std::mem::forget(mailbox);
            Ok(())
        })
    });
    nodes.run(b"");
    nodes.run(b"");
    let ports = ports.lock().unwrap().clone();
    assert!(ports[..3].iter().all(|port| *port == ports[0]), "{ports:?}");
    assert!(ports[3..].iter().all(|port| *port == ports[3] && *port != ports[0]), "{ports:?}");
    assert_eq!(ports.len(), 6);
}
