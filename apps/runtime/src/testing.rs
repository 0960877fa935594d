//! A cluster for tests of applications: the real runtime and LITE in one process under virtual time, decided
//! by one seed. The cluster plays the manager.

use crate::{App, serve};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::task::{Context, Poll};
use core::time::Duration;
use lite::testing::{Fabric, Host, Hub, Poller, World};
use lite::{Config, Lite};
use platform::{ControlLink, Instant, IoAddr, LinkDown, Memory, Platform, Task};
use proto::{Dataset, InputFile, JobId, JobReport, JobStart, NodeId, ToManager, ToNode};
use spin::Mutex;
use verbs::{Gid, MacAddr, PortAddress, Rnic};

/// Bytes of LITE memory per node.
const MEMORY: u64 = 16 << 20;

type Seen = Arc<Mutex<VecDeque<(NodeId, ToManager)>>>;

/// A control connection that hands the nodes' messages about jobs to the test.
struct Tap {
    inner: Arc<dyn ControlLink>,
    node: NodeId,
    seen: Seen,
}

impl ControlLink for Tap {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        match proto::decode::<ToManager>(message).expect("a message for the manager") {
            ToManager::JobProgress { .. } | ToManager::JobInputCredit { .. } => {}
            message @ (ToManager::JobAccepted { .. }
            | ToManager::JobOutput { .. }
            | ToManager::JobDone { .. }
            | ToManager::JobFailed { .. }
            | ToManager::JobOver { .. }) => self.seen.lock().push_back((self.node, message)),
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

/// A host that reports a configurable number of processors.
struct Processors {
    host: Arc<Host>,
    cpus: usize,
}

impl Platform for Processors {
    fn now(&self) -> Instant {
        self.host.now()
    }
    fn fill_random(&self, buf: &mut [u8]) {
        self.host.fill_random(buf);
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn spawn(&self, name: &'static str, task: Task) {
        self.host.spawn(name, task);
    }
    fn memory(&self) -> &dyn Memory {
        self.host.memory()
    }
}

/// Nodes that run jobs.
///
/// # Examples
/// ```
/// use proto::{AppManifest, CutRule, JobReport};
/// use runtime::testing::Cluster;
/// use runtime::{App, BoxFuture, JobContext, JobError};
///
/// struct Hello;
///
/// impl App for Hello {
///     fn manifest(&self) -> AppManifest {
///         AppManifest { name: "hello".into(), about: "greets".into(), cut: CutRule::Anywhere }
///     }
///
///     fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
///         Box::pin(async move {
///             job.output_in_order(format!("hello from {}\n", job.rank()).into_bytes()).await?;
///             Ok(JobReport::default())
///         })
///     }
/// }
///
/// let mut cluster = Cluster::new(1, 2, 1, || vec![Box::new(Hello)]);
/// let (output, reports) = cluster.run("hello", &[], &[]).unwrap();
/// assert_eq!(output, b"hello from 0\nhello from 1\n");
/// assert_eq!(reports.len(), 2);
/// ```
pub struct Cluster {
    world: World,
    /// The fabric between the nodes, which counts their operations.
    pub fabric: Arc<Fabric>,
    hub: Arc<Hub>,
    /// The nodes, by rank.
    pub nodes: Vec<(Arc<Host>, Lite)>,
    apps: fn() -> Vec<Box<dyn App>>,
    seen: Seen,
    next_job: u64,
}

/// The result of a job: its output and the report of each node, or the reason of the first failure.
pub type Outcome = Result<(Vec<u8>, Vec<JobReport>), String>;

impl Cluster {
    /// Starts `count` nodes with these applications and `cpus` processors each.
    ///
    /// # Panics
    /// If the nodes cannot start.
    #[must_use]
    pub fn new(seed: u64, count: u8, cpus: usize, apps: fn() -> Vec<Box<dyn App>>) -> Self {
        let mut cluster = Self {
            world: World::new(seed),
            fabric: Fabric::new(),
            hub: Hub::new(),
            nodes: Vec::new(),
            apps,
            seen: Seen::default(),
            next_job: 1,
        };
        for i in 1..=count {
            cluster.join(i, cpus);
        }
        cluster.world.run_for(Duration::from_millis(10));
        cluster
    }

