//! TLS for the service over HTTP: its certificate and private key, which are read or made.

use axum_server::tls_rustls::RustlsConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The name of the file with the certificate, or with a chain of certificates, the own one first.
const CERTIFICATE: &str = "cert.pem";
/// The name of the file with the private key.
const KEY: &str = "key.pem";

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
    /// The files are no certificate with its key.
    #[error("{} have no certificate with its key: {source}", paths(directory))]
    Content {
        /// The directory.
        directory: PathBuf,
        /// The error of the TLS library.
        source: io::Error,
    },
    /// No certificate can be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

fn paths(directory: &Path) -> String {
    format!("{} and {}", directory.join(CERTIFICATE).display(), directory.join(KEY).display())
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) config: RustlsConfig,
    /// The SHA-256 of the certificate, for people who compare it with what their browser shows.
    pub(crate) fingerprint: String,
}

impl Tls {
    /// Reads the certificate and the key in a directory. Makes a certificate that has signed itself, for this
    /// host and for `address`, if there is none.
    pub(crate) async fn load_or_make(directory: &Path, address: IpAddr) -> Result<Self, TlsError> {
        let [certificate, key] = [CERTIFICATE, KEY].map(|name| directory.join(name));
        if !certificate.exists() && !key.exists() {
            make(&certificate, &key, address)?;
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::File { path, source }
        };
        let text = fs::read(&certificate).map_err(failed(&certificate))?;
        let secret = zeroize::Zeroizing::new(fs::read(&key).map_err(failed(&key))?);
        let content = |source| TlsError::Content { directory: directory.into(), source };
        let first = CertificateDer::from_pem_slice(&text)
            .map_err(|error| content(io::Error::other(error.to_string())))?;
        let config = RustlsConfig::from_pem(text, secret.to_vec()).await.map_err(content)?;
        let bytes = Sha256::digest(&first);
        let fingerprint = bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":");
        Ok(Self { config, fingerprint })
    }
}

fn make(certificate: &Path, key: &Path, address: IpAddr) -> Result<(), TlsError> {
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
    for (path, text) in [(key, secret.as_str()), (certificate, &made.cert.pem())] {
        let failed = |source| TlsError::File { path: path.into(), source };
        crate::key::write_new(path, text).map_err(failed)?;
    }
    Ok(())
}
