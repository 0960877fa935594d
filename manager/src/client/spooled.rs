//! Jobs without a client: their submission, with the input files, and their output.

use super::submit::PIECE;
use super::{Client, ClientError, Inputs, Job, REPLY_TIMEOUT, Update};
use proto::{FromClient, JobDetails, JobEnd, JobId, JobState, Reason, Refusal, Terms, ToClient};
use std::time::Duration;

/// The time that the manager has to put the whole input on its disk after the last byte.
const STORE: Duration = Duration::from_secs(600);

/// The interval at which a log is read that is followed.
const LOOK: Duration = Duration::from_millis(500);

/// Returns the reason for which the manager does not have the output of a job.
pub(crate) fn no_output(details: &JobDetails) -> Reason {
    let why = if details.info.expired && details.info.output_bytes.is_some() {
        "is not kept any longer"
    } else {
        "is not kept by the manager"
    };
    format!("the output of job {} {why}", details.info.job.0)
}

fn not_found(reason: &str) -> ClientError {
    ClientError::refused(Refusal::NotFound, reason)
}

impl Client {
    /// Submits a job without a client, and returns its number once the manager has stored its input and has
    /// recorded it.
    pub fn submit_detached(
        &mut self,
        job: &Job,
        inputs: &Inputs,
        watch: &dyn Fn(Update<'_>),
    ) -> Result<JobId, ClientError> {
        let terms = Terms { wait: true, detach: true, ..job.terms.clone() };
        let number = match self.ask(&job.submission(inputs.describe(), terms), REPLY_TIMEOUT)? {
            ToClient::Submitted { job } => return Ok(job),
            ToClient::InputWanted { job } => job,
            _ => return Err(ClientError::Unexpected),
        };
        let (mut sent, total) = (0, inputs.total());
        let streamed = inputs.stream(PIECE, |bytes| {
            sent += bytes.len() as u64;
            self.connection.sending.send(&FromClient::Input { job: number, bytes })?;
            watch(Update::Input { sent, total });
            Ok(true)
        });
        match streamed {
            // The manager tells the reason before it ends the connection.
            Ok(()) | Err(ClientError::Lost(_)) => {}
            Err(error) => return Err(error),
        }
        match self.answer(STORE)? {
            ToClient::Submitted { job } if job == number => Ok(job),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Fails if this client may not fetch the output of a job, or if there will be none.
    pub fn check_output(&mut self, job: JobId) -> Result<(), ClientError> {
        // No output is so long that the answer has bytes.
        match self.ask(&FromClient::JobOutput { job, offset: u64::MAX }, REPLY_TIMEOUT)? {
            ToClient::JobOutput { .. } => Ok(()),
            ToClient::JobShown(details) => match details.info.state {
                JobState::Ended(JobEnd::Done { .. }) => Err(not_found(&no_output(&details))),
                _ => Ok(()),
            },
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Passes on the output of a job without a client, in order. The output of a job that runs is what the
    /// manager has so far.
    pub fn job_output(
        &mut self,
        job: JobId,
        give: &mut dyn FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut offset = 0;
        loop {
            match self.ask(&FromClient::JobOutput { job, offset }, REPLY_TIMEOUT)? {
                ToClient::JobOutput { bytes, whole } => {
                    give(&bytes)?;
                    offset += bytes.len() as u64;
                    if whole || bytes.is_empty() {
                        return Ok(());
                    }
                }
                ToClient::JobShown(details) => return Err(not_found(&no_output(&details))),
                _ => return Err(ClientError::Unexpected),
            }
        }
    }

    /// Passes on the lines that the nodes of a job have logged during its time, in order. With `follow` it
    /// returns when no more can come, also over a restart of the manager. `give` is called with no bytes at
    /// least each half second then.
    pub fn job_log(
        &mut self,
        job: JobId,
        follow: bool,
        give: &mut dyn FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut offset = 0;
        loop {
            match self.ask(&FromClient::JobLog { job, offset }, REPLY_TIMEOUT) {
                Ok(ToClient::JobLog { bytes, open }) => {
                    give(&bytes)?;
                    offset += bytes.len() as u64;
                    if bytes.is_empty() && !(follow && open) {
                        return Ok(());
                    }
                    if bytes.is_empty() {
                        std::thread::sleep(LOOK);
                    }
                }
                Ok(ToClient::JobShown(_)) => {
                    return Err(not_found(&format!("the log of job {} is not kept any longer", job.0)));
                }
                Ok(_) => return Err(ClientError::Unexpected),
                Err(ClientError::Lost(_)) if follow => self.connect_again()?,
                Err(error) => return Err(error),
            }
        }
    }
}
