//! The exchange of a token for the key of a node, over one connection.

use super::files::Boots;
use proto::channel::ClusterKey;
use proto::channel::enrolment::{REQUEST_FRAME, Registrar};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time for a request, and again for the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The length of a frame's length, in bytes.
const LENGTH: usize = 2;

/// The secrets of the service.
pub(super) struct Secrets {
    pub(super) registrar: Registrar,
    /// The key of a node.
    pub(super) node: ClusterKey,
}

/// Serves a connection. Returns a line for the log. The error is one, too.
pub(super) async fn serve(mut stream: TcpStream, secrets: &Secrets, boots: &Boots) -> Result<String, String> {
    let mut frame = [0; REQUEST_FRAME];
    let read = timeout(LIMIT, stream.read_exact(&mut frame)).await;
    read.map_err(|_| "no request in time")?.map_err(|error| format!("no request: {error}"))?;
    let random = crate::key::random().map_err(|error| error.to_string())?;
    let message = frame.get(LENGTH..).unwrap_or_default();
    let (request, reply) =
        secrets.registrar.read(message, random).map_err(|_| "not a request to this manager")?;
    let (answer, line) = match boots.redeem(&request, Instant::now()) {
        Ok(node) => {
            let line = format!("{} ({}) has got the key of a node", node.name, request.mac);
            (reply.key(&secrets.node), Ok(line))
        }
        Err(why) => {
            let line = format!("the token of {} is refused: {why}", request.mac);
            (reply.refuse(&why.to_string()), Err(line))
        }
    };
    let written = timeout(LIMIT, stream.write_all(&answer)).await;
    written.map_err(|_| "takes no answer")?.map_err(|error| format!("takes no answer: {error}"))?;
    let _ = timeout(LIMIT, stream.shutdown()).await;
    line
}
