//! The seed on which a job's nodes agree: under it they partition keys.

use crate::key::Seed;
use runtime::{JobContext, JobError, Region};

/// The name, within the job, under which the seed is published.
const NAME: &str = "seed";

/// The seed of a job. Rank 0 draws it and has the region from which the others read it. Rank 0 frees the
/// region once they have.
pub(crate) struct Agreed {
    pub(crate) seed: Seed,
    pub(crate) region: Option<Region>,
}

/// Agrees on a seed while the nodes map: a node needs it when it has mapped all its input. The death of a
/// node ends the wait at once.
pub(crate) async fn agree(context: JobContext) -> Result<Agreed, JobError> {
    let alone = context.nodes().len() == 1;
    if context.rank() != 0 {
        context.barrier("seeded").await?;
        return Ok(Agreed { seed: read(&context).await?, region: None });
    }
    let seed = Seed::random(&**context.lite().platform());
    if alone {
        return Ok(Agreed { seed, region: None });
    }
    let region = context.alloc(Seed::LEN as u64).await?;
    region.lmr.write(0, &seed.to_bytes()).await.map_err(failed)?;
    context.publish(&region, NAME).await?;
    context.barrier("seeded").await?;
    Ok(Agreed { seed, region: Some(region) })
}

async fn read(context: &JobContext) -> Result<Seed, JobError> {
    let region = context.open(NAME).await?;
    if region.len() != Seed::LEN as u64 {
        return Err(JobError::Malformed { rank: 0 });
    }
    let mut bytes = [0; Seed::LEN];
    region.read(0, &mut bytes).await.map_err(failed)?;
    Ok(Seed::from_bytes(bytes))
}

fn failed(error: lite::Error) -> JobError {
    JobError::Lite { during: "agreeing on a seed", error }
}
