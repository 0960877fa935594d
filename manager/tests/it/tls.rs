//! Files of TLS that are wrong, a certificate that is replaced, and addresses on which HTTP needs TLS.

use crate::daemon::{BINARY, Daemon, Directory, error_line};
use crate::web::Secure;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Makes the files of TLS in a directory, with a certificate that ends in a year.
fn make(directory: &Directory, name: &str, year: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(year, 1, 1);
    fs::create_dir_all(directory.join(name)).unwrap();
    directory.file(&format!("{name}/cert.pem"), params.self_signed(&key).unwrap().pem().as_bytes());
    directory.secret(&format!("{name}/key.pem"), key.serialize_pem().as_bytes());
}

/// Runs a manager that fails, and returns its line.
fn failed(directory: &Directory, more: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.args(["manager", "run", "--listen", "127.0.0.1:0", "--state"]).arg(directory.join("failed"));
    // The key is made first, so that no line tells about it.
    let key = directory.join("failed/cluster.key");
    if !key.exists() {
        let made = Command::new(BINARY).args(["key", "make", "--key-file"]).arg(&key).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    error_line(&command.args(more).output().unwrap())
}

#[test]
fn files_that_are_no_certificate_with_its_key_are_named() {
    let directory = Directory::new("tls-files");
    let tls = directory.join("tls");
    let start = || failed(&directory, &["--http", "127.0.0.1:0", "--http-tls", tls.to_str().unwrap()]);
    fs::create_dir(&tls).unwrap();
    directory.file("tls/cert.pem", b"nothing");
    assert!(
        start().contains("cannot read the private key ") && start().contains("tls/key.pem: No such file")
    );
    directory.secret("tls/key.pem", b"nothing");
    assert!(start().contains("tls/cert.pem holds no certificate in the format PEM: "), "{}", start());
    make(&directory, "tls", 2900);
    make(&directory, "other", 2900);
    let key = fs::read(directory.join("other/key.pem")).unwrap();
    fs::copy(directory.join("tls/key.pem"), directory.join("good.pem")).unwrap();
    directory.secret("tls/key.pem", b"nothing");
    assert!(start().contains("tls/key.pem holds no private key in the format PEM: "), "{}", start());
    directory.secret("tls/key.pem", &key);
    let said = start();
    assert!(said.contains("tls/key.pem does not belong to the certificate beside it, cert.pem"), "{said}");
    fs::copy(directory.join("good.pem"), directory.join("tls/key.pem")).unwrap();
    fs::set_permissions(directory.join("tls/key.pem"), Permissions::from_mode(0o640)).unwrap();
    let said = start();
    assert!(
        said.contains("the private key ") && said.contains("is open to other users: chmod 600 "),
        "{said}"
    );
    let open = directory.file("password", b"long enough");
    let said = failed(&directory, &["--http", "127.0.0.1:0", "--http-viewers", open.to_str().unwrap()]);
    assert!(said.contains("the file of the password ") && said.contains("is open to other users"), "{said}");
}

#[test]
fn http_that_others_can_reach_needs_tls() {
    let directory = Directory::new("http-others");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
        let said = failed(&directory, &["--http", address]);
        assert!(said.contains(&format!("HTTP on {address} shows keys to everyone on the way")), "{said}");
        assert!(said.contains("--http-tls DIR") && said.contains("--http-insecure"), "{said}");
    }
    let said = failed(&directory, &["--http-tls", "tls"]);
    assert!(said.ends_with("--http-viewers, --http-tls and --http-port-file need --http"), "{said}");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let said = failed(&directory, &["--http", &address]);
    assert!(said.contains(&format!("cannot listen on {address}: Address already in use")), "{said}");
    let mut daemon = Daemon::start(&directory, &["--http", "0.0.0.0:0", "--http-insecure"]);
    daemon.wait_log("dashboard on http://0.0.0.0:");
}

/// A manager does not keep nodes waiting for a certificate: it starts, and says that clients refuse it.
#[test]
fn an_expired_certificate_is_told_and_never_replaces_a_good_one() {
    let directory = Directory::new("tls-expired");
    make(&directory, "tls", 2020);
    let port = directory.join("http");
    let text =
        format!("[http]\nlisten = '127.0.0.1:0'\ntls = 'tls'\nport_file = '{}'\n", port.to_str().unwrap());
    let file = directory.file("m.toml", text.as_bytes());
    let expired = "expired on Jan  1 00:00:00 2020 +00:00: clients refuse it";
    let check = || Command::new(BINARY).args(["config", "check"]).arg(&file).output().unwrap();
    let said = error_line(&check());
    assert!(said.contains("m.toml:3: tls: the certificate ") && said.ends_with(expired), "{said}");
    let mut daemon = Daemon::start(&directory, &["--config", file.to_str().unwrap()]);
    daemon.wait_log(expired);
    let lines = daemon.collect_log();
    let http = fs::read_to_string(port).unwrap().trim().parse().unwrap();
    let status = |certificate: &Path| Secure { http, certificate }.ask("GET", "/healthz", "", "").status;
    let replace = |year: i32| {
        make(&directory, "tls", year);
        daemon.signal("-HUP");
    };
    replace(2900);
    lines.wait("has read its settings again");
    let good = directory.join("good.pem");
    fs::copy(directory.join("tls/cert.pem"), &good).unwrap();
    assert!(check().status.success());
    assert_eq!(status(&good), 200);
    replace(2021);
    lines.wait("keeps its settings: ");
    assert!(lines.wait("keeps its settings: ").ends_with("2021 +00:00: clients refuse it"));
    assert_eq!(status(&good), 200);
}
