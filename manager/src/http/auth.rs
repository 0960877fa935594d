//! Rights over HTTP: the login, sessions of browsers, and tokens of programs.

use super::{App, pages};
use axum::extract::{Form, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use proto::channel::{ClusterKey, Role};
use std::collections::HashMap;
use std::fmt::Write;
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

/// The rights of a caller. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The right to read.
    Viewer,
    /// The right to end jobs and to change nodes, too.
    Operator,
}

impl Level {
    /// Returns the level as one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Somebody who has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name, for people.
    pub name: String,
    /// The rights of the person or program.
    pub level: Level,
}

/// The decision who somebody is.
pub trait Gate: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the identity that a secret proves, or `None` if it proves none.
    fn identify(&self, secret: &str) -> Option<Identity>;
}

/// A gate whose secrets are the keys that the command line has: the text of the file of the cluster key or of
/// a client's key.
#[derive(Debug)]
pub struct KeyGate {
    key: ClusterKey,
    /// The password of viewers, if there is one.
    viewers: Option<zeroize::Zeroizing<String>>,
}

impl KeyGate {
    /// Makes a gate for the whole key of a cluster, and for the password of viewers, if they have one.
    #[must_use]
    pub fn new(key: ClusterKey, viewers: Option<zeroize::Zeroizing<String>>) -> Self {
        Self { key, viewers }
    }
}

impl Gate for KeyGate {
    fn identify(&self, secret: &str) -> Option<Identity> {
        let secret = secret.trim();
        if self.viewers.as_ref().is_some_and(|viewers| same(viewers.trim(), secret)) {
            return Some(Identity { name: "viewer".into(), level: Level::Viewer });
        }
        let whole = same(self.key.to_hex(), secret);
        let client = self.key.only(Role::Client).is_ok_and(|key| same(key.to_hex(), secret));
        (whole || client).then(|| Identity { name: "operator".into(), level: Level::Operator })
    }
}

/// Compares secrets in a time that depends on their lengths only.
fn same(one: impl AsRef<[u8]>, other: &str) -> bool {
    let (one, other) = (one.as_ref().trim_ascii(), other.as_bytes());
    one.len() == other.len()
        && !one.is_empty()
        && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

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

/// The sender of a request, who has proved to be somebody.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) identity: Identity,
    /// The word of the session's forms; `None` for a program with a token.
    pub(super) form: Option<String>,
}

impl Caller {
    /// Returns true if the caller may change something.
    pub(super) fn may_act(&self) -> bool {
        self.identity.level >= Level::Operator
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
            if let Some(identity) = app.gate.identify(secret) {
                return Ok(Self { identity, form: None });
            }
            app.sessions.count_failure();
            return Err(Unknown::Program);
        }
        match cookie(&parts.headers).and_then(|secret| app.sessions.find(secret)) {
            Some(session) => Ok(Self { identity: session.identity, form: Some(session.form) }),
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
    let Some(identity) = app.gate.identify(&key) else {
        app.sessions.count_failure();
        return (StatusCode::UNAUTHORIZED, pages::login_page(Some("This key opens nothing here.")))
            .into_response();
    };
    let Ok(secret) = app.sessions.start(identity) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no random bytes\n").into_response();
    };
    with_cookie(Redirect::to("/"), &secret, SESSION)
}

/// Ends a session.
pub(super) async fn logout(State(app): State<App>, headers: HeaderMap, Form(form): Form<Proof>) -> Response {
    if let Some((secret, session)) = cookie(&headers).and_then(|s| Some((s, app.sessions.find(s)?)))
        && same(&session.form, &form.form)
    {
        app.sessions.end(secret);
    }
    with_cookie(Redirect::to("/login"), "", Duration::ZERO)
}

fn with_cookie(response: impl IntoResponse, secret: &str, age: Duration) -> Response {
    let age = age.as_secs();
    let cookie = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}");
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

/// Checks that a caller may change something, and that the request is the caller's own: a form of the
/// session, or a program's.
///
/// # Errors
/// The response that refuses.
pub(super) fn may_change(caller: &Caller, headers: &HeaderMap, proof: &Proof) -> Result<(), Box<Response>> {
    let refuse = |why: &'static str| Err(Box::new((StatusCode::FORBIDDEN, why).into_response()));
    if !caller.may_act() {
        return refuse("a viewer changes nothing\n");
    }
    match &caller.form {
        Some(form) if !same(form, &proof.form) || !is_from_here(headers) => {
            refuse("the form is not one of this session\n")
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
