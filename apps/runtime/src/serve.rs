//! The task that handles the manager's job messages.

use crate::check;
use crate::dataset::{self, Kept};
use crate::image::{Loader, Machine};
use crate::input::{Input, Intake};
use crate::messages::JobMessages;
use crate::output::Credit;
use crate::share::Share;
use crate::task::Tasks;
use crate::telemetry::Telemeter;
use crate::usage::Usage;
use crate::{App, JobContext, JobError, memory};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use lite::Lite;
use platform::Instant;
use proto::{JobId, JobQos, JobReport, JobStanding, JobStart, PowerAction, ToManager, ToNode};
use spin::Mutex;

/// The reason for which a node has stopped serving jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The manager has told the node to leave and power off.
    Shutdown,
    /// The manager has told the node to leave, and its machine to change its power.
    Power(PowerAction),
    /// The node must leave, and its machine boots the image that it has loaded.
    Boot,
    /// The node has lost its membership, or has left.
    Lost,
}

/// Serves the manager's jobs with these applications until the membership ends, and then cancels the jobs
/// that still run. Call once the node is a member.
pub async fn serve(lite: Lite, apps: Vec<Box<dyn App>>) -> End {
    serve_machine(lite, apps, None).await
}

/// Serves the manager's jobs as [`serve`] does, on a machine that the manager can turn off, reset, and boot
/// with another image.
pub async fn serve_on(machine: &dyn Machine, lite: Lite, apps: Vec<Box<dyn App>>) -> End {
    serve_machine(lite, apps, Some(machine)).await
}

async fn serve_machine(lite: Lite, apps: Vec<Box<dyn App>>, machine: Option<&dyn Machine>) -> End {
    let mut loader = Loader::new(machine);
    let server =
        Server { lite, apps: apps.into(), jobs: Arc::default(), kept: Arc::default(), ends: Arc::default() };
    let messages = JobMessages::new(&server.lite);
    let telemetry = Telemeter::start(&server.lite);
    let end = loop {
        match messages.next().await {
            Some(ToNode::Shutdown) => break End::Shutdown,
            Some(ToNode::Power(action)) if loader.has_machine() => break End::Power(action),
            Some(message @ (ToNode::Image(_) | ToNode::ImagePiece { .. } | ToNode::ImageDrop)) => {
                if loader.handle(&server.lite, message).await {
                    break End::Boot;
                }
            }
            Some(ToNode::AskImage) => loader.tell_image(&server.lite).await,
            Some(message) => {
                // The manager may be another process, which has no counters of this node.
                if message == ToNode::AskJobs {
                    telemetry.begin_again();
                }
                server.handle(message).await;
            }
            None => break End::Lost,
        }
    };
    telemetry.stop();
    for (_, job) in core::mem::take(&mut *server.jobs.lock()) {
        if let Job::Running { tasks, .. } = job {
            tasks.cancel();
        }
    }
    end
}

struct Server {
    lite: Lite,
    apps: Arc<[Box<dyn App>]>,
    jobs: Arc<Mutex<BTreeMap<JobId, Job>>>,
    /// The output that this node keeps, by job.
    kept: Arc<Mutex<BTreeMap<JobId, Kept>>>,
    ends: Arc<Ends>,
}

/// The ends of jobs that the manager has not told this node to forget.
type Ends = Mutex<BTreeMap<JobId, JobStanding>>;

/// A job that this node has accepted.
enum Job {
    /// The input is arriving.
    Loading(Box<Loading>),
    /// The application runs.
    Running {
        tasks: Tasks,
        credit: Credit,
        /// True if nobody needs the output that the job keeps.
        unwanted: bool,
    },
}

struct Loading {
    start: JobStart,
    rank: usize,
    /// Index of the application.
    app: usize,
    input: Input,
    intake: Intake,
    /// The time at which the first piece of input arrived.
    begun: Option<Instant>,
    /// Bytes of memory that were promised to the job.
    promised: u64,
    usage: Usage,
    share: Share,
}

