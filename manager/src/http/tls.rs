//! TLS for the service over HTTP: its certificate and private key, which are read or made.

use crate::key::{self, SecretError};
use axum_server::tls_rustls::RustlsConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, ServerConfig};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The name of the file with the certificate, or with a chain of certificates, the own one first.
const CERTIFICATE: &str = "cert.pem";
/// The name of the file with the private key.
const KEY: &str = "key.pem";
/// The maximum size of the file with the private key, in bytes.
const MAX_KEY: u64 = 64 << 10;

/// The reason why there is no TLS. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be made or read.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file with the private key is not read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file does not hold what it must hold.
    #[error("{} holds no {what} in the format PEM: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The missing part.
        what: &'static str,
        /// The reason of the parser.
        reason: String,
    },
    /// The key is of another certificate.
    #[error("the private key {} does not belong to the certificate beside it, {}", .0.join(KEY).display(), CERTIFICATE)]
    Mismatch(PathBuf),
    /// The certificate is not valid at present.
    #[error("the certificate {} {}: clients refuse it", .0.display(), .1)]
    Expired(PathBuf, String),
    /// The TLS library refuses the files.
    #[error("cannot use the certificate in {}: {}", .0.display(), .1)]
    Refused(PathBuf, rustls::Error),
    /// No certificate can be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Tls {
    pub(crate) config: RustlsConfig,
    /// The SHA-256 of the certificate, for people who compare it with what their browser shows.
    pub(crate) fingerprint: String,
    directory: PathBuf,
    validity: Validity,
}

/// The time during which a certificate is valid, in seconds since 1970, with the same times for people.
#[derive(Clone, Debug)]
struct Validity {
    from: (i64, String),
    to: (i64, String),
}

impl Tls {
    /// Reads the certificate and the key in a directory. Makes a certificate that has signed itself, for this
    /// host and for `address`, if there is none.
    pub(crate) fn load_or_make(directory: &Path, address: IpAddr) -> Result<Self, TlsError> {
        if Self::is_absent(directory) {
            make(directory, address)?;
        }
        Self::load(directory)
    }

    /// Returns true if a directory has neither a certificate nor a key.
    #[must_use]
    pub fn is_absent(directory: &Path) -> bool {
        [CERTIFICATE, KEY].iter().all(|name| !directory.join(name).exists())
    }

    /// Reads the certificate and the key in a directory.
    ///
    /// # Errors
    /// Fails if a file cannot be read, others may read the key, or the two do not belong together.
    pub fn load(directory: &Path) -> Result<Self, TlsError> {
        let [certificate, key] = [CERTIFICATE, KEY].map(|name| directory.join(name));
        let failed = |source| TlsError::File { path: certificate.clone(), source };
        let text = fs::read(&certificate).map_err(failed)?;
        let secret = key::read_secret("private key", &key, MAX_KEY)?;
        let content = |path: &Path, what| {
            let path = path.to_owned();
            move |reason: String| TlsError::Content { path, what, reason }
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let chain = chain
            .map_err(|error| error.to_string())
            .and_then(|chain| if chain.is_empty() { Err("there is none".into()) } else { Ok(chain) })
            .map_err(content(&certificate, "certificate"))?;
        let secret = PrivateKeyDer::from_pem_slice(&secret)
            .map_err(|error| content(&key, "private key")(error.to_string()))?;
        let first = &chain[0];
        let fingerprint = fingerprint(first);
        let (_, parsed) = X509Certificate::from_der(first)
            .map_err(|error| content(&certificate, "certificate")(error.to_string()))?;
        let [from, to] = [parsed.validity().not_before, parsed.validity().not_after]
            .map(|time| (time.timestamp(), time.to_string()));
        let config = server(chain, secret).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch(directory.into())
            }
            error => TlsError::Refused(directory.into(), error),
        })?;
        let config = RustlsConfig::from_config(Arc::new(config));
        Ok(Self { config, fingerprint, directory: directory.into(), validity: Validity { from, to } })
    }

    /// Checks that the certificate is valid now.
    ///
    /// # Errors
    /// Fails if its time is over, or has not begun.
    pub fn check_time(&self) -> Result<(), TlsError> {
        let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()).cast_signed();
        let Validity { from, to } = &self.validity;
        let why = if to.0 < now {
            format!("expired on {}", to.1)
        } else if now < from.0 {
            format!("is not valid before {}", from.1)
        } else {
            return Ok(());
        };
        Err(TlsError::Expired(self.directory.join(CERTIFICATE), why))
    }
}

/// Makes the configuration of a server with a certificate chain and the private key of its first certificate.
fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(Vec::from).into();
    Ok(config)
}

fn fingerprint(certificate: &[u8]) -> String {
    let bytes = Sha256::digest(certificate);
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

fn make(directory: &Path, address: IpAddr) -> Result<(), TlsError> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).into();
    if !address.is_unspecified() && !address.is_loopback() {
        names.push(address.to_string());
    }
    // Linux: the name of the host. A host whose name is no name of the DNS has a certificate without it.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !host.is_empty() && host != "localhost" && host.bytes().all(is_name) {
        names.push(host.into());
    }
    let made = rcgen::generate_simple_self_signed(names)?;
    let secret = zeroize::Zeroizing::new(made.signing_key.serialize_pem());
    for (name, text) in [(KEY, secret.as_str()), (CERTIFICATE, &made.cert.pem())] {
        let path = directory.join(name);
        key::write_new(&path, text).map_err(|source| TlsError::File { path, source })?;
    }
    Ok(())
}
