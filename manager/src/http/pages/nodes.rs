//! The nodes: a grid of tiles, and a page for each node.

use super::chart::{self, Bar};
use super::{Context, dead, inventory, node_path, state};
use crate::core::{Departed, NodeLine, NodeView, Sample};
use crate::http::format;
use maud::{Markup, html};
use proto::{NodeStanding, NodeState};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn all(context: &Context<'_>) -> Markup {
    html! {
        h1 { "Nodes" }
        (grid(context))
        (inventory::table(context))
    }
}

/// Returns a tile for each node, those that have died at the end.
pub(super) fn grid(context: &Context<'_>) -> Markup {
    let view = &context.snapshot.view;
    let (nodes, absent) = (&view.nodes, &view.absent);
    let is_absent = |name: &str| absent.iter().any(|(absent, _)| absent == name);
    let dead: Vec<_> = dead(context.snapshot).into_iter().filter(|node| !is_absent(&node.name)).collect();
    html! {
        section id="nodes" data-live="" aria-labelledby="nodes-title" {
            h2 id="nodes-title" { "Nodes" }
            @if nodes.is_empty() && absent.is_empty() && dead.is_empty() { p.empty { "No node has joined." } }
            ul.grid {
                @for node in nodes { li { (tile(node)) } }
                @for (name, standing) in absent { li { (absent_tile(name, standing)) } }
                @for node in &dead { li { (dead_tile(context, node)) } }
            }
        }
    }
}

fn rates(samples: &VecDeque<Sample>, of: fn(&Sample) -> u64) -> Vec<f64> {
    samples.iter().map(|sample| of(sample) as f64 / sample.over.as_secs_f64().max(0.1)).collect()
}

fn tile(node: &NodeView) -> Markup {
    let status = &node.status;
    let word = node.standing.word();
    let operations = rates(&node.told.samples, |sample| sample.operations);
    let free = node.told.counter("memory_free_bytes");
    html! {
        a.tile class=(word) href=(node_path(&status.name)) data-node=(status.name) {
            span.name { (status.name) }
            (state(word))
            @if let Some(why) = withdrawal(&node.standing) { span.sub { (why) } }
            span.sub {
                @match node.job {
                    Some(job) => { "job " (job.0) }
                    None => { "idle" }
                }
                " · " (format::count(operations.last().copied().unwrap_or_default() as u64)) " op/s"
            }
            (chart::line(&operations, "Operations in each second"))
            @if let Some(free) = free {
                (chart::meter(status.memory.saturating_sub(free), status.memory, "Memory in use"))
            }
        }
    }
}

/// Returns the reason for which a node is out of service, and for which it still has memory of regions.
fn withdrawal(standing: &NodeStanding) -> Option<String> {
    let why = standing.withdrawal().and_then(|_| standing.objection())?;
    Some(standing.held().map_or(why.clone(), |held| format!("{why}; {held}")))
}

fn absent_tile(name: &str, standing: &NodeStanding) -> Markup {
    html! {
        a.tile class=(standing.word()) href=(node_path(name)) data-node=(name) {
            span.name { (name) }
            (state(standing.word()))
            span.sub { (withdrawal(standing).unwrap_or_default()) }
        }
    }
}

fn dead_tile(context: &Context<'_>, node: &Departed) -> Markup {
    html! {
        a.tile.dead href=(node_path(&node.name)) data-node=(node.name) {
            span.name { (node.name) }
            (state("dead"))
            span.sub { (node.reason) }
            span.sub { (format::duration(context.snapshot.age(node.at))) " ago" }
        }
    }
}

/// Returns the page of a node, also of one that has departed.
pub(super) fn one(context: &Context<'_>, name: &str) -> Option<Markup> {
    let view = &context.snapshot.view;
    if let Some(node) = view.nodes.iter().find(|node| node.status.name == name) {
        return Some(member(context, node));
    }
    let absent = view.absent.iter().find(|(absent, _)| absent == name).map(|(_, standing)| standing);
    let departed = view.departed.iter().rev().find(|node| node.name == name);
    if absent.is_none() && departed.is_none() {
        return None;
    }
    Some(html! {
        h1 { (name) }
        section id="state" data-live="" {
            @if let Some(standing) = absent {
                p { (state(standing.word())) " " (withdrawal(standing).unwrap_or_default()) }
            }
            @if let Some(departed) = departed {
                p { (state("dead")) " " (departed.reason) ", "
                    (format::time(context.snapshot.time(departed.at))) " UTC" }
            }
        }
        @if let Some(departed) = departed { (log(&departed.lines, 0, 0)) }
    })
}