impl Server {
    async fn handle(&self, message: ToNode) {
        match message {
            ToNode::JobStart(start) => self.start(start, &JobQos::default()).await,
            ToNode::JobStartWith { start, qos } => self.start(*start, &qos).await,
            ToNode::JobInput { job, file, offset, bytes, end_of_split } => {
                let pushed = match self.jobs.lock().get_mut(&job) {
                    Some(Job::Loading(loading)) => {
                        loading.begun.get_or_insert_with(|| self.lite.platform().now());
                        loading.intake.take(bytes.len());
                        loading.input.push(file, offset, &bytes, end_of_split)
                    }
                    // The piece belongs to a job that was cancelled or refused.
                    _ => return,
                };
                match pushed {
                    Ok(()) => self.promise(job).await,
                    Err(error) => {
                        self.jobs.lock().remove(&job);
                        let has = self.lite.platform().memory().stats().free;
                        self.fail(job, &error.into_job_error(has)).await;
                    }
                }
            }
            ToNode::JobInputEnd { job } => self.run(job),
            ToNode::JobOutputAck { job, bytes } => {
                if let Some(Job::Running { credit, .. }) = self.jobs.lock().get(&job) {
                    credit.acknowledge(bytes);
                }
            }
            ToNode::JobCancel { job, reason } => {
                log::info!("job {} cancelled: {reason}", job.0);
                // The task of a running job removes it from the list, and tells the manager when everything
                // is freed.
                if !self.cancel(job) {
                    self.tell(&ToManager::JobOver { job }).await;
                }
            }
            ToNode::DropDataset { job } => self.drop_kept(job),
            ToNode::AskJobs => self.tell_jobs().await,
            ToNode::JobOutputFrom { job, offset } => self.repeat_output(job, offset),
            ToNode::JobForget { job } => drop(self.ends.lock().remove(&job)),
            ToNode::Check { request } => {
                let lite = self.lite.clone();
                let task = async move { check::answer(&lite, request).await };
                self.lite.platform().spawn("check", Box::pin(task));
            }
            other => log::warn!("unexpected message of the manager: {other:?}"),
        }
    }

    async fn start(&self, start: JobStart, qos: &JobQos) {
        let job = start.job;
        match self.accept(start, qos) {
            Ok(()) => {
                if self.tell(&ToManager::JobAccepted { job }).await {
                    self.promise(job).await;
                } else {
                    self.jobs.lock().remove(&job);
                }
            }
            Err(error) => self.fail(job, &error).await,
        }
    }

    /// Tells a manager that may have lost messages of this node about its jobs.
    async fn tell_jobs(&self) {
        let mut jobs: BTreeMap<JobId, JobStanding> = {
            let standing = |job: &Job| match job {
                Job::Loading(_) => JobStanding::Loading,
                Job::Running { .. } => JobStanding::Running,
            };
            self.jobs.lock().iter().map(|(&id, job)| (id, standing(job))).collect()
        };
        jobs.extend(self.ends.lock().iter().map(|(&id, end)| (id, end.clone())));
        let kept = self.kept.lock().keys().copied().collect();
        self.tell(&ToManager::Jobs { jobs: jobs.into_iter().collect(), kept }).await;
    }

    /// Sends a job's output from `offset` on.
    fn repeat_output(&self, job: JobId, offset: u64) {
        let credit = match self.jobs.lock().get(&job) {
            Some(Job::Running { credit, .. }) => credit.clone(),
            Some(Job::Loading(_)) | None => return,
        };
        credit.rewind(offset);
        let lite = self.lite.clone();
        let send = async move { drop(credit.send(&lite, job).await) };
        self.lite.platform().spawn("output", Box::pin(send));
    }

