//! Changes by people at the dashboard and by programs. They go the way of the command line: over a
//! client's connection to the manager.

use super::App;
use super::auth::{Caller, Proof, may_change};
use crate::client::{Client, ClientError};
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use proto::JobId;
use proto::channel::ClusterKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The means to become a client of this manager.
#[derive(Debug)]
pub(super) struct Actions {
    manager: SocketAddr,
    key: ClusterKey,
}

impl Actions {
    pub(super) fn new(mut manager: SocketAddr, key: ClusterKey) -> Self {
        // A manager that listens on all addresses is reached on that of this host.
        if manager.ip().is_unspecified() {
            manager.set_ip(match manager.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Self { manager, key }
    }

    /// Does something as a client.
    async fn run(
        &self,
        act: impl FnOnce(&mut Client) -> Result<(), ClientError> + Send + 'static,
    ) -> Result<(), String> {
        let (manager, key) = (self.manager.to_string(), self.key.clone());
        let done = tokio::task::spawn_blocking(move || act(&mut Client::connect(&manager, &key)?));
        match done.await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("the request was cut off".into()),
        }
    }
}

/// Ends a job, for a program.
pub(super) async fn cancel_by_program(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Path(job): Path<u64>,
) -> Response {
    if let Err(refusal) = may_change(&caller, &headers, &Proof::none()) {
        return *refusal;
    }
    match app.actions.run(move |client| client.cancel(JobId(job))).await {
        Ok(()) => axum::Json(serde_json::json!({ "job": job, "cancelled": true })).into_response(),
        Err(why) => (StatusCode::CONFLICT, format!("{why}\n")).into_response(),
    }
}

/// Ends a job, for a person.
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Path(job): Path<u64>,
    Form(proof): Form<Proof>,
) -> Response {
    if let Err(refusal) = may_change(&caller, &headers, &proof) {
        return *refusal;
    }
    match app.actions.run(move |client| client.cancel(JobId(job))).await {
        Ok(()) => Redirect::to(&format!("/jobs/{job}")).into_response(),
        Err(why) => (StatusCode::CONFLICT, super::pages::trouble(&caller, &why)).into_response(),
    }
}
