//! The events: what the manager has logged.

use super::Context;
use crate::http::format;
use maud::{Markup, html};

pub(super) fn page(context: &Context<'_>) -> Markup {
    html! {
        h1 { "Events" }
        (list(context, usize::MAX))
    }
}

/// Returns the last `most` events, the newest first.
pub(super) fn list(context: &Context<'_>, most: usize) -> Markup {
    let mut events = context.snapshot.view.events.of(context.caller.role).rev().take(most).peekable();
    html! {
        section id="events" data-live="" aria-labelledby="events-title" {
            h2 id="events-title" { "Events" }
            @if events.peek().is_none() { p.empty { "Nothing has happened." } }
            ol.events {
                @for event in events {
                    li {
                        time { (format::time(context.snapshot.time(event.at))) }
                        span { (event.text) }
                    }
                }
            }
        }
    }
}