    fn join(&mut self, i: u8, cpus: usize) {
        let host = self.world.host(IoAddr(u64::from(i) << 32), MEMORY);
        let gid = Gid::from_ipv4([10, 0, 0, i]);
        let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid, lid: 0 };
        let rnic: Arc<dyn Rnic> = self.fabric.rnic(port, host.clone());
        let (inner, welcome) = self.hub.join(&*rnic);
        let link = Arc::new(Tap { inner, node: welcome.node, seen: self.seen.clone() });
        let platform = Arc::new(Processors { host: host.clone(), cpus });
        let lite = Lite::start(platform, rnic.clone(), link, welcome, Config::default());
        let lite = lite.expect("LITE starts");
        self.world.attach(&host, Arc::new(Poller { rnic, lite: lite.clone() }));
        let (served, apps) = (lite.clone(), (self.apps)());
        host.spawn("serve", Box::pin(async move { _ = serve(served, apps).await }));
        self.nodes.push((host, lite));
    }

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|(_, lite)| lite.node_id()).collect()
    }

    fn tell_all(&self, message: &ToNode) {
        for id in self.ids() {
            self.hub.send(id, message);
        }
    }

    fn next(&mut self) -> (NodeId, ToManager) {
        let seen = self.seen.clone();
        let end = self.world.now() + Duration::from_secs(60);
        self.world.run_until(end, || !seen.lock().is_empty());
        self.seen.lock().pop_front().expect("the nodes are silent")
    }

    /// Runs a job on all nodes, with files by name. Returns its output and the report of each node, or the
    /// reason of the first failure.
    ///
    /// # Panics
    /// If the nodes are silent, or break a rule of jobs, such as to send output before an error.
    pub fn run(&mut self, app: &str, args: &[&str], files: &[(&str, &[u8])]) -> Outcome {
        self.run_with(app, args, files, &[], false)
    }

