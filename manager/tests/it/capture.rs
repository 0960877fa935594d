//! Captures of connections: no secret is in them, and replayed bytes get nothing.

use crate::daemon::{Daemon, Directory, join_through};
use crate::users::{add, run};
use crate::web::ask;
use manager::client::Client;
use manager::key::Credential;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest wait for bytes of the manager.
const LIMIT: Duration = Duration::from_secs(60);

/// The bytes of one connection.
#[derive(Clone, Debug, Default)]
struct Talk {
    to_manager: Vec<u8>,
    from_manager: Vec<u8>,
}

/// A relay that passes connections on, and keeps all bytes of both directions.
pub(crate) struct Tap {
    pub(crate) address: String,
    seen: Arc<Mutex<Vec<Talk>>>,
}

impl Tap {
    pub(crate) fn new(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<Talk>>> = Arc::default();
        let (kept, to) = (seen.clone(), to.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(&to).unwrap();
                let number = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(Talk::default());
                    kept.len() - 1
                };
                for is_up in [true, false] {
                    let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let (from, into) = if is_up { ends } else { (ends.1, ends.0) };
                    let kept = kept.clone();
                    std::thread::spawn(move || {
                        pass(from, into, |bytes| {
                            let talk = &mut kept.lock().unwrap()[number];
                            let side = if is_up { &mut talk.to_manager } else { &mut talk.from_manager };
                            side.extend_from_slice(bytes);
                        });
                    });
                }
            }
        });
        Self { address, seen }
    }

    /// Checks that no secret of key files, and no text, is in what has passed.
    pub(crate) fn assert_no_secret(&self, files: &[&Path], texts: &[&str]) {
        assert_eq!(self.find(files, texts), None);
    }

    /// Returns the form in which a secret of key files, or one of `texts`, is in what has passed.
    fn find(&self, files: &[&Path], texts: &[&str]) -> Option<&'static str> {
        let seen: Vec<u8> = {
            let talks = self.seen.lock().unwrap();
            talks.iter().flat_map(|talk| [&talk.to_manager[..], &talk.from_manager].concat()).collect()
        };
        let holds = |needle: &[u8]| seen.windows(needle.len()).any(|window| window == needle);
        assert!(seen.len() > 2000, "{}", seen.len());
        // The search finds what is there, at any place.
        for at in [0, 999, seen.len() - 16] {
            assert!(holds(&seen[at..at + 16]));
        }
        for (bytes, hex) in secrets(files) {
            // Half of a secret is enough to be found.
            if holds(&bytes[..16]) || holds(&bytes[16..]) {
                return Some("raw");
            }
            if holds(&hex.as_bytes()[..32]) || holds(&hex.to_uppercase().as_bytes()[..32]) {
                return Some("hexadecimal");
            }
            if base64(&bytes).iter().any(|digits| holds(&digits[..20])) {
                return Some("base64");
            }
        }
        texts.iter().any(|text| holds(text.as_bytes())).then_some("text")
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        keep(&buffer[..count]);
        if count == 0 || into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Write);
}

/// Returns the secrets of key files, as bytes and as hexadecimal digits.
fn secrets(files: &[&Path]) -> BTreeMap<Vec<u8>, String> {
    let mut secrets = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        // The last part of a user's file is the manager's public key.
        let parts: Vec<&str> = text.trim().split(':').filter(|part| part.len() == 64).take(2).collect();
        for part in parts {
            let byte = |at: usize| u8::from_str_radix(&part[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..64).step_by(2).map(byte).collect();
            secrets.insert(bytes, part.to_owned());
        }
    }
    secrets
}

/// Returns the Base64 digits that stand for `bytes` at any place of a longer text, for each of the three
/// alignments, without the digits that depend on the neighbours.
fn base64(bytes: &[u8]) -> [Vec<u8>; 3] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [0, 1, 2].map(|skip| {
        bytes[skip..]
            .chunks_exact(3)
            .flat_map(|three| {
                let word = u32::from_be_bytes([0, three[0], three[1], three[2]]);
                [18, 12, 6, 0].map(|shift| DIGITS[(word >> shift & 63) as usize])
            })
            .collect()
    })
}

#[test]
fn a_secret_in_a_capture_is_found() {
    let directory = Directory::new("capture-search");
    let key = [7; 32];
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = directory.file("key", format!("client:{text}\n").as_bytes());
    let found = secrets(&[&file]);
    assert_eq!(found, BTreeMap::from([(key.to_vec(), text)]));
    // `printf '\a\a\a' | base64`.
    assert!(base64(&key).iter().all(|digits| digits.starts_with(b"BwcH")));
}

/// Without TLS a capture of the same requests has the key and the password: the search is one that finds.
#[test]
fn a_key_over_plain_http_is_found() {
    let directory = Directory::new("capture-plain");
    let port = directory.join("http");
    let daemon =
        Daemon::start(&directory, &["--http", "127.0.0.1:0", "--http-port-file", port.to_str().unwrap()]);
    let tap = Tap::new(std::fs::read_to_string(port).unwrap().trim());
    let http = tap.address.parse().unwrap();
    let key = std::fs::read_to_string(&daemon.key_file).unwrap();
    let header = format!("Authorization: Bearer {}\r\n", key.trim());
    assert_eq!(ask(http, "GET", "/api/v1/nodes", "", "").status, 401);
    assert_eq!(ask(http, "GET", "/assets/style.css", "", "").status, 200);
    assert_eq!(tap.find(&[&daemon.key_file], &["a-password"]), None);
    assert_eq!(ask(http, "GET", "/api/v1/nodes", &header, "").status, 200);
    assert_eq!(tap.find(&[&daemon.key_file], &[]), Some("hexadecimal"));
    assert_eq!(ask(http, "POST", "/login", "", "key=a-password").status, 415);
    assert_eq!(tap.find(&[], &["a-password"]), Some("text"));
}

#[test]
fn replayed_bytes_get_nothing() {
    let directory = Directory::new("replay");
    let daemon = Daemon::start(&directory, &[]);
    let tap = Tap::new(&daemon.address);
    let root = add(&daemon, &directory, &daemon.key_file, "root", "admin");
    let mut client = Client::connect(&tap.address, Credential::load(&root).unwrap()).unwrap();
    client.set_user_role("nobody", proto::UserRole::Viewer).unwrap_err();
    let (_node, _) = join_through(&tap.address, &daemon, "a");
    let talks = tap.seen.lock().unwrap().clone();
    assert_eq!(talks.len(), 2, "a user and a node");
    for Talk { to_manager, from_manager } in talks {
        assert!(to_manager.len() > 100 && from_manager.len() > 100);
        for bytes in [&to_manager, &from_manager] {
            let mut stream = TcpStream::connect(&daemon.address).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            // The manager may end the connection before it has taken all.
            let _ = stream.write_all(bytes);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            // A challenge, and the frame of no bytes that stands for a wrong key.
            assert!(answer.len() <= 34 + 2, "{} bytes", answer.len());
            assert!(answer.len() <= 34 || answer.ends_with(&[0, 0]));
        }
    }
    let audit = String::from_utf8(run(&daemon, &root, "cluster audit ls").stdout).unwrap();
    assert_eq!(audit.matches("user role nobody").count(), 1, "{audit}");
    assert_eq!(String::from_utf8(run(&daemon, &root, "node ls").stdout).unwrap().lines().count(), 2);
}
