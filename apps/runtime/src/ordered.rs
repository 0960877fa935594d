//! The output of all nodes in the order of ranks: rank 0 reads the parts of the others from their memory.

use crate::error::During;
use crate::{JobContext, JobError};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// The bytes that are moved at once.
const PIECE: usize = 64 << 10;
/// The length of the word at the front of a part, which contains the part's length.
const HEAD: u64 = 8;

/// Writes the parts of all nodes as the output of the job. Output that is kept stays where it is.
pub(crate) async fn write(job: &JobContext, part: Vec<u8>) -> Result<(), JobError> {
    if let Some(keeping) = job.keeping() {
        return keeping.append(&part).await;
    }
    let offered = if job.rank() == 0 { None } else { Some(offer(job, &part).await?) };
    job.barrier("output").await?;
    if job.rank() == 0 {
        let mut output = job.output();
        output.write(&part).await?;
        drop(part);
        for rank in 1..job.nodes().len() {
            let region = job.open(&name(rank)).await?;
            let mut head = [0; HEAD as usize];
            region.read(0, &mut head).await.during("reading output")?;
            let len = u64::from_le_bytes(head);
            if len.checked_add(HEAD).is_none_or(|end| end > region.len()) {
                return Err(JobError::Malformed { rank });
            }
            let mut piece = vec![0; PIECE];
            let mut done = 0;
            while done < len {
                let now = (len - done).min(PIECE as u64);
                let into = piece.get_mut(..now as usize).ok_or(JobError::Malformed { rank })?;
                region.read(HEAD + done, into).await.during("reading output")?;
                output.write(into).await?;
                done += now;
            }
        }
        output.finish().await?;
    } else {
        drop(part);
    }
    job.barrier("output read").await?;
    match offered {
        Some(region) => job.free(region).await,
        None => Ok(()),
    }
}

/// Publishes the part of this node.
async fn offer(job: &JobContext, part: &[u8]) -> Result<crate::Region, JobError> {
    let region = job.alloc(HEAD + part.len() as u64).await?;
    region.lmr.write(0, &(part.len() as u64).to_le_bytes()).await.during("offering output")?;
    for (number, piece) in part.chunks(PIECE).enumerate() {
        let at = HEAD + (number * PIECE) as u64;
        region.lmr.write(at, piece).await.during("offering output")?;
    }
    job.publish(&region, &name(job.rank())).await?;
    Ok(region)
}

/// Returns the name, within the job, of the part of a node.
fn name(rank: usize) -> alloc::string::String {
    format!("output/{rank}")
}