    /// Tells the manager how much input of a job this node is ready to receive, if that has changed enough.
    async fn promise(&self, job: JobId) {
        let promise = match self.jobs.lock().get_mut(&job) {
            Some(Job::Loading(loading)) => loading.intake.promise(),
            _ => None,
        };
        if let Some(bytes) = promise {
            self.tell(&ToManager::JobInputCredit { job, bytes }).await;
        }
    }

    /// Cancels a job. Returns false if nothing of the job is left on return.
    fn cancel(&self, job: JobId) -> bool {
        let mut jobs = self.jobs.lock();
        if let Some(Job::Running { tasks, .. }) = jobs.get(&job) {
            tasks.cancel();
            return true;
        }
        jobs.remove(&job);
        false
    }

    /// Sends a message to the manager. Returns false if that failed.
    async fn tell(&self, message: &ToManager) -> bool {
        let told = self.lite.send_control(message).await;
        if let Err(error) = &told {
            log::warn!("cannot send a job's message to the manager: {error}");
        }
        told.is_ok()
    }

    /// Checks a job and adds it to the list; its input may then arrive.
    fn accept(&self, start: JobStart, qos: &JobQos) -> Result<(), JobError> {
        let refuse = |reason| Err(JobError::Refused(reason));
        let Some(app) = self.apps.iter().position(|a| a.manifest().name == start.app) else {
            let known: Vec<_> = self.apps.iter().map(|a| a.manifest().name).collect();
            return refuse(format!(
                "unknown application {:?}; this node has: {}",
                start.app,
                known.join(", ")
            ));
        };
        let me = self.lite.node_id();
        let Some(rank) = start.nodes.iter().position(|node| *node == me) else {
            return refuse(format!("{me} is not among the nodes of job {}", start.job.0));
        };
        let mut jobs = self.jobs.lock();
        if jobs.contains_key(&start.job) {
            return refuse(format!("job {} exists already", start.job.0));
        }
        let Some(application) = self.apps.get(app) else { return refuse("no application".to_string()) };
        application.check(&start)?;
        let promised = application.memory_needed(&start);
        let others: u64 = jobs.values().map(Job::outstanding).sum();
        let has = memory::available(self.lite.platform().memory(), promised.saturating_add(others));
        if has < promised.saturating_add(others) {
            return Err(JobError::TooLittleMemory { needed: promised, has: has.saturating_sub(others) });
        }
        let files = start.inputs.iter().map(|file| file.len).collect();
        let input = Input::new(files, self.lite.platform().memory().stats().total);
        let usage = Usage::begin(&self.lite);
        let intake = Intake::default();
        let share = Share::new(start.job, qos, self.lite.platform().now());
        let loading = Loading { rank, app, input, intake, begun: None, promised, start, usage, share };
        jobs.insert(loading.start.job, Job::Loading(Box::new(loading)));
        Ok(())
    }

    /// Starts the application of a job whose input is complete.
    fn run(&self, id: JobId) {
        let mut jobs = self.jobs.lock();
        let loading = match jobs.remove(&id) {
            Some(Job::Loading(loading)) => loading,
            Some(running) => {
                jobs.insert(id, running);
                return;
            }
            // The job was cancelled meanwhile.
            None => return,
        };
        let (tasks, credit) = (Tasks::new(self.lite.platform().clone()), Credit::default());
        jobs.insert(id, Job::Running { tasks: tasks.clone(), credit: credit.clone(), unwanted: false });
        drop(jobs);
        let Loading { start, rank, app, input, begun, usage, share, .. } = *loading;
        let now = self.lite.platform().now();
        let input_us = now.saturating_since(begun.unwrap_or(now)).as_micros();
        let lites = (&self.lite, share.of(&self.lite));
        let context = JobContext::new(lites, start, rank, input.finish(), tasks.clone(), credit);
        let (lite, apps) = (self.lite.clone(), self.apps.clone());
        let (jobs, all_kept, ends) = (self.jobs.clone(), self.kept.clone(), self.ends.clone());
        let end = Box::pin(async move {
            let ended = run_to_end(context, apps, app, &tasks).await;
            let (mut result, mut kept) = match ended {
                Ok((report, kept)) => (Ok(report), kept),
                Err(error) => (Err(error), None),
            };
            if let Ok(report) = &mut result {
                report.times_us.push(("input".to_string(), u64::try_from(input_us).unwrap_or(u64::MAX)));
                report.used = usage.end(&lite);
                report.used.extend(share.used(lite.platform().now()));
                report.kept = kept.as_ref().map(|kept| kept.lens.clone()).unwrap_or_default();
            }
            {
                let mut jobs = jobs.lock();
                // The job is always in one of the two lists.
                note_end(&ends, id, &result);
                let unwanted = matches!(jobs.remove(&id), Some(Job::Running { unwanted: true, .. }));
                if let Some(kept) = kept.take_if(|_| !unwanted) {
                    all_kept.lock().insert(id, kept);
                }
            }
            if let Some(unwanted) = kept {
                unwanted.free().await;
            }
            report(&lite, id, result).await;
        });
        self.lite.platform().spawn("job", end);
    }

