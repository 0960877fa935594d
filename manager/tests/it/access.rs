//! The matrix of roles and commands, on the command line and over HTTP, against the tables of the documents.
//! The commands come from the program's own tree.

use crate::capture::Tap;
use crate::daemon::{Daemon, Directory};
use crate::users::{add, run, status};
use crate::web::{Answer, Secure};
use proto::UserRole;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const COMMANDS: &str = include_str!("../../../docs/reference/manager.md");
const PASSWORD: &str = "only-looks-around";
const HTTP: &str = include_str!("../../../docs/reference/http.md");

/// The arguments of each command in the matrix. The commands are refused or fail, but for those that list.
const EXAMPLES: [(&str, &str); 34] = [
    ("job submit", "--app nothing --output OUT"),
    ("job ls", ""),
    ("job show", "77"),
    ("job wait", "77"),
    ("job output", "77"),
    ("job logs", "77"),
    ("job cancel", "77"),
    ("node ls", ""),
    ("node show", "nobody"),
    ("node drain", "nobody"),
    ("node undrain", "nobody"),
    ("node reboot", "nobody"),
    ("node power", "off nobody"),
    ("node boot", "nobody FILE"),
    ("node inventory", ""),
    ("image add", "FILE"),
    ("image ls", ""),
    ("image rm", "00"),
    ("rollout start", "00"),
    ("rollout status", ""),
    ("rollout stop", ""),
    ("rollout undo", ""),
    ("data ls", ""),
    ("data rm", "nothing"),
    ("cluster shutdown", ""),
    ("cluster support", "OUT"),
    ("cluster backup", "OUT"),
    ("cluster audit ls", ""),
    ("cluster audit verify", ""),
    ("user add", "same --role viewer --output OUT"),
    ("user ls", ""),
    ("user rm", "nobody"),
    ("user role", "nobody viewer"),
    ("user whoami", ""),
];

/// The request over HTTP that does what a command does: the method and path of the documents, and an example.
/// `None` if there is none.
type Over = Option<(&'static str, &'static str)>;

const OVER_HTTP: [(&str, Over); 34] = [
    // A job streams, and ends with its connection.
    ("job submit", None),
    ("job ls", Some(("/api/v1/queue?after=JOB", "/api/v1/queue"))),
    ("job show", Some(("/api/v1/jobs/JOB/details", "/api/v1/jobs/77/details"))),
    // A request is shorter than a wait.
    ("job wait", None),
    ("job output", Some(("/api/v1/jobs/JOB/output", "/api/v1/jobs/77/output"))),
    ("job logs", Some(("/api/v1/jobs/JOB/log", "/api/v1/jobs/77/log"))),
    ("job cancel", Some(("POST /api/v1/jobs/JOB/cancel", "/api/v1/jobs/77/cancel"))),
    ("node ls", Some(("/api/v1/nodes", "/api/v1/nodes"))),
    (
        "node power",
        Some(("POST /api/v1/nodes/NAME/power?action=off", "/api/v1/nodes/nobody/power?action=off")),
    ),
    // An image is longer than a request may be.
    ("node boot", None),
    ("node show", Some(("/api/v1/nodes/NAME", "/api/v1/nodes/nobody"))),
    (
        "node drain",
        Some(("POST /api/v1/nodes/NAME/drain?reason=TEXT", "/api/v1/nodes/nobody/drain?reason=a%20fan")),
    ),
    ("node inventory", Some(("/api/v1/inventory?after=NAME", "/api/v1/inventory"))),
    ("node undrain", Some(("DELETE /api/v1/nodes/NAME/drain", "/api/v1/nodes/nobody/drain"))),
    // It waits until the node has joined again.
    ("node reboot", None),
    // Images are longer than a request may be.
    ("image add", None),
    ("image ls", None),
    ("image rm", None),
    ("rollout start", None),
    ("rollout status", Some(("/api/v1/rollout", "/api/v1/rollout"))),
    ("rollout stop", Some(("POST /api/v1/rollout/stop", "/api/v1/rollout/stop"))),
    ("rollout undo", Some(("POST /api/v1/rollout/undo", "/api/v1/rollout/undo"))),
    ("data ls", Some(("/api/v1/datasets", "/api/v1/datasets"))),
    ("data rm", Some(("DELETE /api/v1/datasets/NAME", "/api/v1/datasets/nothing"))),
    ("cluster shutdown", Some(("POST /api/v1/shutdown", "/api/v1/shutdown"))),
    ("cluster support", Some(("/api/v1/support", "/api/v1/support"))),
    // The answer has the secrets of the cluster.
    ("cluster backup", None),
    ("cluster audit ls", Some(("/api/v1/audit?after=N", "/api/v1/audit?after=0"))),
    ("cluster audit verify", Some(("/api/v1/audit?after=N", "/api/v1/audit"))),
    // The key of a user is made where the user is.
    ("user add", None),
    ("user ls", Some(("/api/v1/users", "/api/v1/users"))),
    ("user rm", Some(("DELETE /api/v1/users/NAME", "/api/v1/users/nobody"))),
    ("user role", Some(("PUT /api/v1/users/NAME?role=ROLE", "/api/v1/users/nobody?role=viewer"))),
    ("user whoami", Some(("/api/v1/whoami", "/api/v1/whoami"))),
];

