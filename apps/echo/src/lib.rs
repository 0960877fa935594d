//! A test service for programs on hosts: each node of the job echoes calls and takes part in barriers, until
//! it is told to end.
//!
//! Every member of the cluster can call its functions, also a node that does not take part in the job. The
//! job has no input and no output.
//!
//! # Neighbours
//! [`runtime`] starts the job; the examples of `host/capi` and `host/node` call its functions.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use lite::{Call, FunctionId, Lite, NodeId, RpcOptions, RpcServer};
use proto::{AppManifest, CutRule, JobReport, JobStart};
use runtime::{App, BoxFuture, JobContext, JobError, Syntax};

/// The number of the echo function, whose reply is the request.
pub const ECHO: FunctionId = 0x6563_0001;
/// The function that makes the node enter a barrier. Its request, little-endian: the number of nodes (2
/// bytes), their ids (2 bytes each), the barrier's name. The reply is empty, and is sent before the node
/// enters the barrier.
pub const BARRIER: FunctionId = 0x6563_0002;
/// The function that ends the job on this node. The reply is empty.
pub const END: FunctionId = 0x6563_0003;

/// The longest request, in bytes.
const MAX_REQUEST: usize = 1 << 20;
/// The longest wait at a barrier.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(60);

const SYNTAX: Syntax =
    Syntax { name: "echo", about: "echoes calls of other members until told to end", args: &[] };

/// The echo application.
#[derive(Debug)]
pub struct Echo;

impl App for Echo {
    fn manifest(&self) -> AppManifest {
        SYNTAX.manifest(CutRule::Anywhere)
    }

    fn check(&self, start: &JobStart) -> Result<(), JobError> {
        SYNTAX.read(&start.args).map(drop).map_err(JobError::Refused)
    }

    fn memory_needed(&self, start: &JobStart) -> u64 {
        start.share + (1 << 20)
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(run(job))
    }
}

async fn run(job: JobContext) -> Result<JobReport, JobError> {
    let register = |function| {
        let options = RpcOptions { max_request: MAX_REQUEST, ..RpcOptions::default() };
        job.lite().register(function, options).map_err(serving)
    };
    let (echo, barrier, end) = (register(ECHO)?, register(BARRIER)?, register(END)?);
    let echoes = job.spawn("echo", serve_echo(echo));
    let lite = job.lite().with_deadline(BARRIER_TIMEOUT);
    let barriers = job.spawn("barrier", serve_barriers(lite, barrier));
    let call = end.receive().await.map_err(serving)?;
    // A caller that has given up needs no reply.
    let _ = call.reply(&[]).await;
    drop((echoes, barriers));
    Ok(JobReport::default())
}

fn serving(error: lite::Error) -> JobError {
    JobError::Lite { during: "serving", error }
}

async fn serve_echo(server: RpcServer) {
    while let Ok(mut call) = server.receive().await {
        let data = call.take_request();
        // A caller that has given up needs no reply. If the reply is too long, the caller has been told so.
        let _ = call.reply(&data).await;
    }
}

async fn serve_barriers(lite: Lite, server: RpcServer) {
    while let Ok(call) = server.receive().await {
        // The caller of a malformed request gets an error, because no reply is sent.
        let Some((group, name)) = parse(&call) else { continue };
        if call.reply(&[]).await.is_ok() {
            // The other nodes of the barrier get the same error.
            let _ = lite.barrier(&name, &group).await;
        }
    }
}

fn parse(call: &Call) -> Option<(Vec<NodeId>, String)> {
    parse_barrier(call.request())
}

/// Parses a request of [`BARRIER`].
fn parse_barrier(request: &[u8]) -> Option<(Vec<NodeId>, String)> {
    let (count, rest) = request.split_first_chunk::<2>()?;
    let (ids, name) = rest.split_at_checked(2 * usize::from(u16::from_le_bytes(*count)))?;
    let group = ids.chunks_exact(2).map(|id| NodeId(id.iter().rev().fold(0, |n, b| n << 8 | u16::from(*b))));
    Some((group.collect(), core::str::from_utf8(name).ok()?.to_string()))
}

/// Returns a request of [`BARRIER`].
#[must_use]
pub fn barrier_request(group: &[NodeId], name: &str) -> Vec<u8> {
    let count = u16::try_from(group.len()).unwrap_or(u16::MAX);
    let mut request = vec![];
    request.extend_from_slice(&count.to_le_bytes());
    group.iter().for_each(|id| request.extend_from_slice(&id.0.to_le_bytes()));
    request.extend_from_slice(name.as_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barriers_request_has_its_layout_and_nothing_else_is_one() {
        let request = barrier_request(&[NodeId(1), NodeId(0x203)], "b");
        assert_eq!(request, [2, 0, 1, 0, 3, 2, b'b']);
        let parsed = parse_barrier(&request);
        assert_eq!(parsed, Some((vec![NodeId(1), NodeId(0x203)], "b".to_string())));
        for wrong in [&[][..], &[1], &[1, 0], &[1, 0, 5], &[2, 0, 1, 0, 3], &[0, 0, 0xff]] {
            assert_eq!(parse_barrier(wrong), None);
        }
    }
}
