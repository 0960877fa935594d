//! Nodes as tables for people and as JSON for programs.

use super::super::report::{columns, hex};
use proto::{NodeStanding, NodeStatus, NodeView, printable};
use serde_json::{Value, json};

/// Returns the table of nodes, one per line.
pub(super) fn table(nodes: &[NodeView]) -> String {
    let heads = [
        "id",
        "name",
        "state",
        "job",
        "cpus",
        "memory",
        "boot",
        "heartbeat",
        "image",
        "rnic",
        "applications",
        "reason",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(nodes.iter().map(|node| {
        let member = node.member.as_ref();
        let of = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            of(member.map(|member| member.node.0.to_string())),
            printable(&node.name),
            node.standing.word().into(),
            of(node.job.map(|job| job.0.to_string())),
            of(member.map(|member| member.cpus.to_string())),
            of(member.map(|member| format!("{} MB", member.memory >> 20))),
            of(member.and_then(boot_ms).map(|ms| format!("{ms:.1} ms"))),
            of(member.map(|member| format!("{} ms ago", member.heartbeat_age_ms))),
            of(node.image.as_ref().map(|image| hex(&image.kernel[..6]))),
            of(member.map(|member| printable(&member.rnic))),
            of(member.map(apps)),
            reason(&node.standing),
        ]
    }));
    columns(&rows)
}

/// Returns the milliseconds until the end of the last stage of the boot.
fn boot_ms(member: &NodeStatus) -> Option<f64> {
    member.boot.stages.last().map(|(_, us)| f64::from(*us) / 1000.0)
}

/// Returns the names of a node's applications.
fn apps(member: &NodeStatus) -> String {
    let names: Vec<_> = member.apps.iter().map(|app| app.name.as_str()).collect();
    printable(&names.join(" "))
}

/// Returns all nodes as JSON.
pub(super) fn json(nodes: &[NodeView]) -> Value {
    let nodes: Vec<Value> = nodes.iter().map(node_json).collect();
    json!({ "nodes": nodes })
}

/// Returns the lines about one node.
pub(super) fn page(node: &NodeView) -> String {
    let mut rows = vec![vec!["name".into(), printable(&node.name)]];
    let mut say = |what: &str, value: String| rows.push(vec![what.to_owned(), value]);
    say("state", node.standing.word().into());
    let why = reason(&node.standing);
    if !why.is_empty() {
        say("reason", why);
    }
    if let Some(job) = node.job {
        say("job", job.0.to_string());
    }
    if let Some(image) = &node.image {
        say("image", format!("{} {}", hex(&image.kernel), printable(&image.version)));
    }
    if let Some(member) = &node.member {
        say("id", member.node.0.to_string());
        say("incarnation", member.incarnation.0.to_string());
        say("boot", format!("{:016x}", member.boot_id));
        say("processors", member.cpus.to_string());
        say("memory", format!("{} MB", member.memory >> 20));
        say("heartbeat", format!("{} ms ago", member.heartbeat_age_ms));
        say("rnic", printable(&member.rnic));
        say("applications", apps(member));
    }
    columns(&rows)
}

/// Returns the reason for which a node is out of service, with its author.
fn reason(standing: &NodeStanding) -> String {
    let left = match standing {
        NodeStanding::Draining { left_ms: Some(ms), .. } => format!(" ({} s left)", ms / 1000),
        _ => String::new(),
    };
    let text = standing.withdrawal().and_then(|_| standing.objection());
    let held = standing.held().map(|held| format!("; {}", printable(held))).unwrap_or_default();
    text.map(|text| format!("{}{left}{held}", printable(&text))).unwrap_or_default()
}

/// Returns a node as JSON.
pub(super) fn node_json(node: &NodeView) -> Value {
    let why = node.standing.withdrawal();
    let member = node.member.as_ref();
    let left_ms = match node.standing {
        NodeStanding::Draining { left_ms, .. } => left_ms,
        _ => None,
    };
    json!({
        "name": node.name,
        "state": node.standing.word(),
        "reason": why.map(|why| &why.reason),
        "who": why.map(|why| &why.who),
        "since_unix_ms": why.map(|why| why.since_ms),
        "deadline_left_ms": left_ms,
        "held": node.standing.held(),
        "job": node.job.map(|job| job.0),
        "image": node.image.as_ref().map(|image| hex(&image.kernel)),
        "version": node.image.as_ref().map(|image| &image.version),
        "node": member.map(|member| member.node.0),
        "incarnation": member.map(|member| member.incarnation.0),
        "boot_id": member.map(|member| format!("{:016x}", member.boot_id)),
        "cpus": member.map(|member| member.cpus),
        "memory_bytes": member.map(|member| member.memory),
        "heartbeat_age_ms": member.map(|member| member.heartbeat_age_ms),
        "rnic": member.map(|member| &member.rnic),
        "apps": member.map(|member| member.apps.iter().map(|app| &app.name).collect::<Vec<_>>()),
        "boot_ms": member.and_then(boot_ms),
        "boot_stages_us": member.map(|member| &member.boot.stages),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Withdrawal;

    #[test]
    fn a_drained_node_that_has_not_joined_has_a_line() {
        let why = Withdrawal { reason: "new fan\u{1b}".into(), who: "ann".into(), since_ms: 7 };
        let node = NodeView {
            name: "n0".into(),
            standing: NodeStanding::Draining { why, left_ms: Some(61_500), held: Some("no memory".into()) },
            member: None,
            job: None,
            image: None,
        };
        let lines = table(std::slice::from_ref(&node));
        let words: Vec<_> = lines.lines().nth(1).unwrap().split_whitespace().collect();
        let want = "- n0 draining - - - - - - - - drained by ann: new fan (61 s left); no memory";
        assert_eq!(words.join(" "), want);
        let json = node_json(&node);
        assert_eq!((&json["who"], &json["deadline_left_ms"]), (&json!("ann"), &json!(61_500)));
    }
}
