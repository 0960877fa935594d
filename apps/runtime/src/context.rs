//! The view that an application has of its job on one node.

use crate::dataset::Keeping;
use crate::error::During;
use crate::host::JobPlatform;
use crate::ordered;
use crate::output::Credit;
use crate::task::Tasks;
use crate::{BoxFuture, Collective, JobError, Join, Output, Split, memory};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use lite::{FunctionId, Lite, Lmr, Permissions, Scope};
use platform::{Instant, Pages};
use proto::{JobId, JobStart, NodeId, ToManager};
use spin::Mutex;

/// The longest wait for other nodes of the job. The death of such a node ends the wait at once.
const PEER_TIMEOUT: Duration = Duration::from_secs(1800);
/// The longest time that allocating, publishing or freeing memory may take.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);
/// The least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The first number of the jobs' own functions and mailboxes; the job's number is added.
const JOB_PORTS: FunctionId = 0x4b00_0000;

/// One node's part of a job. Clones refer to the same job.
#[derive(Clone)]
pub struct JobContext(Arc<Inner>);

struct Inner {
    lite: Lite,
    /// LITE with the deadline of waits for other nodes' work.
    waiting_lite: Lite,
    start: JobStart,
    rank: usize,
    splits: Mutex<Vec<Split>>,
    tasks: Tasks,
    credit: Credit,
    /// The output, if it becomes a dataset.
    keeping: Option<Keeping>,
    /// Regions to free at the end of the job.
    regions: Mutex<Regions>,
    /// Objects other than regions that were made through `lite`.
    scope: Scope,
    progress: Mutex<Option<Instant>>,
    /// The number of groups for collective operations that have been opened.
    collectives: AtomicU8,
}

/// The regions that a job has allocated, by number.
#[derive(Default)]
struct Regions {
    next: u64,
    live: BTreeMap<u64, Allocated>,
}

/// A region and the names under which it is published.
struct Allocated {
    lmr: Lmr,
    names: Vec<String>,
}

/// LITE memory of a job on this node. It is freed by [`JobContext::free`] or at the end of the job.
#[derive(Debug)]
pub struct Region {
    number: u64,
    /// The handle of the memory.
    pub lmr: Lmr,
}

/// Calls that wait return boxed futures, so that the image contains each once and not once per application.
impl JobContext {
    /// `node` is the node's LITE, and `lite` the job's share of it.
    pub(crate) fn new(
        (node, lite): (&Lite, Lite),
        start: JobStart,
        rank: usize,
        splits: Vec<Split>,
        tasks: Tasks,
        credit: Credit,
    ) -> Self {
        // The datasets that the job keeps outlive it, so its limits do not apply to them.
        let keeping = start.keep.then(|| Keeping::new(node.clone()));
        let platform = JobPlatform::new(lite.platform().clone(), tasks.clone());
        let (lite, scope) = lite.scoped(Arc::new(platform));
        Self(Arc::new(Inner {
            waiting_lite: lite.with_deadline(PEER_TIMEOUT),
            lite,
            start,
            rank,
            splits: Mutex::new(splits),
            tasks,
            credit,
            keeping,
            regions: Mutex::default(),
            scope,
            progress: Mutex::new(None),
            collectives: AtomicU8::new(0),
        }))
    }

    /// Returns LITE on this node. Objects that are made through it end with the job, and so do tasks that
    /// are started on its platform.
    #[must_use]
    pub fn lite(&self) -> &Lite {
        &self.0.lite
    }

