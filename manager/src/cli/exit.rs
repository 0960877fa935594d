//! The exit status of a command.

use manager::client::ClientError;
use proto::Refusal;
use proto::channel::ChannelError;
use std::process::ExitCode;

/// A job that was accepted and has failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct JobFailed(pub(super) String);

/// The class of a failure. Its number is the exit status; clap ends with 2 for arguments that are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Failure {
    Other = 1,
    Usage = 2,
    Unreachable = 3,
    Denied = 4,
    NotFound = 5,
    TimedOut = 6,
    JobFailed = 7,
}

impl Failure {
    /// Returns the class of an error.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        if error.is::<JobFailed>() {
            return Self::JobFailed;
        }
        match error.downcast_ref::<ClientError>() {
            Some(ClientError::Address { .. }) => Self::Usage,
            Some(ClientError::Unreachable { .. } | ClientError::Silent(_) | ClientError::Lost(_)) => {
                Self::Unreachable
            }
            Some(ClientError::Channel(ChannelError::WrongKey) | ClientError::Key(_)) => Self::Denied,
            Some(ClientError::Refused { kind, .. }) => match kind {
                Refusal::Denied => Self::Denied,
                Refusal::NotFound => Self::NotFound,
                Refusal::TimedOut => Self::TimedOut,
            },
            _ => Self::Other,
        }
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        Self::from(failure as u8)
    }
}
