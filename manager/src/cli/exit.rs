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
            Some(
                ClientError::Unreachable { .. }
                | ClientError::Silent(_)
                | ClientError::Lost(_)
                | ClientError::Leaderless(_),
            ) => Self::Unreachable,
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

/// Returns an error and its causes in one line. A cause that a message before it has in its own text is not
/// repeated.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        Self::from(failure as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_has_each_cause_once() {
        let read = || std::io::Error::other("no such thing");
        let context = Err::<(), _>(read()).context("cannot read a").context("cannot start").unwrap_err();
        assert_eq!(sentence(&context), "cannot start: cannot read a: no such thing");
        let told = ClientError::Unreachable { address: "a:1".into(), source: read() };
        assert_eq!(sentence(&told.into()), "no manager at a:1: no such thing");
        assert_eq!(sentence(&anyhow::anyhow!("two\n  lines")), "two lines");
    }
}
