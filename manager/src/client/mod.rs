//! The client's side of the manager's protocol. It has threads of its own only while a job runs.

mod connection;
mod files;
mod group;
mod machine;
mod node;
mod rollout;
mod spooled;
mod submit;
mod users;

pub use connection::{Connection, Receiving, Sending, addresses};
pub use files::{Inputs, Output};
pub use node::Drain;
pub(crate) use spooled::no_output;
pub use submit::{Job, Outcome, Update};

use crate::backup::Backup;
use crate::key::Credential;
use proto::channel::{ChannelError, WrongRole};
use proto::{
    DatasetStatus, FromClient, JobDetails, JobId, JobInfo, Malformed, NodeId, NodeStatus, Reason, Refusal,
    ToClient, printable,
};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest time to wait for a reply that the manager sends at once.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a shutdown of the cluster may take, beyond the time for which the manager waits for its
/// nodes.
const SHUTDOWN: Duration = Duration::from_secs(60);

/// The reason why a client cannot continue. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the manager cannot be resolved.
    #[error("{address} is not an address of a manager: {source}")]
    Address {
        /// The address as given.
        address: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// Nothing listens at the address, or it cannot be reached.
    #[error("no manager at {address}: {source}")]
    Unreachable {
        /// The address as given.
        address: String,
        /// The error of the connection attempt.
        source: io::Error,
    },
    /// The manager has not replied within this time.
    #[error("the manager does not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// No manager of a group leads, or the one that does cannot be reached.
    #[error("{0}")]
    Leaderless(String),
    /// The secure channel failed, most likely because of the key.
    #[error("cannot talk to the manager: {0}")]
    Channel(#[from] ChannelError),
    /// The key belongs to another role.
    #[error(transparent)]
    Key(#[from] WrongRole),
    /// The connection broke.
    #[error("the connection to the manager was lost: {0}")]
    Lost(io::Error),
    /// The manager sent a message that the protocol does not allow here.
    #[error("the manager sent an unexpected message")]
    Unexpected,
    /// A message of the manager cannot be decoded.
    #[error("the manager sent a {0}")]
    Malformed(#[from] Malformed),
    /// The manager refused, or the job failed.
    #[error("{0}")]
    Failed(Reason),
    /// The manager refused, for a reason that programs tell from others.
    #[error("{reason}")]
    Refused {
        /// The kind of the refusal.
        kind: Refusal,
        /// The reason.
        reason: Reason,
    },
    /// An input file cannot be read.
    #[error("input {}: {source}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The output file cannot be written.
    #[error("output {}: {source}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The operating system returns no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

impl ClientError {
    /// Returns the error of a refusal, also of one that a client finds without the manager.
    #[must_use]
    pub fn refused(kind: Refusal, reason: &str) -> Self {
        Self::Refused { kind, reason: printable(reason) }
    }
}

/// A client that the manager has accepted.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// The manager, for a job that outlives the connection.
    address: String,
    key: Credential,
}

impl Client {
    /// Returns the members of the cluster.
    pub fn nodes(&mut self) -> Result<Vec<NodeStatus>, ClientError> {
        self.list_nodes(&FromClient::Nodes { after: NodeId(0) }, REPLY_TIMEOUT)
    }

    /// Returns the members once there are `count`.
    pub fn wait_nodes(&mut self, count: u16, timeout: Duration) -> Result<Vec<NodeStatus>, ClientError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.list_nodes(&FromClient::WaitNodes { count, timeout_ms }, timeout.saturating_add(REPLY_TIMEOUT))
    }

    /// Asks for the first page of a list of members, and then for the others.
    fn list_nodes(&mut self, first: &FromClient, timeout: Duration) -> Result<Vec<NodeStatus>, ClientError> {
        let mut all = Vec::new();
        let mut answer = self.ask(first, timeout)?;
        loop {
            let ToClient::Nodes { nodes, more } = answer else { return Err(ClientError::Unexpected) };
            all.extend(nodes);
            let Some(last) = all.last().filter(|_| more).map(|status| status.node) else { return Ok(all) };
            answer = self.ask(&FromClient::Nodes { after: last }, REPLY_TIMEOUT)?;
        }
    }

    /// Returns the jobs by number: those that wait, run or end, and if `ended` is true the history as well.
    pub fn job_list(&mut self, ended: bool) -> Result<Vec<JobInfo>, ClientError> {
        let (mut all, mut after) = (Vec::new(), JobId(0));
        loop {
            let ToClient::JobList { jobs, more } =
                self.ask(&FromClient::JobList { after, ended }, REPLY_TIMEOUT)?
            else {
                return Err(ClientError::Unexpected);
            };
            all.extend(jobs);
            match all.last().filter(|_| more) {
                Some(last) => after = last.job,
                None => return Ok(all),
            }
        }
    }

    /// Returns all that the manager knows of a job.
    pub fn job_show(&mut self, job: JobId) -> Result<JobDetails, ClientError> {
        match self.ask(&FromClient::JobShow { job }, REPLY_TIMEOUT)? {
            ToClient::JobShown(details) => Ok(*details),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Waits until a job has ended, and returns all that the manager knows of it. If the manager is restarted
    /// meanwhile, the client connects again and goes on.
    pub fn job_wait(&mut self, job: JobId, timeout: Duration) -> Result<JobDetails, ClientError> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let wait = FromClient::JobWait { job, timeout_ms };
            match self.ask(&wait, left.saturating_add(REPLY_TIMEOUT)) {
                Ok(ToClient::JobShown(details)) => return Ok(*details),
                Ok(_) => return Err(ClientError::Unexpected),
                Err(ClientError::Lost(_)) => self.connect_again()?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Connects again to a manager that is restarted.
    fn connect_again(&mut self) -> Result<(), ClientError> {
        self.connection = submit::reconnect(&self.address, &self.key)?;
        Ok(())
    }

    /// Ends a job, also one of another client. Its nodes are idle once they have ended their part.
    pub fn cancel(&mut self, job: JobId) -> Result<(), ClientError> {
        match self.ask(&FromClient::Cancel { job }, REPLY_TIMEOUT)? {
            ToClient::Cancelled { job: cancelled } if cancelled == job => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns the datasets, by name.
    pub fn datasets(&mut self) -> Result<Vec<DatasetStatus>, ClientError> {
        match self.ask(&FromClient::Datasets, REPLY_TIMEOUT)? {
            ToClient::Datasets(datasets) => Ok(datasets),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Frees a dataset.
    pub fn drop_dataset(&mut self, name: &str) -> Result<(), ClientError> {
        match self.ask(&FromClient::DropDataset { name: name.into() }, REPLY_TIMEOUT)? {
            ToClient::Dropped { name: dropped } if dropped == name => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Reads the state of the manager.
    pub fn backup(&mut self) -> Result<Backup, ClientError> {
        let mut state = Vec::new();
        let mut answer = self.ask(&FromClient::Backup, REPLY_TIMEOUT)?;
        loop {
            let ToClient::Backup { bytes, more } = answer else { return Err(ClientError::Unexpected) };
            state.extend(bytes);
            if !more {
                return Backup::received(&state).map_err(|_| ClientError::Unexpected);
            }
            answer = self.connection.receiving.receive(Some(REPLY_TIMEOUT))?;
        }
    }

    /// Returns a report that helps to find a fault: one JSON object, without keys.
    pub fn support(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut report = Vec::new();
        let mut answer = self.ask(&FromClient::Support, REPLY_TIMEOUT)?;
        loop {
            let ToClient::Support { bytes, more } = answer else { return Err(ClientError::Unexpected) };
            report.extend(bytes);
            if !more {
                return Ok(report);
            }
            answer = self.connection.receiving.receive(Some(REPLY_TIMEOUT))?;
        }
    }

    fn ask(&mut self, question: &FromClient, timeout: Duration) -> Result<ToClient, ClientError> {
        self.connection.sending.send(question)?;
        self.answer(timeout)
    }

    /// Receives an answer, within a timeout.
    fn answer(&mut self, timeout: Duration) -> Result<ToClient, ClientError> {
        let answer: ToClient = self.connection.receiving.receive(Some(timeout))?;
        match answer.with_whole_details() {
            ToClient::Failed { reason } => Err(ClientError::Failed(printable(&reason))),
            ToClient::Refused { kind, reason } => Err(ClientError::refused(kind, &reason)),
            answer => Ok(answer),
        }
    }

    /// Makes all nodes leave and power off. Returns once they have left.
    pub fn shutdown(&mut self) -> Result<(), ClientError> {
        match self.ask(&FromClient::Shutdown, SHUTDOWN)? {
            ToClient::Done { .. } => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }
}
