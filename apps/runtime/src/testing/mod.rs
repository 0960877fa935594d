//! The means for tests of jobs: a cluster of the real runtime and LITE in one process under virtual time,
//! whose RNICs complete work at once. The test plays the manager.

mod cluster;

pub use cluster::{Cluster, Outcome as JobResult};

use crate::{App, End, serve};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use lite::Config;
use lite::testing::{Cluster as LiteCluster, Host};
use platform::{Instant, IoAddr, Memory, Platform, Task};
use proto::{CutRule, Dataset, InputFile, JobId, JobQos, JobReport, JobStart, NodeId, ToManager, ToNode};
use spin::Mutex;

/// The virtual time after which nodes that send nothing count as silent.
const SILENCE: Duration = Duration::from_secs(60);
/// The most bytes of input in a message.
const PIECE: usize = 48 << 10;
/// The most bytes of output in a message.
const OUTPUT: usize = 64 << 10;

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

/// The result of a job.
#[derive(Debug)]
pub enum Outcome {
    /// All nodes have done their part.
    Done {
        /// The output of rank 0.
        output: Vec<u8>,
        /// The reports in the order of the nodes' numbers.
        reports: Vec<JobReport>,
    },
    /// A node has failed. The others go on until they are told.
    Failed {
        /// The first node that failed.
        node: NodeId,
        /// The reason that it gave.
        reason: String,
        /// The output before the failure.
        output: Vec<u8>,
    },
    /// The listed nodes have done their part, and the others are silent.
    Silent(Vec<NodeId>),
}

/// Nodes that serve jobs, and the test's part of the manager.
pub struct JobCluster {
    cluster: LiteCluster,
    /// The nodes' messages about jobs that the test has not taken yet.
    seen: VecDeque<(NodeId, ToManager)>,
    /// The largest input credit that each node has announced for each job, and the number of announcements.
    credits: BTreeMap<(NodeId, JobId), (u64, usize)>,
    ends: Arc<Mutex<Vec<(NodeId, End)>>>,
    last_job: JobId,
    /// The quality of service of the jobs that start from now on.
    pub qos: JobQos,
    /// The nodes that have said that their part of the last job has ended.
    ended: BTreeSet<NodeId>,
}

impl Deref for JobCluster {
    type Target = LiteCluster;
    fn deref(&self) -> &LiteCluster {
        &self.cluster
    }
}

impl DerefMut for JobCluster {
    fn deref_mut(&mut self) -> &mut LiteCluster {
        &mut self.cluster
    }
}

impl JobCluster {
    /// Starts nodes of `memory` bytes each that serve jobs of `apps`. Node `i`, from 1 on, has the `i`th
    /// number of `cpus` as its number of processors.
    #[must_use]
    pub fn new(seed: u64, memory: u64, cpus: &[usize], apps: impl Fn() -> Vec<Box<dyn App>>) -> Self {
        let mut cluster = LiteCluster::new(seed, 0, memory, &Config::default());
        let ends = Arc::<Mutex<Vec<_>>>::default();
        for (i, &cpus) in (1..).zip(cpus) {
            let host = cluster.world.host(IoAddr(u64::from(i) << 32), memory);
            let platform = Arc::new(Processors { host: host.clone(), cpus });
            let lite = cluster.join_as(i, &host, platform, &Config::default()).clone();
            let (ends, apps) = (ends.clone(), apps());
            let task = async move {
                let node = lite.node_id();
                let end = serve(lite, apps).await;
                ends.lock().push((node, end));
            };
            host.spawn("serve", Box::pin(task));
        }
        cluster.world.run_for(Duration::from_millis(10));
        let (seen, credits) = (VecDeque::new(), BTreeMap::new());
        Self {
            cluster,
            seen,
            credits,
            ends,
            last_job: JobId(0),
            qos: JobQos::default(),
            ended: BTreeSet::new(),
        }
    }

