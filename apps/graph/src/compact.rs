//! The application that writes a graph in the compact form, which later jobs read faster: as a file, or as a
//! dataset.

use crate::args::{Args, COMPACT};
use crate::edge::{reserve, with_room};
use crate::flg1::{Header, is_wide};
use crate::job::{ROOM, memory_needed};
use crate::load::sorted;
use crate::net::sums;
use crate::read::Source;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, BoxFuture, JobContext, JobError, Reduce};

/// The number of edges between two awaits.
const TURN: usize = 1 << 14;

/// The application. Its output has each edge once, in the order of the targets, whatever the input's order,
/// and so the same bytes on any nodes.
#[derive(Clone, Copy, Debug)]
pub struct Compact;

fn args(start: &JobStart) -> Result<Args, JobError> {
    Args::read(&COMPACT, &start.args).map_err(JobError::Refused)
}

impl App for Compact {
    fn manifest(&self) -> AppManifest {
        COMPACT.manifest(CutRule::after(|byte| byte == b'\n'))
    }

    fn memory_needed(&self, start: &JobStart) -> u64 {
        args(start).map_or(0, |args| memory_needed(start, &args))
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        args(start).map(drop)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            match run(&job).await {
                Err(JobError::OutOfMemory { wanted, .. }) => Err(job.out_of_memory(wanted)),
                other => other,
            }
        })
    }
}

async fn run(job: &JobContext) -> Result<JobReport, JobError> {
    let args = args(job.start())?;
    let mut net = job.collective(&vec![ROOM; job.nodes().len()]).await?;
    let input = Source { job, args: &args, loops: true }.read(&mut net).await?;
    let set = sorted(&mut net, input.edges, args.weights).await?;
    let own = set.len() as u64;
    let lens = net.all_gather(own.to_le_bytes().to_vec()).await?;
    let lens = lens.iter().map(|len| len.first_chunk().map_or(0, |len| u64::from_le_bytes(*len)));
    let lens: Vec<u64> = lens.collect();
    let first = lens.iter().take(job.rank()).sum();
    let wide = set.iter().any(|edge| is_wide(edge.from, edge.to)).into();
    let [wide] = net.all_reduce(&[wide], Reduce::Max).await?[..] else {
        return Err(JobError::Malformed { rank: job.rank() });
    };
    let edges = lens.iter().sum();
    let mut header = Header { weights: args.weights, wide: wide != 0, edges, checksum: 0 };
    let mut records = with_room(if job.rank() == 0 { Header::LEN } else { 0 })?;
    if job.rank() == 0 {
        records.resize(Header::LEN, 0);
    }
    let (mut sum, mut number) = (0u64, first);
    for edges in set.chunks(TURN) {
        let edges: Vec<_> = edges.iter().map(|edge| (edge.from, edge.to, edge.weight)).collect();
        reserve(&mut records, edges.len() * header.record())?;
        sum = sum.wrapping_add(header.append(&edges, number, &mut records));
        number += edges.len() as u64;
        platform::yield_now().await;
    }
    drop(set);
    [header.checksum] = sums(&mut net, [sum]).await?;
    if job.rank() == 0
        && let Some(begin) = records.first_chunk_mut()
    {
        *begin = header.emit();
    }
    net.close().await?;
    job.output_in_order(records).await?;
    Ok(JobReport { counts: vec![("edges".to_string(), own)], ..JobReport::default() })
}
