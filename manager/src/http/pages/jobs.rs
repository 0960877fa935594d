//! The jobs: a list, and a page for each with the course of its phases.

use super::chart::{self, Bar};
use super::{Context, node_path, state};
use crate::core::json::{job_state, phase_word};
use crate::core::{PartLine, Timeline};
use crate::http::format;
use maud::{Markup, html};
use platform::Instant;
use proto::{JobId, JobInfo};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn all(context: &Context<'_>) -> Markup {
    html! {
        h1 { "Jobs" }
        (queue(context))
        (table(context, usize::MAX))
    }
}

/// Returns the queue: each job that waits, with the reason.
fn queue(context: &Context<'_>) -> Markup {
    let view = &context.snapshot.view;
    html! {
        section id="queue" data-live="" aria-labelledby="queue-title" {
            h2 id="queue-title" { "Queue" }
            @if view.queue.is_empty() { p.empty { "No job waits." } }
            @else {
                div.scroll tabindex="0" role="region" aria-label="Queue" {
                    table {
                        thead { tr {
                            th.number scope="col" { "Job" } th scope="col" { "Application" } th scope="col" { "By" }
                            th.number scope="col" { "Priority" } th.number scope="col" { "Nodes" }
                            th.number scope="col" { "Waits for" } th scope="col" { "Reason" }
                        } }
                        tbody {
                            @for (job, _) in &view.queue {
                                tr {
                                    td.number { a href={ "/jobs/" (job.job.0) } { (job.job.0) } }
                                    td { (job.app) }
                                    td { (job.by) }
                                    td.number { (job.priority) }
                                    td.number { (wanted(job)) }
                                    td.number { (format::duration(waited(context, job))) }
                                    td { (job.state.reason()) }
                                }
                            }
                        }
                    }
                }
                @if view.queued > view.queue.len() { p.sub { (view.queued - view.queue.len()) " more" } }
            }
        }
    }
}

fn wanted(job: &JobInfo) -> String {
    if job.wanted == 0 { "all".into() } else { job.wanted.to_string() }
}

fn waited(context: &Context<'_>, job: &JobInfo) -> Duration {
    Duration::from_millis(context.snapshot.unix_ms().saturating_sub(job.submitted_ms))
}

