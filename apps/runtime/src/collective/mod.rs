//! Collective operations of the nodes of a job: exchange, reduction, broadcast.
//!
//! All operations are exchanges: each node sends one message to each other node. A message that is too long
//! for a mailbox goes to an inbox, which the receiver has allocated, by WRITEs, and the message behind it, on
//! the same queue pair, says so. So an exchange needs n(n-1) messages, no READ, no call and no barrier.
//!
//! Each inbox has two halves, which the rounds use in turn. That suffices: a node sends round r + 2 only
//! after it has received all messages of round r + 1, and a node that has sent round r + 1 has read all of
//! round r.

mod file;
mod inbox;
mod message;

use crate::error::During;
use crate::{BoxFuture, JobContext, JobError};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use inbox::{Inbox, Outbox};
use lite::{FunctionId, Mailbox, RpcOptions};
use message::{Header, Place};
use proto::NodeId;

/// The longest wait for a message of another node. The death of such a node ends the job, and so the wait.
const PEER_TIMEOUT: Duration = Duration::from_secs(1800);
/// The first mailbox of collectives; the job's number and the collective's number are added.
const PORTS: FunctionId = 0x4a00_0000;
/// The length of the longest message, in bytes. Each configuration of LITE passes it through the ring.
const MESSAGE: usize = 4032;
/// The most bytes of a message behind its header.
const INLINE: usize = MESSAGE - Header::LEN;

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The sum, modulo 2^64.
    Sum,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
}

impl Reduce {
    fn of(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Sum => a.wrapping_add(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

/// A group of all nodes of a job that exchange data. See [`JobContext::collective`].
pub struct Collective {
    job: JobContext,
    port: FunctionId,
    mailbox: Option<Mailbox>,
    inbox: Inbox,
    /// The inboxes of the other nodes, by rank.
    outboxes: Vec<Outbox>,
    round: u64,
    /// Messages that came a round too early, by rank.
    early: Vec<Option<Vec<u8>>>,
}

impl fmt::Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collective {:#x} of job {}, round {}", self.port, self.job.id().0, self.round)
    }
}

/// Waits for all of `futures`. Fails with the first error, and drops the others then.
async fn all<T>(mut futures: Vec<BoxFuture<'_, Result<T, JobError>>>) -> Result<Vec<T>, JobError> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(Ok(value)) => *result = Some(value),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(results.into_iter().flatten().collect())
}

impl Collective {
    /// Opens collective `number` of the job. `rooms` has, by rank, the most bytes that arrive from each
    /// node in one message.
    pub(crate) async fn open(job: JobContext, number: u8, rooms: &[usize]) -> Result<Self, JobError> {
        let nodes = job.nodes().len();
        let port = PORTS | (job.id().0 as u32 & 0xffff) << 8 | u32::from(number);
        let (mut inbox, mut outboxes, mut mailbox) = (Inbox::default(), vec![Outbox::default(); nodes], None);
        if nodes > 1 {
            let options = RpcOptions { max_request: MESSAGE, queue: 4 * nodes };
            mailbox = Some(job.lite().open_mailbox(port, options).during("opening a mailbox")?);
            let name = |rank: usize| alloc::format!("collective/{number}/{rank}");
            inbox = Inbox::publish(&job, &name(job.rank()), rooms).await?;
            // From here on all mailboxes are open, and all inboxes published.
            job.barrier(&alloc::format!("collective/{number}")).await?;
            for (rank, outbox) in outboxes.iter_mut().enumerate().filter(|(rank, _)| *rank != job.rank()) {
                *outbox = Outbox::open(&job, &name(rank), rank).await?;
            }
        }
        Ok(Self { early: vec![None; nodes], job, port, mailbox, inbox, outboxes, round: 0 })
    }

    /// Returns the job.
    #[must_use]
    pub fn job(&self) -> &JobContext {
        &self.job
    }

    /// Sends `to[r]` to the node of rank r, and returns the data of all nodes for this one, by rank. All
    /// nodes of the job must call this. Data that is longer than the room of the receiver goes in several
    /// rounds of messages, otherwise one message is sent for each ordered pair of nodes.
    ///
    /// # Errors
    /// Errors of LITE, [`JobError::Malformed`] if another node sends nonsense.
    pub fn exchange(&mut self, to: Vec<Vec<u8>>) -> BoxFuture<'_, Result<Vec<Vec<u8>>, JobError>> {
        Box::pin(self.exchange_rounds(to))
    }

    async fn exchange_rounds(&mut self, mut to: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, JobError> {
        let me = self.job.rank();
        to.resize_with(self.outboxes.len(), Vec::new);
        let mut from = vec![Vec::new(); to.len()];
        if let (Some(own), Some(into)) = (to.get_mut(me), from.get_mut(me)) {
            *into = core::mem::take(own);
        }
        if self.mailbox.is_none() {
            return Ok(from);
        }
        let pieces = to.iter().zip(&self.outboxes).map(|(data, outbox)| data.len().div_ceil(outbox.room()));
        let mut rounds = pieces.max().unwrap_or(0).max(1) as u32;
        let mut done = 0;
        while done < rounds {
            self.send_round(&to, done as usize, rounds).await?;
            for (rank, message) in self.receive_round().await? {
                let (header, data) = self.read(rank, message).await?;
                rounds = rounds.max(header.rounds);
                let into = from.get_mut(rank).ok_or(JobError::Malformed { rank })?;
                if into.is_empty() {
                    *into = data;
                } else {
                    into.extend_from_slice(&data);
                }
            }
            self.round += 1;
            done += 1;
        }
        Ok(from)
    }

    /// Reduces each of `values` over all nodes. Every node must pass the same number of values, and gets the
    /// same result.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub async fn all_reduce(&mut self, values: &[u64], how: Reduce) -> Result<Vec<u64>, JobError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut result: Option<Vec<u64>> = None;
        for (rank, other) in self.all_gather(bytes).await?.into_iter().enumerate() {
            let (words, rest) = other.as_chunks::<8>();
            if words.len() != values.len() || !rest.is_empty() {
                return Err(JobError::Malformed { rank });
            }
            let other = words.iter().map(|word| u64::from_le_bytes(*word));
            match &mut result {
                None => result = Some(other.collect()),
                Some(result) => {
                    result.iter_mut().zip(other).for_each(|(into, value)| *into = how.of(*into, value));
                }
            }
        }
        Ok(result.unwrap_or_default())
    }

    /// Sends the same data to all nodes, and returns the data of each node, by rank.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub async fn all_gather(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, JobError> {
        let nodes = self.outboxes.len();
        self.exchange(vec![bytes; nodes]).await
    }

