//! The manager over HTTP: metrics, the interface for programs, logins and pages.

use crate::daemon::Directory;
use crate::support::join;
use crate::web::{Answer, ask};
use manager::LogFormat;
use manager::client::Connection;
use manager::daemon::{Daemon, Http, Options};
use proto::channel::{ClusterKey, Role};
use proto::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest wait for a copy of the core's state.
const LIMIT: Duration = Duration::from_secs(60);
const PASSWORD: &str = "only-looks-around";

/// A daemon in this process.
struct Service {
    runtime: tokio::runtime::Runtime,
    manager: String,
    http: SocketAddr,
    key: ClusterKey,
    _directory: Directory,
}

impl Service {
    fn start(name: &str) -> Self {
        let directory = Directory::new(name);
        let key = ClusterKey::from_bytes([5; 32]);
        let viewers = Some(String::from(PASSWORD).into());
        let options = Options {
            listen: "127.0.0.1:0".parse().unwrap(),
            key: key.clone(),
            state: directory.0.clone(),
            config: manager::core::Config { lease: LIMIT, ..Default::default() },
            http: Some(Http { listen: "127.0.0.1:0".parse().unwrap(), viewers, tls: None }),
            former: None,
            format: LogFormat::Text,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let daemon = runtime.block_on(Daemon::bind(options)).unwrap();
        let (manager, http) = (daemon.local_addr().unwrap().to_string(), daemon.http_addr().unwrap());
        runtime.spawn(daemon.serve(std::future::pending()));
        Self { runtime, manager, http, key, _directory: directory }
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        ask(self.http, method, path, headers, body)
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        self.ask("GET", path, headers, "")
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let form = format!("Content-Type: application/x-www-form-urlencoded\r\n{headers}");
        self.ask("POST", path, &form, body)
    }

    /// Logs in, and returns the header with the cookie.
    fn login(&self, secret: &str) -> String {
        let answer = self.post("/login", "", &format!("key={secret}"));
        assert_eq!(answer.status, 303, "{}", answer.body);
        for flag in ["httponly", "samesite=strict"] {
            assert!(answer.head.contains(flag), "{}", answer.head);
        }
        answer.cookie()
    }

    fn secret(&self) -> String {
        String::from_utf8(self.key.to_hex().as_bytes().to_vec()).unwrap().trim().to_owned()
    }

    /// Gets a path until its body satisfies `is_there`.
    fn wait(&self, path: &str, headers: &str, is_there: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let body = self.get(path, headers).body;
            if is_there(&body) {
                return body;
            }
            assert!(start.elapsed() < LIMIT, "{path} is still {body}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Joins a node that tells `counters` counters.
    fn node(&self, name: &str, number: u16, counters: &[&str]) -> Connection {
        let mut wish = join(name);
        wish.rnic.mac.0[4..].copy_from_slice(&number.to_be_bytes());
        let mut connection = Connection::open(&self.manager, &self.key, Role::Node).unwrap();
        connection.sending.send(&Hello::Node(wish)).unwrap();
        let answer = connection.receiving.receive(Some(LIMIT)).unwrap();
        assert!(matches!(answer, ToNode::Welcome(_)), "{answer:?}");
        let names = counters.iter().map(ToString::to_string).collect();
        let values = (0..).zip(1..=counters.len() as u64).collect();
        let report = Telemetry { uptime_us: 1, names, values, ..Telemetry::default() };
        connection.sending.send(&ToManager::Telemetry(report)).unwrap();
        connection
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        std::mem::replace(&mut self.runtime, runtime).shutdown_background();
    }
}

#[test]
fn reading_needs_a_login_and_changing_needs_more() {
    let service = Service::start("http-login");
    assert_eq!(service.get("/healthz", "").status, 200);
    assert_eq!(service.get("/readyz", "").status, 200);
    let answer = service.get("/", "");
    assert_eq!(answer.status, 303);
    assert!(answer.head.contains("location: /login"));
    let policy = "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'";
    assert!(answer.head.contains(policy), "{}", answer.head);
    assert_eq!(service.get("/api/v1/nodes", "").status, 401);
    assert_eq!(service.post("/login", "", "key=wrong").status, 401);
    let evil = "Origin: http://evil.example\r\n";
    assert_eq!(service.post("/login", evil, &format!("key={PASSWORD}")).status, 403);

    let viewer = service.login(PASSWORD);
    assert_eq!(service.get("/", &viewer).status, 200);
    assert_eq!(service.get("/nothing", &viewer).status, 404);
    assert_eq!(service.post("/jobs/1/cancel", &viewer, "form=x").status, 403);

    let operator = service.login(&service.secret());
    let form = service.get("/", &operator).form();
    assert_eq!(service.post("/jobs/1/cancel", &operator, "form=guess").status, 403, "no word of the session");
    assert_eq!(
        service.post("/jobs/1/cancel", &(operator.clone() + evil), &format!("form={form}")).status,
        403
    );
    let answer = service.post("/jobs/1/cancel", &operator, &format!("form={form}"));
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("there is no job 1"), "{}", answer.body);

    let bearer = format!("Authorization: Bearer {}\r\n", service.secret());
    let answer = service.post("/api/v1/jobs/1/cancel", &bearer, "");
    assert_eq!((answer.status, answer.body.contains("there is no job 1")), (404, true));
    let bearer = format!("Authorization: Bearer {PASSWORD}\r\n");
    assert_eq!(service.post("/api/v1/jobs/1/cancel", &bearer, "").status, 403);

    service.post("/logout", &operator, &format!("form={form}"));
    assert_eq!(service.get("/", &operator).status, 303, "the session is over");
    for _ in 0..20 {
        service.post("/login", "", "key=wrong");
    }
    assert_eq!(service.post("/login", "", "key=wrong").status, 429);
}

#[test]
fn names_are_text_and_the_log_of_a_dead_node_stays() {
    let service = Service::start("http-text");
    let name = "<script>alert(1)</script>";
    let mut node = service.node(name, 1, &["lite_reads"]);
    let lines = b"E 12 panic: <img src=x onerror=alert(1)>\n".to_vec();
    node.sending.send(&ToManager::Log { lines }).unwrap();
    let viewer = service.login(PASSWORD);
    let page = service.wait("/nodes", &viewer, |page| page.contains("&lt;script&gt;alert(1)"));
    assert!(!page.contains("<script>alert"), "{page}");
    let path = "/nodes/%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let page = service.wait(path, &viewer, |page| page.contains("&lt;img src=x"));
    assert!(!page.contains("<img"), "{page}");
    assert!(page.contains("Boot, ") && page.contains("lite_reads"), "{page}");
    node.sending.send(&ToManager::LastWords { reason: "a test".into() }).unwrap();
    service.wait("/nodes", &viewer, |page| page.contains("class=\"state dead\""));
    let page = service.get(path, &viewer).body;
    assert!(page.contains("died: a test") && page.contains("panic: &lt;img"), "{page}");
    let bearer = format!("Authorization: Bearer {}\r\n", service.secret());
    let log: serde_json::Value = serde_json::from_str(
        &service.get("/api/v1/nodes/%3Cscript%3Ealert(1)%3C%2Fscript%3E/log", &bearer).body,
    )
    .unwrap();
    assert_eq!(log["lines"][0]["severity"], "error");
    let metrics = service.get("/metrics", "").body;
    assert!(metrics.contains("ferrolite_node_up{node=\"<script>alert(1)</script>\"} 0"), "{metrics}");
}

#[test]
fn the_queue_is_shown_with_its_reasons() {
    let service = Service::start("http-queue");
    let _node = service.node("a", 1, &[]);
    let submit = || {
        let mut client = Connection::open(&service.manager, &service.key, Role::Client).unwrap();
        client.sending.send(&Hello::Client { version: PROTOCOL_VERSION }).unwrap();
        let (request, terms) = (crate::support::request(1, &[]), Terms { wait: true, ..Terms::default() });
        let wish = FromClient::SubmitOn { request, terms };
        client.sending.send(&wish).unwrap();
        client
    };
    let viewer = service.login(PASSWORD);
    // The node never accepts the first job, and the second waits for it.
    let _first = submit();
    service.wait("/jobs", &viewer, |page| page.contains("/jobs/1\""));
    let mut second = submit();
    assert!(matches!(second.receiving.receive(Some(LIMIT)), Ok(ToClient::Hello)));
    let reason = "1 nodes wanted, but 0 are idle: job 1 runs";
    service.wait("/jobs", &viewer, |page| page.contains(reason));
    let page = service.get("/jobs/2", &viewer).body;
    assert!(page.contains(reason) && !page.contains("/jobs/2/cancel"), "{page}");
    let operator = service.login(&service.secret());
    assert!(service.get("/jobs/2", &operator).body.contains("/jobs/2/cancel"));
    let metrics = service.get("/metrics", "").body;
    assert!(metrics.contains("ferrolite_jobs{phase=\"queued\"} 1"), "{metrics}");
    assert!(metrics.contains("ferrolite_queue_wait_seconds"), "{metrics}");
    let bearer = format!("Authorization: Bearer {PASSWORD}\r\n");
    let json =
        |path: &str| -> serde_json::Value { serde_json::from_str(&service.get(path, &bearer).body).unwrap() };
    let queue = json("/api/v1/queue");
    assert_eq!((&queue["jobs"][1]["reason"], &queue["more"]), (&reason.into(), &false.into()));
    assert_eq!(json("/api/v1/queue?after=1")["jobs"][0]["job"], 2);
    assert_eq!(json("/api/v1/jobs/2/details")["state"], "queued");
    drop(second);
    service.wait("/jobs", &viewer, |page| page.contains("No job waits."));
    assert_eq!(json("/api/v1/jobs/2/details")["state"], "failed");
    assert_eq!(json("/api/v1/queue?ended=true")["jobs"][1]["job"], 2);
}

#[test]
fn the_files_of_a_job_are_links_on_its_page() {
    let service = Service::start("http-files");
    let mut node = service.node("a", 1, &[]);
    let mut client = Connection::open(&service.manager, &service.key, Role::Client).unwrap();
    client.sending.send(&Hello::Client { version: PROTOCOL_VERSION }).unwrap();
    let (request, terms) =
        (crate::support::request(1, &[]), Terms { wait: true, detach: true, ..Terms::default() });
    client.sending.send(&FromClient::SubmitOn { request, terms }).unwrap();
    while !matches!(node.receiving.receive(Some(LIMIT)), Ok(ToNode::JobStart(_))) {}
    node.sending.send(&ToManager::JobAccepted { job: JobId(1) }).unwrap();
    while !matches!(node.receiving.receive(Some(LIMIT)), Ok(ToNode::JobInputEnd { .. })) {}
    let (viewer, admin) = (service.login(PASSWORD), service.login(&service.secret()));
    let (output, log) = ("/api/v1/jobs/1/output", "/api/v1/jobs/1/log");
    let page = service.wait("/jobs/1", &admin, |page| page.contains(&format!("{output}?now=true")));
    assert!(page.contains(log), "{page}");
    let page = service.wait("/jobs/1", &viewer, |page| page.contains(log));
    assert!(!page.contains(output), "{page}");
    let refused = service.get(output, &admin);
    let why = "job 1 is running; ?now=true has the output so far\n";
    assert_eq!((refused.status, &refused.body[..]), (409, why));
    assert_eq!(service.get(output, &viewer).status, 403);
    let bytes = vec![0, 255, b'\n'];
    node.sending.send(&ToManager::Log { lines: b"I 9000000 lite: <b>up</b>\n".to_vec() }).unwrap();
    node.sending.send(&ToManager::JobOutput { job: JobId(1), offset: 0, bytes: bytes.clone() }).unwrap();
    while !matches!(node.receiving.receive(Some(LIMIT)), Ok(ToNode::JobOutputAck { bytes: 3, .. })) {}
    assert_eq!(service.get(&format!("{output}?now=true"), &admin).bytes, bytes);
    node.sending.send(&ToManager::JobDone { job: JobId(1), report: JobReport::default() }).unwrap();
    service.wait("/jobs/1", &admin, |page| page.contains(&format!("\"{output}\"")));
    let start = Instant::now();
    let answer = loop {
        let answer = service.get(output, &admin);
        if answer.status == 200 {
            break answer;
        }
        assert!(start.elapsed() < LIMIT, "{}", answer.body);
    };
    assert!(answer.bytes == bytes && answer.head.contains("content-length: 3\r\n"), "{}", answer.head);
    assert!(answer.head.contains("attachment; filename=\"job-1.output\""), "{}", answer.head);
    let body = service.wait(log, &viewer, |text| text.contains("<b>up</b>"));
    assert!(body.contains("lite: <b>up</b>\n"), "{body}");
    assert!(service.get(log, &viewer).head.contains("content-type: text/plain; charset=utf-8"));
    assert_eq!(service.get("/api/v1/jobs/2/log", &viewer).status, 404);
}

#[test]
fn nodes_out_of_service_are_shown_with_the_reason_also_if_they_are_gone() {
    let service = Service::start("http-drain");
    let mut node = service.node("n0", 1, &["lite_reads"]);
    let bearer = format!("Authorization: Bearer {}\r\n", service.secret());
    let viewer = service.login(PASSWORD);
    let drain = "/api/v1/nodes/n0/drain?reason=a%20new%20%3Cfan%3E";
    assert_eq!(service.post(drain, &bearer, "").status, 409, "it is the last node");
    let answer = service.post(&format!("{drain}&force=yes"), &bearer, "");
    assert_eq!((answer.status, answer.body.contains("draining")), (200, true), "{}", answer.body);
    let reason = "a new &lt;fan&gt;";
    for path in ["/nodes", "/nodes/n0", "/"] {
        let page = service.wait(path, &viewer, |page| page.contains("class=\"state draining\""));
        assert!(page.contains(reason), "{page}");
    }
    assert!(service.get("/", &viewer).body.contains("1 out of service"));
    node.sending.send(&ToManager::Vacated { result: Ok(()) }).unwrap();
    service.wait("/nodes", &viewer, |page| page.contains("class=\"state drained\""));
    node.sending.send(&ToManager::LastWords { reason: "a test".into() }).unwrap();
    let page = service.wait("/nodes/n0", &viewer, |page| page.contains("died: a test"));
    assert!(page.contains("class=\"state drained\"") && page.contains(reason), "{page}");
    let all: serde_json::Value = serde_json::from_str(&service.get("/api/v1/nodes", &bearer).body).unwrap();
    assert_eq!(all["absent"][0]["state"], "drained", "{all}");
    assert_eq!(service.ask("DELETE", "/api/v1/nodes/n0/drain", &bearer, "").status, 200);
    service.wait("/nodes", &viewer, |page| !page.contains("class=\"state drained\""));
    assert!(service.get("/rollout", &viewer).body.contains("There was no rollout."));
    assert_eq!(service.post("/api/v1/rollout/stop", &bearer, "").status, 404);
}

#[test]
fn a_hundred_nodes_are_at_most_three_thousand_series() {
    let service = Service::start("http-series");
    // All counters of LITE and of the software RNIC, and some of a card, which no node has together.
    let names: Vec<String> = [
        "memory_total_bytes",
        "memory_free_bytes",
        "lite_reads",
        "lite_writes",
        "lite_atomics",
        "lite_memsets",
        "lite_calls",
        "lite_sends",
        "lite_served",
        "lite_bytes_read",
        "lite_bytes_written",
        "lite_bytes_copied",
        "lite_retries",
        "lite_busy",
        "lite_deadline_misses",
        "lite_connections",
        "lite_closed",
        "lite_bytes_limited",
        "lite_limit_waits",
        "lite_limit_waited_us",
        "rx_packets",
        "rx_bytes",
        "tx_packets",
        "tx_bytes",
        "rx_icrc_errors",
        "rx_malformed",
        "retransmits",
        "timeouts",
        "tx_requests",
        "qp_errors",
        "card_resets",
        "queue_pairs",
    ]
    .map(String::from)
    .into();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let nodes: Vec<Connection> =
        (0..100).map(|number| service.node(&format!("node{number:03}"), number, &names)).collect();
    let last = "ferrolite_lite_reads_total{node=\"node099\"}";
    service.wait("/metrics", "", |text| text.contains(last));
    let start = Instant::now();
    let text = service.get("/metrics", "Accept: application/openmetrics-text\r\n").body;
    let took = start.elapsed();
    let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    println!("{} series of {} nodes, {} bytes in {took:?}", series.len(), nodes.len(), text.len());
    assert!(series.len() <= 3000, "{} series", series.len());
    assert!(text.ends_with("# EOF\n"), "OpenMetrics");
    let mut keys: Vec<&str> = series.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    keys.sort_unstable();
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all, "a series appears twice");
}
