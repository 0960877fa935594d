//! The queue of jobs: the terms of a submission, and the state and history of jobs.

use crate::{InputFile, JobId, JobQos, JobReport, Reason};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A job as a client asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequest {
    /// The application.
    pub app: String,
    /// The arguments of the application.
    pub args: Vec<String>,
    /// The number of nodes, 0 for all.
    pub nodes: u16,
    /// The names of the nodes, by rank. If it is not empty, `nodes` is ignored.
    pub on: Vec<String>,
    /// The input files.
    pub inputs: Vec<InputFile>,
    /// The names of the datasets that the job reads behind the files.
    pub datasets: Vec<String>,
    /// The name of the dataset that the output becomes. `None`: the output is sent to the client.
    pub keep: Option<String>,
    /// The time limit of the job, in milliseconds from its start message to the nodes, after which it
    /// fails. `None`: no limit.
    pub limit_ms: Option<u64>,
}

/// The terms on which a job is submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// True if the job waits in the queue until it can start. Otherwise it is refused if it cannot start at
    /// once; it waits only for nodes that are about to be idle.
    pub wait: bool,
    /// The priority. Jobs of a larger one start first; the usual one is 0.
    pub priority: i16,
    /// The names of nodes on which the job does not run.
    pub exclude: Vec<String>,
    /// The job that must be done before. If that job fails, this one does.
    pub after: Option<JobId>,
    /// True if the job goes back to the queue when one of its nodes dies. Otherwise it fails.
    pub requeue: bool,
    /// True if the job has no client: the connection that submits it has no more to do with it, once the
    /// manager has the input files. The manager keeps the output, unless it becomes a dataset.
    pub detach: bool,
}

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEnd {
    /// All nodes have done their parts.
    Done {
        /// The time from the last byte of input until the last node was done, in microseconds.
        run_us: u64,
        /// The time from the first byte of input to the last, in microseconds.
        stream_us: u64,
    },
    /// The job has failed.
    Failed {
        /// The reason, which names the node if one node is the cause.
        reason: Reason,
    },
    /// A client has cancelled the job.
    Cancelled {
        /// The client, for people.
        by: String,
    },
    /// The job has taken longer than its limit.
    TimedOut {
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
}

impl JobEnd {
    /// Returns the end as one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
            Self::Cancelled { .. } => "cancelled",
            Self::TimedOut { .. } => "timed-out",
        }
    }

    /// Returns the reason for people; empty if the job is done.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Done { .. } => String::new(),
            Self::Failed { reason } => reason.clone(),
            Self::Cancelled { by } => format!("cancelled by {by}"),
            Self::TimedOut { limit_ms } => {
                let limit = core::time::Duration::from_millis(*limit_ms).as_secs_f64();
                format!("the job has taken longer than its limit of {limit} s")
            }
        }
    }
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// The job waits in the queue.
    Queued {
        /// The reason.
        reason: Reason,
    },
    /// The nodes have been sent the start message and have not all accepted.
    Starting,
    /// The input is being sent to the nodes.
    Loading,
    /// The nodes compute.
    Running,
    /// The job has failed or was cancelled, and some nodes have not ended their part yet.
    Ending {
        /// The nodes that have not, for people.
        reason: Reason,
    },
    /// The job has ended.
    Ended(JobEnd),
}

impl JobState {
    /// Returns the state as one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Starting => "starting",
            Self::Loading => "loading",
            Self::Running => "running",
            Self::Ending { .. } => "ending",
            Self::Ended(end) => end.word(),
        }
    }

    /// Returns the reason of the state, for people; empty if there is none.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Queued { reason } | Self::Ending { reason } => reason.clone(),
            Self::Ended(end) => end.reason(),
            Self::Starting | Self::Loading | Self::Running => String::new(),
        }
    }
}

/// A job as the queue and the history show it. Times are milliseconds of Unix time, by the manager's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// The number that the job had first, which stays while it starts again.
    pub job: JobId,
    /// The application.
    pub app: String,
    /// The client that has submitted the job, for people.
    pub by: String,
    /// The state.
    pub state: JobState,
    /// The names of the nodes by rank; empty before the start.
    pub nodes: Vec<String>,
    /// The number of nodes that are wanted, 0 for all.
    pub wanted: u16,
    /// The priority.
    pub priority: i16,
    /// The time of the submission.
    pub submitted_ms: u64,
    /// The time of the last start.
    pub started_ms: Option<u64>,
    /// The time of the end.
    pub ended_ms: Option<u64>,
    /// The time limit, in milliseconds.
    pub limit_ms: Option<u64>,
    /// The number of times that the job went back to the queue.
    pub requeues: u8,
    /// True if the job has no client.
    pub detached: bool,
    /// The length of the output that the manager was given to keep, in bytes, so far.
    pub output_bytes: Option<u64>,
    /// The length of the log that the manager keeps, in bytes, so far.
    pub log_bytes: Option<u64>,
    /// True if the manager does not keep the output and the log any longer.
    pub expired: bool,
}

/// A job with the reports of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDetails {
    /// The job.
    pub info: JobInfo,
    /// The reports, each with the name of its node, by rank.
    pub reports: Vec<(String, JobReport)>,
    /// The quality of service that the job gets. [`ToClient::JobShownWith`](crate::ToClient::JobShownWith)
    /// has it: clients of older versions do not read it here.
    #[serde(skip)]
    pub qos: JobQos,
}
