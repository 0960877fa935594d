//! The inboxes of an exchange: memory into which other nodes write what is too long for a message.

use super::{INLINE, PEER_TIMEOUT};
use crate::error::During;
use crate::{JobContext, JobError, Region};
use alloc::vec;
use alloc::vec::Vec;
use lite::{FunctionId, Lmr, Permissions};

/// The length of an entry of the table at the front of an inbox, in bytes: offset and room, for each rank.
const ENTRY: usize = 16;

/// A part of an inbox that belongs to one sender: two halves of `room` bytes from `offset`.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    offset: u64,
    room: u64,
}

impl Part {
    /// Returns the offset of the half that a round uses.
    fn half(self, round: u64) -> u64 {
        self.offset + round % 2 * self.room
    }
}

/// The inbox of this node.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    region: Option<Region>,
    /// The parts, by the sender's rank.
    parts: Vec<Part>,
}

impl Inbox {
    /// Allocates and publishes an inbox whose parts have the given rooms, in bytes.
    pub(super) async fn publish(job: &JobContext, name: &str, rooms: &[usize]) -> Result<Self, JobError> {
        let nodes = job.nodes().len();
        let mut end = (nodes * ENTRY) as u64;
        let (mut parts, mut table) = (vec![], vec![]);
        for rank in 0..nodes {
            let wanted = rooms.get(rank).copied().filter(|room| *room > INLINE && rank != job.rank());
            let part = Part { offset: end, room: wanted.unwrap_or(0).next_multiple_of(64) as u64 };
            end += 2 * part.room;
            table.extend_from_slice(&part.offset.to_le_bytes());
            table.extend_from_slice(&part.room.to_le_bytes());
            parts.push(part);
        }
        let region = job.alloc(end).await?;
        region.lmr.write(0, &table).await.during("making an inbox")?;
        job.publish(&region, name).await?;
        Ok(Self { region: Some(region), parts })
    }

    /// Returns what the node of rank `rank` has written for a round.
    pub(super) async fn read(&self, rank: usize, round: u64, len: u64) -> Result<Vec<u8>, JobError> {
        let malformed = JobError::Malformed { rank };
        let part = self.parts.get(rank).filter(|part| len <= part.room).ok_or(malformed.clone())?;
        let region = self.region.as_ref().ok_or(malformed)?;
        let mut data = Vec::new();
        data.try_reserve_exact(len as usize).map_err(|_| JobError::OutOfMemory { wanted: len, has: 0 })?;
        data.resize(len as usize, 0);
        region.lmr.read(part.half(round), &mut data).await.during("reading an inbox")?;
        Ok(data)
    }

    /// Frees the inbox.
    pub(super) async fn free(self, job: &JobContext) -> Result<(), JobError> {
        match self.region {
            Some(region) => job.free(region).await,
            None => Ok(()),
        }
    }
}

/// The part of another node's inbox that belongs to this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    inbox: Option<Lmr>,
    part: Part,
}

impl Outbox {
    /// Opens the inbox of the node of rank `rank`.
    pub(super) async fn open(job: &JobContext, name: &str, rank: usize) -> Result<Self, JobError> {
        let inbox = job.open_with(name, Permissions::READ | Permissions::WRITE).await?;
        let inbox = inbox.with_deadline(PEER_TIMEOUT);
        let mut entry = [0; ENTRY];
        inbox.read((job.rank() * ENTRY) as u64, &mut entry).await.during("reading an inbox")?;
        let (words, _) = entry.as_chunks::<8>();
        let [offset, room] = words else { return Err(JobError::Malformed { rank }) };
        let part = Part { offset: u64::from_le_bytes(*offset), room: u64::from_le_bytes(*room) };
        Ok(Self { inbox: (part.room > 0).then_some(inbox), part })
    }

    /// Returns the most bytes that one message may carry.
    pub(super) fn room(&self) -> usize {
        INLINE.max(self.part.room as usize)
    }

    /// Writes `data`, which is at most as long as the room, for a round, and sends `message` behind it to
    /// mailbox `port` of the inbox's node.
    pub(super) async fn write_notify(
        &self,
        round: u64,
        data: &[u8],
        port: FunctionId,
        message: &[u8],
    ) -> Result<(), JobError> {
        match &self.inbox {
            Some(inbox) => inbox
                .write_notify(self.part.half(round), data, port, message)
                .await
                .during("writing to another node"),
            None => Ok(()),
        }
    }
}