/// A manager with a user of each role.
struct World {
    daemon: Daemon,
    http: SocketAddr,
    keys: Vec<(UserRole, PathBuf)>,
    tap: Tap,
    /// The relay for HTTPS.
    web: Tap,
    certificate: PathBuf,
    directory: Directory,
}

impl World {
    fn new(test: &str) -> Self {
        let directory = Directory::new(test);
        let port = directory.join("http");
        let port = port.to_str().unwrap();
        let tls = directory.join("tls");
        let viewers = directory.secret("viewers", PASSWORD.as_bytes());
        let serve = ["--http", "127.0.0.1:0", "--http-port-file", port, "--http-tls", tls.to_str().unwrap()];
        let viewers = ["--http-viewers", viewers.to_str().unwrap()];
        let mut daemon = Daemon::start(&directory, &[&serve[..], &viewers].concat());
        // All commands and requests go through a relay that keeps the bytes.
        let tap = Tap::new(&daemon.address);
        daemon.address.clone_from(&tap.address);
        let web = Tap::new(std::fs::read_to_string(port).unwrap().trim());
        let http = web.address.parse().unwrap();
        let root = add(&daemon, &directory, &daemon.key_file, "root", "admin");
        let key = |role: UserRole| add(&daemon, &directory, &root, &format!("a-{role}"), role.word());
        let keys = UserRole::ALL.map(|role| (role, key(role))).into();
        Self { daemon, http, keys, tap, web, certificate: tls.join("cert.pem"), directory }
    }

    /// Returns each command with the least role that the program prints, if it asks a manager.
    fn commands(&self) -> Vec<(String, Option<UserRole>)> {
        let listed = String::from_utf8(run(&self.daemon, &self.keys[0].1, "commands").stdout).unwrap();
        let role = |word: &str| UserRole::ALL.into_iter().find(|role| role.word() == word);
        let command = |line: &str| {
            let (path, least) = line.split_once('\t').unwrap();
            assert!(least == "-" || role(least).is_some(), "{line}");
            (path.to_owned(), role(least))
        };
        let commands: Vec<_> = listed.lines().map(command).collect();
        assert!(commands.len() > 20, "{commands:?}");
        commands
    }

    /// Returns the server of HTTPS.
    fn web(&self) -> Secure<'_> {
        Secure { http: self.http, certificate: &self.certificate }
    }

    /// Sends a request with the key of a file.
    fn ask(&self, key: &Path, method: &str, path: &str) -> Answer {
        self.send(method, path, &bearer(key))
    }

    /// Sends a request with a header.
    fn send(&self, method: &str, path: &str, header: &str) -> Answer {
        self.web().ask(method, path, header, "")
    }

    /// Sends a form with a header.
    fn post(&self, path: &str, header: &str, body: &str) -> Answer {
        let header = format!("Content-Type: application/x-www-form-urlencoded\r\n{header}");
        self.web().ask("POST", path, &header, body)
    }

    /// Returns the files whose secrets must not be in a capture.
    fn secret_files(&self) -> Vec<&Path> {
        self.keys.iter().map(|(_, key)| key.as_path()).chain([self.daemon.key_file.as_path()]).collect()
    }

    /// Asks until the answer has a status: the manager publishes its users twice in a second.
    fn wait(&self, status: u16, ask: &dyn Fn() -> Answer) {
        let start = std::time::Instant::now();
        loop {
            // Each failure counts against the limit of failures, which is another status.
            let answer = ask();
            if answer.status == status {
                return;
            }
            assert!(start.elapsed() < std::time::Duration::from_secs(60), "{}", answer.status);
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
    }
}

