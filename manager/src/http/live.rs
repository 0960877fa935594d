//! Pages that stay up to date: a stream of events for a browser, each the page as it is now.

use super::App;
use super::auth::Caller;
use super::pages;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use std::convert::Infallible;
use std::time::Duration;

/// The shortest time between two events of a stream.
const PACE: Duration = Duration::from_millis(500);
/// The time after which a stream ends, and the browser asks again: its session may be over. A stream ends at
/// once when the role of its reader changes.
const LONGEST: Duration = Duration::from_secs(600);

/// The page that a browser shows.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Shown {
    path: String,
}

/// Streams a page, once for each change.
pub(super) async fn live(
    State(app): State<App>,
    caller: Caller,
    Query(shown): Query<Shown>,
) -> impl IntoResponse {
    let start = std::time::Instant::now();
    let feed = app.feed.clone();
    let events = stream::unfold((feed, String::new()), move |(mut feed, mut last)| {
        let (app, caller, path) = (app.clone(), caller.clone(), shown.path.clone());
        async move {
            loop {
                tokio::time::sleep(PACE).await;
                if start.elapsed() > LONGEST || feed.changed().await.is_err() {
                    return None;
                }
                let snapshot = feed.borrow_and_update().clone();
                let standing = caller.identity.standing(&snapshot.view);
                if standing.is_none_or(|(_, role)| role != caller.role) || !app.gate.is_valid(caller.identity)
                {
                    return None;
                }
                let page = pages::body(&snapshot, &caller, &path)?.into_string();
                if page != last {
                    last.clone_from(&page);
                    let event: Result<Event, Infallible> = Ok(Event::default().data(page));
                    return Some((event, (feed, last)));
                }
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
