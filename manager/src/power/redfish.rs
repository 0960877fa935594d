//! A power controller that speaks Redfish: JSON over HTTP (DMTF DSP0266), the resource ComputerSystem.

use super::tls;
use super::{Trouble, password};
use crate::inventory::{Redfish, Trust};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use proto::printable;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

/// The resource with all machines of a controller.
const SYSTEMS: &str = "/redfish/v1/Systems";
/// The name of the action that changes the power of a machine.
const RESET: &str = "#ComputerSystem.Reset";
/// The maximum length of an answer, in bytes.
const LONGEST: usize = 1 << 20;

/// Turns the machine on, or off at once.
pub(super) async fn set(redfish: &Redfish, on: bool) -> Result<(), Trouble> {
    let system = system(redfish).await?;
    let action = &system["Actions"][RESET];
    let target =
        action["target"].as_str().ok_or_else(|| Trouble::other("its machine has no action Reset"))?;
    let kind = if on { "On" } else { "ForceOff" };
    let body = json!({ "ResetType": kind });
    exchange(redfish, Method::POST, target, Some(&body)).await.map(drop)
}

/// Returns true if the machine is on.
pub(super) async fn look(redfish: &Redfish) -> Result<bool, Trouble> {
    let system = system(redfish).await?;
    match system["PowerState"].as_str() {
        // On its way to off, a machine still runs.
        Some("On" | "PoweringOff" | "Paused") => Ok(true),
        Some("Off" | "PoweringOn") => Ok(false),
        other => {
            let other = printable(other.unwrap_or("absent"));
            Err(Trouble::other(format!("its PowerState is {other}, neither On nor Off")))
        }
    }
}

/// Returns the resource of the machine.
async fn system(redfish: &Redfish) -> Result<Value, Trouble> {
    if let Some(path) = &redfish.system {
        return exchange(redfish, Method::GET, path, None).await;
    }
    let all = exchange(redfish, Method::GET, SYSTEMS, None).await?;
    let members = all["Members"].as_array().map_or(&[][..], Vec::as_slice);
    let [one] = members else {
        return Err(Trouble::other(format!("it has {} machines: name one by `system`", members.len())));
    };
    let path = one["@odata.id"].as_str().ok_or_else(|| Trouble::other("its machine has no path"))?;
    exchange(redfish, Method::GET, path, None).await
}

/// Sends a request, and returns the answer; null if it is empty.
async fn exchange(
    redfish: &Redfish,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Trouble> {
    let Redfish { host, port, trust, .. } = redfish;
    let unreachable = |error| Trouble::other(format!("cannot connect to {host} port {port}: {error}"));
    let plain = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
    let request = request(redfish, method, path, body)?;
    match trust {
        Trust::Plain => over(plain, request).await,
        trust => over(tls::connect(plain, host, trust).await?, request).await,
    }
}

fn request(
    redfish: &Redfish,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Request<Full<Bytes>>, Trouble> {
    // A path comes from the other side as well, and is one of the same server.
    if !path.starts_with('/') {
        return Err(Trouble::other(format!("{} is no path", printable(path))));
    }
    let Redfish { host, port, user, password_file, .. } = redfish;
    let secret = password(password_file)?;
    let pair = Zeroizing::new(format!("{user}:{}", secret.as_str()));
    let basic = Zeroizing::new(format!("Basic {}", BASE64_STANDARD.encode(pair.as_bytes())));
    let wrong = |what: &str| Trouble::other(format!("cannot ask for {}: {what}", printable(path)));
    let mut basic = HeaderValue::from_str(&basic).map_err(|error| wrong(&error.to_string()))?;
    basic.set_sensitive(true);
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let builder = Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    let builder = builder.header(ACCEPT, "application/json").header(AUTHORIZATION, basic);
    let builder = builder.header("OData-Version", "4.0");
    let built = match body {
        Some(body) => {
            builder.header(CONTENT_TYPE, "application/json").body(Full::from(body.to_string().into_bytes()))
        }
        None => builder.body(Full::default()),
    };
    built.map_err(|error| wrong(&error.to_string()))
}

/// Sends a request over a connection of its own.
async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Value, Trouble> {
    let what = format!("{} {}", request.method(), printable(request.uri().path()));
    let broken = |error: hyper::Error| Trouble::other(format!("no answer to {what}: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| Trouble::other(format!("no whole answer to {what}: {error}")))?;
        judge(&what, head.status, &body.to_bytes())
    };
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The end of the connection is also told to the one that waits for the answer.
        _ = connection => answer.await,
    }
}

fn judge(what: &str, status: StatusCode, body: &[u8]) -> Result<Value, Trouble> {
    match status {
        StatusCode::UNAUTHORIZED => Err(Trouble::other("wrong user or password (401)")),
        StatusCode::FORBIDDEN => Err(Trouble::other("the user may not do it (403)")),
        status if !status.is_success() => Err(Trouble::other(format!("{status} to {what}"))),
        _ if body.is_empty() => Ok(Value::Null),
        _ => serde_json::from_slice(body)
            .map_err(|_| Trouble::other(format!("no JSON in the answer to {what}"))),
    }
}
