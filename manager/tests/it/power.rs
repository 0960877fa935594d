//! The daemon with power controllers: programs, and a small server of Redfish within the test.

use crate::daemon::{BINARY, Daemon, Directory, error_line, join_as};
use crate::users::run;
use crate::web::ask;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::generate_simple_self_signed;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PASSWORD: &str = "pass-word-of-a-bmc";

/// Returns what a command that succeeds prints.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim().into()
}

fn program(directory: &Directory, name: &str, text: &str) -> PathBuf {
    let file = directory.file(name, format!("#!/bin/sh\n{text}\n").as_bytes());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
    file
}

/// Starts a daemon with these nodes in its file.
fn daemon(directory: &Directory, nodes: &str, more: &[&str]) -> Daemon {
    let file = directory.file("m.toml", nodes.as_bytes());
    Daemon::start(directory, &[&["--config", file.to_str().unwrap()], more].concat())
}

fn by_command(name: &str, program: &str, timeout: u64) -> String {
    format!(
        "[[nodes]]\nname = '{name}'\nbmc = {{ kind = 'command', program = '{program}', timeout = {timeout} }}\n"
    )
}

#[test]
fn a_program_of_the_operator_turns_a_node_off_and_on() {
    let directory = Directory::new("power-command");
    let path = directory.0.display();
    let state = format!("echo \"$@\" >> {path}/calls; f={path}/power-$1; [ -f $f ] || echo off > $f; ");
    program(&directory, "power", &(state + "case $2 in status) cat $f;; *) echo $2 > $f;; esac"));
    let mut daemon = daemon(&directory, &by_command("n1", "power", 30), &[]);
    let lines = daemon.collect_log();
    let key = daemon.key_file.clone();
    let power = |words: &str| run(&daemon, &key, &format!("node power {words}"));
    assert_eq!(said(&power("status n1")), "n1 is off");
    assert_eq!(said(&power("on n1")), "n1 is on");
    let (_node, _) = join_as(&daemon, "n1");
    assert!(error_line(&power("cycle n1")).contains("node 1 (n1) answers"));
    assert_eq!(said(&power("cycle n1 --bmc")), "n1 is on");
    lines.wait("node 1 (n1) is gone: its power is off, as its BMC confirms");
    assert_eq!(said(&power("off n1 --bmc")), "n1 is off");
    let calls = std::fs::read_to_string(directory.join("calls")).unwrap();
    let changes: Vec<&str> = calls.lines().filter(|call| !call.ends_with("status")).collect();
    assert_eq!(changes, ["n1 on", "n1 off", "n1 on", "n1 off"]);
    let listed = said(&run(&daemon, &key, "node inventory -o json"));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let node =
        json!({ "name": "n1", "presence": "absent", "state": "off", "bmc": "command", "differences": [] });
    assert_eq!(listed, json!({ "nodes": [node] }));
    let audited = said(&run(&daemon, &key, "cluster audit ls"));
    for what in ["node power on n1", "node power cycle n1 --bmc", "node power off n1 --bmc"] {
        assert!(audited.contains(what), "{audited}");
    }
    assert!(error_line(&power("reset n1 --bmc")).contains("use `power cycle --bmc`"));
}