    /// Returns the job's number.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.0.start.job
    }

    /// Returns the manager's description of the job: arguments, files, nodes.
    #[must_use]
    pub fn start(&self) -> &JobStart {
        &self.0.start
    }

    /// Returns this node's index among the job's nodes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the job's nodes, by rank.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.0.start.nodes
    }

    /// Returns the number of processors of this node, at least 1.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.0.lite.platform().cpus().max(1)
    }

    /// Returns the time since the node's start.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.lite.platform().now()
    }

    /// Returns this node's input. Later calls return an empty list.
    #[must_use]
    pub fn take_splits(&self) -> Vec<Split> {
        core::mem::take(&mut *self.0.splits.lock())
    }

    /// Returns this node's input from one file, by its index. Later calls, also of
    /// [`take_splits`](Self::take_splits), return the rest without it.
    #[must_use]
    pub fn take_splits_of(&self, file: u32) -> Vec<Split> {
        self.0.splits.lock().extract_if(.., |split| split.file == file).collect()
    }

    /// Returns the error for a failed allocation of `wanted` bytes.
    #[must_use]
    pub fn out_of_memory(&self, wanted: u64) -> JobError {
        JobError::OutOfMemory { wanted, has: memory::available(self.0.lite.platform().memory(), wanted) }
    }

    /// Returns `len` zeroed bytes of the application's own, as a slice. On an appliance they return to all
    /// later jobs when they are dropped, as memory of the heap does not. Other nodes cannot reach them: see
    /// [`alloc`](Self::alloc) and [`LocalMemory`](lite::LocalMemory) for memory that they can.
    ///
    /// # Errors
    /// [`JobError::OutOfMemory`] if the node has too little memory in one piece.
    ///
    /// ```
    /// # fn example(job: &runtime::JobContext) -> Result<(), runtime::JobError> {
    /// let mut table = job.pages(1 << 20)?;
    /// table[..5].copy_from_slice(b"words");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pages(&self, len: usize) -> Result<Pages, JobError> {
        let pages = self.0.lite.platform().memory().pages(len);
        pages.ok_or_else(|| self.out_of_memory(len as u64))
    }

    /// Starts a task of the job on a processor that the platform chooses. The task ends with the job.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Join<T> {
        self.0.tasks.spawn(name, future)
    }

    /// Allocates `len` bytes of zeroed LITE memory on this node. The memory is freed at the end of the job.
    ///
    /// # Errors
    ///
    /// [`JobError::OutOfMemory`] if the node has too little memory.
    pub fn alloc(&self, len: u64) -> BoxFuture<'_, Result<Region, JobError>> {
        Box::pin(async move {
            let lite = &self.0.lite.with_deadline(MEMORY_TIMEOUT);
            self.keep_region(lite.alloc(lite.node_id(), len.max(1), Permissions::all()).await)
        })
    }

    /// Turns pages into LITE memory on this node, with their content: without a copy on an appliance. The
    /// memory is freed at the end of the job.
    ///
    /// # Errors
    ///
    /// [`JobError::OutOfMemory`] if the node has too little memory for a copy that it needs.
    ///
    /// ```
    /// # async fn example(job: &runtime::JobContext) -> Result<(), runtime::JobError> {
    /// let mut table = job.pages(1 << 20)?;
    /// table.fill(7);
    /// let region = job.alloc_pages(table).await?;
    /// job.publish(&region, "table").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_pages(&self, pages: Pages) -> BoxFuture<'_, Result<Region, JobError>> {
        Box::pin(async move {
            let lite = &self.0.lite.with_deadline(MEMORY_TIMEOUT);
            let made = async {
                let memory = lite.own_pages(pages).await?;
                lite.register_memory(memory, Permissions::all()).await
            };
            self.keep_region(made.await)
        })
    }

    /// Notes a new region, which ends with the job.
    fn keep_region(&self, made: Result<Lmr, lite::Error>) -> Result<Region, JobError> {
        let lmr = match made {
            Err(lite::Error::NoMemory { asked, free }) => {
                return Err(JobError::OutOfMemory { wanted: asked, has: free });
            }
            other => other.during("allocating memory")?,
        };
        let mut regions = self.0.regions.lock();
        regions.next += 1;
        let number = regions.next;
        regions.live.insert(number, Allocated { lmr: lmr.clone(), names: Vec::new() });
        Ok(Region { number, lmr })
    }

    /// Frees memory of [`alloc`](Self::alloc) before the job's end.
    pub fn free(&self, region: Region) -> BoxFuture<'_, Result<(), JobError>> {
        Box::pin(async move {
            let allocated = self.0.regions.lock().live.remove(&region.number);
            drop(region);
            match allocated {
                Some(allocated) => self.free_region(allocated).await.during("freeing memory"),
                None => Ok(()),
            }
        })
    }

    /// Publishes a region under a name that is unique within the job.
    pub fn publish<'a>(&'a self, region: &'a Region, name: &str) -> BoxFuture<'a, Result<(), JobError>> {
        let name = self.name(name);
        Box::pin(async move {
            if let Some(allocated) = self.0.regions.lock().live.get_mut(&region.number) {
                allocated.names.push(name.clone());
            }
            region.lmr.publish(&name).await.during("publishing memory")
        })
    }

    /// Maps a region for reading that another node of the job publishes. Waits until it is published.
    pub fn open(&self, name: &str) -> BoxFuture<'_, Result<Lmr, JobError>> {
        self.open_with(name, Permissions::READ)
    }

    /// Maps a region that another node of the job publishes, with the rights `wanted`. Waits until it is
    /// published.
    pub fn open_with(&self, name: &str, wanted: Permissions) -> BoxFuture<'_, Result<Lmr, JobError>> {
        let name = self.name(name);
        Box::pin(async move { self.0.waiting_lite.map_wait(&name, wanted).await.during("mapping memory") })
    }

    /// Opens a group for collective operations of all nodes of the job. Every node must open the same
    /// groups in the same order, at most 256. `rooms` has, by rank, the most bytes that this node expects
    /// of each node in one message; a longer exchange takes several rounds of messages. Groups use the
    /// mailboxes from `0x4a00_0000` to `0x4aff_ffff`.
    ///
    /// # Errors
    ///
    /// [`JobError::OutOfMemory`] if there is no memory for the rooms, and errors of LITE.
    pub fn collective<'a>(&self, rooms: &'a [usize]) -> BoxFuture<'a, Result<Collective, JobError>> {
        let job = self.clone();
        Box::pin(async move {
            let number = job.0.collectives.fetch_add(1, Ordering::Relaxed);
            Collective::open(job, number, rooms).await
        })
    }

    /// Returns one of the job's 256 numbers for functions and mailboxes: the same on all nodes of
    /// the job, and another one than those of other jobs that run at the same time. Functions that
    /// are registered through [`lite`](Self::lite) end with the job.
    ///
    /// ```
    /// # fn example(job: &runtime::JobContext) -> Result<(), lite::Error> {
    /// let mailbox = job.lite().open_mailbox(job.port(0), lite::RpcOptions::default())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn port(&self, number: u8) -> FunctionId {
        JOB_PORTS | (self.id().0 as u32 & 0xffff) << 8 | u32::from(number)
    }

    /// Waits until all nodes of the job have called this with the same name.
    pub fn barrier(&self, name: &str) -> BoxFuture<'_, Result<(), JobError>> {
        let name = self.name(name);
        Box::pin(async move {
            if self.nodes().len() < 2 {
                return Ok(());
            }
            self.0.waiting_lite.barrier(&name, self.nodes()).await.during("waiting for the other nodes")
        })
    }

    /// Returns a name that no other job uses.
    fn name(&self, name: &str) -> String {
        format!("job/{}/{name}", self.id().0)
    }

    /// Reports this node's progress to the manager: at most once in 200 ms, and when `done`
    /// reaches `total`.
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

    /// Returns the output of the job. Only rank 0 may write to it.
    #[must_use]
    pub fn output(&self) -> Output {
        Output::new(self.clone())
    }

    /// Writes the output of the job: `part` of each node, in the order of ranks. Every node of the job must
    /// call this once, and none may write to [`output`](Self::output) beside it.
    ///
    /// # Errors
    ///
    /// [`JobError::OutOfMemory`] if the part cannot be offered to rank 0, and errors of LITE.
    pub fn output_in_order(&self, part: Vec<u8>) -> BoxFuture<'_, Result<(), JobError>> {
        Box::pin(ordered::write(self, part))
    }

    /// Returns LITE with the deadline of waits for other nodes' work.
    pub(crate) fn waiting_lite(&self) -> &Lite {
        &self.0.waiting_lite
    }

    /// Returns the output that is kept, if it becomes a dataset.
    pub(crate) fn keeping(&self) -> Option<&Keeping> {
        self.0.keeping.as_ref()
    }

    /// Adds input behind the present one.
    pub(crate) fn add_splits(&self, splits: Vec<Split>) {
        self.0.splits.lock().extend(splits);
    }

    pub(crate) fn credit(&self) -> &Credit {
        &self.0.credit
    }

    /// Unpublishes and frees a region.
    async fn free_region(&self, allocated: Allocated) -> Result<(), lite::Error> {
        let lite = self.0.lite.with_deadline(MEMORY_TIMEOUT);
        for name in &allocated.names {
            match lite.unpublish(name).await {
                Err(lite::Error::NoSuchName) | Ok(()) => {}
                Err(error) => log::debug!("freeing the name {name}: {error}"),
            }
        }
        allocated.lmr.free().await
    }

    /// Ends everything that is left of the job on this node. Call only after the job's tasks have ended.
    pub(crate) async fn clean_up(&self) {
        let regions = core::mem::take(&mut *self.0.regions.lock());
        for allocated in regions.live.into_values() {
            if let Err(error) = self.free_region(allocated).await {
                log::debug!("job {}: freeing a region: {error}", self.id().0);
            }
        }
        self.0.scope.end(MEMORY_TIMEOUT).await;
        drop(self.take_splits());
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("start", &self.0.start).field("rank", &self.0.rank).finish()
    }
}
