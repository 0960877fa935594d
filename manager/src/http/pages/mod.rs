//! The pages of the dashboard. Templates escape all text; nothing else makes HTML.

mod chart;
mod events;
mod inventory;
mod jobs;
mod nodes;
mod overview;
mod rollout;
mod traffic;

use super::auth::Caller;
use super::{App, Snapshot};
use crate::core::Departed;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a node that has died is shown.
const DEAD_SHOWN: Duration = Duration::from_secs(3600);

/// The pages in the navigation: path, title.
const PAGES: [(&str, &str); 6] = [
    ("/", "Overview"),
    ("/nodes", "Nodes"),
    ("/jobs", "Jobs"),
    ("/rollout", "Rollout"),
    ("/traffic", "Traffic"),
    ("/events", "Events"),
];

/// The sources of a page.
struct Context<'a> {
    snapshot: &'a Snapshot,
    caller: &'a Caller,
}

/// Serves a page by its path.
pub(super) async fn page(State(app): State<App>, caller: Caller, uri: Uri) -> Response {
    let snapshot = app.feed.borrow().clone();
    match body(&snapshot, &caller, uri.path()) {
        Some(body) => {
            Html(frame(title(uri.path()), uri.path(), Some(&caller), &body).into_string()).into_response()
        }
        None => (StatusCode::NOT_FOUND, trouble(&caller, "There is no such page.")).into_response(),
    }
}

/// Returns the contents of a page; `None` if there is no such page.
pub(super) fn body(snapshot: &Snapshot, caller: &Caller, path: &str) -> Option<Markup> {
    let context = Context { snapshot, caller };
    match path.split_once('/')?.1.split_once('/') {
        None => match path {
            "/" => Some(overview::page(&context)),
            "/nodes" => Some(nodes::all(&context)),
            "/jobs" => Some(jobs::all(&context)),
            "/rollout" => Some(rollout::page(&context)),
            "/traffic" => Some(traffic::page(&context)),
            "/events" => Some(events::page(&context)),
            _ => None,
        },
        Some(("nodes", name)) => nodes::one(&context, &decoded(name)?),
        Some(("jobs", job)) => jobs::one(&context, job.parse().ok()?),
        Some(_) => None,
    }
}

/// Returns the text of a part of a path.
fn decoded(part: &str) -> Option<String> {
    percent_encoding::percent_decode_str(part).decode_utf8().ok().map(Into::into)
}

/// Returns the path of a node's page.
fn node_path(name: &str) -> String {
    format!("/nodes/{}", percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC))
}

fn title(path: &str) -> &str {
    PAGES.iter().find(|(page, _)| *page == path).map_or("Ferrolite", |(_, title)| title)
}

/// Puts a page into the frame that all have.
fn frame(title: &str, path: &str, caller: Option<&Caller>, body: &Markup) -> Markup {
    let current = |page: &str| if page == "/" { path == "/" } else { path.starts_with(page) };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Ferrolite" }
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/assets/style.css";
                @if caller.is_some() { script src="/assets/live.js" defer {} }
            }
            body {
                @if let Some(caller) = caller {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        a.brand href="/" { span.mark aria-hidden="true" {} "Ferrolite" }
                        nav aria-label="Pages" {
                            @for (page, title) in PAGES {
                                a href=(page) aria-current=[current(page).then_some("page")] { (title) }
                            }
                        }
                        div.who {
                            span.live id="live" role="status" { "static" }
                            span { (caller.name) ", " (caller.role) }
                            @if let Some(form) = &caller.form {
                                form method="post" action="/logout" {
                                    input type="hidden" name="form" value=(form);
                                    button.quiet type="submit" { "Log out" }
                                }
                            }
                        }
                    }
                }
                main id="main" { (body) }
            }
        }
    }
}

/// Returns the page of the login, with a complaint about a former attempt.
pub(super) fn login_page(complaint: Option<&str>) -> Html<String> {
    let body = html! {
        section.login {
            h1 { span.mark aria-hidden="true" {} "Ferrolite" }
            form method="post" action="/login" {
                @if let Some(complaint) = complaint { p.complaint role="alert" { (complaint) } }
                label for="key" { "Key" }
                input id="name" type="text" name="name" value="cluster" autocomplete="username" hidden;
                input id="key" type="password" name="key" required autocomplete="current-password" autofocus;
                p.hint { "The text of a key file of this cluster." }
                button type="submit" { "Log in" }
            }
        }
    };
    Html(frame("Log in", "/login", None, &body).into_string())
}

/// Serves the page of the login.
pub(super) async fn login() -> Html<String> {
    login_page(None)
}

/// Returns a page about a request that has failed.
pub(super) fn trouble(caller: &Caller, why: &str) -> Html<String> {
    let body = html! {
        h1 { "That did not work" }
        p.complaint role="alert" { (why) }
        p { a href="/" { "Back to the overview" } }
    };
    Html(frame("Trouble", "", Some(caller), &body).into_string())
}

/// Serves a file of the dashboard.
pub(super) async fn asset(Path(name): Path<String>) -> Response {
    let (kind, text) = match name.as_str() {
        "style.css" => ("text/css; charset=utf-8", include_str!("../assets/style.css")),
        "live.js" => ("text/javascript; charset=utf-8", include_str!("../assets/live.js")),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "public, max-age=300")], text).into_response()
}

/// Serves the icon that browsers ask for without being told.
pub(super) async fn favicon() -> Response {
    asset(Path("icon.svg".into())).await
}

/// Returns the nodes that have died within the last hour and have not come back, by name.
pub(super) fn dead(snapshot: &Snapshot) -> Vec<Arc<Departed>> {
    let mut dead = BTreeMap::new();
    for node in &snapshot.view.departed {
        dead.insert(node.name.as_str(), node);
    }
    let lives = |name: &str| snapshot.view.nodes.iter().any(|node| node.status.name == name);
    let shown = dead.into_values().filter(|node| node.reason != "left" && !lives(&node.name));
    shown.filter(|node| snapshot.age(node.at) < DEAD_SHOWN).cloned().collect()
}

/// Returns a mark of a state: a dot and the word.
fn state(word: &str) -> Markup {
    html! { span class={ "state " (word) } { (word) } }
}
