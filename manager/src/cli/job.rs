//! `ferrolite job`: runs, lists and ends jobs.

use super::args::{ManagerArgs, count, job_id, outstanding, rate, seconds, write_whole};
use super::exit::JobFailed;
use super::progress::Progress;
use super::shown::{List, ListArgs};
use super::{names, queue, report, shell, signals};
use anyhow::Result;
use clap::{Args, Subcommand};
use manager::client::{ClientError, Inputs, Job, Output, Update};
use manager::core::json::{job_details_json, jobs_json};
use platform::TimeLimit;
use proto::{Dataset, JobEnd, JobId, JobQos, JobState, RdmaPriority, Terms};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Runs a job: streams the input files to the nodes and writes the output file. The job waits in the
    /// queue until its nodes are idle.
    #[command(visible_alias = "run")]
    Submit(Box<SubmitArgs>),
    /// Lists the jobs that wait, each with the reason, those that run, and those that are ending.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Shows all that is known of a job, also after its end: times, nodes, the reason of a failure, reports.
    Show(ShowArgs),
    /// Waits until a job has ended, and shows all that is known of it. Fails if the job has not succeeded.
    Wait(WaitArgs),
    /// Waits until a job that was submitted with --detach has ended, and writes its output.
    Output(OutputArgs),
    /// Writes the lines that the nodes of a job have logged during its time.
    Logs(LogsArgs),
    /// Ends a job. Its submission fails with that reason. Its nodes are idle once they have ended their part.
    Cancel(CancelArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Submit(args) => submit(*args),
            Self::Ls(args) => ls(&args),
            Self::Show(args) => show(&args),
            Self::Wait(args) => wait(&args),
            Self::Output(args) => output(&args),
            Self::Logs(args) => logs(&args),
            Self::Cancel(args) => Ok(args.manager.connect()?.cancel(args.job)?),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Lists the jobs that have ended as well, as far as the history has them.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The number of the job (see `job ls --all`).
    #[arg(value_parser = job_id, add = shell::jobs())]
    job: JobId,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The number of the job (see `job ls`).
    #[arg(value_parser = job_id, add = shell::jobs())]
    job: JobId,
    /// The longest time to wait, in seconds.
    #[arg(long, value_name = "S", default_value_t = 86_400, value_parser = seconds)]
    timeout: u64,
}

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The number of the job (see `job ls --all`).
    #[arg(value_parser = job_id, add = shell::jobs())]
    job: JobId,
    /// The output file, which exists only if it is whole [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes the output that there is so far, and does not wait for the end of the job.
    #[arg(long)]
    now: bool,
    /// The longest time to wait, in seconds.
    #[arg(long, value_name = "S", default_value_t = 86_400, value_parser = seconds)]
    timeout: u64,
}

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The number of the job (see `job ls --all`).
    #[arg(value_parser = job_id, add = shell::jobs())]
    job: JobId,
    /// Writes further lines as they come, until the job has ended.
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The number of the job (see `job ls`).
    #[arg(value_parser = job_id, add = shell::jobs())]
    job: JobId,
}

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The application. The nodes have it compiled in (see `node ls`).
    #[arg(long, value_name = "NAME")]
    app: String,
    /// The number of nodes that take part [default: all that have the application].
    #[arg(long, value_name = "N", value_parser = count)]
    nodes: Option<u16>,
    /// The name of a node that takes part. It can be given several times; then only the named nodes take
    /// part.
    #[arg(long, value_name = "NAME", conflicts_with = "nodes", add = shell::nodes())]
    on: Vec<String>,
    /// An input file, or lite:NAME for a dataset. It can be given several times, and an application may need
    /// none. Datasets come after files.
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// The output file. It exists only if the job succeeds.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["keep", "detach"],
        conflicts_with_all = ["keep", "detach"])]
    output: Option<PathBuf>,
    /// Keeps the output on the nodes, as a dataset of this name, and sends it to nobody.
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// The longest time that the job may take, counted from when its nodes are told of it, as in 90s, 15m or
    /// 2h; then it fails [default: no limit].
    #[arg(long, value_name = "LIMIT")]
    time: Option<TimeLimit>,
    #[command(flatten)]
    terms: TermsArgs,
    #[command(flatten)]
    qos: QosArgs,
    /// Sends the input files to the manager, prints the number of the job once the manager has stored all,
    /// and returns. Unless it becomes a dataset, the manager keeps the output: see `job output`.
    #[arg(long, conflicts_with_all = ["no_wait", "json"])]
    detach: bool,
    /// A file to which the summary is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The arguments of the application: all words that follow.
    #[arg(long, value_name = "ARG", num_args = 0.., allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The terms of a submission.