    /// Runs a job whose output stays on the nodes, and returns it as a dataset.
    ///
    /// # Errors
    /// The reason of the first failure.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn keep(&mut self, app: &str, args: &[&str], files: &[(&str, &[u8])]) -> Result<Dataset, String> {
        let job = JobId(self.next_job);
        let (_, reports) = self.run_with(app, args, files, &[], true).inspect_err(|_| {
            self.tell_all(&ToNode::DropDataset { job });
        })?;
        let parts = self.ids().into_iter().zip(reports);
        let pieces = parts.flat_map(|(node, report)| report.kept.into_iter().map(move |len| (node, len)));
        Ok(Dataset { name: "kept".into(), job, pieces: pieces.collect() })
    }

    /// Frees a dataset.
    pub fn drop_dataset(&self, dataset: Dataset) {
        self.tell_all(&ToNode::DropDataset { job: dataset.job });
    }

    /// Runs a job as [`run`](Self::run) does, which reads datasets behind its files, and whose output stays
    /// on the nodes if `keep` is set.
    ///
    /// # Errors
    /// The reason of the first failure.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_with(
        &mut self,
        app: &str,
        args: &[&str],
        files: &[(&str, &[u8])],
        datasets: &[Dataset],
        keep: bool,
    ) -> Outcome {
        let job = JobId(self.next_job);
        self.next_job += 1;
        let lens = files.iter().map(|(name, bytes)| (String::from(*name), bytes.len() as u64));
        let kept = datasets.iter().map(|set| (format!("{}{}", Dataset::SCHEME, set.name), set.len()));
        let inputs: Vec<_> = lens.chain(kept).map(|(name, len)| InputFile { name, len }).collect();
        self.tell_all(&ToNode::JobStart(JobStart {
            job,
            app: app.into(),
            args: args.iter().map(|&arg| arg.into()).collect(),
            nodes: self.ids(),
            share: inputs.iter().map(|file| file.len).sum(),
            inputs,
            datasets: datasets.to_vec(),
            keep,
        }));
        let (mut refusal, mut answers) = (None, 0);
        while answers < self.nodes.len() {
            match self.next().1 {
                ToManager::JobAccepted { .. } => {}
                ToManager::JobFailed { reason, .. } => refusal = Some(reason),
                // The end of a job that was cancelled when one node had failed.
                ToManager::JobOver { job: old } if old != job => continue,
                other => panic!("{other:?}"),
            }
            answers += 1;
        }
        if let Some(reason) = refusal {
            return Err(reason);
        }
        self.load(job, files);
        self.finish(job)
    }

    /// Sends the input, cut at the ends of lines.
    fn load(&self, job: JobId, files: &[(&str, &[u8])]) {
        let ids = self.ids();
        let mut turns = ids.iter().cycle();
        for (file, (_, bytes)) in (0..).zip(files) {
            let (mut begin, size) = (0, (bytes.len() / (2 * ids.len())).clamp(1, 40 << 10));
            while begin < bytes.len() {
                let rest = bytes.get(begin + size - 1..).unwrap_or_default();
                let end =
                    rest.iter().position(|&b| b == b'\n').map_or(bytes.len(), |more| begin + size + more);
                let (bytes, offset) = (bytes[begin..end].to_vec(), begin as u64);
                let input = ToNode::JobInput { job, file, offset, bytes, end_of_split: true };
                self.hub.send(*turns.next().expect("a node"), &input);
                begin = end;
            }
        }
        self.tell_all(&ToNode::JobInputEnd { job });
    }

    /// Handles output and reports until the job has ended on all nodes.
    fn finish(&mut self, job: JobId) -> Outcome {
        let (mut output, mut reports, mut failed) = (Vec::new(), BTreeMap::new(), None);
        let mut ended = BTreeSet::new();
        while ended.len() < self.nodes.len() {
            let (from, message) = self.next();
            match message {
                ToManager::JobOutput { bytes, .. } => {
                    assert_eq!(from, self.ids()[0], "rank 0 gives the output");
                    let taken = bytes.len() as u64;
                    output.extend(bytes);
                    self.hub.send(from, &ToNode::JobOutputAck { job, bytes: taken });
                    continue;
                }
                ToManager::JobDone { report, .. } => drop(reports.insert(from, report)),
                ToManager::JobFailed { reason, .. } => match &failed {
                    None => {
                        failed = Some(reason);
                        let reason = "failed elsewhere".into();
                        self.tell_all(&ToNode::JobCancel { job, reason });
                    }
                    Some(first) => assert_eq!(*first, reason, "two nodes give different reasons"),
                },
                ToManager::JobOver { job: old } if old != job => continue,
                ToManager::JobOver { .. } => {}
                other => panic!("{other:?}"),
            }
            ended.insert(from);
        }
        match failed {
            Some(reason) if output.is_empty() => Err(reason),
            Some(reason) => panic!("partial output before: {reason}"),
            None => Ok((output, reports.into_values().collect())),
        }
    }

    /// Returns the free LITE memory of all nodes, in bytes, after some time in which nothing happens.
    pub fn free(&mut self) -> Vec<u64> {
        self.world.run_for(Duration::from_secs(5));
        self.nodes.iter().map(|(host, _)| host.memory().stats().free).collect()
    }

    /// Returns the sum of a LITE counter over all nodes.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for (_, lite) in &self.nodes {
            lite.counters(&mut |(counter, count)| sum += if counter == name { count } else { 0 });
        }
        sum
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster of {} nodes", self.nodes.len())
    }
}
