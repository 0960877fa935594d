//! Jobs without a client and the real daemon: the command line, a disk that is full, and retention.

use crate::daemon::{BINARY, Daemon, Directory, echo_node, error_line};
use crate::web::ask;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs `ferrolite job` with these words.
fn job(daemon: &Daemon, words: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(["job", words[0], "--manager", &daemon.address, "--key-file"]).arg(&daemon.key_file);
    command.args(&words[1..]).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

fn submit(daemon: &Daemon, input: &Path) -> String {
    let input = input.to_str().unwrap();
    said(&job(daemon, &["submit", "--app", "lines", "--detach", "--input", input]))
}

/// Returns the names in the spool.
fn spool(directory: &Directory) -> Vec<String> {
    let entries = fs::read_dir(directory.join("state").join("spool")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_output_of_a_detached_job_is_fetched_later() {
    let directory = Directory::new("spool-fetch");
    let daemon = Daemon::start(&directory, &[]);
    let bytes: Vec<u8> = (0..300_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let input = directory.file("in", &bytes);
    let _nodes = ["a", "b"].map(|name| echo_node(&daemon, name));
    daemon.client().wait_nodes(2, Duration::from_secs(10)).unwrap();
    let number = submit(&daemon, &input);
    fs::remove_file(&input).unwrap();
    let out = directory.join("out");
    said(&job(&daemon, &["output", &number, "-o", out.to_str().unwrap()]));
    assert!(fs::read(&out).unwrap() == bytes);
    let printed = job(&daemon, &["output", &number]);
    assert!(printed.status.success() && printed.stdout == bytes);
    let shown: serde_json::Value =
        serde_json::from_str(&said(&job(&daemon, &["show", &number, "-o", "json"]))).unwrap();
    assert_eq!(shown["output_bytes"], bytes.len());
    assert_eq!(shown["expired"], false);
    assert_eq!(spool(&directory), [format!("{number:0>20}.output")]);
    assert_eq!(job(&daemon, &["output", "77"]).status.code(), Some(5));
}

#[test]
fn an_output_is_a_download_in_bounded_memory() {
    let directory = Directory::new("spool-http");
    let port = directory.join("http");
    let daemon =
        Daemon::start(&directory, &["--http", "127.0.0.1:0", "--http-port-file", port.to_str().unwrap()]);
    let http: SocketAddr = fs::read_to_string(&port).unwrap().trim().parse().unwrap();
    let bearer = fs::read_to_string(&daemon.key_file).unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", bearer.trim());
    let bytes: Vec<u8> =
        (0..32 << 20).map(|n: u32| if n % 64 == 63 { b'\n' } else { n as u8 | 128 }).collect();
    let input = directory.file("in", &bytes);
    let _node = echo_node(&daemon, "a");
    daemon.client().wait_nodes(1, Duration::from_secs(10)).unwrap();
    let number = submit(&daemon, &input);
    said(&job(&daemon, &["wait", &number]));
    let before = daemon.memory();
    let path = format!("/api/v1/jobs/{number}/output");
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n{bearer}\r\n").unwrap();
    let (mut seen, mut most, mut piece) = (Vec::new(), before, vec![0; 1 << 20]);
    loop {
        let count = stream.read(&mut piece).unwrap();
        if count == 0 {
            break;
        }
        seen.extend_from_slice(&piece[..count]);
        most = most.max(daemon.memory());
    }
    assert!(seen.ends_with(&bytes));
    let head = String::from_utf8(seen[..seen.len() - bytes.len()].to_vec()).unwrap().to_lowercase();
    for line in [
        "http/1.1 200 ok".to_owned(),
        format!("content-length: {}", bytes.len()),
        "content-type: application/octet-stream".to_owned(),
        format!("content-disposition: attachment; filename=\"job-{number}.output\""),
    ] {
        assert!(head.lines().any(|other| other == line), "no {line} in {head}");
    }
    assert!(most - before < 8 << 20, "{} bytes more for {}", most - before, bytes.len());
    let missing = ask(http, "GET", "/api/v1/jobs/77/output", &bearer, "");
    assert_eq!((missing.status, &missing.body[..]), (404, "there is no job 77\n"));
    assert_eq!(ask(http, "GET", &path, "", "").status, 401);
}

#[test]
fn a_full_disk_refuses_input_and_the_manager_goes_on() {
    let directory = Directory::new("spool-full");
    // A file may have 32,768 blocks of 512 bytes.
    let daemon = Daemon::start_after("trap '' XFSZ; ulimit -f 32768", &directory, &[]);
    let _node = echo_node(&daemon, "a");
    daemon.client().wait_nodes(1, Duration::from_secs(10)).unwrap();
    let long = directory.file("long", &vec![b'\n'; 20 << 20]);
    let refused = job(&daemon, &["submit", "--app", "lines", "--detach", "--input", long.to_str().unwrap()]);
    let line = String::from_utf8(refused.stderr).unwrap();
    let line = line.lines().last().unwrap();
    assert_eq!(line, "ferrolite: the input cannot be stored: File too large (os error 27)");
    let number = submit(&daemon, &directory.file("short", b"a\nb\n"));
    assert_eq!(said(&job(&daemon, &["output", &number])), "a\nb");
    assert_eq!(spool(&directory), [format!("{number:0>20}.output")], "nothing is left of the other");
}

#[test]
fn a_hangup_applies_the_retention_and_the_history_says_so() {
    let directory = Directory::new("spool-retention");
    let file = directory.file("m.toml", b"[jobs]\njob_bytes = '1MiB'\n");
    let mut daemon = Daemon::start(&directory, &["--config", file.to_str().unwrap()]);
    let lines = daemon.collect_log();
    let _node = echo_node(&daemon, "a");
    daemon.client().wait_nodes(1, Duration::from_secs(10)).unwrap();
    let long = directory.file("long", &vec![b'\n'; (1 << 20) + 1]);
    let refused = job(&daemon, &["submit", "--app", "lines", "--detach", "--input", long.to_str().unwrap()]);
    let why = "ferrolite: the spool accepts 1048576 bytes of input of a job, and this has 1048577";
    assert_eq!(error_line(&refused), why);
    let number = submit(&daemon, &directory.file("in", b"a\n"));
    assert_eq!(said(&job(&daemon, &["output", &number])), "a");
    directory.file("m.toml", b"[jobs]\nretention = { age = '1s' }\n");
    daemon.signal("-HUP");
    lines.wait("has read its settings again");
    lines.wait(&format!("job {number}: its output and its log are not kept any longer"));
    let gone = job(&daemon, &["output", &number]);
    assert_eq!(gone.status.code(), Some(5));
    assert_eq!(error_line(&gone), format!("ferrolite: the output of job {number} is not kept any longer"));
    let shown = said(&job(&daemon, &["show", &number]));
    assert!(shown.contains("expired: true"), "{shown}");
    let end = Instant::now() + Duration::from_secs(10);
    while !spool(&directory).is_empty() {
        assert!(Instant::now() < end, "{:?}", spool(&directory));
        std::thread::sleep(Duration::from_millis(10));
    }
}
