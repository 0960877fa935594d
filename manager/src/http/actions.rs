//! Requests by people at the dashboard and by programs that the core handles: changes, and lists that it does
//! not publish.

use super::App;
use super::ask::Refused;
use super::auth::{Caller, Proof, is_own};
use crate::core::json::{
    audit_json, datasets_json, inventory_json, job_details_json, jobs_json, rollout_json, users_json,
};
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use proto::{FromClient, JobId, PowerAction, PowerVerb, Refusal, ToClient, UserRole, printable};
use serde_json::{Value, json};

/// Lets the core handle a request of a caller, if the caller's role suffices.
pub(super) async fn act(app: &App, caller: &Caller, request: FromClient) -> Result<Vec<ToClient>, Refused> {
    match caller.objection(&request) {
        Some(reason) => Err(Refused { kind: Some(Refusal::Denied), reason }),
        None => app.asks.ask(caller.peer.clone(), caller.identity.user(), request).await,
    }
}

/// Returns the status of a response that refuses.
pub(super) const fn status(refused: &Refused) -> StatusCode {
    match refused.kind {
        Some(Refusal::Denied) => StatusCode::FORBIDDEN,
        Some(Refusal::NotFound) => StatusCode::NOT_FOUND,
        Some(Refusal::TimedOut) => StatusCode::GATEWAY_TIMEOUT,
        None => StatusCode::CONFLICT,
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
    if let Err(refusal) = is_own(&caller, &headers, &proof) {
        return *refusal;
    }
    match act(&app, &caller, FromClient::Cancel { job: JobId(job) }).await {
        Ok(_) => Redirect::to(&format!("/jobs/{job}")).into_response(),
        Err(refused) => (status(&refused), super::pages::trouble(&caller, &refused.reason)).into_response(),
    }
}

/// Does a request of a program.
pub(super) async fn by_program(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    method: Method,
    uri: Uri,
) -> Response {
    let request = match request(&method, uri.path(), uri.query().unwrap_or_default()) {
        Ok(request) => request,
        Err(why) => return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    if method != Method::GET
        && let Err(refusal) = is_own(&caller, &headers, &Proof::none())
    {
        return *refusal;
    }
    match act(&app, &caller, request).await {
        Ok(answers) => answer(answers),
        Err(refused) => (status(&refused), format!("{}\n", refused.reason)).into_response(),
    }
}

/// Returns the request of a path under `/api/v1/`, or the reason why it is none.
fn request(method: &Method, path: &str, query: &str) -> Result<FromClient, String> {
    let parts: Vec<String> = path
        .trim_start_matches("/api/v1/")
        .split('/')
        .map(|part| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned())
        .collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let request = match (method.as_str(), &parts[..]) {
        ("GET", ["datasets"]) => FromClient::Datasets,
        ("DELETE", ["datasets", name]) => FromClient::DropDataset { name: (*name).into() },
        ("GET", ["queue"]) => {
            let after =
                value("after").map_or(Ok(0), str::parse).map_err(|_| "want ?after=NUMBER of a job")?;
            FromClient::JobList { after: JobId(after), ended: value("ended") == Some("true") }
        }
        ("GET", ["jobs", job, "details"]) => FromClient::JobShow { job: number(job)? },
        ("POST", ["jobs", job, "cancel"]) => FromClient::Cancel { job: number(job)? },
        ("POST", ["nodes", node, "power"]) => {
            power(node, value("action").unwrap_or_default(), value("bmc") == Some("yes"))?
        }
        ("POST", ["nodes", node, "drain"]) => {
            let reason = value("reason").unwrap_or_default();
            let reason = percent_encoding::percent_decode_str(reason).decode_utf8_lossy().into_owned();
            let force = value("force") == Some("yes");
            FromClient::Drain { node: (*node).into(), reason, deadline_ms: None, force }
        }
        ("GET", ["inventory"]) => {
            let after = percent_encoding::percent_decode_str(value("after").unwrap_or_default());
            FromClient::Inventory { after: after.decode_utf8_lossy().into_owned() }
        }
        ("DELETE", ["nodes", node, "drain"]) => FromClient::Undrain { node: (*node).into() },
        ("POST", ["rollout", "stop"]) => FromClient::RolloutStop,
        ("POST", ["rollout", "undo"]) => FromClient::RolloutUndo,
        ("POST", ["shutdown"]) => FromClient::Shutdown,
        ("GET", ["support"]) => FromClient::Support,
        ("GET", ["users"]) => FromClient::Users,
        ("PUT", ["users", name]) => {
            let role = UserRole::ALL.into_iter().find(|role| Some(role.word()) == value("role"));
            let role = role.ok_or("want ?role=viewer, user, operator or admin")?;
            FromClient::SetUserRole { name: (*name).into(), role }
        }
        ("DELETE", ["users", name]) => FromClient::RemoveUser { name: (*name).into() },
        ("GET", ["audit"]) => {
            let after = value("after").map_or(Ok(0), str::parse);
            FromClient::Audit { after: after.map_err(|_| "want ?after=NUMBER of an entry")? }
        }
        _ => return Err("there is no such request".into()),
    };
    Ok(request)
}

/// Returns the request that changes or shows the power of a machine: by its node, unless `by_bmc`, or if only
/// its power controller can do it.
fn power(node: &str, action: &str, by_bmc: bool) -> Result<FromClient, String> {
    let node = node.to_owned();
    let by_node = match action {
        "off" => Some(PowerAction::Off),
        "reset" => Some(PowerAction::Reset),
        _ => None,
    };
    match (by_node, PowerVerb::ALL.into_iter().find(|verb| verb.word() == action)) {
        (Some(action), _) if !by_bmc => Ok(FromClient::Power { node, action }),
        (_, Some(verb)) => Ok(FromClient::Bmc { node, verb, force: by_bmc }),
        _ => Err("want ?action=on, off, cycle or status, or reset without bmc=yes".into()),
    }
}

fn number(job: &str) -> Result<JobId, String> {
    job.parse().map(JobId).map_err(|_| format!("{} is not a number of a job", printable(job)))
}

/// Returns an answer as JSON.
fn answer(answers: Vec<ToClient>) -> Response {
    let done = || json!({ "done": true });
    let mut report = Vec::new();
    let mut value = done();
    for answer in answers {
        match answer {
            ToClient::Support { bytes, .. } => report.extend(bytes),
            ToClient::Datasets(datasets) => value = datasets_json(&datasets, &Default::default()),
            ToClient::Users(users) => value = users_json(&users),
            ToClient::Audit { entries, more } => {
                value = audit_json(&entries);
                value["more"] = more.into();
            }
            ToClient::JobList { jobs, more } => {
                value = jobs_json(&jobs);
                value["more"] = more.into();
            }
            ToClient::JobShown(details) => value = job_details_json(&details),
            ToClient::Powered { on } => value = json!({ "power": if on { "on" } else { "off" } }),
            ToClient::Inventory { nodes, more } => {
                value = inventory_json(&nodes);
                value["more"] = more.into();
            }
            ToClient::NodeChanged { standing } => value = json!({ "state": standing.word() }),
            ToClient::Rollout(status) => value = rollout_json(status.as_ref()),
            ToClient::Cancelled { job } => value = json!({ "job": job.0, "cancelled": true }),
            _ => {}
        }
    }
    if !report.is_empty() {
        value = serde_json::from_slice::<Value>(&report).unwrap_or_else(|_| done());
    }
    axum::Json(value).into_response()
}