    /// Returns the numbers of all nodes.
    #[must_use]
    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|(_, lite)| lite.node_id()).collect()
    }

    /// Returns the nodes that have stopped serving jobs, with their reasons, in the order of their numbers.
    #[must_use]
    pub fn ends(&self) -> Vec<(NodeId, End)> {
        let mut ends = self.ends.lock().clone();
        ends.sort_by_key(|(node, _)| *node);
        ends
    }

    /// Returns the largest credit of input that a node has announced for a job, and the number of
    /// announcements.
    ///
    /// # Panics
    /// If a node has announced what it had announced before, or more progress than there is.
    pub fn credit(&mut self, node: NodeId, job: JobId) -> Option<(u64, usize)> {
        self.take_messages();
        self.credits.get(&(node, job)).copied()
    }

    /// Sends a message to all nodes.
    pub fn tell_all(&self, message: &ToNode) {
        for id in self.ids() {
            self.hub.send(id, message);
        }
    }

    /// Returns the free LITE memory of the nodes that live, after a time in which they clean up.
    pub fn free(&mut self) -> Vec<u64> {
        self.world.run_for(Duration::from_secs(5));
        let living = self.nodes.iter().filter(|(host, _)| !host.is_dead());
        living.map(|(host, _)| host.memory().stats().free).collect()
    }

    /// Takes the messages about jobs that have arrived at the manager, and checks those about progress.
    fn take_messages(&mut self) {
        while let Some((node, message)) = self.cluster.hub.take_job_message() {
            match message {
                ToManager::JobProgress { done, total, .. } => assert!(done <= total),
                ToManager::JobInputCredit { job, bytes } => {
                    let (credit, count) = self.credits.entry((node, job)).or_default();
                    assert!(*credit < bytes, "a credit that is no news");
                    (*credit, *count) = (bytes, *count + 1);
                }
                message => self.seen.push_back((node, message)),
            }
        }
    }

    /// Returns the next message of a node about the acceptance, the output or the end of a job, or `None` if
    /// none arrives for a minute.
    ///
    /// # Panics
    /// As [`credit`](Self::credit).
    pub fn next_message(&mut self) -> Option<(NodeId, ToManager)> {
        let end = self.world.now() + SILENCE;
        loop {
            self.take_messages();
            while let Some((node, message)) = self.seen.pop_front() {
                match message {
                    // The answer of a node that had ended its part when it was told to cancel it.
                    ToManager::JobOver { job } if job != self.last_job => {}
                    message => return Some((node, message)),
                }
            }
            let hub = self.hub.clone();
            if !self.world.run_until(end, || hub.has_job_message()) {
                return None;
            }
        }
    }

    /// Starts a job on all nodes, with input files by name. The error is the reason of a node that refuses.
    ///
    /// # Panics
    /// If a node does not answer, or answers anything else.
    pub fn start(
        &mut self,
        app: &str,
        args: &[&str],
        files: &[(&str, &[u8])],
        share: u64,
    ) -> Result<JobId, String> {
        self.start_with(app, args, files, &[], share, false)
    }

    /// Returns the number of the next job.
    #[must_use]
    pub fn next_job(&self) -> JobId {
        JobId(self.last_job.0 + 1)
    }

    /// Starts a job as [`start`](Self::start) does. It reads datasets behind its files, and its output stays
    /// on the nodes if `keep` is set.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(
        &mut self,
        app: &str,
        args: &[&str],
        files: &[(&str, &[u8])],
        datasets: &[Dataset],
        share: u64,
        keep: bool,
    ) -> Result<JobId, String> {
        let job = self.next_job();
        self.last_job = job;
        self.ended.clear();
        let files = files.iter().map(|(name, bytes)| (String::from(*name), bytes.len() as u64));
        let kept = datasets.iter().map(|set| (format!("{}{}", Dataset::SCHEME, set.name), set.len()));
        let start = JobStart {
            job,
            app: app.into(),
            args: args.iter().map(|&arg| arg.into()).collect(),
            nodes: self.ids(),
            inputs: files.chain(kept).map(|(name, len)| InputFile { name, len }).collect(),
            datasets: datasets.to_vec(),
            share,
            keep,
        };
        self.tell_all(&match self.qos.is_plain() {
            true => ToNode::JobStart(start),
            false => ToNode::JobStartWith { start: Box::new(start), qos: self.qos },
        });
        let mut refusal = None;
        for _ in 0..self.nodes.len() {
            match self.next_message().expect("each node answers").1 {
                ToManager::JobAccepted { .. } => {}
                ToManager::JobFailed { reason, .. } => refusal = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        refusal.map_or(Ok(job), Err)
    }

    /// Sends the input to the nodes in turn. A file is cut at the first permitted byte behind every
    /// `size(length of the file)` bytes.
    pub fn load(&self, job: JobId, files: &[(&str, &[u8])], rule: &CutRule, size: impl Fn(usize) -> usize) {
        let ids = self.ids();
        let mut turns = ids.iter().cycle();
        for (file, (_, bytes)) in (0..).zip(files) {
            for (offset, split) in cut(bytes, rule, size(bytes.len())) {
                let Some(&node) = turns.next() else { return };
                let count = split.len().div_ceil(PIECE);
                for (number, piece) in split.chunks(PIECE).enumerate() {
                    let offset = (offset + number * PIECE) as u64;
                    let (bytes, end_of_split) = (piece.to_vec(), number + 1 == count);
                    self.hub.send(node, &ToNode::JobInput { job, file, offset, bytes, end_of_split });
                }
            }
        }
        self.tell_all(&ToNode::JobInputEnd { job });
    }

    /// Handles output and reports until the job has ended on all nodes or failed on one.
    ///
    /// # Panics
    /// If a node other than rank 0 gives output, if a message has too much of it, or if a node sends a
    /// message that does not belong to a job that runs.
    pub fn finish(&mut self, job: JobId) -> Outcome {
        let (mut output, mut reports) = (Vec::new(), BTreeMap::new());
        while reports.len() < self.nodes.len() {
            let Some((node, message)) = self.next_message() else {
                return Outcome::Silent(reports.into_keys().collect());
            };
            match message {
                ToManager::JobOutput { job: of, offset, bytes } => {
                    assert_eq!(offset, output.len() as u64, "the output has no gap");
                    assert_eq!((Some(&node), of), (self.ids().first(), job), "rank 0 gives the output");
                    assert!(bytes.len() <= OUTPUT);
                    output.extend(bytes);
                    self.hub.send(node, &ToNode::JobOutputAck { job, bytes: output.len() as u64 });
                }
                ToManager::JobDone { report, .. } => {
                    assert!(reports.insert(node, report).is_none());
                    self.ended.insert(node);
                }
                ToManager::JobFailed { reason, .. } => {
                    self.ended.insert(node);
                    return Outcome::Failed { node, reason, output };
                }
                other => panic!("{other:?}"),
            }
        }
        Outcome::Done { output, reports: reports.into_values().collect() }
    }

    /// Cancels a job that has failed, and waits until all nodes have ended it.
    ///
    /// # Panics
    /// If a node gives another reason than `reason` for its own failure, gives output, or does not answer.
    pub fn cancel(&mut self, job: JobId, reason: &str) {
        self.tell_all(&ToNode::JobCancel { job, reason: "failed elsewhere".into() });
        while self.ended.len() < self.nodes.len() {
            let (node, message) = self.next_message().expect("each node ends the job");
            match message {
                ToManager::JobFailed { reason: own, .. } => {
                    assert_eq!(own, reason, "two nodes give different reasons");
                }
                ToManager::JobDone { .. } | ToManager::JobOver { .. } => {}
                other => panic!("{other:?}"),
            }
            self.ended.insert(node);
        }
    }
}

/// Returns offsets and bytes of splits.
fn cut<'a>(bytes: &'a [u8], rule: &CutRule, size: usize) -> Vec<(usize, &'a [u8])> {
    let mut splits = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let rest = bytes.get(start + size - 1..).unwrap_or_default();
        let end = rest.iter().position(|&b| rule.allows(b)).map_or(bytes.len(), |more| start + size + more);
        splits.push((start, &bytes[start..end]));
        start = end;
    }
    splits
}
