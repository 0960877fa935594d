//! A client of HTTP and HTTPS, as small as the tests need it.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest silence of a server.
const LIMIT: Duration = Duration::from_secs(60);

/// An answer over HTTP.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The status and the headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
    /// The bytes of the body.
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    /// Returns the header with the cookie that the answer sets.
    pub(crate) fn cookie(&self) -> String {
        let cookie = self.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        format!("Cookie: {}\r\n", cookie.split(';').next().unwrap())
    }

    /// Returns the word that the forms of the page carry.
    pub(crate) fn form(&self) -> String {
        let rest = self.body.split("name=\"form\" value=\"").nth(1).unwrap();
        rest.split('"').next().unwrap().to_owned()
    }
}

/// A server of HTTPS, whose certificate must be the one in a file.
#[derive(Clone, Copy)]
pub(crate) struct Secure<'a> {
    pub(crate) http: SocketAddr,
    pub(crate) certificate: &'a Path,
}

/// Sends a request over HTTP.
pub(crate) fn ask(http: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    ask_over(connect(http), http, method, path, headers, body)
}

impl Secure<'_> {
    /// Sends a request.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        ask_over(self.session(), self.http, method, path, headers, body)
    }

    /// Reads an answer that does not end, until `text` is in it.
    pub(crate) fn read_until(&self, path: &str, headers: &str, text: &str) -> String {
        let mut stream = self.session();
        stream.write_all(request(self.http, "GET", path, headers, "").as_bytes()).unwrap();
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "{path} ends without {text}: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..count]);
            let so_far = String::from_utf8_lossy(&seen);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }

    fn session(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.certificate).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(session, connect(self.http))
    }
}

fn connect(http: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn request(http: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    )
}

fn ask_over(
    mut stream: impl Read + Write,
    http: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Answer {
    stream.write_all(request(http, method, path, headers, body).as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let (head, body) = split(&bytes, b"\r\n\r\n");
    let head = std::str::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.contains("transfer-encoding: chunked");
    let bytes = if chunked { whole(body) } else { body.to_vec() };
    Answer { status, head, body: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

/// Returns the bytes before and behind a separator.
fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> (&'a [u8], &'a [u8]) {
    let at = bytes.windows(separator.len()).position(|part| part == separator).unwrap();
    (&bytes[..at], &bytes[at + separator.len()..])
}

/// Returns the bytes of chunks (RFC 9112, 7.1). Fails if the last one is missing.
fn whole(chunks: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), chunks);
    loop {
        let (len, chunk) = split(rest, b"\r\n");
        let len = usize::from_str_radix(std::str::from_utf8(len).unwrap(), 16).unwrap();
        if len == 0 {
            return bytes;
        }
        bytes.extend_from_slice(&chunk[..len]);
        rest = &chunk[len + 2..];
    }
}