#[derive(Debug, Args)]
struct TermsArgs {
    /// Fails at once if the job cannot start, and does not wait in the queue.
    #[arg(long)]
    no_wait: bool,
    /// The priority in the queue, from -1000 to 1000. Jobs of a larger one start first.
    #[arg(long, value_name = "P", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i16).range(-1000..=1000))]
    priority: i16,
    /// The name of a node that does not take part. It can be given several times.
    #[arg(long, value_name = "NAME", add = shell::nodes())]
    exclude: Vec<String>,
    /// The number of a job that must be done before this one starts. If it fails, so does this one.
    #[arg(long, value_name = "JOB", value_parser = job_id, conflicts_with = "no_wait", add = shell::jobs())]
    after: Option<JobId>,
    /// Puts the job back into the queue if one of its nodes dies, at most five times. Otherwise it fails.
    #[arg(long)]
    requeue: bool,
}

impl TermsArgs {
    fn terms(self) -> Terms {
        let Self { no_wait, priority, exclude, after, requeue } = self;
        Terms { wait: !no_wait, priority, exclude, after, requeue, detach: false }
    }
}

/// The quality of service of a job's RDMA.
#[derive(Debug, Args)]
struct QosArgs {
    /// The priority of the job's RDMA: low, normal or high. It has an effect on nodes whose LITE has a scheme
    /// [default: what the operator has chosen, or normal].
    #[arg(long, value_name = "P")]
    rdma_priority: Option<RdmaPriority>,
    /// The most bytes per second that the job moves by RDMA on each of its nodes, as in 500MB/s. What exceeds
    /// it waits [default: what the operator has chosen, or no limit].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rdma_limit: Option<u64>,
    /// The most RDMA operations of the job that are outstanding on each of its nodes. Others wait [default:
    /// what the operator has chosen, or no limit].
    #[arg(long, value_name = "N", value_parser = outstanding)]
    rdma_outstanding: Option<u32>,
}

impl QosArgs {
    const fn qos(&self) -> JobQos {
        JobQos {
            priority: self.rdma_priority,
            bytes_per_second: self.rdma_limit,
            outstanding: self.rdma_outstanding,
        }
    }
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let mut client = args.manager.connect()?;
        let jobs = client.job_list(args.all)?;
        Ok(List { table: queue::table(&jobs, queue::unix_ms()), json: jobs_json(&jobs) })
    })
}

fn wait(args: &WaitArgs) -> Result<()> {
    let details = args.manager.connect()?.job_wait(args.job, Duration::from_secs(args.timeout))?;
    print!("{}", queue::details(&details, queue::unix_ms()));
    match details.info.state {
        JobState::Ended(JobEnd::Done { .. }) => Ok(()),
        state => Err(JobFailed(format!("job {}: {}", args.job.0, state.reason())).into()),
    }
}

fn output(args: &OutputArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    client.check_output(args.job)?;
    if !args.now {
        let details = client.job_wait(args.job, Duration::from_secs(args.timeout))?;
        if !matches!(details.info.state, JobState::Ended(JobEnd::Done { .. })) {
            return Err(JobFailed(format!("job {}: {}", args.job.0, details.info.state.reason())).into());
        }
    }
    match &args.output {
        Some(file) => {
            let mut output = Output::create(file)?;
            signals::remove_when_stopped(output.temporary())?;
            client.job_output(args.job, &mut |bytes| output.write(bytes))?;
            Ok(output.finish()?)
        }
        None => Ok(client.job_output(args.job, &mut print_bytes)?),
    }
}

fn logs(args: &LogsArgs) -> Result<()> {
    Ok(args.manager.connect()?.job_log(args.job, args.follow, &mut print_bytes)?)
}

