//! The output and the log of a job over HTTP, as streams. Each piece is a request of its own to the core: the
//! manager holds one piece for each reader, and a reader whose key counts no longer gets no further one.

use super::App;
use super::actions::{act, status};
use super::ask::Refused;
use super::auth::Caller;
use crate::client::no_output;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use proto::{FromClient, JobDetails, JobEnd, JobId, JobState, Refusal, ToClient};
use std::io;

/// The options of a request for output.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Wish {
    /// True if the output so far will do.
    #[serde(default)]
    now: bool,
}

/// A file of a job.
#[derive(Clone, Copy, Debug)]
enum Part {
    Output,
    Log,
}

/// Bytes of a file, and true if others may follow.
struct Piece {
    bytes: Vec<u8>,
    more: bool,
}

/// A request for a file.
#[derive(Clone, Debug)]
struct Reader {
    app: App,
    caller: Caller,
    job: JobId,
    part: Part,
}

/// Sends the output of a job that is done; with `now`, the output so far of any job.
pub(super) async fn output(
    State(app): State<App>,
    caller: Caller,
    Path(job): Path<u64>,
    Query(wish): Query<Wish>,
) -> Response {
    let reader = Reader { app, caller, job: JobId(job), part: Part::Output };
    let begun = async {
        // This request is refused if the caller may not have the output.
        let first = reader.piece(0).await?;
        let len = match reader.details().await?.info {
            info if matches!(info.state, JobState::Ended(JobEnd::Done { .. })) => info.output_bytes,
            _ if wish.now => None,
            info => {
                let (word, why) = (info.state.word(), info.state.reason());
                let colon = if why.is_empty() { "" } else { ": " };
                let reason = format!("job {job} is {word}{colon}{why}; ?now=true has the output so far");
                return Err(Refused { kind: None, reason });
            }
        };
        Ok((first, len))
    };
    let begun = begun.await;
    let kind = "application/octet-stream";
    reader.answer(begun, kind, &format!("attachment; filename=\"job-{job}.output\""))
}

/// Sends the lines that the nodes of a job have logged so far.
pub(super) async fn log(State(app): State<App>, caller: Caller, Path(job): Path<u64>) -> Response {
    let reader = Reader { app, caller, job: JobId(job), part: Part::Log };
    let first = reader.piece(0).await;
    let begun = first.map(|piece| (piece, None));
    reader.answer(begun, "text/plain; charset=utf-8", &format!("inline; filename=\"job-{job}.log\""))
}

impl Reader {
    /// Returns the bytes of the file from an offset on.
    async fn piece(&self, offset: u64) -> Result<Piece, Refused> {
        let Self { app, caller, job, part } = self;
        let standing = caller.identity.standing(&app.feed.borrow().view);
        if standing.is_none_or(|(_, role)| role != caller.role) || !app.gate.is_valid(caller.identity) {
            return Err(Refused { kind: Some(Refusal::Denied), reason: "the key counts no longer".into() });
        }
        let request = match part {
            Part::Output => FromClient::JobOutput { job: *job, offset },
            Part::Log => FromClient::JobLog { job: *job, offset },
        };
        let missing = |reason: String| Refused { kind: Some(Refusal::NotFound), reason };
        match act(app, caller, request).await?.pop() {
            Some(ToClient::JobOutput { bytes, whole }) => {
                let more = !whole && !bytes.is_empty();
                Ok(Piece { bytes, more })
            }
            Some(ToClient::JobLog { bytes, .. }) => {
                let more = !bytes.is_empty();
                Ok(Piece { bytes, more })
            }
            Some(ToClient::JobShown(details)) => Err(missing(match part {
                Part::Output => no_output(&details),
                Part::Log => format!("the log of job {} is not kept any longer", job.0),
            })),
            _ => Err(missing("the manager has given another answer".into())),
        }
    }

    async fn details(&self) -> Result<JobDetails, Refused> {
        match act(&self.app, &self.caller, FromClient::JobShow { job: self.job }).await?.pop() {
            Some(ToClient::JobShown(details)) => Ok(*details),
            _ => Err(Refused { kind: None, reason: "the manager has given another answer".into() }),
        }
    }

    /// Returns the response with the file: its first piece, and its length if it is known. A response that
    /// breaks off, because the file is removed or the manager stops, is no whole one for its receiver.
    fn answer(self, begun: Result<(Piece, Option<u64>), Refused>, kind: &str, disposition: &str) -> Response {
        let (first, len) = match begun {
            Ok(begun) => begun,
            Err(refused) => return (status(&refused), format!("{}\n", refused.reason)).into_response(),
        };
        let pieces = stream::try_unfold(Some((0, Some(first))), move |next| {
            let reader = self.clone();
            async move {
                let Some((offset, piece)) = next else { return Ok(None) };
                let Piece { bytes, more } = match piece {
                    Some(piece) => piece,
                    None => reader.piece(offset).await.map_err(|refused| io::Error::other(refused.reason))?,
                };
                if bytes.is_empty() {
                    return Ok(None);
                }
                let end = offset + bytes.len() as u64;
                Ok::<_, io::Error>(Some((Bytes::from(bytes), more.then_some((end, None)))))
            }
        });
        let mut response = Body::from_stream(pieces).into_response();
        let headers = response.headers_mut();
        headers.extend(len.map(|len| (header::CONTENT_LENGTH, HeaderValue::from(len))));
        for (name, value) in [(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, disposition)] {
            headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        }
        response
    }
}
