//! The configuration file of the manager: its check, the options that count before it, and reloads.

use crate::daemon::{BINARY, Daemon, Directory, Lines, error_line};
use crate::web::ask;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The complaint about a member of etcd that is no URL.
#[cfg(feature = "etcd")]
const NO_ETCD: &str = "2: urls: h is no URL of etcd: want http://HOST:PORT or https://HOST:PORT";
#[cfg(not(feature = "etcd"))]
const NO_ETCD: &str = "2: urls: this program was built without etcd: build it with `--features manager/etcd`";

fn check(file: &Path, more: &[&str]) -> Output {
    Command::new(BINARY).args(["config", "check"]).arg(file).args(more).output().unwrap()
}

#[test]
fn a_mistake_is_named_with_file_line_and_key() {
    let directory = Directory::new("config-check");
    directory.secret("short", b"short\n");
    directory.file("open", b"a long password\n");
    directory.secret("wrong.key", b"no key\n");
    let cases = [
        ("lisen = '127.0.0.1:1'\n", "1: unknown key lisen; is it listen?"),
        ("state = 's'\nxyzzy = 1\n", "2: unknown key xyzzy"),
        ("\n\nlease_ms = '5s'\n", "3: lease_ms: invalid type: string \"5s\", expected u64"),
        ("lease_ms = 99\n", "1: lease_ms: want a number from 100 to 600000"),
        ("listen = 'here'\n", "1: listen: invalid socket address syntax"),
        ("trust_hosts = 1\n", "1: trust_hosts: invalid type: integer `1`, expected a boolean"),
        ("log_format = 'xml'\n", "1: log_format: unknown variant `xml`, expected `text` or `json`"),
        ("[http]\nviewers = 'v'\n", "1: missing field `listen`"),
        ("key_file = 'open'\n", "1: key_file: the key file "),
        ("key_file = 'wrong.key'\n", "1: key_file: "),
        ("[http]\nlisten = '0.0.0.0:0'\n", "2: listen: HTTP on 0.0.0.0:0 shows keys to everyone on the way"),
        ("listen = '127.0.0.1:9'\n[http]\nlisten = '127.0.0.1:9'\n", "3: listen: 127.0.0.1:9 is that of the"),
        ("[http]\nlisten = '127.0.0.1:0'\nviewers = 'none'\n", "3: viewers: cannot read the file "),
        ("[http]\nlisten = '127.0.0.1:0'\nviewers = 'open'\n", "3: viewers: the file of the password "),
        ("[http]\nlisten = '127.0.0.1:0'\nviewers = 'short'\n", "3: viewers: "),
        ("[http]\nlisten = '127.0.0.1:0'\ntsl = 't'\n", "3: unknown key tsl; is it tls?"),
        ("listen = '127.0.0.1:1'\nlisten = '127.0.0.1:2'\n", "2: listen: duplicate key"),
        ("listen\n", "1: "),
        ("[etcd]\nulrs = ['http://h:1']\n", "2: unknown key ulrs; is it urls?"),
        ("[etcd]\nurls = ['http://h:1']\nttl = 1\n", "3: ttl: want a number from 2 to 60"),
        ("[etcd]\nurls = ['h']\n", NO_ETCD),
        ("[jobs]\njob_byts = '1GB'\n", "2: unknown key job_byts; is it job_bytes?"),
        (
            "[jobs]\njob_bytes = '1 apple'\n",
            "2: job_bytes: 1 apple is no number of bytes: want one as in 500MB",
        ),
        ("[jobs]\njob_bytes = '9GB'\nspool_bytes = '8GB'\n", "2: job_bytes: it is more than spool_bytes"),
        ("[jobs]\nretention = { age = 'ever' }\n", "2: age: ever is no time: want one as in 90s, 12h or 7d"),
        ("[jobs]\nretention = { bytes = '-1B' }\n", "2: bytes: -1B is no number of bytes"),
        ("[[nodes]]\nnaem = 'a'\n", "2: unknown key naem; is it name?"),
        ("[[nodes]]\nname = 'a b'\n", "2: name: want at most 64 letters, digits,"),
        ("[[nodes]]\nname = 'a'\n[[nodes]]\nname = 'a'\n", "4: name: there are two nodes a"),
        ("[[nodes]]\nname = 'a'\nmac = '52:54'\n", "3: mac: 52:54 is no address like 52:54:00:12:34:56"),
        ("[[nodes]]\nname = 'a'\ncpus = 0\n", "3: cpus: want 1 or more"),
        ("[[nodes]]\nname = 'a'\nmemory = 'much'\n", "3: memory: much is no number of bytes"),
        ("[[nodes]]\nname = 'a'\nkernel = '5f'\n", "3: kernel: want the 64 digits of a SHA-256"),
        ("[[nodes]]\nname = 'a'\nbmc = { kind = 'ipm' }\n", "3: bmc: unknown variant `ipm`, expected one of"),
        ("[[nodes]]\nname = 'a'\nbmc = { kind = 'command' }\n", "3: bmc: it lacks program"),
        ("[[nodes]]\nname = 'a'\nbmc = { kind = 'command', program = 'none' }\n", "3: program: "),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'command', program = 'short', user = 'u' }\n",
            "3: user: a BMC of kind command has no such key",
        ),
        (
            "[[nodes]]\nname = 'a'\n[nodes.bmc]\nkind = 'ipmi'\naddress = 'h:0'\n",
            "5: address: h:0 is no HOST or HOST:PORT",
        ),
        (
            "[[nodes]]\nname = 'a'\n[nodes.bmc]\nkind = 'ipmi'\naddress = 'h'\nuser = 'u'\npassword_file = 'open'\n",
            "7: password_file: the file of the password ",
        ),
        (
            "[[nodes]]\nname = 'a'\n[nodes.bmc]\nkind = 'ipmi'\naddress = 'h'\nuser = 'u'\npassword = 'p'\n",
            "7: unknown key password; is it password_file?",
        ),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'redfish', address = 'h' }\n",
            "3: address: want https://HOST or https://HOST:PORT",
        ),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'redfish', address = 'http://h' }\n",
            "3: bmc: http shows the password to everyone on the way",
        ),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'redfish', address = 'https://h' }\n",
            "3: bmc: https needs one of ca, certificate and `insecure = true`",
        ),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'redfish', address = 'https://h', ca = 'short' }\n",
            "3: ca: ",
        ),
        (
            "[[nodes]]\nname = 'a'\nbmc = { kind = 'command', program = 'short', timeout = 51 }\n",
            "3: timeout: want a number from 1 to 50",
        ),
        ("[qos]\nrdma_limt = '1GB/s'\n", "2: unknown key rdma_limt; is it rdma_limit?"),
        ("[qos]\nrdma_limit = '1GB'\n", "2: rdma_limit: 1GB is no rate: want a rate as in 500MB/s"),
        ("[qos]\nrdma_priority = 'urgent'\n", "2: rdma_priority: urgent is no priority of operations"),
        ("[qos]\nrdma_outstanding = 0\n", "2: rdma_outstanding: want a number from 1 to 65535"),
        (
            "[qos]\nrdma_limit = '2GB/s'\n[qos.most]\nrdma_limit = '1GB/s'\n",
            "2: the RDMA limit of bytes per second 2000000000 is more than the operator allows",
        ),
    ];
    for (text, wanted) in cases {
        let file = directory.file("m.toml", text.as_bytes());
        let checked = check(&file, &[]);
        let said = error_line(&checked);
        assert!(said.starts_with(&format!("ferrolite: {}:{wanted}", file.display())), "{text}: {said}");
        // The daemon does not start with it either.
        let mut run = Command::new(BINARY);
        let run = run.args(["manager", "run", "--config"]).arg(&file).output().unwrap();
        assert_eq!(error_line(&run), said);
    }
    let right = "listen = '127.0.0.1:0'\nlease_ms = 700\ntrust_hosts = true\n[http]\nlisten = '127.0.0.1:0'\n\
         [jobs]\njob_bytes = '1GiB'\nretention = { age = '30d', bytes = '500 MB' }\n\
         [qos]\nrdma_limit = '500MB/s'\nmost = { rdma_priority = 'normal', rdma_limit = '1GiB/s' }\n";
    assert!(check(&directory.file("m.toml", right.as_bytes()), &[]).status.success());
    let contexts = directory.file("c.toml", b"context = 'a'\n[contexts.b]\nmanager = 'x:1'\n");
    assert!(error_line(&check(&contexts, &["--contexts"])).ends_with("c.toml has no context a"));
}