/// Returns the last `most` jobs, the newest first.
pub(super) fn table(context: &Context<'_>, most: usize) -> Markup {
    let lines = &context.snapshot.view.timelines;
    html! {
        section id="jobs" data-live="" aria-labelledby="jobs-title" {
            h2 id="jobs-title" { "Jobs" }
            @if lines.is_empty() { p.empty { "No job since the manager has started." } }
            @else {
                div.scroll tabindex="0" role="region" aria-label="Jobs" {
                    table {
                        thead { tr {
                            th.number scope="col" { "Job" } th scope="col" { "Application" } th scope="col" { "State" }
                            th.number scope="col" { "Nodes" } th.number scope="col" { "Took" } th scope="col" { "Course" }
                        } }
                        tbody {
                            @for line in lines.iter().rev().take(most) {
                                tr {
                                    td.number { a href={ "/jobs/" (line.job.0) } { (line.job.0) } }
                                    td { (line.app) }
                                    td { (state(&job_state(line))) }
                                    td.number { (line.parts.len()) }
                                    td.number { (format::duration(took(context, line))) }
                                    td.course { (chart::bars(&course(context, line))) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn end(context: &Context<'_>, line: &Timeline) -> Instant {
    line.ended.unwrap_or(context.snapshot.view.at)
}

fn took(context: &Context<'_>, line: &Timeline) -> Duration {
    let start = line.phases.first().map_or(Instant::ZERO, |(_, at)| *at);
    end(context, line).saturating_since(start)
}

/// Returns the phases of a job as bars.
fn course(context: &Context<'_>, line: &Timeline) -> Vec<Bar> {
    let Some((_, start)) = line.phases.first() else { return Vec::new() };
    let whole = took(context, line).as_secs_f64().max(1e-6);
    let ends = line.phases.iter().skip(1).map(|(_, at)| *at).chain([end(context, line)]);
    let bar = |(index, ((phase, from), to)): (usize, (&(proto::JobPhase, Instant), Instant))| Bar {
        from: from.saturating_since(*start).as_secs_f64() / whole,
        to: to.saturating_since(*start).as_secs_f64() / whole,
        colour: index,
        about: format!("{} {}", phase_word(*phase), format::duration(to.saturating_since(*from))),
    };
    line.phases.iter().zip(ends).enumerate().map(bar).collect()
}

/// Returns the page of a job.
pub(super) fn one(context: &Context<'_>, job: u64) -> Option<Markup> {
    let view = &context.snapshot.view;
    if let Some((job, owner)) = view.queue.iter().find(|(waiting, _)| waiting.job.0 == job) {
        return Some(waiting(context, job, owner));
    }
    let line = view.timelines.iter().find(|line| line.job.0 == job)?;
    let present = line.ended.is_none();
    Some(html! {
        h1 { "Job " (job) " · " (line.app) }
        section id="state" data-live="" aria-label="State" {
            p { (state(&job_state(line))) " for " (format::duration(took(context, line))) " on " (line.parts.len()) " nodes" }
            (files(context, line))
            @if present { (cancel(context, line.job, &line.owner)) }
        }
        section id="course" data-live="" aria-labelledby="course-title" {
            h2 id="course-title" { "Phases" }
            (chart::bars(&course(context, line)))
            (legend(course(context, line).iter().map(|bar| (bar.colour, bar.about.clone()))))
        }
        (parts(line))
        (counts(line))
    })
}

/// Returns the page of a job that waits.
fn waiting(context: &Context<'_>, job: &JobInfo, owner: &str) -> Markup {
    html! {
        h1 { "Job " (job.job.0) " · " (job.app) }
        section id="state" data-live="" aria-label="State" {
            p { (state(job.state.word())) " for " (format::duration(waited(context, job))) ": " (job.state.reason()) }
            p.sub { "Nodes wanted: " (wanted(job)) ". Priority " (job.priority) ". Submitted by " (job.by) "." }
            (cancel(context, job.job, owner))
        }
    }
}

/// Returns links to the log of a job, and to its output for those who may have it.
fn files(context: &Context<'_>, line: &Timeline) -> Markup {
    let path = format!("/api/v1/jobs/{}", line.job.0);
    let keeps = line.keeps_output && context.caller.may_fetch(line.job, &line.owner);
    html! {
        p.sub {
            @if keeps && line.is_complete() { a href={ (path) "/output" } { "Output" } " · " }
            @if keeps && line.ended.is_none() { a href={ (path) "/output?now=true" } { "Output so far" } " · " }
            a href={ (path) "/log" } { "Log of the nodes" }
        }
    }
}

/// Returns the form that ends a job, for those who may.
fn cancel(context: &Context<'_>, job: JobId, owner: &str) -> Markup {
    html! {
        @if context.caller.may_cancel(job, owner) && let Some(form) = &context.caller.form {
            form method="post" action={ "/jobs/" (job.0) "/cancel" } {
                input type="hidden" name="form" value=(form);
                button.danger type="submit" { "Cancel job " (job.0) }
            }
        }
    }
}

fn legend(names: impl Iterator<Item = (usize, String)>) -> Markup {
    html! {
        ul.legend {
            @for (colour, name) in names {
                li { span class={ "swatch c" (colour % 8) } aria-hidden="true" {} (name) }
            }
        }
    }
}

/// Returns the lengths of a part's phases in microseconds.
fn times(part: &PartLine) -> Vec<(String, u64)> {
    match &part.report {
        Some(report) => {
            let mut times = report.times_us.clone();
            // The report has the time of the input at its end.
            times.sort_by_key(|(name, _)| name != "input");
            times
        }
        None => part
            .phases
            .iter()
            .map(|phase| {
                let took = phase.to.saturating_since(phase.from).as_micros();
                (phase.name.clone(), u64::try_from(took).unwrap_or(u64::MAX))
            })
            .collect(),
    }
}

/// Returns the phases of each node, side by side on one scale, so that the slowest is seen.
fn parts(line: &Timeline) -> Markup {
    let mut colours: BTreeMap<String, usize> = BTreeMap::new();
    let mut longest = 1;
    for part in line.parts.values() {
        let times = times(part);
        longest = longest.max(times.iter().fold(0u64, |sum, (_, us)| sum.saturating_add(*us)));
        for (name, _) in times {
            let next = colours.len();
            colours.entry(name).or_insert(next);
        }
    }
    let bars = |part: &PartLine| {
        let mut at = 0u64;
        let bar = |(name, us): (String, u64)| {
            let from = at;
            at = at.saturating_add(us);
            Bar {
                from: from as f64 / longest as f64,
                to: at as f64 / longest as f64,
                colour: colours.get(&name).copied().unwrap_or_default(),
                about: format!("{name} {}", format::duration(Duration::from_micros(us))),
            }
        };
        times(part).into_iter().map(bar).collect::<Vec<_>>()
    };
    html! {
        section id="parts" data-live="" aria-labelledby="parts-title" {
            h2 id="parts-title" { "Nodes" }
            (legend(colours.iter().map(|(name, colour)| (*colour, name.clone()))))
            div.scroll tabindex="0" role="region" aria-label="Phases by node" {
                table.gantt {
                    thead { tr { th scope="col" { "Node" } th scope="col" { "State" } th scope="col" { "Phases" } } }
                    tbody {
                        @for part in line.parts.values() {
                            tr {
                                th scope="row" { a href=(node_path(&part.name)) { (part.name) } }
                                td {
                                    @match (&part.report, &part.failed, part.phases.last()) {
                                        (Some(_), _, _) => { (state("done")) }
                                        (None, Some(why), _) => { (state("failed")) " " (why) }
                                        (None, None, Some(phase)) => {
                                            (phase.name) " " (format::count(phase.done)) " of " (format::count(phase.total))
                                        }
                                        (None, None, None) => { "waits" }
                                    }
                                }
                                td.course { (chart::bars(&bars(part))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the sums of the nodes' counts.
fn counts(line: &Timeline) -> Markup {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for report in line.parts.values().filter_map(|part| part.report.as_ref()) {
        for (name, count) in report.counts.iter().chain(&report.used) {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    html! {
        section id="counts" data-live="" aria-labelledby="counts-title" {
            h2 id="counts-title" { "Counts" }
            @if sums.is_empty() { p.empty { "No node has reported yet." } }
            dl.counters { @for (name, sum) in sums { div { dt { (name) } dd { (format::count(sum)) } } } }
        }
    }
}
