//! The output of commands: tables for people, JSON for programs.

use manager::client::{Job, Outcome};
use manager::core::json::{Names, labels};
use manager::utc;
use proto::{AuditEntry, DatasetStatus, JobPhase, JobStatus, UserStatus, printable};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Returns text in columns, with two spaces between them. The caller formats numbers.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let cells =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the word for a job's phase.
fn phase(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Starting => "starting",
        JobPhase::Loading => "loading",
        JobPhase::Running => "running",
        JobPhase::Ending => "ending",
    }
}

/// Returns the names of a job's nodes, or the numbers of those that have left since.
fn names_of(job: &JobStatus, names: &Names) -> Vec<String> {
    labels(&job.nodes, names)
}

/// Returns the table of jobs, one per line. For a job that is ending it lists the nodes that have not ended
/// their part.
pub(super) fn jobs_table(jobs: &[JobStatus], names: &Names) -> String {
    let heads = ["job", "application", "phase", "for", "age", "nodes"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(jobs.iter().map(|job| {
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
        vec![
            job.job.0.to_string(),
            printable(&job.app),
            phase(job.phase).into(),
            seconds(job.phase_ms),
            seconds(job.age_ms),
            names_of(job, names).join(" "),
        ]
    }));
    columns(&rows)
}

/// Returns the jobs as JSON.
pub(super) fn jobs_json(jobs: &[JobStatus], names: &Names) -> Value {
    let jobs: Vec<Value> = jobs
        .iter()
        .map(|job| {
            json!({
                "job": job.job.0,
                "app": job.app,
                "phase": phase(job.phase),
                "phase_s": job.phase_ms as f64 / 1000.0,
                "age_s": job.age_ms as f64 / 1000.0,
                "nodes": names_of(job, names),
            })
        })
        .collect();
    json!({ "jobs": jobs })
}

/// Returns the table of datasets, one per line.
pub(super) fn datasets_table(datasets: &[DatasetStatus], names: &Names) -> String {
    let heads = ["dataset", "bytes", "application", "job", "age", "nodes"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(datasets.iter().map(|dataset| {
        vec![
            printable(&dataset.name),
            dataset.bytes.to_string(),
            printable(&dataset.app),
            dataset.job.0.to_string(),
            format!("{:.1} s", dataset.age_ms as f64 / 1000.0),
            labels(&dataset.nodes, names).join(" "),
        ]
    }));
    columns(&rows)
}

/// Returns the table of users, one per line.
pub(super) fn users_table(users: &[UserStatus]) -> String {
    let mut rows = vec![["user", "role", "key"].map(String::from).to_vec()];
    rows.extend(users.iter().map(|user| {
        vec![printable(&user.name), user.role.to_string(), format!("{:.16}", user.key.to_string())]
    }));
    columns(&rows)
}

/// Returns the table of the audit log, one entry per line.
pub(super) fn audit_table(entries: &[AuditEntry]) -> String {
    let mut rows = vec![["entry", "time (UTC)", "who", "what", "result"].map(String::from).to_vec()];
    rows.extend(entries.iter().map(|entry| {
        let texts = [&entry.who, &entry.what, &entry.result].map(|text| printable(text));
        [entry.number.to_string(), utc::text(Duration::from_millis(entry.time_ms))]
            .into_iter()
            .chain(texts)
            .collect()
    }));
    columns(&rows)
}

/// Returns the summary of a job: totals, then counts and times of each node.
pub(super) fn summary(job: &Job, outcome: &Outcome, names: &Names) -> String {
    let seconds = |duration: std::time::Duration| format!("{:.3} s", duration.as_secs_f64());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "job {} {}: {} bytes in, {} bytes out, {} (input {}, then {})",
        outcome.job.0,
        job.app,
        outcome.input_bytes,
        outcome.output_bytes,
        seconds(outcome.elapsed),
        seconds(outcome.stream),
        seconds(outcome.run),
    );
    if let Some(name) = &job.keep {
        let _ = writeln!(text, "{} bytes kept as the dataset {}", outcome.kept_bytes(), printable(name));
    }
    for (name, count) in outcome.counts() {
        let _ = writeln!(text, "{}: {count}", printable(&name));
    }
    let unique = |pick: fn(&proto::JobReport) -> &Vec<(String, u64)>| {
        let mut seen: Vec<String> = Vec::new();
        for (name, _) in outcome.reports.iter().flat_map(|(_, report)| pick(report)) {
            if !seen.contains(name) {
                seen.push(name.clone());
            }
        }
        seen
    };
    let (counts, times) = (unique(|report| &report.counts), unique(|report| &report.times_us));
    let mut rows = vec![vec!["node".to_owned(), "name".to_owned()]];
    if let Some(head) = rows.first_mut() {
        head.extend(counts.iter().map(|name| printable(name)));
        head.extend(times.iter().map(|name| format!("{} ms", printable(name))));
    }
    for (node, report) in &outcome.reports {
        let find = |list: &[(String, u64)], name: &String| {
            list.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
        };
        let mut row =
            vec![node.0.to_string(), names.get(node).map(|name| printable(name)).unwrap_or_default()];
        row.extend(counts.iter().map(|n| find(&report.counts, n).map_or("-".into(), |v| v.to_string())));
        let ms = |us: u64| format!("{:.1}", us as f64 / 1000.0);
        row.extend(times.iter().map(|n| find(&report.times_us, n).map_or("-".into(), ms)));
        rows.push(row);
    }
    text.push_str(&columns(&rows));
    text.push_str(&used_table(outcome, names, &unique(|report| &report.used)));
    text
}

/// Returns the table of the resources that each node has used, empty if no node reports any.
fn used_table(outcome: &Outcome, names: &Names, resources: &[String]) -> String {
    if resources.is_empty() {
        return String::new();
    }
    let head = ["node", "name"].map(String::from).into_iter();
    let mut rows: Vec<Vec<String>> = vec![head.chain(resources.iter().map(|r| printable(r))).collect()];
    rows.extend(outcome.reports.iter().map(|(node, report)| {
        let value = |resource: &String| {
            let found = report.used.iter().find(|(name, _)| name == resource);
            found.map_or("-".into(), |(_, value)| value.to_string())
        };
        let name = names.get(node).map(|name| printable(name)).unwrap_or_default();
        [node.0.to_string(), name].into_iter().chain(resources.iter().map(value)).collect()
    }));
    columns(&rows)
}

/// Returns the summary of a job as JSON. The sums of the nodes' counts stand beside the other totals, by
/// their own names.
pub(super) fn job_json(job: &Job, outcome: &Outcome, names: &Names) -> Value {
    let object = |pairs: &[(String, u64)]| {
        pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>()
    };
    let reports: Vec<Value> = outcome
        .reports
        .iter()
        .map(|(node, report)| {
            json!({
                "node": node.0,
                "name": names.get(node),
                "counts": object(&report.counts),
                "times_us": object(&report.times_us),
                "used": object(&report.used),
            })
        })
        .collect();
    let mut all = object(&outcome.counts());
    let own = json!({
        "app": job.app,
        "job": outcome.job.0,
        "nodes": outcome.reports.len(),
        "input_bytes": outcome.input_bytes,
        "output_bytes": outcome.output_bytes,
        "kept_bytes": outcome.kept_bytes(),
        "elapsed_s": outcome.elapsed.as_secs_f64(),
        "stream_s": outcome.stream.as_secs_f64(),
        "run_s": outcome.run.as_secs_f64(),
        "reports": reports,
    });
    if let Value::Object(own) = own {
        all.extend(own);
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{JobId, JobReport, NodeId};

    fn outcome() -> (Job, Outcome, Names) {
        let report = |words| JobReport {
            counts: vec![("words".into(), words)],
            times_us: vec![("map".into(), 1500)],
            used: vec![
                ("reads".into(), words),
                ("bytes_read".into(), 4096),
                ("peak_memory".into(), words << 20),
            ],
            ..JobReport::default()
        };
        let outcome = Outcome {
            job: JobId(7),
            reports: vec![(NodeId(1), report(3)), (NodeId(12), report(40))],
            input_bytes: 100,
            output_bytes: 20,
            elapsed: Duration::from_millis(1500),
            stream: Duration::from_millis(500),
            run: Duration::from_millis(900),
        };
        let names = Names::from([(NodeId(1), "a".into()), (NodeId(12), "b\u{1b}[31m".into())]);
        (
            Job {
                app: "wc".into(),
                args: Vec::new(),
                nodes: 0,
                on: Vec::new(),
                limit: None,
                ..Job::default()
            },
            outcome,
            names,
        )
    }

    #[test]
    fn summary_lines() {
        let (job, outcome, names) = outcome();
        let want = "job 7 wc: 100 bytes in, 20 bytes out, 1.500 s (input 0.500 s, then 0.900 s)\n\
                    words: 43\n\
                    node  name    words  map ms\n\
                    1     a       3      1.5\n\
                    12    b [31m  40     1.5\n\
                    node  name    reads  bytes_read  peak_memory\n\
                    1     a       3      4096        3145728\n\
                    12    b [31m  40     4096        41943040\n";
        assert_eq!(summary(&job, &outcome, &names), want);
    }

    #[test]
    fn job_lines() {
        let (_, _, names) = outcome();
        let job = |job, phase, nodes: &[u16]| JobStatus {
            job: JobId(job),
            app: "wc".into(),
            nodes: nodes.iter().copied().map(NodeId).collect(),
            phase,
            age_ms: 61_000,
            phase_ms: 1500,
        };
        let jobs = [job(7, JobPhase::Running, &[1, 12]), job(8, JobPhase::Ending, &[3])];
        let want = "job  application  phase    for    age     nodes\n\
                    7    wc           running  1.5 s  61.0 s  a b [31m\n\
                    8    wc           ending   1.5 s  61.0 s  node 3\n";
        assert_eq!(jobs_table(&jobs, &names), want);
        assert_eq!(jobs_json(&jobs, &names)["jobs"][1]["phase"], "ending");
    }

    #[test]
    fn dataset_lines() {
        let (_, _, names) = outcome();
        let dataset = DatasetStatus {
            name: "d".into(),
            bytes: 15,
            app: "wc".into(),
            job: JobId(7),
            nodes: vec![NodeId(1), NodeId(3)],
            age_ms: 1500,
        };
        let want = "dataset  bytes  application  job  age    nodes\n\
                    d        15     wc           7    1.5 s  a node 3\n";
        assert_eq!(datasets_table(std::slice::from_ref(&dataset), &names), want);
        assert_eq!(manager::core::json::datasets_json(&[dataset], &names)["datasets"][0]["bytes"], 15);
    }

    #[test]
    fn json_totals() {
        let (job, outcome, names) = outcome();
        let json = job_json(&job, &outcome, &names);
        assert_eq!(json["words"], 43);
        assert_eq!(json["nodes"], 2);
        assert_eq!(json["reports"][1]["counts"]["words"], 40);
        assert_eq!(json["reports"][1]["used"]["reads"], 40);
        assert_eq!(json["elapsed_s"], 1.5);
    }
}
