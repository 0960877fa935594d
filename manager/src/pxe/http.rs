//! HTTP/1.1 for loaders: one file for each connection. The server is our own: it reads no more than the first
//! line of a request.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest request, in bytes.
const LONGEST: usize = 4096;
/// The time for a request, and for each part of an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of bytes to be written at once.
const PART: usize = 64 << 10;

/// A request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Get {
    /// The path, without the first slash.
    pub(super) name: String,
    /// True if the client wants the length only.
    is_head: bool,
}

/// Reads the head of a request. Returns `None` unless it asks for a file.
fn parse(head: &[u8]) -> Option<Get> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    let mut words = line.split(' ');
    let is_head = match words.next()? {
        "GET" => false,
        "HEAD" => true,
        _ => return None,
    };
    let name = words.next()?.strip_prefix('/')?.to_owned();
    let is_http = words.next()?.starts_with("HTTP/1.") && words.next().is_none();
    is_http.then_some(Get { name, is_head })
}

/// Receives a request.
pub(super) async fn receive(stream: &mut TcpStream) -> io::Result<Option<Get>> {
    let mut head = Vec::with_capacity(LONGEST);
    let whole = timeout(LIMIT, async {
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if head.len() >= LONGEST || stream.read_buf(&mut head).await? == 0 {
                return Ok(false);
            }
        }
        io::Result::Ok(true)
    });
    Ok(if whole.await.unwrap_or(Ok(false))? { parse(&head) } else { None })
}

/// Answers a request with a file, or that there is none.
pub(super) async fn answer(stream: &mut TcpStream, get: &Get, content: Option<Arc<[u8]>>) -> io::Result<()> {
    let (status, content) = match content {
        Some(content) => ("200 OK", content),
        None => ("404 Not Found", Arc::from(*b"no such file\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    let body = if get.is_head { &[][..] } else { &content[..] };
    for part in std::iter::once(head.as_bytes()).chain(body.chunks(PART)) {
        timeout(LIMIT, stream.write_all(part)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let get = |text: &str| parse(text.as_bytes()).map(|get| (get.name, get.is_head));
        assert_eq!(get("GET /a/b HTTP/1.1\r\nHost: x\r\n\r\n"), Some(("a/b".into(), false)));
        assert_eq!(get("HEAD /a HTTP/1.0\r\n\r\n"), Some(("a".into(), true)));
        for bad in ["POST /a HTTP/1.1\r\n", "GET a HTTP/1.1\r\n", "GET /a\r\n", "GET /a b HTTP/1.1\r\n", ""] {
            assert_eq!(get(bad), None, "{bad}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n"), None);
    }
}
