//! etcd as the store that the managers share.
//!
//! Each connection talks to one member of etcd, and to the next one after a request without an answer. The
//! connection is one of tonic and not the balanced one of etcd-client, in which a request waits for a member
//! that refuses connections.

use super::kv::{Answer, Kv, Op, Pair, Request, Txn, When};
use crate::daemon::SaveError;
use crate::key::{SecretError, read_secret};
use etcd_client::{
    Certificate, Channel, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions,
    Identity, KeyValue, PutOptions, TlsOptions, TxnOp, TxnOpResponse,
};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::Endpoint;

/// The longest answer that is accepted, in bytes.
const LONGEST: usize = 64 << 20;
/// The longest file of TLS, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The place of etcd, and the means to prove who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The URLs of the members.
    pub urls: Vec<String>,
    /// The certificate of the manager for etcd, in PEM.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub key: Option<PathBuf>,
    /// The certificates that etcd's own are checked by, in PEM.
    pub authority: Option<PathBuf>,
}

/// The reason why etcd cannot be used as it was named. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// No member is named.
    #[error("no member of etcd is named")]
    None,
    /// The URL is no URL of a member.
    #[error("{0} is no URL of etcd: want http://HOST:PORT or https://HOST:PORT")]
    Url(String),
    /// The settings of TLS do not fit together.
    #[error("{0}")]
    Tls(&'static str),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file of the key cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The files of TLS are refused.
    #[error("the files of TLS for etcd cannot be used: {0}")]
    Refused(tonic::transport::Error),
    /// There is no thread for the connections.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The members of etcd, with a thread for their connections.
struct Members {
    endpoints: Vec<(String, Endpoint)>,
    runtime: Option<Runtime>,
}

impl Drop for Members {
    fn drop(&mut self) {
        // The last owner may be a task, which must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A connection to etcd.
pub struct Etcd {
    members: Arc<Members>,
    /// The member to talk to.
    turn: usize,
    client: Option<Client>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Place {
    /// Checks the URLs, and that each file is there and can be used.
    ///
    /// # Errors
    /// Fails with the first of them that cannot be used.
    pub fn check(&self) -> Result<(), PlaceError> {
        self.endpoints().map(drop)
    }

    fn endpoints(&self) -> Result<Vec<(String, Endpoint)>, PlaceError> {
        let tls = self.tls()?;
        if self.urls.is_empty() {
            return Err(PlaceError::None);
        }
        let endpoint = |url: &String| {
            let wrong = || PlaceError::Url(url.clone());
            let has_host = |rest: &str| {
                rest.trim_end_matches('/')
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            };
            let is_secure = match url.split_once("://") {
                Some(("http", rest)) if has_host(rest) => false,
                Some(("https", rest)) if has_host(rest) => true,
                _ => return Err(wrong()),
            };
            let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| wrong())?;
            let endpoint = match (&tls, is_secure) {
                (Some(tls), true) => endpoint.tls_config(tls.clone()).map_err(PlaceError::Refused)?,
                (None, true) => return Err(PlaceError::Tls("https:// needs --etcd-ca")),
                (Some(_), false) => return Err(PlaceError::Tls("--etcd-ca and --etcd-cert need https://")),
                (None, false) => endpoint,
            };
            let endpoint = endpoint.http2_keep_alive_interval(Duration::from_secs(5));
            Ok((url.clone(), endpoint.keep_alive_timeout(Duration::from_secs(5))))
        };
        self.urls.iter().map(endpoint).collect()
    }

    fn tls(&self) -> Result<Option<TlsOptions>, PlaceError> {
        let file = |path: &Path| {
            std::fs::read(path).map_err(|source| PlaceError::Read { path: path.into(), source })
        };
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = read_secret("key file for etcd", key, MAX_FILE)?;
                Some(Identity::from_pem(file(certificate)?, &*key))
            }
            (None, None) => None,
            _ => return Err(PlaceError::Tls("--etcd-cert and --etcd-key need each other")),
        };
        match (&self.authority, identity) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(PlaceError::Tls("--etcd-cert needs --etcd-ca")),
            (Some(authority), identity) => {
                let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(file(authority)?));
                Ok(Some(identity.into_iter().fold(tls, TlsOptions::identity)))
            }
        }
    }
}

impl Etcd {
    /// Returns a connection that is made with its first request.
    ///
    /// # Errors
    /// Fails if the place is not well-formed.
    pub fn new(place: &Place) -> Result<Self, PlaceError> {
        let endpoints = place.endpoints()?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("etcd").enable_all().build();
        let runtime = Some(runtime.map_err(PlaceError::Thread)?);
        Ok(Self { members: Arc::new(Members { endpoints, runtime }), turn: 0, client: None })
    }
}

