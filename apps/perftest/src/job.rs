//! perftest as a job: the arguments are its command line; the output is its table and the JSON line. A server
//! serves members of the cluster, or only the address that `--peer` names.

use crate::buffer::Buffers;
use crate::{Error, Options, Perftest};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::net::Ipv4Addr;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, Arg, BoxFuture, JobContext, JobError, Syntax};

/// Bytes of memory in addition to the buffers: queues, times.
const BESIDE: u64 = 4 << 20;

/// The words of a command line of perftest, which have its own syntax.
const WORDS: &str = "PROGRAM [OPTION]... [SERVER]";
const SYNTAX: Syntax = Syntax {
    name: "perftest",
    about: "perftest's ib_{write,read,send,atomic}_{lat,bw}, server or client",
    args: &[Arg::words(WORDS)],
};

/// The perftest application.
pub struct Job(pub Arc<Perftest>);

impl App for Job {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn memory_needed(&self, start: &JobStart) -> u64 {
        // Arguments that cannot be parsed are refused by `check`.
        options(start).map_or(0, |options| Buffers::needed(&options)).saturating_add(BESIDE)
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        if start.nodes.len() != 1 {
            return Err(JobError::Refused(SYNTAX.complaint("want one node")));
        }
        options(start).map(drop).map_err(JobError::Refused)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            let options = options(job.start()).map_err(JobError::Refused)?;
            let failed = |error: Error| JobError::Refused(alloc::format!("{}: {error}", options.program));
            // A server's key gives access to memory of this node. Members have a key anyway; other clients
            // must be named.
            let is_member = |client: Ipv4Addr| {
                let client = Some(client.octets());
                job.lite().members().iter().any(|member| member.gid.ipv4() == client)
            };
            let report = self.0.run_for(&options, &is_member).await.map_err(failed)?;
            let mut output = job.output();
            output.write(report.text.as_bytes()).await?;
            output.write(report.json.as_bytes()).await?;
            output.finish().await?;
            Ok(JobReport::default())
        })
    }
}

fn options(start: &JobStart) -> Result<Options, String> {
    let args = SYNTAX.read(&start.args)?;
    Options::parse(args.all(WORDS)).map_err(|why| SYNTAX.complaint(&why))
}
