//! Limits of a job: its operations wait, none of them fails, and the report has what it has used.

use futures_util::future::join_all;
use lite::{Config, Op, OpKind, Permissions, RpcOptions};
use proto::{AppManifest, CutRule, JobQos, JobReport};
use runtime::testing::{JobCluster, Outcome};
use runtime::{App, BoxFuture, JobContext, JobError};

/// The bytes that each kind of operation moves, and the number of operations of each kind.
const LEN: usize = 100_000;
const ROUNDS: usize = 2;
/// The number of writes that begin at once in each round.
const WRITES: usize = 8;

/// Moves bytes between two nodes by reads, writes, a completion queue, calls and messages.
struct Mover;

async fn work(job: &JobContext) -> Result<(), lite::Error> {
    let lite = job.lite();
    let other = job.nodes()[(job.rank() + 1) % job.nodes().len()];
    let server = lite.register(job.port(0), RpcOptions::default())?;
    let serve = async move {
        while let Ok(call) = server.receive().await {
            let _ = call.reply(b"done").await;
        }
    };
    drop(job.spawn("server", serve));
    let lmr = lite.alloc(other, LEN as u64, Permissions::all()).await?;
    job.barrier("ready").await.map_err(|_| lite::Error::Unknown)?;
    let data = vec![7; LEN];
    let queue = lite.completion_queue(4);
    for _ in 0..ROUNDS {
        let writes = join_all((0..WRITES).map(|_| lmr.write(0, &data))).await;
        writes.into_iter().collect::<Result<(), _>>()?;
        lmr.read(0, &mut vec![0; LEN]).await?;
        lite.call(other, job.port(0), &data, 10).await?;
        let op = Op { tag: 1, lmr: &lmr, offset: 0, kind: OpKind::Write(&data[..1000]) };
        assert_eq!(queue.post(&[op]).await?, 1);
        queue.next(&mut []).await.ok_or(lite::Error::Unknown)?.result?;
    }
    job.barrier("done").await.map_err(|_| lite::Error::Unknown)
}

impl App for Mover {
    fn manifest(&self) -> AppManifest {
        AppManifest { name: "mover".into(), about: String::new(), cut: CutRule::Anywhere }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            work(&job).await.map_err(|error| JobError::Refused(error.to_string()))?;
            Ok(JobReport::default())
        })
    }
}

/// Returns the reports of a job with that quality of service.
fn reports(qos: JobQos) -> Vec<JobReport> {
    let mut c = JobCluster::new(5, 64 << 20, &[1, 2], || vec![Box::new(Mover)]);
    c.qos = qos;
    let job = c.start("mover", &[], &[], 0).unwrap();
    c.load(job, &[], &CutRule::Anywhere, |len| len);
    match c.finish(job) {
        Outcome::Done { reports, .. } => reports,
        other => panic!("{other:?}"),
    }
}

fn used(report: &JobReport, name: &str) -> Option<u64> {
    report.used.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

#[test]
fn a_job_moves_no_more_than_its_limit_allows_and_no_operation_fails() {
    // With this limit, the last write of a round waits for longer than LITE's usual deadline.
    const RATE: u64 = 60_000;
    assert!((WRITES * LEN) as u64 / RATE > Config::default().deadline.as_secs());
    let rate = JobQos { bytes_per_second: Some(RATE), ..JobQos::default() };
    for report in reports(rate) {
        let used = |name| used(&report, name).unwrap();
        assert!(used("bytes_limited") >= ((WRITES + 2) * LEN * ROUNDS) as u64, "{report:?}");
        assert!(used("limited") >= ((WRITES + 3) * ROUNDS) as u64, "{report:?}");
        assert!(used("limit_waits") >= (WRITES * ROUNDS) as u64 && used("limit_waited_us") > 0, "{report:?}");
        // The burst is 64 KiB, and the last operation may be longer.
        let allowed = u128::from(RATE) * u128::from(used("limited_us")) / 1_000_000 + LEN as u128;
        assert!(u128::from(used("bytes_limited")) <= allowed, "{allowed}: {report:?}");
    }
}

#[test]
fn operations_in_flight_are_limited_and_a_job_without_limits_has_no_account() {
    for report in reports(JobQos { outstanding: Some(1), ..JobQos::default() }) {
        assert!(used(&report, "limited") >= Some(((WRITES + 3) * ROUNDS) as u64), "{report:?}");
    }
    for report in reports(JobQos::default()) {
        assert_eq!(used(&report, "limited"), None, "{report:?}");
        assert!(used(&report, "writes") >= Some(ROUNDS as u64), "{report:?}");
    }
}