    /// Frees the output that this node keeps of a job, or will keep.
    fn drop_kept(&self, job: JobId) {
        let mut jobs = self.jobs.lock();
        if let Some(Job::Running { unwanted, .. }) = jobs.get_mut(&job) {
            *unwanted = true;
        }
        let kept = self.kept.lock().remove(&job);
        drop(jobs);
        if let Some(kept) = kept {
            self.lite.platform().spawn("drop dataset", Box::pin(kept.free()));
        }
    }

    async fn fail(&self, job: JobId, error: &JobError) {
        let failed = Err(error.clone());
        note_end(&self.ends, job, &failed);
        report(&self.lite, job, failed).await;
    }
}

impl Job {
    /// Returns the bytes of memory that were promised to the job and are not used yet.
    fn outstanding(&self) -> u64 {
        match self {
            Self::Loading(loading) => loading.promised.saturating_sub(loading.input.bytes),
            Self::Running { .. } => 0,
        }
    }
}

/// Runs an application. Nothing of the job is left on this node when this returns, but for output that is
/// kept.
async fn run_to_end(
    context: JobContext,
    apps: Arc<[Box<dyn App>]>,
    app: usize,
    tasks: &Tasks,
) -> Result<(JobReport, Option<Kept>), JobError> {
    let inner = context.clone();
    let result = tasks
        .spawn("application", async move {
            let Some(app) = apps.get(app) else {
                return Err(JobError::Refused("no application".to_string()));
            };
            inner.add_splits(dataset::load(&inner, &app.manifest().cut).await?);
            app.run(inner).await
        })
        .await
        .and_then(|result| result);
    tasks.cancel();
    tasks.ended().await;
    context.clean_up().await;
    let kept = match (&result, context.keeping()) {
        (Ok(_), Some(keeping)) => Some(keeping.publish(context.id()).await?),
        _ => None,
    };
    result.map(|report| (report, kept))
}

/// Notes the end of a job until the manager has recorded it. A cancelled job leaves nothing.
fn note_end(ends: &Ends, job: JobId, result: &Result<JobReport, JobError>) {
    let end = match result {
        Ok(report) => JobStanding::Done(report.clone()),
        Err(JobError::Cancelled) => return,
        Err(error) => JobStanding::Failed(error.to_string()),
    };
    ends.lock().insert(job, end);
}

/// Tells the manager the result of a job.
async fn report(lite: &Lite, job: JobId, result: Result<JobReport, JobError>) {
    let message = match result {
        Ok(report) => ToManager::JobDone { job, report },
        Err(JobError::Cancelled) => ToManager::JobOver { job },
        Err(error) => {
            log::warn!("job {} failed: {error}", job.0);
            ToManager::JobFailed { job, reason: error.to_string() }
        }
    };
    if let Err(error) = lite.send_control(&message).await {
        log::warn!("job {}: cannot report: {error}", job.0);
    }
}