    /// Returns the data of the node of rank `root`. The data that the other nodes pass is dropped.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub async fn broadcast(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<u8>, JobError> {
        let bytes = if self.job.rank() == root { bytes } else { Vec::new() };
        let mut all = self.all_gather(bytes).await?;
        Ok(all.get_mut(root).map(core::mem::take).unwrap_or_default())
    }

    /// Frees the inbox before the end of the job. All nodes must call this. No exchange may follow.
    ///
    /// # Errors
    /// Errors of LITE.
    pub async fn close(mut self) -> Result<(), JobError> {
        // A node that still reads its inbox has not passed this exchange.
        self.exchange(Vec::new()).await?;
        self.outboxes.clear();
        self.inbox.free(&self.job).await
    }

    /// Sends piece `number` of the data for each other node.
    async fn send_round(&self, to: &[Vec<u8>], number: usize, rounds: u32) -> Result<(), JobError> {
        let others = to.iter().zip(&self.outboxes).zip(self.job.nodes()).enumerate();
        let sends = others.filter(|(rank, _)| *rank != self.job.rank()).map(|(_, ((data, outbox), node))| {
            let room = outbox.room();
            let begin = (number * room).min(data.len());
            let piece = data.get(begin..(begin + room).min(data.len())).unwrap_or_default();
            Box::pin(self.send(outbox, *node, piece, rounds)) as BoxFuture<'_, _>
        });
        all(sends.collect()).await.map(drop)
    }

    async fn send(&self, outbox: &Outbox, node: NodeId, data: &[u8], rounds: u32) -> Result<(), JobError> {
        let place = if data.len() > INLINE { Place::Inbox } else { Place::Message };
        let header =
            Header { job: self.job.id().0, round: self.round, rounds, place, len: data.len() as u64 };
        let mut message = header.emit();
        if place == Place::Inbox {
            return outbox.write_notify(self.round, data, self.port, &message).await;
        }
        message.extend_from_slice(data);
        self.job.waiting_lite().send(node, self.port, &message).await.during("sending to another node")
    }

    /// Returns the messages of this round, by rank.
    async fn receive_round(&mut self) -> Result<Vec<(usize, Vec<u8>)>, JobError> {
        let Some(mailbox) = &self.mailbox else { return Ok(Vec::new()) };
        let mut messages: Vec<_> =
            self.early.iter_mut().enumerate().filter_map(|(rank, m)| Some((rank, m.take()?))).collect();
        while messages.len() + 1 < self.outboxes.len() {
            let message = mailbox.receive_within(PEER_TIMEOUT).await.during("waiting for another node")?;
            let from = message.from();
            let Some(rank) = self.job.nodes().iter().position(|node| *node == from) else { continue };
            let header = Header::parse(message.data()).filter(|header| header.job == self.job.id().0);
            let Some(header) = header else { continue };
            if header.round == self.round && !messages.iter().any(|(of, _)| *of == rank) {
                messages.push((rank, message.into_data()));
            } else if let Some(early @ None) = self.early.get_mut(rank)
                && header.round == self.round + 1
            {
                *early = Some(message.into_data());
            } else {
                return Err(JobError::Malformed { rank });
            }
        }
        messages.sort_unstable_by_key(|(rank, _)| *rank);
        Ok(messages)
    }

    /// Returns the header and the data of a message.
    async fn read(&self, rank: usize, mut message: Vec<u8>) -> Result<(Header, Vec<u8>), JobError> {
        let header = Header::parse(&message).ok_or(JobError::Malformed { rank })?;
        let data = match header.place {
            Place::Message => message.split_off(Header::LEN),
            Place::Inbox => self.inbox.read(rank, header.round, header.len).await?,
        };
        let whole = data.len() as u64 == header.len;
        if whole { Ok((header, data)) } else { Err(JobError::Malformed { rank }) }
    }
}