/// Returns the number of lines of a log with `text`, once there are `count`.
fn wait_lines(lines: &Lines, text: &str, count: usize) {
    let start = Instant::now();
    while lines.all().iter().filter(|line| line.contains(text)).count() < count {
        assert!(start.elapsed() < Duration::from_secs(60), "no {text}: {:?}", lines.all());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hangup_applies_all_changes_or_none() {
    let directory = Directory::new("config-reload");
    let write = |password: &str, more: &str| {
        directory.secret("viewers", password.as_bytes());
        let text = format!(
            "log_format = 'json'\n{more}[http]\nlisten = '127.0.0.1:0'\nviewers = 'viewers'\nport_file = 'port'\n"
        );
        directory.file("m.toml", text.as_bytes())
    };
    let file = write("first password", "");
    let mut daemon = Daemon::start(&directory, &["--config", file.to_str().unwrap()]);
    let lines = daemon.collect_log();
    let http = std::fs::read_to_string(directory.join("port")).unwrap().trim().parse().unwrap();
    let sees = |password: &str| {
        ask(http, "GET", "/api/v1/nodes", &format!("Authorization: Bearer {password}\r\n"), "").status
    };
    assert_eq!((sees("first password"), sees("second password")), (200, 401));
    write("second password", "");
    daemon.signal("-HUP");
    wait_lines(&lines, "has read its settings again", 1);
    assert_eq!((sees("first password"), sees("second password")), (401, 200));
    for (more, reason) in
        [("lease_ms = 1234\n", "without a restart"), ("leas_ms = 1\n", "unknown key leas_ms")]
    {
        // The option --lease-ms of the test counts before the file, unlike the address.
        let more = more.replace("lease_ms = 1234", "listen = '127.0.0.1:1'\nport_file = 'other'");
        write("third password", &more);
        daemon.signal("-HUP");
        wait_lines(&lines, reason, 1);
        assert_eq!((sees("second password"), sees("third password")), (200, 401), "{more}");
    }
    for line in lines.all() {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["time_ms"].as_u64().unwrap() > 1_700_000_000_000 && line["text"].is_string(), "{line}");
    }
}
