//! Rights over HTTP: the login, sessions of browsers, and tokens of programs.

use super::gate::{Identity, same};
use super::{App, pages};
use crate::access::{objection, rule};
use axum::extract::{ConnectInfo, Form, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use proto::{FromClient, JobId, Reason, UserRole};
use std::collections::HashMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time after which a browser must log in again.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// The maximum number of sessions. Beyond it the oldest one ends.
const SESSIONS: usize = 1000;
/// The number of failed logins of all clients together in a [`WINDOW`].
const FAILURES: u32 = 10;
/// The time for which failed logins are counted together.
const WINDOW: Duration = Duration::from_secs(10);
/// The name of the cookie.
const COOKIE: &str = "ferrolite";

/// A browser that has logged in.
#[derive(Clone, Debug)]
struct Session {
    identity: Identity,
    /// The word that forms of this session carry, which other sites do not know.
    form: String,
    since: Instant,
}

/// The sessions, by the secret in the browser's cookie, and the failed logins.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<String, Session>,
    failures: u32,
    window: Option<Instant>,
}

impl Sessions {
    fn with<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Starts a session, and returns the secret of its cookie.
    fn start(&self, identity: Identity) -> Result<String, getrandom::Error> {
        let (secret, form) = (word()?, word()?);
        let session = Session { identity, form, since: Instant::now() };
        self.with(|table| {
            table.sessions.retain(|_, session| session.since.elapsed() < SESSION);
            if table.sessions.len() >= SESSIONS {
                let oldest = table.sessions.iter().min_by_key(|(_, session)| session.since);
                if let Some(oldest) = oldest.map(|(secret, _)| secret.clone()) {
                    table.sessions.remove(&oldest);
                }
            }
            table.sessions.insert(secret.clone(), session);
        });
        Ok(secret)
    }

    fn find(&self, secret: &str) -> Option<Session> {
        self.with(|table| table.sessions.get(secret).filter(|s| s.since.elapsed() < SESSION).cloned())
    }

    fn end(&self, secret: &str) {
        self.with(|table| table.sessions.remove(secret));
    }

    /// Returns true if there were too many failed logins a moment ago.
    fn is_closed(&self) -> bool {
        self.with(|table| {
            if table.window.is_none_or(|since| since.elapsed() >= WINDOW) {
                (table.window, table.failures) = (Some(Instant::now()), 0);
            }
            table.failures >= FAILURES
        })
    }

    fn count_failure(&self) {
        self.with(|table| table.failures += 1);
    }
}

/// Returns a random word that nobody can guess.
fn word() -> Result<String, getrandom::Error> {
    let mut text = String::new();
    for byte in crate::key::random()? {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The sender of a request, who has proved to be somebody and may do something.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) identity: Identity,
    /// The name, for people.
    pub(super) name: String,
    /// The role at the time of the request.
    pub(super) role: UserRole,
    /// The address, for people.
    pub(super) peer: String,
    /// The word of the session's forms; `None` for a program with a token.
    pub(super) form: Option<String>,
}

impl Caller {
    /// Makes a caller who has proved an identity; `None` if it may do nothing.
    fn of(app: &App, parts: &Parts, identity: Identity, form: Option<String>) -> Option<Self> {
        let (name, role) =
            identity.standing(&app.feed.borrow().view).filter(|_| app.gate.is_valid(identity))?;
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let address = address.map_or_else(|| "unknown".into(), |info| info.0.ip().to_canonical().to_string());
        Some(Self { identity, name, role, peer: format!("{address} by HTTP"), form })
    }

    /// Returns the reason why the caller's role does not suffice for a request. The core decides whose job
    /// it is.
    pub(super) fn objection(&self, request: &FromClient) -> Option<Reason> {
        objection(&self.name, self.role, rule(request).least())
    }

    /// Returns true if the caller may end a job of `owner`.
    pub(super) fn may_cancel(&self, job: JobId, owner: &str) -> bool {
        let needed = rule(&FromClient::Cancel { job }).needed(|_| self.owns(owner));
        self.role >= needed
    }

    /// Returns true if the caller may have the output of a job of `owner`.
    pub(super) fn may_fetch(&self, job: JobId, owner: &str) -> bool {
        let needed = rule(&FromClient::JobOutput { job, offset: 0 }).needed(|_| self.owns(owner));
        self.role >= needed
    }

    fn owns(&self, owner: &str) -> bool {
        match self.identity {
            Identity::User(_) => self.name == owner,
            Identity::Shared => owner.is_empty(),
            Identity::Viewer(_) => false,
        }
    }
}

