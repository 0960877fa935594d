//! A job as its application sees it on one node.

use crate::error::During;
use crate::host::JobPlatform;
use crate::output::Credit;
use crate::task::Tasks;
use crate::{BoxFuture, JobError, Join, Output, Split, memory};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::time::Duration;
use lite::{Lite, Lmr, Permissions, Scope};
use platform::Instant;
use proto::{JobId, JobStart, NodeId, ToManager};
use spin::Mutex;

/// How long a node waits for the others of its job. The death of one ends the wait at once.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long taking, publishing and freeing memory may take.
const STEADY: Duration = Duration::from_secs(60);
/// Least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// One node's part of a job. Clones are the same job.
#[derive(Clone)]
pub struct JobContext(Arc<Inner>);

struct Inner {
    lite: Lite,
    /// The same, for waits on other nodes' work.
    patient: Lite,
    start: JobStart,
    rank: usize,
    splits: Mutex<Vec<Split>>,
    tasks: Tasks,
    credit: Credit,
    /// Regions to free at the end of the job.
    regions: Mutex<Regions>,
    /// What else was made through `lite`.
    scope: Scope,
    progress: Mutex<Option<Instant>>,
}

/// The regions that a job has taken, by number.
#[derive(Default)]
struct Regions {
    next: u64,
    live: BTreeMap<u64, Taken>,
}

/// A region, and the names that it has been given.
struct Taken {
    lmr: Lmr,
    names: Vec<String>,
}

/// LITE memory of a job on this node; freed by [`JobContext::free`] or at the end of the job.
#[derive(Debug)]
pub struct Region {
    number: u64,
    /// The memory.
    pub lmr: Lmr,
}

/// The calls below that wait are in boxes, so that the image has each once and not where each application is.
impl JobContext {
    pub(crate) fn new(
        lite: Lite,
        start: JobStart,
        rank: usize,
        splits: Vec<Split>,
        tasks: Tasks,
        credit: Credit,
    ) -> Self {
        let platform = JobPlatform::new(lite.platform().clone(), tasks.clone());
        let (lite, scope) = lite.scoped(Arc::new(platform));
        Self(Arc::new(Inner {
            patient: lite.with_deadline(PATIENCE),
            lite,
            start,
            rank,
            splits: Mutex::new(splits),
            tasks,
            credit,
            regions: Mutex::default(),
            scope,
            progress: Mutex::new(None),
        }))
    }

    /// LITE on this node. What is made through it ends with the job, and so do tasks that are started by its platform.
    #[must_use]
    pub fn lite(&self) -> &Lite {
        &self.0.lite
    }

