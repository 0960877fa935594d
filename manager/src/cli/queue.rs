//! The queue and the history of jobs, as tables.

use super::report::columns;
use manager::core::json::job_details_json;
use proto::{JobDetails, JobInfo, printable};
use serde_json::Value;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the present Unix time, in milliseconds.
pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time between two Unix times, in seconds, for people.
fn span(from_ms: u64, to_ms: u64) -> String {
    format!("{:.1} s", to_ms.saturating_sub(from_ms) as f64 / 1000.0)
}

/// Returns the time for which a job has run, in seconds, for people.
fn run_time(job: &JobInfo, now_ms: u64) -> String {
    let end = job.ended_ms.unwrap_or(now_ms);
    job.started_ms.map_or_else(|| "-".into(), |started| span(started, end))
}

/// Returns the table of jobs, one per line.
pub(super) fn table(jobs: &[JobInfo], now_ms: u64) -> String {
    let heads = ["job", "application", "state", "by", "priority", "age", "ran", "nodes", "reason"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(jobs.iter().map(|job| {
        let nodes: Vec<String> = job.nodes.iter().map(|name| printable(name)).collect();
        vec![
            job.job.0.to_string(),
            printable(&job.app),
            job.state.word().into(),
            printable(&job.by),
            job.priority.to_string(),
            span(job.submitted_ms, now_ms),
            run_time(job, now_ms),
            if nodes.is_empty() { "-".into() } else { nodes.join(" ") },
            printable(&job.state.reason()),
        ]
    }));
    columns(&rows)
}

/// Returns all that is known of a job, one line for each property, then the reports of its nodes.
pub(super) fn details(details: &JobDetails, now_ms: u64) -> String {
    let mut text = String::new();
    if let Value::Object(properties) = job_details_json(details) {
        for (name, value) in properties.iter().filter(|(_, value)| !value.is_null() && !value.is_array()) {
            let value = value.as_str().map_or_else(|| value.to_string(), printable);
            let _ = writeln!(text, "{name}: {value}");
        }
    }
    let _ = writeln!(text, "ran: {}", run_time(&details.info, now_ms));
    for (node, report) in &details.reports {
        for (name, value) in report.counts.iter().chain(&report.times_us).chain(&report.used) {
            let _ = writeln!(text, "{}: {}: {value}", printable(node), printable(name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use manager::core::json::jobs_json;
    use proto::{JobEnd, JobId, JobQos, JobReport, JobState};

    #[test]
    fn lines() {
        let job = |job, state, started_ms, ended_ms| JobInfo {
            job: JobId(job),
            app: "wc".into(),
            by: "ann".into(),
            state,
            nodes: match started_ms {
                None => vec![],
                Some(_) => vec!["a".into(), "b\u{1b}[31m".into()],
            },
            wanted: 2,
            priority: 0,
            submitted_ms: 1000,
            started_ms,
            ended_ms,
            limit_ms: None,
            requeues: 0,
            detached: false,
            output_bytes: None,
            log_bytes: None,
            expired: false,
        };
        let ended = JobState::Ended(JobEnd::TimedOut { limit_ms: 1500 });
        let jobs = [
            job(1, ended, Some(2000), Some(3500)),
            job(2, JobState::Running, Some(4000), None),
            job(3, JobState::Queued { reason: "why".into() }, None, None),
        ];
        let want = "\
job  application  state      by   priority  age    ran    nodes     reason
1    wc           timed-out  ann  0         4.0 s  1.5 s  a b [31m  the job has taken longer than its limit of 1.5 s
2    wc           running    ann  0         4.0 s  1.0 s  a b [31m  
3    wc           queued     ann  0         4.0 s  -      -         why
";
        let got = table(&jobs, 5000);
        let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(trimmed(&got), trimmed(want));
        assert_eq!(jobs_json(&jobs)["jobs"][2]["reason"], "why");
        let reports = vec![("a".into(), JobReport::default())];
        let qos = JobQos { outstanding: Some(3), ..JobQos::default() };
        let shown = JobDetails { info: jobs[0].clone(), reports, qos };
        assert!(details(&shown, 5000).contains("state: timed-out\n"));
        assert!(details(&shown, 5000).contains("rdma_outstanding: 3\n"));
        assert_eq!(job_details_json(&shown)["reports"][0]["name"], "a");
    }
}
