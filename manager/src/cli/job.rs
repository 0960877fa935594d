//! `ferrolite job`: runs, lists and ends jobs.

use super::args::{ManagerArgs, count, job_id, write_whole};
use super::exit::JobFailed;
use super::progress::Progress;
use super::shown::{List, LsArgs};
use super::{names, report, shell, signals};
use anyhow::Result;
use clap::{Args, Subcommand};
use manager::client::{ClientError, Inputs, Job, Output, Update};
use platform::TimeLimit;
use proto::{Dataset, JobId};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Runs a job: streams the input files to the nodes and writes the output file.
    #[command(visible_alias = "run")]
    Submit(Box<SubmitArgs>),
    /// Lists the jobs that run, and those that are ending.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Ends a job. Its submission fails with that reason. Its nodes are idle once they have ended their part.
    Cancel(CancelArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Submit(args) => submit(*args),
            Self::Ls(args) => ls(&args),
            Self::Cancel(args) => Ok(args.manager.connect()?.cancel(args.job)?),
        }
    }
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
    #[arg(long, value_name = "FILE", required_unless_present = "keep", conflicts_with = "keep")]
    output: Option<PathBuf>,
    /// Keeps the output on the nodes, as a dataset of this name, and sends it to nobody.
    #[arg(long, value_name = "NAME")]
    keep: Option<String>,
    /// The longest time that the job may take, counted from when its nodes are told of it, as in 90s, 15m or
    /// 2h; then it fails [default: no limit].
    #[arg(long, value_name = "LIMIT")]
    time: Option<TimeLimit>,
    /// A file to which the summary is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The arguments of the application: all words that follow.
    #[arg(long, value_name = "ARG", num_args = 0.., allow_hyphen_values = true)]
    args: Vec<String>,
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let mut client = args.manager.connect()?;
        let jobs = client.jobs()?;
        let names = names(&mut client)?;
        Ok(List { table: report::jobs_table(&jobs, &names), json: report::jobs_json(&jobs, &names) })
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
    };
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
}