fn member(context: &Context<'_>, node: &NodeView) -> Markup {
    let (status, told) = (&node.status, &node.told);
    let facts = [
        ("Number", status.node.0.to_string()),
        ("Incarnation", status.incarnation.0.to_string()),
        ("Boot", format!("{:016x}", status.boot_id)),
        ("Kind", if node.rnic.physical { "appliance" } else { "Linux process" }.to_owned()),
        ("Processors", status.cpus.to_string()),
        ("Memory", format::bytes(status.memory)),
        ("Up", format::duration(Duration::from_micros(told.uptime_us))),
        (
            "Last heartbeat",
            format!("{} ago", format::duration(Duration::from_millis(status.heartbeat_age_ms))),
        ),
    ];
    let card = [
        ("Driver and port", status.rnic.clone()),
        ("Ethernet address", node.rnic.mac.to_string()),
        ("LID", node.rnic.lid.to_string()),
        ("Path MTU", format!("{:?}", node.rnic.mtu)),
        ("READs at once", node.rnic.max_rd_atomic.to_string()),
    ];
    let operations = rates(&told.samples, |sample| sample.operations);
    let bytes = rates(&told.samples, |sample| sample.bytes);
    let last = |series: &[f64]| series.last().copied().unwrap_or_default() as u64;
    html! {
        h1 { (status.name) }
        section id="state" data-live="" aria-label="State" {
            p { (state(node.standing.word()))
                @if let Some(why) = withdrawal(&node.standing) { " " (why) }
                @if node.standing.withdrawal().is_some() && status.state != NodeState::Ready {
                    " " (state(status.state.word()))
                }
                @if let Some(job) = node.job { " takes part in " a href={ "/jobs/" (job.0) } { "job " (job.0) } } }
        }
        div.columns {
            section id="facts" data-live="" aria-labelledby="facts-title" {
                h2 id="facts-title" { "Node" }
                (pairs(&facts))
                p.sub { "Applications: " (status.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>().join(", ")) }
            }
            section id="card" data-live="" aria-labelledby="card-title" {
                h2 id="card-title" { "Card and link" }
                (pairs(&card))
            }
            section id="work" data-live="" aria-labelledby="work-title" {
                h2 id="work-title" { "Work" }
                p { (format::count(last(&operations))) " operations/s" }
                (chart::line(&operations, "Operations in each second of the last two minutes"))
                p { (format::bytes(last(&bytes))) "/s read and written" }
                (chart::line(&bytes, "Bytes in each second of the last two minutes"))
            }
        }
        (boot(node))
        section id="counters" data-live="" aria-labelledby="counters-title" {
            h2 id="counters-title" { "Counters" }
            @if told.names.is_empty() { p.empty { "The node has told none yet." } }
            dl.counters {
                @for (name, value) in told.counters().filter(|(_, value)| *value != 0) {
                    div { dt { (name) } dd { (grouped(value)) } }
                }
            }
        }
        (log(&told.lines, told.dropped_there, told.dropped_here))
        p.sub { "State of " (format::time(context.snapshot.taken)) " UTC" }
    }
}

fn pairs(pairs: &[(&str, String)]) -> Markup {
    html! { dl { @for (name, value) in pairs { div { dt { (name) } dd { (value) } } } } }
}

/// Returns the boot chart: each stage as a bar from the end of the one before it.
fn boot(node: &NodeView) -> Markup {
    let stages = &node.status.boot.stages;
    let Some((_, whole)) = stages.last() else { return html! {} };
    let whole = f64::from((*whole).max(1));
    let starts = std::iter::once(0).chain(stages.iter().map(|(_, end)| *end));
    html! {
        section id="boot" data-live="" aria-labelledby="boot-title" {
            h2 id="boot-title" { "Boot, " (format::duration(Duration::from_micros(whole as u64))) }
            div.scroll tabindex="0" role="region" aria-label="Boot chart" {
                table.gantt {
                    thead { tr { th scope="col" { "Stage" } th.number scope="col" { "Takes" } th.number scope="col" { "Until" } th scope="col" { "Course" } } }
                    tbody {
                        @for (index, (from, (name, to))) in starts.zip(stages).enumerate() {
                            @let from = from.min(*to);
                            tr {
                                th scope="row" { (name) }
                                td.number { (format::duration(Duration::from_micros((to - from).into()))) }
                                td.number { (format::duration(Duration::from_micros((*to).into()))) }
                                td.course { (chart::bars(&[Bar {
                                    from: f64::from(from) / whole,
                                    to: f64::from(*to) / whole,
                                    colour: index,
                                    about: name.clone(),
                                }])) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the last lines of a log, the newest first.
fn log(lines: &VecDeque<Arc<NodeLine>>, dropped: u64, refused: u64) -> Markup {
    html! {
        section id="log" data-live="" aria-labelledby="log-title" {
            h2 id="log-title" { "Log" }
            @if dropped > 0 { p.warn { (grouped(dropped)) " lines were dropped by the node" } }
            @if refused > 0 { p.warn { (format::bytes(refused)) " of lines were dropped by the manager" } }
            @if lines.is_empty() { p.empty { "No line yet." } }
            @else {
                div.scroll.log tabindex="0" role="region" aria-label="Lines of the log" {
                    table {
                        tbody {
                            @for line in lines.iter().rev() {
                                tr class=(line.severity.word()) {
                                    td.number { (format!("{}.{:06}", line.at_us / 1_000_000, line.at_us % 1_000_000)) }
                                    td { (line.severity.word()) }
                                    td { (line.text) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a number with a thin space between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}
