//! The connection of a client to the manager that leads, among several.

use super::{Client, ClientError, Connection, REPLY_TIMEOUT, addresses};
use crate::key::Credential;
use proto::channel::Role;
use proto::{Hello, PROTOCOL_VERSION, ToClient, is_standby, leader_of, printable, version_after};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time that each of several managers has to answer at first: one of them may be stopped.
const QUICK: Duration = Duration::from_secs(1);
/// The time for which a client waits until a manager leads.
const ELECTION: Duration = Duration::from_secs(5);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

impl Client {
    /// Connects to `address` (`host:port`) within [`REPLY_TIMEOUT`]. Commas separate the addresses of several
    /// managers, of which the client finds the one that leads. While none leads, it tries for 5 s.
    pub fn connect(address: &str, key: impl Into<Credential>) -> Result<Self, ClientError> {
        let key = key.into();
        let (named, deadline) = (addresses(address), Instant::now() + ELECTION);
        let mut limit = if named.len() > 1 { QUICK } else { REPLY_TIMEOUT };
        loop {
            let round = Round::of(&named, limit, &key);
            match round.connected {
                Some(connection) => {
                    return Ok(Self { connection: connection?, address: address.into(), key });
                }
                None if !round.stands_by || Instant::now() >= deadline => return Err(round.failure()),
                None => {}
            }
            // A manager that is slow is given more time, but one that is stopped must not cost all of it.
            limit = (limit * 2).min(REPLY_TIMEOUT);
            std::thread::sleep(PAUSE);
        }
    }
}

/// The result of one attempt at each manager.
#[derive(Default)]
struct Round {
    /// The connection, or an error that no other manager changes.
    connected: Option<Result<Connection, ClientError>>,
    /// True if some manager is a standby, or was one a moment ago.
    stands_by: bool,
    /// The addresses, each with the reason why it is not the leader's.
    failures: Vec<(String, ClientError)>,
}

impl Round {
    /// Tries each address, and those of leaders that standbys name.
    fn of(named: &[&str], limit: Duration, key: &Credential) -> Self {
        let mut round = Self::default();
        let mut queue: VecDeque<String> = named.iter().map(|&address| address.into()).collect();
        while let Some(address) = queue.pop_front() {
            if round.failures.iter().any(|(tried, _)| *tried == address) {
                continue;
            }
            let error = match connect_to(PROTOCOL_VERSION, &address, limit, key) {
                Err(ClientError::Failed(reason)) if is_standby(&reason) => {
                    round.stands_by = true;
                    if let Some(leader) = leader_of(&reason) {
                        queue.push_front(leader.into());
                    }
                    ClientError::Leaderless(reason)
                }
                Err(
                    error @ (ClientError::Unreachable { .. } | ClientError::Silent(_) | ClientError::Lost(_)),
                ) => {
                    // A manager that has just been elected closes connections.
                    round.stands_by |= named.len() > 1 && matches!(error, ClientError::Lost(_));
                    error
                }
                other => {
                    round.connected = Some(other);
                    return round;
                }
            };
            round.failures.push((address, error));
        }
        round
    }

    /// Returns the error of a round without a connection.
    fn failure(mut self) -> ClientError {
        if let [_] = self.failures[..]
            && let Some((_, error)) = self.failures.pop()
        {
            return error;
        }
        let each = self.failures.iter().map(|(address, error)| match error {
            // The error names the address.
            ClientError::Unreachable { .. } => error.to_string(),
            _ => format!("{address}: {error}"),
        });
        let each = each.collect::<Vec<_>>().join("; ");
        ClientError::Leaderless(format!("no manager leads: {each}"))
    }
}

fn connect_to(
    version: u16,
    address: &str,
    limit: Duration,
    key: &Credential,
) -> Result<Connection, ClientError> {
    let mut connection = match key {
        Credential::Cluster(key) => Connection::open_within(address, key, Role::Client, limit)?,
        Credential::User(key) => Connection::open_as_within(address, key, limit)?,
    };
    connection.sending.send(&Hello::Client { version })?;
    match connection.receiving.receive(Some(limit))? {
        ToClient::Hello => Ok(connection),
        ToClient::Failed { reason } => match version_after(version, &reason) {
            Some(lower) => connect_to(lower, address, limit, key),
            None => Err(ClientError::Failed(printable(&reason))),
        },
        ToClient::Refused { kind, reason } => Err(ClientError::refused(kind, &reason)),
        _ => Err(ClientError::Unexpected),
    }
}
