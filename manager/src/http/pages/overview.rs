//! The overview: the cluster at a glance.

use super::{Context, chart, dead, events, jobs, nodes};
use crate::http::format;
use maud::{Markup, html};
use proto::NodeState;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of events on the overview.
const EVENTS: usize = 12;

pub(super) fn page(context: &Context<'_>) -> Markup {
    let (snapshot, view) = (context.snapshot, &context.snapshot.view);
    let count = |state| view.nodes.iter().filter(|node| node.status.state == state).count();
    let (ready, silent) = (count(NodeState::Ready), count(NodeState::Silent) + count(NodeState::Awaited));
    let dead = dead(snapshot).len();
    let out = view.nodes.iter().filter(|node| node.standing.withdrawal().is_some()).count();
    let memory: u64 = view.nodes.iter().map(|node| node.status.memory).sum();
    let free: u64 = view.nodes.iter().filter_map(|node| node.told.counter("memory_free_bytes")).sum();
    let (operations, bytes) = totals(context);
    let latest = |series: &[f64]| series.last().copied().unwrap_or_default() as u64;
    html! {
        h1 { "Overview" }
        section.cards id="cards" data-live="" aria-label="Summary" {
            @if let Some(trouble) = &view.trouble {
                p.complaint role="alert" { "The manager is in trouble: " (trouble) }
            }
            div.card {
                h2 { "Nodes" }
                p.big { (ready) small { " connected" } }
                p.sub {
                    @if silent > 0 { span.warn { (silent) " silent" } " " }
                    @if dead > 0 { span.bad { (dead) " dead" } " " }
                    @if silent + dead == 0 { "all answer " }
                    @if out > 0 { span.warn { (out) " out of service" } }
                }
            }
            div.card {
                h2 { "Jobs" }
                p.big { (view.jobs.len()) small { " present" } }
                p.sub { (view.timelines.iter().filter(|line| line.is_complete()).count()) " done" }
            }
            div.card {
                h2 { "Operations" }
                p.big { (format::count(latest(&operations))) small { " /s" } }
                (chart::line(&operations, "Operations of LITE in each second of the last two minutes"))
            }
            div.card {
                h2 { "Read and written" }
                p.big { (format::bytes(latest(&bytes))) small { " /s" } }
                (chart::line(&bytes, "Bytes that LITE moved in each second of the last two minutes"))
            }
            div.card {
                h2 { "Memory" }
                p.big { (format::bytes(free)) small { " free" } }
                (chart::meter(memory.saturating_sub(free), memory, "Memory in use"))
                p.sub { "of " (format::bytes(memory)) }
            }
            div.card {
                h2 { "Manager" }
                p.big { "epoch " (view.epoch) }
                p.sub {
                    "up " (format::duration(Duration::from_secs(view.at.as_nanos() / 1_000_000_000)))
                    ", lease " (format::duration(view.lease)) ", " (env!("CARGO_PKG_VERSION"))
                }
            }
        }
        (nodes::grid(context))
        (jobs::table(context, 5))
        (events::list(context, EVENTS))
    }
}

/// Returns the operations and the bytes of all nodes in each of the last seconds.
fn totals(context: &Context<'_>) -> (Vec<f64>, Vec<f64>) {
    let now = context.snapshot.view.at;
    let mut seconds: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for node in &context.snapshot.view.nodes {
        for sample in &node.told.samples {
            let ago = now.saturating_since(sample.at).as_secs();
            // The present second is not over.
            if (1..=119).contains(&ago) {
                let over = sample.over.as_secs_f64().max(0.1);
                let sum = seconds.entry(119 - ago).or_default();
                sum.0 += sample.operations as f64 / over;
                sum.1 += sample.bytes as f64 / over;
            }
        }
    }
    let first = seconds.keys().next().copied().unwrap_or(119);
    (first..119).map(|second| seconds.get(&second).copied().unwrap_or_default()).unzip()
}
