//! A cluster on which tests of applications run whole jobs.

use super::{JobCluster, Outcome as JobOutcome};
use crate::App;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use proto::{CutRule, Dataset, JobReport, ToNode};

/// Bytes of LITE memory per node.
const MEMORY: u64 = 16 << 20;
/// The most bytes of a split, apart from the rest of its last line.
const SPLIT: usize = 40 << 10;

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
pub struct Cluster(JobCluster);

/// The result of a job: its output and the report of each node, or the reason of the first failure.
pub type Outcome = Result<(Vec<u8>, Vec<JobReport>), String>;

impl Deref for Cluster {
    type Target = JobCluster;
    fn deref(&self) -> &JobCluster {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut JobCluster {
        &mut self.0
    }
}

impl Cluster {
    /// Starts `count` nodes with these applications and `cpus` processors each.
    ///
    /// # Panics
    /// If the nodes cannot start.
    #[must_use]
    pub fn new(seed: u64, count: u8, cpus: usize, apps: fn() -> Vec<Box<dyn App>>) -> Self {
        Self(JobCluster::new(seed, MEMORY, &vec![cpus; count.into()], apps))
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
        let job = self.0.next_job();
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
        let share = files.iter().map(|(_, bytes)| bytes.len() as u64);
        let share = share.chain(datasets.iter().map(Dataset::len)).sum();
        let job = self.0.start_with(app, args, files, datasets, share, keep)?;
        let nodes = self.0.nodes.len();
        let lines = CutRule::after(|byte| byte == b'\n');
        self.0.load(job, files, &lines, |len| (len / (2 * nodes)).clamp(1, SPLIT));
        match self.0.finish(job) {
            JobOutcome::Done { output, reports } => Ok((output, reports)),
            JobOutcome::Failed { reason, output, .. } => {
                assert!(output.is_empty(), "partial output before: {reason}");
                self.0.cancel(job, &reason);
                Err(reason)
            }
            JobOutcome::Silent(nodes) => panic!("only {nodes:?} have ended the job"),
        }
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
