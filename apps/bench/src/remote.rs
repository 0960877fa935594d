//! Measures reads, writes, calls and atomics: latency with one operation at a time, throughput with several.

use crate::failed;
use crate::measure::Row;
use alloc::vec;
use alloc::vec::Vec;
use futures_util::future::try_join_all;
use lite::{FunctionId, Lite, Lmr, LocalMemory, RpcOptions};
use proto::NodeId;
use runtime::{JobContext, JobError, Join};

/// The number of the echo function, whose reply is the request.
pub(crate) const ECHO: FunctionId = 0x6563_686f;
/// The byte that payloads consist of.
const BYTE: u8 = 0x5a;
/// The least number of bytes that are moved without a copy.
const IN_PLACE: usize = 4096;
/// Operations in flight when throughput is measured.
const AT_ONCE: usize = 16;
/// The most bytes of a throughput measurement.
const ENOUGH: usize = 16 << 20;

/// Answers calls of [`ECHO`] on rank 1 until the returned value is dropped.
pub(crate) fn serve(job: &JobContext) -> Result<Option<Join<()>>, JobError> {
    if job.rank() != 1 {
        return Ok(None);
    }
    let server = job
        .lite()
        .register(ECHO, RpcOptions { max_request: 1 << 16, ..RpcOptions::default() })
        .map_err(failed)?;
    Ok(Some(job.spawn("echo", async move {
        let mut reply = Vec::new();
        let mut next = server.receive().await;
        while let Ok(call) = next {
            reply.clear();
            reply.extend_from_slice(call.request());
            next = server.reply_and_receive(call, &reply).await;
        }
    })))
}

/// Takes all measurements of one payload size.
pub(crate) async fn measure(
    job: &JobContext,
    lite: &Lite,
    peer: NodeId,
    region: &Lmr,
    size: usize,
    samples: usize,
) -> Result<Vec<Row>, JobError> {
    let mut buffer = vec![BYTE; size];
    let mut data = Payload::new(lite, buffer.clone()).await.map_err(failed)?;
    let mut rows = Vec::new();

    rows.push(Row::latency("write", size, {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let begin = job.now();
            data.write(region, 0).await.map_err(failed)?;
            taken.push(nanos(job, begin));
        }
        taken
    }));
    rows.push(Row::latency("read", size, {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            buffer.fill(0);
            data.set(&buffer).map_err(failed)?;
            let begin = job.now();
            data.read(region, 0).await.map_err(failed)?;
            taken.push(nanos(job, begin));
            data.get(&mut buffer).map_err(failed)?;
            if buffer.iter().any(|byte| *byte != BYTE) {
                return Err(JobError::Refused(alloc::format!(
                    "a read of {size} bytes returned other bytes than were written"
                )));
            }
        }
        taken
    }));
    rows.push(Row::latency("rpc", size, {
        let mut taken = Vec::with_capacity(samples);
        let mut reply = vec![0; size];
        for _ in 0..samples {
            reply.fill(0);
            let begin = job.now();
            let len = lite.call_into(peer, ECHO, &buffer, &mut reply).await.map_err(failed)?;
            taken.push(nanos(job, begin));
            if len != size || reply != buffer {
                return Err(JobError::Refused(alloc::format!("a call of {size} bytes came back changed")));
            }
        }
        taken
    }));

    let rounds = (ENOUGH / size).min(samples * 4).div_ceil(AT_ONCE).max(1);
    // As in perftest, the memory is taken before the clock starts, and all operations are on the
    // same bytes of the region, so that both find as much in the processor's caches. Writes also
    // share their source.
    let lane = |_| Payload::new(lite, buffer.clone());
    let mut lanes = try_join_all((0..AT_ONCE).map(lane)).await.map_err(failed)?;
    let begin = job.now();
    try_join_all((0..AT_ONCE).map(|_| write_lane(region, &data, rounds))).await.map_err(failed)?;
    rows.push(Row::throughput("write_bw", size, rounds * AT_ONCE, begin, job.now()));
    let begin = job.now();
    try_join_all(lanes.iter_mut().map(|data| read_lane(region, data, rounds))).await.map_err(failed)?;
    rows.push(Row::throughput("read_bw", size, rounds * AT_ONCE, begin, job.now()));
    Ok(rows)
}

/// Measures atomic additions to the first word of the region.
pub(crate) async fn fetch_add(job: &JobContext, region: &Lmr, samples: usize) -> Result<Row, JobError> {
    region.write(0, &0u64.to_ne_bytes()).await.map_err(failed)?;
    let mut taken = Vec::with_capacity(samples);
    for before in 0..samples as u64 {
        let begin = job.now();
        let found = region.fetch_add(0, 1).await.map_err(failed)?;
        taken.push(nanos(job, begin));
        if found != before {
            return Err(JobError::Refused(alloc::format!(
                "a fetch-add found {found} where {before} had been added"
            )));
        }
    }
    Ok(Row::latency("fetch_add", 8, taken))
}

/// Returns the nanoseconds since `begin`.
fn nanos(job: &JobContext, begin: platform::Instant) -> u64 {
    u64::try_from((job.now() - begin).as_nanos()).unwrap_or(u64::MAX)
}

async fn write_lane(region: &Lmr, data: &Payload, rounds: usize) -> Result<(), lite::Error> {
    for _ in 0..rounds {
        data.write(region, 0).await?;
    }
    Ok(())
}

async fn read_lane(region: &Lmr, data: &mut Payload, rounds: usize) -> Result<(), lite::Error> {
    for _ in 0..rounds {
        data.read(region, 0).await?;
    }
    Ok(())
}

/// The bytes of a read or a write: in memory that the RNIC reaches in place if they are many.
enum Payload {
    Few(Vec<u8>),
    Many(LocalMemory),
}

impl Payload {
    async fn new(lite: &Lite, bytes: Vec<u8>) -> Result<Self, lite::Error> {
        if bytes.len() < IN_PLACE {
            return Ok(Self::Few(bytes));
        }
        let mut memory = lite.local_memory(bytes.len() as u64).await?;
        memory.write(0, &bytes)?;
        Ok(Self::Many(memory))
    }

    fn set(&mut self, data: &[u8]) -> Result<(), lite::Error> {
        match self {
            Self::Few(bytes) => bytes.copy_from_slice(data),
            Self::Many(memory) => memory.write(0, data)?,
        }
        Ok(())
    }

    fn get(&self, into: &mut [u8]) -> Result<(), lite::Error> {
        match self {
            Self::Few(bytes) => into.copy_from_slice(bytes),
            Self::Many(memory) => memory.read(0, into)?,
        }
        Ok(())
    }

    async fn write(&self, region: &Lmr, offset: u64) -> Result<(), lite::Error> {
        match self {
            Self::Few(bytes) => region.write(offset, bytes).await,
            Self::Many(memory) => region.write_from(offset, memory, 0..memory.len()).await,
        }
    }

    async fn read(&mut self, region: &Lmr, offset: u64) -> Result<(), lite::Error> {
        match self {
            Self::Few(bytes) => region.read(offset, bytes).await,
            Self::Many(memory) => {
                let all = 0..memory.len();
                region.read_to(offset, memory, all).await
            }
        }
    }
}