/// Writes bytes to standard output, at once.
fn print_bytes(bytes: &[u8]) -> Result<(), ClientError> {
    let mut out = io::stdout().lock();
    let failed = |source| ClientError::Output { path: "standard output".into(), source };
    out.write_all(bytes).and_then(|()| out.flush()).map_err(failed)
}

fn show(args: &ShowArgs) -> Result<()> {
    args.list.show(|| {
        let details = args.manager.connect()?.job_show(args.job)?;
        let table = queue::details(&details, queue::unix_ms());
        Ok(List { table, json: job_details_json(&details) })
    })
}

/// Divides inputs into files and the names of datasets.
fn divided(inputs: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<String>) {
    let (mut files, mut datasets) = (Vec::new(), Vec::new());
    for input in inputs {
        match input.to_str().and_then(|text| text.strip_prefix(Dataset::SCHEME)) {
            Some(name) => datasets.push(name.to_owned()),
            None => files.push(input),
        }
    }
    (files, datasets)
}

fn submit(args: SubmitArgs) -> Result<()> {
    let (files, datasets) = divided(args.input);
    let inputs = Inputs::open(&files)?;
    let mut output = args.output.as_deref().map_or_else(|| Ok(Output::none()), Output::create)?;
    if args.output.is_some() {
        signals::remove_when_stopped(output.temporary())?;
    }
    let mut client = args.manager.connect()?;
    let names = names(&mut client)?;
    let progress = Progress::new(inputs.total());
    let job = Job {
        app: args.app,
        args: args.args,
        nodes: args.nodes.unwrap_or(0),
        on: args.on,
        limit: args.time.map(TimeLimit::get),
        datasets,
        keep: args.keep,
        terms: args.terms.terms(),
        qos: args.qos.qos(),
    };
    if args.detach {
        let sent = client.submit_detached(&job, &inputs, &|update| progress.show(update));
        progress.end();
        println!("{}", sent?.0);
        return Ok(());
    }
    let accepted = AtomicBool::new(false);
    let done = client.submit(&job, inputs, &mut output, &|update| {
        if matches!(update, Update::Accepted { .. }) {
            accepted.store(true, Ordering::Relaxed);
        }
        progress.show(update);
    });
    progress.end();
    let done = done.map_err(|error| match error {
        ClientError::Failed(reason) if accepted.load(Ordering::Relaxed) => JobFailed(reason).into(),
        error => anyhow::Error::from(error),
    })?;
    output.finish()?;
    print!("{}", report::summary(&job, &done, &names));
    match &args.json {
        Some(file) => write_whole(file, report::job_json(&job, &done, &names).to_string().as_bytes()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Jobs {
        #[command(subcommand)]
        verb: Verb,
    }

    #[test]
    fn arguments_of_the_application_may_look_like_options() {
        let words = ["job", "submit", "--app", "a", "--input", "i", "--output", "o", "--args", "-v", "x"];
        let Verb::Submit(args) = Jobs::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).verb else {
            panic!("another command")
        };
        assert_eq!(args.args, ["-v", "x"]);
    }

    #[test]
    fn a_quality_of_service_is_checked_when_it_is_read() {
        let parse = |words: &[&str]| {
            let first = ["job", "submit", "--app", "a", "--output", "o"];
            Jobs::try_parse_from(first.iter().chain(words)).map(|jobs| match jobs.verb {
                Verb::Submit(args) => args.qos.qos(),
                _ => panic!("another command"),
            })
        };
        let words = ["--rdma-priority", "low", "--rdma-limit", "2MB/s", "--rdma-outstanding", "9"];
        let all = JobQos {
            priority: Some(RdmaPriority::Low),
            bytes_per_second: Some(2_000_000),
            outstanding: Some(9),
        };
        assert_eq!(parse(&words).ok(), Some(all));
        assert_eq!(parse(&[]).ok(), Some(JobQos::default()));
        for (word, value, why) in [
            ("--rdma-priority", "7", "want low, normal or high"),
            ("--rdma-limit", "2MB", "want a rate as in 500MB/s"),
            ("--rdma-limit", "1B/s", "want a rate as in 500MB/s"),
            ("--rdma-outstanding", "0", "want a number from 1 to 65535"),
        ] {
            let refused = parse(&[word, value]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(why), "{word} {value}: {refused}");
        }
    }
}
