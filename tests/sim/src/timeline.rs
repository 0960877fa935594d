//! Traces of several nodes as text for people, and in a form that a browser shows.

use lite::{NodeId, Stamped, TraceEvent, Work};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The trace of a node.
pub struct NodeTrace {
    /// The node.
    pub node: NodeId,
    /// The events, by time.
    pub events: Vec<Stamped>,
}

const fn name(work: Work) -> &'static str {
    match work {
        Work::Write => "write",
        Work::Read => "read",
        Work::Atomic => "atomic",
        Work::Message => "message",
    }
}

/// A work request, from its posting to its end if the end was traced.
struct Span {
    work: Work,
    peer: NodeId,
    queue_pair: u8,
    bytes: u32,
    from_ns: u64,
    end: Option<(u64, bool)>,
}

fn spans(trace: &NodeTrace) -> Vec<Span> {
    let mut open = BTreeMap::new();
    let mut spans = Vec::new();
    for stamped in &trace.events {
        let at = stamped.at.as_nanos();
        match stamped.event {
            TraceEvent::Posted { id, work, peer, queue_pair, bytes } => {
                open.insert(id, spans.len());
                spans.push(Span { work, peer, queue_pair, bytes, from_ns: at, end: None });
            }
            TraceEvent::Ended { id, ok } => {
                if let Some(span) = open.remove(&id).and_then(|at: usize| spans.get_mut(at)) {
                    span.end = Some((at, ok));
                }
            }
            _ => {}
        }
    }
    spans
}

/// Returns a line per event of all nodes, by time. A work request has one line, with its duration.
#[must_use]
pub fn text(traces: &[NodeTrace]) -> String {
    let mut lines = Vec::new();
    for trace in traces {
        for span in spans(trace) {
            let end = match span.end {
                Some((end, ok)) => {
                    let took = (end - span.from_ns) as f64 / 1e3;
                    format!("{took:.1} us{}", if ok { "" } else { ", FAILED" })
                }
                None => "no end".into(),
            };
            let (what, bytes, peer, queue_pair) = (name(span.work), span.bytes, span.peer, span.queue_pair);
            lines.push((
                span.from_ns,
                trace.node,
                format!("{what} {bytes} B, {peer}, queue pair {queue_pair}: {end}"),
            ));
        }
        for stamped in &trace.events {
            let line = match stamped.event {
                TraceEvent::Posted { .. } | TraceEvent::Ended { .. } => continue,
                TraceEvent::Called { peer, function } => format!("call {peer}, function {function:#x}"),
                TraceEvent::Arrived { peer } => format!("message of {peer} arrived"),
                TraceEvent::Connected { peer } => format!("connected with {peer}"),
                TraceEvent::Disconnected { peer } => format!("connection with {peer} ended"),
                TraceEvent::Missed => "a deadline has passed".into(),
            };
            lines.push((stamped.at.as_nanos(), trace.node, line));
        }
    }
    lines.sort();
    let mut text = String::new();
    for (at, node, line) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:>14.1} us  {node:<8} {line}", at as f64 / 1e3);
    }
    text
}

/// Returns the traces for `chrome://tracing` and Perfetto: a process per node, a thread per peer and queue
/// pair (the JSON Array Format of the Trace Event Format).
#[must_use]
pub fn chrome(traces: &[NodeTrace]) -> String {
    let mut events = Vec::new();
    for trace in traces {
        let pid = trace.node.0;
        events.push(format!(
            r#"{{"name":"process_name","ph":"M","pid":{pid},"args":{{"name":"{}"}}}}"#,
            trace.node
        ));
        for span in spans(trace) {
            let tid = u32::from(span.peer.0) * 16 + u32::from(span.queue_pair);
            let (what, from, bytes) = (name(span.work), span.from_ns as f64 / 1e3, span.bytes);
            let peer = span.peer;
            events.push(match span.end {
                Some((end, ok)) => {
                    let took = (end - span.from_ns) as f64 / 1e3;
                    let args = format!(r#"{{"bytes":{bytes},"peer":"{peer}","ok":{ok}}}"#);
                    format!(
                        r#"{{"name":"{what}","ph":"X","pid":{pid},"tid":{tid},"ts":{from},"dur":{took},"args":{args}}}"#
                    )
                }
                None => format!(
                    r#"{{"name":"{what}","ph":"B","pid":{pid},"tid":{tid},"ts":{from},"args":{{"bytes":{bytes},"peer":"{peer}"}}}}"#
                ),
            });
        }
        for stamped in &trace.events {
            let (name, peer) = match stamped.event {
                TraceEvent::Posted { .. } | TraceEvent::Ended { .. } => continue,
                TraceEvent::Called { peer, .. } => ("call", Some(peer)),
                TraceEvent::Arrived { peer } => ("arrived", Some(peer)),
                TraceEvent::Connected { peer } => ("connected", Some(peer)),
                TraceEvent::Disconnected { peer } => ("disconnected", Some(peer)),
                TraceEvent::Missed => ("deadline missed", None),
            };
            let (at, tid) = (stamped.at.as_nanos() as f64 / 1e3, peer.map_or(0, |p| u32::from(p.0) * 16));
            events.push(format!(r#"{{"name":"{name}","ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{at}}}"#));
        }
    }
    format!("[\n{}\n]\n", events.join(",\n"))
}