/// Returns the header with the key of a file.
fn bearer(key: &Path) -> String {
    format!("Authorization: Bearer {}\r\n", std::fs::read_to_string(key).unwrap().trim())
}

/// Returns the role that the example of a command needs. The job of the examples is nobody's.
fn needed(path: &str, least: UserRole) -> UserRole {
    if ["job cancel", "job output"].contains(&path) { UserRole::Operator } else { least }
}

#[test]
fn each_command_is_allowed_to_the_roles_of_the_documents() {
    let world = World::new("matrix");
    let file = world.directory.file("file", b"x");
    let mut checked = 0;
    for (path, least) in world.commands() {
        let row = least.map_or("none: asks no manager", UserRole::word);
        let row = format!("| `{path}` | {row} |");
        assert!(path == "man" || path == "commands" || COMMANDS.contains(&row), "lacks {row}");
        let Some(least) = least else { continue };
        let example = EXAMPLES.iter().find(|(known, _)| *known == path);
        let (_, arguments) = example.unwrap_or_else(|| panic!("the command {path} has no example here"));
        for (role, key) in &world.keys {
            let out = world.directory.join(&format!("out-{role}"));
            let arguments =
                arguments.replace("OUT", out.to_str().unwrap()).replace("FILE", file.to_str().unwrap());
            let ended = run(&world.daemon, key, format!("{path} {arguments}").trim());
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(status(&ended) == 4, *role < needed(&path, least), "{role}: {path}: {said}");
            assert!(status(&ended) != 2 && status(&ended) != 3, "{role}: {path}: {said}");
            let _ = std::fs::remove_file(&out);
            checked += 1;
        }
    }
    assert_eq!(checked, EXAMPLES.len() * UserRole::ALL.len(), "an example of a command that is none");
    world.tap.assert_no_secret(&world.secret_files(), &[]);
}

