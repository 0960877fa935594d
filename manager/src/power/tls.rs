//! TLS to a power controller: by the certificates of its authority, by the certificate itself, or, if the
//! operator wants it, with any certificate.

use super::Trouble;
use crate::inventory::Trust;
use proto::printable;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connects by TLS over a connection.
pub(super) async fn connect(
    plain: TcpStream,
    host: &str,
    trust: &Trust,
) -> Result<TlsStream<TcpStream>, Trouble> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| Trouble::other(format!("{} is no name of a host", printable(host))))?;
    let config = config(trust).map_err(Trouble::Other)?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, plain).await;
    connected.map_err(|error| Trouble::other(format!("no TLS with it: {error}")))
}

fn config(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Ca(file) => {
            let built = WebPkiServerVerifier::builder_with_provider(roots(file)?.into(), provider.clone());
            built.build().map_err(|error| format!("{}: {error}", file.display()))?
        }
        Trust::Certificate(digest) => Arc::new(Known { digest: Some(*digest), provider: provider.clone() }),
        Trust::Any | Trust::Plain => Arc::new(Known { digest: None, provider: provider.clone() }),
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.dangerous();
    Ok(builder.with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Reads the certificates of authorities.
fn roots(file: &Path) -> Result<RootCertStore, String> {
    let shown = file.display();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| format!("{shown}: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| format!("{shown}: {error}"))?;
        roots.add(certificate).map_err(|error| format!("{shown}: {error}"))?;
    }
    if roots.is_empty() {
        return Err(format!("{shown} holds no certificate in the format PEM"));
    }
    Ok(roots)
}

/// Checks a file with certificates of authorities.
///
/// # Errors
/// The error is the reason why no connection can use the file, in one line.
pub fn check_ca(file: &Path) -> Result<(), String> {
    roots(file).map(drop)
}

/// Accepts the one certificate that is known, or any. The other side proves in each case that it has the
/// private key.
#[derive(Debug)]
struct Known {
    digest: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found: [u8; 32] = Sha256::digest(end_entity).into();
        match self.digest {
            Some(digest) if digest != found => {
                let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(Error::General(format!("its certificate has the SHA-256 {found}")))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