    /// The job's number.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.0.start.job
    }

    /// What the manager said of the job: arguments, files, nodes.
    #[must_use]
    pub fn start(&self) -> &JobStart {
        &self.0.start
    }

    /// This node's index among the job's nodes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The job's nodes by rank.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.0.start.nodes
    }

    /// Processors of this node.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.0.lite.platform().cpus().max(1)
    }

    /// Time since the node's start.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.lite.platform().now()
    }

    /// This node's input; empty when asked again.
    #[must_use]
    pub fn take_splits(&self) -> Vec<Split> {
        core::mem::take(&mut *self.0.splits.lock())
    }

    /// The error for an allocation of `wanted` bytes that failed.
    #[must_use]
    pub fn out_of_memory(&self, wanted: u64) -> JobError {
        JobError::OutOfMemory { wanted, has: memory::available(self.0.lite.platform().memory(), wanted) }
    }

    /// Starts a task of the job on a processor that the platform chooses.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Join<T> {
        self.0.tasks.spawn(name, future)
    }

    /// Takes `len` bytes of LITE memory on this node, zeroed, freed at the end of the job.
    pub fn alloc(&self, len: u64) -> BoxFuture<'_, Result<Region, JobError>> {
        Box::pin(async move {
            let lite = &self.0.lite.with_deadline(STEADY);
            let lmr = match lite.alloc(lite.node_id(), len.max(1), Permissions::all()).await {
                Err(lite::Error::NoMemory { asked, free }) => {
                    return Err(JobError::OutOfMemory { wanted: asked, has: free });
                }
                other => other.during("allocating memory")?,
            };
            let mut regions = self.0.regions.lock();
            regions.next += 1;
            let number = regions.next;
            regions.live.insert(number, Taken { lmr: lmr.clone(), names: Vec::new() });
            Ok(Region { number, lmr })
        })
    }

    /// Frees what [`alloc`](Self::alloc) gave, before the job's end.
    pub fn free(&self, region: Region) -> BoxFuture<'_, Result<(), JobError>> {
        Box::pin(async move {
            let taken = self.0.regions.lock().live.remove(&region.number);
            drop(region);
            match taken {
                Some(taken) => self.give_back(taken).await.during("freeing memory"),
                None => Ok(()),
            }
        })
    }

    /// Gives a region a name within the job.
    pub fn publish<'a>(&'a self, region: &'a Region, name: &str) -> BoxFuture<'a, Result<(), JobError>> {
        let name = self.name(name);
        Box::pin(async move {
            if let Some(taken) = self.0.regions.lock().live.get_mut(&region.number) {
                taken.names.push(name.clone());
            }
            region.lmr.publish(&name).await.during("publishing memory")
        })
    }

    /// Maps a region that another node of the job has given a name, for reading; waits until it is there.
    pub fn open(&self, name: &str) -> BoxFuture<'_, Result<Lmr, JobError>> {
        let name = self.name(name);
        Box::pin(
            async move { self.0.patient.map_wait(&name, Permissions::READ).await.during("mapping memory") },
        )
    }

    /// Waits until all nodes of the job have come here.
    pub fn barrier(&self, name: &str) -> BoxFuture<'_, Result<(), JobError>> {
        let name = self.name(name);
        Box::pin(async move {
            if self.nodes().len() < 2 {
                return Ok(());
            }
            self.0.patient.barrier(&name, self.nodes()).await.during("waiting for the other nodes")
        })
    }

    /// A name that no other job uses.
    fn name(&self, name: &str) -> String {
        format!("job/{}/{name}", self.id().0)
    }

    /// Tells how far this node is; sent now and then, and when all is done.
    pub fn progress<'a>(
        &'a self,
        phase: &'a str,
        done: u64,
        total: u64,
    ) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(async move {
            let now = self.now();
            {
                let mut last = self.0.progress.lock();
                if done < total && last.is_some_and(|last| now - last < PROGRESS_INTERVAL) {
                    return Ok(());
                }
                *last = Some(now);
            }
            let message = ToManager::JobProgress { job: self.id(), phase: phase.to_string(), done, total };
            self.0.lite.send_control(&message).await.during("reporting progress")
        })
    }

    /// Where the output goes. Only rank 0 has one.
    #[must_use]
    pub fn output(&self) -> Output {
        Output::new(self.clone())
    }

    pub(crate) fn credit(&self) -> &Credit {
        &self.0.credit
    }

    /// Frees a region and its names.
    async fn give_back(&self, taken: Taken) -> Result<(), lite::Error> {
        let lite = self.0.lite.with_deadline(STEADY);
        for name in &taken.names {
            match lite.unpublish(name).await {
                Err(lite::Error::NoSuchName) | Ok(()) => {}
                Err(error) => log::debug!("freeing the name {name}: {error}"),
            }
        }
        taken.lmr.free().await
    }

    /// Ends all that is left once the job's tasks have ended.
    pub(crate) async fn clean_up(&self) {
        let regions = core::mem::take(&mut *self.0.regions.lock());
        for taken in regions.live.into_values() {
            if let Err(error) = self.give_back(taken).await {
                log::debug!("job {}: freeing a region: {error}", self.id().0);
            }
        }
        self.0.scope.end(STEADY).await;
        drop(self.take_splits());
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("start", &self.0.start).field("rank", &self.0.rank).finish()
    }
}