#[test]
fn each_request_over_http_is_allowed_to_the_roles_of_the_documents() {
    let world = World::new("http-matrix");
    for (_, key) in &world.keys {
        world.wait(200, &|| world.ask(key, "GET", "/api/v1/whoami"));
    }
    let mut checked = 0;
    for (path, least) in world.commands() {
        let Some(least) = least else { continue };
        let over = OVER_HTTP.iter().find(|(known, _)| *known == path);
        let (_, over) = over.unwrap_or_else(|| panic!("the command {path} is not in the table here"));
        checked += 1;
        let Some((documented, example)) = over else { continue };
        let is_row = |line: &&str| {
            line.split('|').nth(1).is_some_and(|paths| paths.contains(&format!("`{documented}`")))
        };
        let row = HTTP.lines().find(is_row).unwrap_or_else(|| panic!("the documents lack {documented}"));
        assert!(row.ends_with(&format!("| {least} |")), "{least}: {row}");
        let method = documented.split_once(' ').map_or("GET", |(method, _)| method);
        for (role, key) in &world.keys {
            let answer = world.ask(key, method, example);
            let allowed = *role >= needed(&path, least);
            assert_eq!(answer.status == 403, !allowed, "{role}: {example}: {}", answer.body);
            assert!(matches!(answer.status, 200 | 403 | 404 | 409), "{role}: {example}: {}", answer.status);
            if answer.status == 403 {
                assert!(
                    answer.body.contains(&format!("has the role {role}, and this needs")),
                    "{}",
                    answer.body
                );
            }
        }
        assert_eq!(world.send(method, example, "").status, 401, "{example} without a key");
    }
    assert_eq!(checked, OVER_HTTP.len(), "a row of a command that is none");
    // Each secret that a browser sends and gets: the key and the password, the cookie, the word of its forms.
    let mut texts = vec![PASSWORD.to_owned()];
    let keys = world.keys.iter().map(|(_, key)| std::fs::read_to_string(key).unwrap());
    for secret in keys.chain([PASSWORD.into()]) {
        let cookie = world.post("/login", "", &format!("key={}", secret.trim())).cookie();
        let form = world.send("GET", "/", &cookie).form();
        assert_eq!(world.send("GET", "/events", &cookie).status, 200);
        assert_eq!(world.post("/logout", &cookie, &format!("form={form}")).status, 303);
        let (_, cookie) = cookie.trim().split_once('=').unwrap();
        assert!(cookie.len() >= 64 && form.len() >= 64);
        texts.extend([cookie.to_owned(), form]);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    world.web.assert_no_secret(&world.secret_files(), &texts);
}

/// The audit log is for administrators, and a line about a refused request for operators, also among the
/// events and in the report for support.
#[test]
fn events_are_those_that_the_role_may_read() {
    const ADDED: &str = "user add a-viewer viewer";
    const REFUSED: &str = "a-viewer has the role viewer, and this needs admin";
    let world = World::new("events");
    let (_, viewer) = &world.keys[0];
    world.wait(200, &|| world.ask(viewer, "GET", "/api/v1/whoami"));
    assert_eq!(status(&run(&world.daemon, viewer, "user ls")), 4);
    let (_, admin) = world.keys.last().unwrap();
    let start = std::time::Instant::now();
    while !world.ask(admin, "GET", "/api/v1/events").body.contains(REFUSED) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "the events lack the refusal");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    for (role, key) in &world.keys {
        let mut texts: Vec<(String, String)> = ["/", "/events", "/api/v1/events", "/api/v1/events?after=0"]
            .map(|path| (path.to_owned(), world.ask(key, "GET", path).body))
            .into();
        let live = "/live?path=/events";
        texts.push((live.into(), world.web().read_until(live, &bearer(key), "</ol>")));
        let report = world.ask(key, "GET", "/api/v1/support");
        assert_eq!(report.status == 200, *role >= UserRole::Operator, "{}", report.body);
        if report.status == 200 {
            assert!(report.body.contains("\"events\""));
            texts.push(("the report".into(), report.body));
        }
        for (path, text) in texts {
            assert_eq!(text.contains(ADDED), *role == UserRole::Admin, "{role}: {path}: {text}");
            // The overview has the last twelve events only.
            if path != "/" || *role < UserRole::Operator {
                assert_eq!(text.contains(REFUSED), *role >= UserRole::Operator, "{role}: {path}: {text}");
            }
        }
    }
}

#[test]
fn a_page_and_a_token_follow_the_role_of_the_user() {
    let world = World::new("http-roles");
    let root = world.keys.last().unwrap().1.clone();
    let bob = add(&world.daemon, &world.directory, &root, "bob", "viewer");
    let whoami = || world.ask(&bob, "GET", "/api/v1/whoami");
    world.wait(200, &whoami);
    assert!(whoami().body.contains("viewer"));
    // The cluster's keys are not enough once there are users.
    assert_eq!(world.ask(&world.daemon.key_file, "GET", "/api/v1/nodes").status, 401);
    // The first part of a user's file is not enough without the cluster's key for clients.
    let text = std::fs::read_to_string(&bob).unwrap();
    let parts: Vec<&str> = text.trim().split(':').collect();
    let other = [parts[0], parts[1], &"05".repeat(32), parts[3]].join(":");
    let forged = world.directory.file("forged", other.as_bytes());
    assert_eq!(world.ask(&forged, "GET", "/api/v1/nodes").status, 401);
    assert_eq!(world.ask(&bob, "GET", "/api/v1/users").status, 403);
    assert!(run(&world.daemon, &root, "user role bob admin").status.success());
    world.wait(200, &|| world.ask(&bob, "GET", "/api/v1/users"));
    // A change over HTTP is in the audit log with its user.
    assert_eq!(world.ask(&bob, "PUT", "/api/v1/users/bob?role=operator").status, 200);
    let listed = String::from_utf8(run(&world.daemon, &root, "cluster audit ls").stdout).unwrap();
    let last = listed.lines().last().unwrap();
    assert!(last.contains("bob at 127.0.0.1 by HTTP") && last.contains("user role bob operator"), "{last}");
    assert!(run(&world.daemon, &root, "user rm bob").status.success());
    world.wait(401, &whoami);
}
