//! The last rollout: the step of each node.

use super::{Context, chart, node_path, state};
use crate::access::digits;
use maud::{Markup, html};
use proto::{NodeStep, RolloutState, RolloutStatus};

/// The digits of an image that people are shown.
const DIGITS: usize = 12;

/// Returns true if a rollout has something left to do.
pub(super) fn goes_on(status: &RolloutStatus) -> bool {
    status.state == RolloutState::Running || status.nodes.iter().any(|(_, _, step)| step.is_active())
}

pub(super) fn page(context: &Context<'_>) -> Markup {
    html! {
        h1 { "Rollout" }
        (progress(context))
    }
}

/// Returns the progress of the last rollout.
pub(super) fn progress(context: &Context<'_>) -> Markup {
    html! {
        section id="rollout" data-live="" aria-labelledby="rollout-title" {
            @match &context.snapshot.view.rollout {
                None => {
                    h2 id="rollout-title" { "No rollout" }
                    p.empty { "There was no rollout." }
                }
                Some(status) => { (table(status)) }
            }
        }
    }
}

fn table(status: &RolloutStatus) -> Markup {
    let done = status.nodes.iter().filter(|(_, _, step)| *step == NodeStep::Done).count();
    let image = digits(&status.plan.image);
    html! {
        h2 id="rollout-title" { "Rollout " (status.number) " of image " (image.get(..DIGITS).unwrap_or(&image)) }
        p {
            (state(status.state.word())) " " (done) " of " (status.nodes.len()) " nodes, started by " (status.who)
            @if let Some(why) = status.state.reason() { ": " (why) }
        }
        (chart::meter(done as u64, status.nodes.len() as u64, "Nodes that run the image"))
        div.scroll tabindex="0" role="region" aria-label="Steps of the nodes" {
            table {
                thead { tr { th scope="col" { "Node" } th scope="col" { "Step" } th scope="col" { "Reason" } } }
                tbody {
                    @for (name, _, step) in &status.nodes {
                        tr {
                            th scope="row" { a href=(node_path(name)) { (name) } }
                            td { (state(step.word())) }
                            td { (step.reason().map(String::as_str).unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    }
}