/// The refusal of a request by somebody unknown.
pub(super) enum Unknown {
    /// A browser: it gets the page of the login.
    Browser,
    /// A program.
    Program,
    /// Too many failed attempts.
    Closed,
}

impl IntoResponse for Unknown {
    fn into_response(self) -> Response {
        match self {
            Self::Browser => Redirect::to("/login").into_response(),
            Self::Program => {
                let wanted = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, wanted, "log in, or send the key as a bearer token\n")
                    .into_response()
            }
            Self::Closed => (StatusCode::TOO_MANY_REQUESTS, "too many failed logins: wait\n").into_response(),
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Unknown;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Unknown> {
        let bearer = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some(secret) = bearer.and_then(|value| value.strip_prefix("Bearer ")) {
            if app.sessions.is_closed() {
                return Err(Unknown::Closed);
            }
            let identity = app.gate.identify(secret);
            if let Some(caller) = identity.and_then(|identity| Self::of(app, parts, identity, None)) {
                return Ok(caller);
            }
            app.sessions.count_failure();
            return Err(Unknown::Program);
        }
        let session = cookie(&parts.headers).and_then(|secret| app.sessions.find(secret));
        let caller = session.and_then(|session| Self::of(app, parts, session.identity, Some(session.form)));
        match caller {
            Some(caller) => Ok(caller),
            None if parts.uri.path().starts_with("/api/") => Err(Unknown::Program),
            None => Err(Unknown::Browser),
        }
    }
}

/// Returns the secret of the session in a request's cookies.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Returns false if a browser says that another site has made it send the request.
fn is_from_here(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    let origin = headers.get(header::ORIGIN).and_then(|value| value.to_str().ok());
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let same_origin = match (origin.and_then(|origin| origin.split_once("://")), host) {
        (Some((_, origin)), Some(host)) => origin == host,
        (None, _) => origin.is_none(),
        (Some(_), None) => false,
    };
    same_origin && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// The fields of the form of the login.
#[derive(serde::Deserialize)]
pub(super) struct Login {
    key: String,
}

/// Starts a session.
pub(super) async fn login(State(app): State<App>, headers: HeaderMap, Form(form): Form<Login>) -> Response {
    if !is_from_here(&headers) {
        return (StatusCode::FORBIDDEN, "the form is of another site\n").into_response();
    }
    if app.sessions.is_closed() {
        return Unknown::Closed.into_response();
    }
    let key = zeroize::Zeroizing::new(form.key);
    let is_known = |identity: &Identity| identity.standing(&app.feed.borrow().view).is_some();
    let Some(identity) = app.gate.identify(&key).filter(is_known) else {
        app.sessions.count_failure();
        return (StatusCode::UNAUTHORIZED, pages::login_page(Some("This key opens nothing here.")))
            .into_response();
    };
    let Ok(secret) = app.sessions.start(identity) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no random bytes\n").into_response();
    };
    with_cookie(&app, Redirect::to("/"), &secret, SESSION)
}

/// Ends a session.
pub(super) async fn logout(State(app): State<App>, headers: HeaderMap, Form(form): Form<Proof>) -> Response {
    if let Some((secret, session)) = cookie(&headers).and_then(|s| Some((s, app.sessions.find(s)?)))
        && same(&session.form, &form.form)
    {
        app.sessions.end(secret);
    }
    with_cookie(&app, Redirect::to("/login"), "", Duration::ZERO)
}

fn with_cookie(app: &App, response: impl IntoResponse, secret: &str, age: Duration) -> Response {
    let age = age.as_secs();
    let secure = if app.secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    let mut response = response.into_response();
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The proof that a form is one of this session.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Proof {
    #[serde(default)]
    form: String,
}

/// Checks that a request that changes something is the caller's own: a form of the session, or a program's.
///
/// # Errors
/// The response that refuses.
pub(super) fn is_own(caller: &Caller, headers: &HeaderMap, proof: &Proof) -> Result<(), Box<Response>> {
    match &caller.form {
        Some(form) if !same(form, &proof.form) || !is_from_here(headers) => {
            let why = "the form is not one of this session\n";
            Err(Box::new((StatusCode::FORBIDDEN, why).into_response()))
        }
        _ => Ok(()),
    }
}

impl Proof {
    /// Returns the proof of a request without a form.
    pub(super) const fn none() -> Self {
        Self { form: String::new() }
    }
}
