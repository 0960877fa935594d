//! The traffic matrix: who has posted how many work requests to whom.

use super::Context;
use crate::http::format;
use maud::{Markup, html};

/// The number of nodes that the matrix shows.
const MOST: usize = 64;

pub(super) fn page(context: &Context<'_>) -> Markup {
    let nodes = &context.snapshot.view.nodes;
    let shown = nodes.get(..MOST.min(nodes.len())).unwrap_or_default();
    let most = shown.iter().flat_map(|node| node.told.peers.values()).copied().max().unwrap_or(0).max(1);
    let level = |requests: u64| match requests {
        0 => 0,
        requests => 1 + (((requests as f64).ln_1p() / (most as f64).ln_1p()) * 6.0) as usize,
    };
    html! {
        h1 { "Traffic" }
        section id="traffic" data-live="" aria-labelledby="traffic-title" {
            h2 id="traffic-title" { "Work requests posted, from row to column" }
            @if nodes.len() > MOST { p.warn { "The first " (MOST) " of " (nodes.len()) " nodes." } }
            @if shown.is_empty() { p.empty { "No node has joined." } }
            @else {
                div.scroll tabindex="0" role="region" aria-label="Traffic matrix" {
                    table.matrix {
                        thead { tr {
                            th scope="col" { "from \\ to" }
                            @for node in shown { th scope="col" { (node.status.name) } }
                        } }
                        tbody {
                            @for from in shown {
                                tr {
                                    th scope="row" { (from.status.name) }
                                    @for to in shown {
                                        @let requests = from.told.peers.get(&to.status.node).copied().unwrap_or(0);
                                        td class={ "heat h" (level(requests)) } {
                                            @if requests > 0 { (format::count(requests)) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
