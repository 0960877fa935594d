//! Requests by people and programs over HTTP, which the core handles as those of a client: the same rules
//! and the same audit log.

use proto::channel::UserId;
use proto::{FromClient, Reason, Refusal, ToClient, printable};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of requests that may wait for the core's task.
const WAITING: usize = 64;

/// A request for the core.
#[derive(Debug)]
pub(crate) struct Ask {
    /// The address of the asker, for people.
    pub(crate) peer: String,
    /// The user who asks; `None` for a holder of the cluster's key for clients.
    pub(crate) user: Option<UserId>,
    pub(crate) request: FromClient,
    /// The receiver of the answers. It is gone if nobody waits any more.
    pub(crate) answer: oneshot::Sender<Vec<ToClient>>,
}

/// The way from requests over HTTP to the core's task.
#[derive(Debug)]
pub(crate) struct Asks(mpsc::Sender<Ask>);

/// The reason why a request was not done.
#[derive(Debug)]
pub(super) struct Refused {
    /// The kind of the refusal, if the manager has named one.
    pub(super) kind: Option<Refusal>,
    pub(super) reason: Reason,
}

impl Asks {
    /// Returns the way, and its end at the core's task.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Ask>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Lets the core handle a request, and returns its answers, of which there is at least one.
    pub(super) async fn ask(
        &self,
        peer: String,
        user: Option<UserId>,
        request: FromClient,
    ) -> Result<Vec<ToClient>, Refused> {
        let stopped = |reason: &str| Refused { kind: None, reason: reason.into() };
        let (answer, answers) = oneshot::channel();
        let ask = Ask { peer, user, request, answer };
        self.0.send(ask).await.map_err(|_| stopped("the manager stops"))?;
        let late = |_| Refused { kind: Some(Refusal::TimedOut), reason: "no answer in time".into() };
        let answers = timeout(LIMIT, answers).await.map_err(late)?;
        let answers = answers.map_err(|_| stopped("the request was cut off"))?;
        match answers.last() {
            None => Err(stopped("the request was cut off")),
            Some(ToClient::Failed { reason }) => Err(stopped(&printable(reason))),
            Some(ToClient::Refused { kind, reason }) => {
                Err(Refused { kind: Some(*kind), reason: printable(reason) })
            }
            Some(_) => Ok(answers),
        }
    }
}
