//! Measures what operations of high priority suffer from a flood of low priority: the paper's figure on
//! quality of service. The scheme is the nodes' setting `scheme`.
//!
//! Rank 0 does writes, calls and messages of 8 bytes at high priority to rank 1, one at a time: first alone,
//! then while tasks of the same node keep writes of 64 KiB at low priority to rank 1 in flight.

use crate::measure::Row;
use crate::{DEADLINE, SAMPLES, failed, map_of, samples};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use lite::{FunctionId, Lite, Lmr, Priority, RpcOptions};
use proto::{AppManifest, CutRule, JobReport, JobStart, NodeId};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Join, Syntax};

/// The function that replies with its request.
const ECHO: FunctionId = 0x716f_7301;
/// The mailbox of messages.
const MAILBOX: FunctionId = 0x716f_7302;
/// Writes of low priority in flight.
const LANES: usize = 16;
/// The length of a write of low priority, in bytes.
const LARGE: usize = 64 << 10;
/// The offset in rank 1's region that operations of high priority use.
const SMALL_AT: u64 = (LANES * LARGE) as u64;
/// The length of rank 1's region, in bytes.
const REGION: u64 = SMALL_AT + 4096;
/// The time for which the flood runs before anything is measured, and for which it is measured alone.
const SETTLE: Duration = Duration::from_millis(200);
/// The payload of an operation of high priority.
const SMALL: [u8; 8] = *b"priority";
/// Operations of each kind that are not counted, at the beginning.
const WARM_UP: usize = 30;

const SYNTAX: Syntax = Syntax {
    name: "qos",
    about: "measures high priority beside a flood of low priority",
    args: &[Arg::optional_word(SAMPLES)],
};

/// The application. It accepts one argument, the number of samples. Its output is lines in the format of
/// [`crate::Bench`]: `idle_write`, `idle_call` and `idle_message` without a flood, `write`, `call` and
/// `message` beside it, and the flood's throughput alone (`low_alone`) and meanwhile (`low`).
#[derive(Debug)]
pub struct Qos;

impl App for Qos {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, _start: &JobStart) -> u64 {
        8 << 20
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        if start.nodes.len() != 2 {
            return Err(JobError::Refused(SYNTAX.complaint("want two nodes")));
        }
        samples(start, &SYNTAX).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    if job.rank() == 1 {
        let mine = job.alloc(REGION).await?;
        job.publish(&mine, "qos").await?;
        let servers = serve(&job)?;
        job.barrier("ready").await?;
        job.barrier("end").await?;
        drop(servers);
        return Ok(JobReport::default());
    }
    job.barrier("ready").await?;
    let lite = job.lite().with_deadline(DEADLINE);
    let region = map_of(&lite, &job, "qos").await?;
    let urgent = Urgent {
        lite: lite.with_priority(Priority::High),
        region: region.with_priority(Priority::High),
        peer: job.nodes()[1],
    };
    let samples = samples(job.start(), &SYNTAX)?;
    urgent.measure(&job, ["warm_up"; 3], WARM_UP).await?;
    for row in urgent.measure(&job, ["idle_write", "idle_call", "idle_message"], samples).await? {
        row.report(&job).await?;
    }
    let flood = Flood::start(&job, &region.with_priority(Priority::Low));
    lite.sleep(SETTLE).await;
    let begin = (job.now(), flood.bytes());
    lite.sleep(SETTLE).await;
    flood.row("low_alone", begin, &job).report(&job).await?;
    urgent.measure(&job, ["warm_up"; 3], WARM_UP).await?;
    let begin = (job.now(), flood.bytes());
    let rows = urgent.measure(&job, ["write", "call", "message"], samples).await?;
    let low = flood.row("low", begin, &job);
    flood.stop().await?;
    for row in rows.into_iter().chain([low]) {
        row.report(&job).await?;
    }
    job.barrier("end").await?;
    Ok(JobReport::default())
}

/// Starts the function and the mailbox that rank 0 uses. They end when the result is dropped.
fn serve(job: &JobContext) -> Result<[Join<()>; 2], JobError> {
    let echo = job.lite().register(ECHO, RpcOptions::default()).map_err(failed)?;
    let mailbox = job.lite().open_mailbox(MAILBOX, RpcOptions::default()).map_err(failed)?;
    let answer = async move {
        while let Ok(call) = echo.receive().await {
            let data = call.request().to_vec();
            // A caller that has given up needs no reply.
            let _ = call.reply(&data).await;
        }
    };
    let take = async move { while mailbox.receive().await.is_ok() {} };
    Ok([job.spawn("echo", answer), job.spawn("mailbox", take)])
}

/// The handles of high priority.
struct Urgent {
    lite: Lite,
    region: Lmr,
    peer: NodeId,
}

impl Urgent {
    /// Measures `samples` writes, calls and messages, one at a time and in turn.
    async fn measure(
        &self,
        job: &JobContext,
        names: [&'static str; 3],
        samples: usize,
    ) -> Result<[Row; 3], JobError> {
        let mut taken = [const { Vec::new() }; 3];
        for _ in 0..samples {
            for (kind, taken) in taken.iter_mut().enumerate() {
                let begin = job.now();
                self.operate(kind).await.map_err(failed)?;
                taken.push(u64::try_from((job.now() - begin).as_nanos()).unwrap_or(u64::MAX));
            }
        }
        let [write, call, message] = taken;
        let [first, second, third] = names;
        let row = |name, taken| Row::latency(name, SMALL.len(), taken);
        Ok([row(first, write), row(second, call), row(third, message)])
    }

    /// Does a write (0), a call (1) or a message (2).
    async fn operate(&self, kind: usize) -> Result<(), lite::Error> {
        match kind {
            0 => self.region.write(SMALL_AT, &SMALL).await,
            1 => self.lite.call_into(self.peer, ECHO, &SMALL, &mut [0; SMALL.len()]).await.map(drop),
            _ => self.lite.send(self.peer, MAILBOX, &SMALL).await,
        }
    }
}

/// Tasks that write at low priority.
struct Flood {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    tasks: Vec<Join<Result<(), lite::Error>>>,
}

impl Flood {
    fn start(job: &JobContext, region: &Lmr) -> Self {
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let lane = |lane: usize| {
            let (region, stop, written) = (region.clone(), stop.clone(), written.clone());
            job.spawn("flood", async move {
                let data = vec![lane as u8; LARGE];
                while !stop.load(Ordering::Relaxed) {
                    region.write((lane * LARGE) as u64, &data).await?;
                    written.fetch_add(LARGE, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        Self { tasks: (0..LANES).map(lane).collect(), stop, written }
    }

    fn bytes(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns a row of the throughput since `begin`, a time and the bytes written by then.
    fn row(&self, name: &'static str, begin: (platform::Instant, usize), job: &JobContext) -> Row {
        let writes = (self.bytes() - begin.1) / LARGE;
        Row::throughput(name, LARGE, writes, begin.0, job.now())
    }

    async fn stop(self) -> Result<(), JobError> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await?.map_err(failed)?;
        }
        Ok(())
    }
}