#[test]
fn a_program_that_fails_or_hangs_is_told_and_delays_no_other() {
    let directory = Directory::new("power-fails");
    program(&directory, "fails", "echo first >&2; echo the relay is stuck >&2; exit 3");
    program(&directory, "talks", "echo maybe");
    program(&directory, "on", "echo on");
    // The process that the program starts holds its output open.
    program(&directory, "hangs", &format!("sleep 600 & echo $! > {}/sleep-$1; wait", directory.0.display()));
    // Waits until the process that hangs for a node has ended.
    let ends = |node: &str| {
        let sleeper = std::fs::read_to_string(directory.join(&format!("sleep-{node}"))).unwrap();
        let process = PathBuf::from(format!("/proc/{}/cmdline", sleeper.trim()));
        let end = Instant::now() + Duration::from_secs(30);
        while std::fs::read(&process).is_ok_and(|words| !words.is_empty()) {
            assert!(Instant::now() < end, "the process for {node} goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let nodes =
        [("n1", "fails", 30), ("n2", "talks", 30), ("n3", "hangs", 2), ("n4", "on", 1), ("n5", "hangs", 50)];
    let nodes: String = nodes.map(|(name, program, limit)| by_command(name, program, limit)).concat();
    let daemon = daemon(&directory, &nodes, &[]);
    let key = daemon.key_file.clone();
    let power = |words: &str| run(&daemon, &key, &format!("node power {words}"));
    let mut stuck = Command::new(BINARY);
    stuck.args(["node", "power", "status", "n5", "--manager", &daemon.address, "--key-file"]).arg(&key);
    let mut stuck = stuck.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !directory.join("sleep-n5").exists() {
        assert!(Instant::now() < end, "the program is not run");
        std::thread::sleep(Duration::from_millis(10));
    }
    let wanted = "ferrolite: the BMC of n1 (command): exit status 3: the relay is stuck";
    assert_eq!(error_line(&power("status n1")), wanted);
    assert!(error_line(&power("on n2")).ends_with("its status is `maybe`, neither on nor off"));
    assert!(error_line(&power("on n3")).ends_with("(command): no answer within 2 s"));
    ends("n3");
    assert!(error_line(&power("off n4")).ends_with("not done within 1 s: the power is on"));
    assert!(stuck.try_wait().unwrap().is_none(), "all others have been told before");
    assert!(error_line(&power("on n5")).ends_with("the BMC of n5 has another order already"));
    daemon.signal("-TERM");
    assert!(error_line(&stuck.wait_with_output().unwrap()).ends_with("the manager stops"));
    // Nothing of the program remains once the manager has ended.
    ends("n5");
}

#[test]
fn an_absent_ipmitool_is_told_with_its_package() {
    let directory = Directory::new("power-no-ipmitool");
    directory.secret("password", PASSWORD.as_bytes());
    let node = "[[nodes]]\nname = 'n1'\n[nodes.bmc]\nkind = 'ipmi'\naddress = '127.0.0.1'\nuser = 'u'\n\
                password_file = 'password'\n";
    let file = directory.file("m.toml", node.as_bytes());
    let nowhere = format!("PATH={}", directory.0.display());
    let daemon = Daemon::start_after(&nowhere, &directory, &["--config", file.to_str().unwrap()]);
    let refused = error_line(&run(&daemon, &daemon.key_file, "node power status n1"));
    assert!(refused.ends_with("there is no ipmitool here: install Debian's package ipmitool"), "{refused}");
}

/// A controller that speaks Redfish. Its machine is on or off.
struct Controller {
    address: SocketAddr,
    on: Arc<AtomicBool>,
    /// The requests: method, path, and the kind of a reset.
    asked: Arc<Mutex<Vec<String>>>,
    pem: String,
    digest: String,
}

impl Controller {
    fn start(tls: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let made = generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let digest = Sha256::digest(made.cert.der()).iter().map(|byte| format!("{byte:02x}")).collect();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config =
            builder.unwrap().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
        let config = Arc::new(config.unwrap());
        let (on, asked) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (power, requests) = (on.clone(), asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                if tls {
                    let session = ServerConnection::new(config.clone()).unwrap();
                    serve(StreamOwned::new(session, stream), &power, &requests);
                } else {
                    serve(stream, &power, &requests);
                }
            }
        });
        Self { address, on, asked, pem: made.cert.pem(), digest }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Answers one request.
fn serve(stream: impl Read + Write, on: &AtomicBool, asked: &Mutex<Vec<String>>) {
    const SYSTEM: &str = "/redfish/v1/Systems/437XR1138R2";
    const RESET: &str = "/redfish/v1/Systems/437XR1138R2/Actions/ComputerSystem.Reset";
    let mut reader = BufReader::new(stream);
    let (mut head, mut length, mut trusted) = (String::new(), 0, false);
    if reader.read_line(&mut head).is_err() || head.is_empty() {
        return;
    }
    let wanted = format!("Basic {}", BASE64_STANDARD.encode(format!("operator:{PASSWORD}")));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.trim().split_once(": ").unwrap();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => trusted = value == wanted,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let kind = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let kind = kind["ResetType"].as_str().unwrap_or_default().to_owned();
    asked.lock().unwrap().push(format!("{method} {path} {kind}").trim().into());
    let (status, answer) = match (method, path) {
        _ if !trusted => ("401 Unauthorized", json!({ "error": "no" })),
        ("GET", "/redfish/v1/Systems") => ("200 OK", json!({ "Members": [{ "@odata.id": SYSTEM }] })),
        ("GET", SYSTEM) => {
            let state = if on.load(Ordering::SeqCst) { "On" } else { "Off" };
            let actions = json!({ "#ComputerSystem.Reset": { "target": RESET } });
            ("200 OK", json!({ "PowerState": state, "Actions": actions }))
        }
        ("POST", RESET) => {
            on.store(kind == "On", Ordering::SeqCst);
            ("204 No Content", Value::Null)
        }
        _ => ("404 Not Found", Value::Null),
    };
    let text = if answer.is_null() { String::new() } else { answer.to_string() };
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
    let _ = reader.get_mut().write_all(answer.as_bytes());
    let _ = reader.get_mut().flush();
}

fn by_redfish(name: &str, address: &str, more: &str) -> String {
    format!(
        "[[nodes]]\nname = '{name}'\n[nodes.bmc]\nkind = 'redfish'\naddress = '{address}'\nuser = 'operator'\n\
         timeout = 3\n{more}\n"
    )
}

#[test]
fn redfish_turns_a_node_off_and_on() {
    let directory = Directory::new("power-redfish");
    directory.secret("password", format!("{PASSWORD}\n").as_bytes());
    directory.secret("wrong", b"another-word\n");
    let (plain, tls) = (Controller::start(false), Controller::start(true));
    directory.file("ca.pem", tls.pem.as_bytes());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let http = format!("http://{}", plain.address);
    let https = format!("https://localhost:{}", tls.address.port());
    let (known, zeros) =
        (format!("certificate = '{}'", tls.digest), format!("certificate = '{}'", "00".repeat(32)));
    let with = |more: &str| format!("password_file = 'password'\n{more}");
    let open = "insecure = true";
    let nodes = [
        by_redfish("plain", &http, &with(open)),
        by_redfish("wrong", &http, "password_file = 'wrong'\ninsecure = true"),
        by_redfish("lost", &http, &with("insecure = true\nsystem = '/redfish/v1/Systems/2'")),
        by_redfish("ca", &https, &with("ca = 'ca.pem'")),
        by_redfish("known", &https, &with(&known)),
        by_redfish("any", &https, &with(open)),
        by_redfish("other", &https, &with(&zeros)),
        by_redfish("silent", &format!("http://{}", silent.local_addr().unwrap()), &with(open)),
        by_redfish("absent", &format!("http://{absent}"), &with(open)),
    ]
    .concat();
    let mut daemon = daemon(
        &directory,
        &nodes,
        &["--http", "127.0.0.1:0", "--http-port-file", directory.join("http").to_str().unwrap()],
    );
    let lines = daemon.collect_log();
    let key = daemon.key_file.clone();
    let power = |words: &str| run(&daemon, &key, &format!("node power {words}"));
    assert_eq!(said(&power("status plain")), "plain is off");
    assert_eq!(said(&power("on plain")), "plain is on");
    assert_eq!(said(&power("cycle plain")), "plain is on");
    assert_eq!(said(&power("off plain --bmc")), "plain is off");
    let asked = plain.asked();
    let resets: Vec<&str> =
        asked.iter().filter_map(|line| line.strip_prefix("POST ")?.rsplit(' ').next()).collect();
    assert_eq!(resets, ["On", "ForceOff", "On", "ForceOff"]);
    for name in ["ca", "known", "any"] {
        tls.on.store(true, Ordering::SeqCst);
        assert_eq!(said(&power(&format!("status {name}"))), format!("{name} is on"));
        assert_eq!(said(&power(&format!("off {name} --bmc"))), format!("{name} is off"));
    }
    tls.asked();
    for (name, why) in [
        ("wrong", "wrong user or password (401)"),
        ("lost", "404 Not Found to GET /redfish/v1/Systems/2"),
        ("other", &format!("its certificate has the SHA-256 {}", tls.digest)),
        ("silent", "no answer within 3 s"),
        ("absent", &format!("cannot connect to 127.0.0.1 port {}: Connection refused", absent.port())),
    ] {
        let line = error_line(&power(&format!("on {name}")));
        assert!(line.starts_with(&format!("ferrolite: the BMC of {name} (redfish): ")), "{line}");
        assert!(line.contains(why), "{line}");
    }
    assert!(tls.asked().is_empty(), "no request goes to a server that is not trusted");
    // A request over HTTP reaches the controllers as a command does.
    let address = std::fs::read_to_string(directory.join("http")).unwrap().trim().parse().unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", std::fs::read_to_string(&key).unwrap().trim());
    let web = |method: &str, path: &str| ask(address, method, path, &bearer, "");
    let answer = web("POST", "/api/v1/nodes/plain/power?action=on");
    assert_eq!((answer.status, answer.body.trim()), (200, r#"{"power":"on"}"#));
    assert_eq!(web("POST", "/api/v1/nodes/plain/power?action=reset&bmc=yes").status, 400);
    assert_eq!(web("POST", "/api/v1/nodes/nobody/power?action=status").status, 404);
    let listed = web("GET", "/api/v1/inventory").body;
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap()["nodes"].as_array().unwrap().len(), 9);
    let page = web("GET", "/nodes").body;
    assert!(page.contains("0 of 9 listed nodes are members") && page.contains(">plain</th>"), "{page}");
    let support = web("GET", "/api/v1/support").body;
    let audited = said(&run(&daemon, &key, "cluster audit ls"));
    let log = lines.all().join("\n");
    for text in [&log, &audited, &listed, &support] {
        assert!(!text.contains(PASSWORD) && !text.contains("another-word"), "{text}");
    }
    assert!(log.contains("asks the BMC of plain (redfish): power cycle"), "{log}");
}
