//! The reports of nodes on themselves, as the core keeps them for people.

use crate::support::Harness;
use manager::core::NodeTelemetry;
use proto::*;
use std::time::Duration;

fn told(h: &Harness, name: &str) -> NodeTelemetry {
    let view = h.core.view();
    let node = view.nodes.into_iter().find(|node| node.status.name == name);
    node.expect("a member").told
}

fn report(names: &[&str], values: &[(u16, u64)]) -> ToManager {
    ToManager::Telemetry(Telemetry {
        uptime_us: 5,
        names: names.iter().map(ToString::to_string).collect(),
        values: values.to_vec(),
        ..Telemetry::default()
    })
}

#[test]
fn counters_are_kept_by_name_and_samples_are_differences() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    h.say(a, &report(&["lite_reads", "lite_bytes_read", "rx_packets"], &[(0, 10), (1, 1000)]));
    h.pass(Duration::from_secs(1));
    h.say(a, &report(&[], &[(0, 15), (2, 7), (99, 1)]));
    let now = told(&h, "a");
    assert_eq!(
        now.counters().collect::<Vec<_>>(),
        [("lite_reads", 15), ("lite_bytes_read", 1000), ("rx_packets", 7)]
    );
    let samples: Vec<_> =
        now.samples.iter().map(|sample| (sample.over, sample.operations, sample.bytes)).collect();
    assert_eq!(samples, [(Duration::from_secs(1), 5, 0)]);
    // Names begin again: after a restart of the node's task, or for another manager.
    h.say(a, &report(&["lite_calls"], &[(0, 3)]));
    assert_eq!(told(&h, "a").counters().collect::<Vec<_>>(), [("lite_calls", 3)]);
}

#[test]
fn a_report_with_strange_names_is_ignored_and_logged_once() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    for _ in 0..3 {
        h.say(a, &report(&["x\"} 1\nfake"], &[(0, 1)]));
    }
    assert_eq!(told(&h, "a").names.len(), 0);
    assert_eq!(h.log.iter().filter(|line| line.contains("its report is ignored")).count(), 1);
    assert_eq!(h.core.view().nodes.len(), 1, "the node stays");
}

#[test]
fn a_flood_of_lines_is_bounded_and_counted_and_costs_no_lease() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    // A million lines in a minute, as a node without a bound of its own would send them.
    let lines = b"I 1 x: one of very many lines\n".repeat(500);
    for second in 0..10 {
        for _ in 0..34 {
            h.say(a, &ToManager::Log { lines: lines.clone() });
        }
        h.say(a, &ToManager::Heartbeat { seq: second });
        h.pass(Duration::from_secs(1));
    }
    h.pass(Duration::from_secs(1));
    h.say(a, &ToManager::Log { lines: b"E 2 x: the last\n".to_vec() });
    let now = told(&h, "a");
    assert_eq!(now.lines.len(), 500);
    assert!(now.dropped_here > 4 << 20, "{} bytes", now.dropped_here);
    assert_eq!(now.lines.back().unwrap().text, "x: the last");
}

#[test]
fn the_last_lines_of_a_dead_node_stay() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    h.say(a, &ToManager::Log { lines: b"I 1 boot\nE 9 about to \x1b[31mpanic\n".to_vec() });
    h.dies(a);
    let view = h.core.view();
    assert!(view.nodes.is_empty());
    let departed = view.departed.last().unwrap();
    assert_eq!((departed.name.as_str(), departed.reason.as_str()), ("a", "died: a test"));
    assert_eq!(departed.lines.back().unwrap().text, "about to  [31mpanic");
}

#[test]
fn a_report_for_support_has_all_nodes_and_no_key() {
    let mut h = Harness::new();
    let (a, welcome) = h.join("a");
    h.say(a, &ToManager::Log { lines: b"I 1 boot\n".to_vec() });
    h.say(a, &ToManager::HardwareReport { lines: "processor: x\nmemory: y".into() });
    h.say(a, &report(&["lite_reads"], &[(0, 10)]));
    let (b, _) = h.join("b");
    h.dies(b);
    let drain = |node: &str| FromClient::Drain {
        node: node.into(),
        reason: "a fan".into(),
        deadline_ms: None,
        force: true,
    };
    assert!(matches!(h.ask(&drain("a")), ToClient::NodeChanged { .. }));
    let client = h.client();
    h.say(client, &FromClient::Support);
    let mut text = Vec::new();
    for message in h.client_heard(client) {
        match message {
            ToClient::Support { bytes, .. } => text.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let node = &report["nodes"][0];
    assert_eq!((&node["name"], &node["counters"]["lite_reads"]), (&"a".into(), &10.into()));
    assert_eq!((&node["log"][0][2], &node["hardware"]), (&"boot".into(), &"processor: x\nmemory: y".into()));
    assert_eq!(node["boot_us"][1][0], "joined");
    assert!(node["state"] == "draining" || node["state"] == "drained", "{node}");
    assert!(node["objection"].as_str().unwrap().ends_with(": a fan"), "{node}");
    assert!(report["rollout"].is_null() && report["images"].as_array().unwrap().is_empty());
    assert_eq!(report["departed"][0]["reason"], "died: a test");
    let secret = postcard_text(&welcome.secret);
    assert!(!String::from_utf8(text).unwrap().contains(&secret), "the secret of a membership");
}

/// Returns the hexadecimal digits of a secret.
fn postcard_text(secret: &ResumeSecret) -> String {
    encode(secret).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_job_has_a_course_by_phase_and_node() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    let client = h.client();
    h.say(client, &crate::support::submit(1, &[]));
    h.pass(Duration::from_millis(700));
    let job = h.core.view().timelines.last().expect("a job").job;
    h.say(a, &ToManager::JobAccepted { job });
    h.pass(Duration::from_millis(700));
    h.say(a, &ToManager::JobProgress { job, phase: "map".into(), done: 1, total: 2 });
    let times_us = vec![("map".to_string(), 5)];
    h.say(a, &ToManager::JobDone { job, report: JobReport { times_us, ..JobReport::default() } });
    h.pass(Duration::from_millis(700));
    let view = h.core.view();
    let line = view.timelines.last().unwrap();
    let phases: Vec<_> = line.phases.iter().map(|(phase, _)| *phase).collect();
    assert!(line.is_complete(), "{line:?}");
    assert_eq!(phases, [JobPhase::Starting, JobPhase::Running]);
    let part = line.parts.values().next().unwrap();
    assert_eq!((part.name.as_str(), part.phases[0].name.as_str()), ("a", "map"));
}