impl Kv for Etcd {
    fn ask(&mut self, request: &Request, within: Duration) -> Result<Answer, SaveError> {
        let members = self.members.clone();
        let Some(runtime) = &members.runtime else { return Err("etcd is not used any more".into()) };
        let turn = self.turn % members.endpoints.len().max(1);
        let Some((url, endpoint)) = members.endpoints.get(turn) else {
            return Err("etcd has no member".into());
        };
        let client = self.client.take();
        let call = async {
            let mut client = match client {
                Some(client) => client,
                None => {
                    let channel = endpoint.connect().await.map_err(Error::TransportError)?;
                    let options = ConnectOptions::new().with_require_leader(true);
                    Client::from_channel(Channel::Tonic(channel), Some(options)).await?
                }
            };
            let answer = send(&mut client, request).await?;
            Ok::<_, Error>((client, answer))
        };
        // The timer belongs to the runtime.
        let asked = runtime.block_on(async { timeout(within, call).await });
        let reason = match asked {
            Ok(Ok((client, answer))) => {
                self.client = Some(client);
                return Ok(answer);
            }
            Ok(Err(error)) => text(&error),
            Err(_) => format!("no answer within {} ms", within.as_millis()),
        };
        self.turn = turn + 1;
        Err(format!("etcd at {url}: {}", proto::printable(&reason)).into())
    }

    fn another(&self) -> Box<dyn Kv> {
        Box::new(Self { members: self.members.clone(), turn: self.turn, client: None })
    }
}

/// Returns an error in one line, with its causes.
fn text(error: &Error) -> String {
    let (mut text, mut cause) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), std::error::Error::source(status)),
        Error::TransportError(error) => (error.to_string(), std::error::Error::source(error)),
        other => (other.to_string(), None),
    };
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

async fn send(client: &mut Client, request: &Request) -> Result<Answer, Error> {
    match request {
        Request::Grant { ttl } => {
            let granted = client.lease_grant(i64::try_from(*ttl).unwrap_or(i64::MAX), None).await?;
            Ok(Answer::Granted { lease: granted.id() })
        }
        Request::Renew { lease } => match client.lease_keep_alive(*lease).await {
            Ok(_) => Ok(Answer::Renewed { lasts: true }),
            // The library's answer for a lease that etcd does not have.
            Err(Error::LeaseKeepAliveError(why)) if why == "lease not found" => {
                Ok(Answer::Renewed { lasts: false })
            }
            Err(error) => Err(error),
        },
        Request::Revoke { lease } => client.lease_revoke(*lease).await.map(|_| Answer::Revoked),
        Request::Range { from, end, limit } => {
            let options = GetOptions::new().with_range(end.as_str()).with_limit((*limit).into());
            let mut kv = client.kv_client().max_decoding_message_size(LONGEST);
            let got = kv.get(from.as_str(), Some(options)).await?;
            Ok(Answer::Range { pairs: got.kvs().iter().map(pair).collect(), more: got.more() })
        }
        Request::Txn(Txn { when, then, otherwise }) => {
            let when: Vec<Compare> = when.iter().map(compare).collect();
            let then: Vec<TxnOp> = then.iter().map(operation).collect();
            let otherwise: Vec<TxnOp> = otherwise.iter().map(|key| TxnOp::get(key.as_str(), None)).collect();
            let txn = etcd_client::Txn::new().when(when).and_then(then).or_else(otherwise);
            let mut kv = client.kv_client().max_decoding_message_size(LONGEST);
            let done = kv.txn(txn).await?;
            let mut pairs = Vec::new();
            for response in done.op_responses() {
                if let TxnOpResponse::Get(got) = response {
                    pairs.extend(got.kvs().iter().map(pair));
                }
            }
            let revision = done.header().map_or(0, etcd_client::ResponseHeader::revision);
            Ok(Answer::Txn { held: done.succeeded(), revision, pairs })
        }
    }
}

fn pair(found: &KeyValue) -> Pair {
    Pair {
        key: String::from_utf8_lossy(found.key()).into_owned(),
        value: found.value().to_vec(),
        created: found.create_revision(),
        lease: found.lease(),
    }
}

fn compare(when: &When) -> Compare {
    match when {
        When::Absent(key) => Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
        When::Created(key, revision) => Compare::create_revision(key.as_str(), CompareOp::Equal, *revision),
        When::Is(key, value) => Compare::value(key.as_str(), CompareOp::Equal, value.clone()),
    }
}

fn operation(op: &Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease));
            TxnOp::put(key.as_str(), value.clone(), options)
        }
        Op::Delete(key) => TxnOp::delete(key.as_str(), None),
        Op::DeleteAll(prefix) => {
            TxnOp::delete(prefix.as_str(), Some(DeleteOptions::new().with_range(super::kv::end_of(prefix))))
        }
    }
}
