//! The manager over HTTP: metrics for Prometheus, an interface for programs, and the dashboard.
//!
//! Everything here reads copies of the core's state, which the core's task publishes a few times in a second.
//! No request waits for that task, and it waits for none.

mod actions;
mod api;
mod ask;
mod auth;
mod downloads;
mod format;
mod gate;
mod live;
mod metrics;
mod pages;
mod snapshot;
mod tls;

pub(crate) use ask::{Ask, Asks};
pub(crate) use gate::Viewers;
pub use gate::{Gate, Identity, KeyGate};
pub(crate) use snapshot::Publisher;
pub use snapshot::Snapshot;
pub use tls::{Tls, TlsError};

use crate::daemon::ha::Tenure;
use auth::Sessions;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// The rules for browsers: nothing from elsewhere, no scripts or styles within pages.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The longest request body, in bytes: that of a form with a key.
const BODY: usize = 8 << 10;

/// The time that requests have to end when the daemon stops.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// The state that all requests share.
#[derive(Debug)]
struct Shared {
    feed: snapshot::Feed,
    gate: Box<dyn Gate>,
    sessions: Sessions,
    asks: Asks,
    /// True if the service has TLS.
    secure: bool,
}

/// The state of a request's handler.
type App = Arc<Shared>;

/// Serves on `listener` until `stop` is done.
pub(crate) async fn serve(
    listener: TcpListener,
    feed: snapshot::Feed,
    gate: Box<dyn Gate>,
    asks: Asks,
    tls: Option<Tls>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let app = Arc::new(Shared { feed, gate, sessions: Sessions::default(), asks, secure: tls.is_some() });
    let service = router(app).into_make_service_with_connect_info::<SocketAddr>();
    // The servers try again by themselves after errors that may pass.
    let Some(tls) = tls else {
        let _ = axum::serve(listener, service).with_graceful_shutdown(stop).await;
        return;
    };
    let handle = axum_server::Handle::new();
    let stopping = handle.clone();
    tokio::spawn(async move {
        stop.await;
        stopping.graceful_shutdown(Some(LAST_REQUESTS));
    });
    let server = listener.into_std().and_then(|socket| axum_server::from_tcp_rustls(socket, tls.config));
    if let Ok(server) = server {
        let _ = server.handle(handle).serve(service).await;
    }
}

/// Answers all requests on `listener` with the reason why this manager does not serve them. With TLS, closes
/// the connections instead.
pub(crate) async fn stand_by(listener: TcpListener, secure: bool, tenure: Tenure) {
    if secure {
        loop {
            drop(listener.accept().await);
        }
    }
    let refuse = async move || {
        let reason = tenure.refusal().unwrap_or_else(|| "this manager begins to lead".into());
        (StatusCode::SERVICE_UNAVAILABLE, reason + "\n")
    };
    let _ = axum::serve(listener, Router::new().fallback(refuse)).await;
}

fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(api::healthz))
        .route("/readyz", get(api::readyz))
        .route("/metrics", get(metrics::metrics))
        .route("/api/v1/cluster", get(api::cluster))
        .route("/api/v1/nodes", get(api::nodes))
        .route("/api/v1/nodes/{name}", get(api::node))
        .route("/api/v1/nodes/{name}/log", get(api::node_log))
        .route("/api/v1/jobs", get(api::jobs))
        .route("/api/v1/jobs/{job}", get(api::job))
        .route("/api/v1/queue", get(actions::by_program))
        .route("/api/v1/jobs/{job}/details", get(actions::by_program))
        .route("/api/v1/jobs/{job}/output", get(downloads::output))
        .route("/api/v1/jobs/{job}/log", get(downloads::log))
        .route("/api/v1/jobs/{job}/cancel", post(actions::by_program))
        .route("/api/v1/nodes/{name}/power", post(actions::by_program))
        .route("/api/v1/inventory", get(actions::by_program))
        .route("/api/v1/datasets", get(actions::by_program))
        .route("/api/v1/datasets/{name}", delete(actions::by_program))
        .route("/api/v1/shutdown", post(actions::by_program))
        .route("/api/v1/support", get(actions::by_program))
        .route("/api/v1/users", get(actions::by_program))
        .route("/api/v1/users/{name}", put(actions::by_program).delete(actions::by_program))
        .route("/api/v1/audit", get(actions::by_program))
        .route("/api/v1/whoami", get(api::whoami))
        .route("/api/v1/rollout", get(api::rollout))
        .route("/api/v1/nodes/{name}/drain", post(actions::by_program).delete(actions::by_program))
        .route("/api/v1/rollout/stop", post(actions::by_program))
        .route("/api/v1/rollout/undo", post(actions::by_program))
        .route("/api/v1/events", get(api::events))
        .route("/api/v1/traffic", get(api::traffic))
        .route("/assets/{name}", get(pages::asset))
        .route("/favicon.ico", get(pages::favicon))
        .route("/login", get(pages::login).post(auth::login))
        .route("/logout", post(auth::logout))
        .route("/live", get(live::live))
        .route("/jobs/{job}/cancel", post(actions::cancel))
        .fallback(get(pages::page))
        .layer(axum::extract::DefaultBodyLimit::max(BODY))
        .layer(middleware::from_fn(with_headers))
        .with_state(app)
}

/// Adds the headers for browsers to each response. Adds the host to a request of HTTP/2, which has it in its
/// address (RFC 9113, 8.3.1).
async fn with_headers(mut request: Request, next: Next) -> Response {
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = authority {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
