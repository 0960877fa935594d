//! The messages and records of each release (`releases.toml`): this build reads and writes the same bytes.
//!
//! The file of a release has lines of four kinds: `shape` describes a type as serde sees it, `bytes` has a
//! message, `entry` has an entry of the manager's store, and `backup` has a file of `cluster backup`.

mod kinds;
mod sample;
mod store;

use kinds::{Kind, digits, undigits};
use proto::{OLDEST_VERSION, PROTOCOL_VERSION};
use serde_reflection::ContainerFormat;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// The variable of the environment that makes the test write the file of a release that has none.
const RECORD: &str = "FERROLITE_RECORD_RELEASE";

#[derive(serde::Deserialize)]
struct Releases {
    release: Vec<Release>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    version: String,
    commit: String,
    /// The version of the protocol.
    protocol: u16,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn releases() -> Vec<Release> {
    let text = std::fs::read_to_string(directory().join("../releases.toml")).unwrap();
    toml::from_str::<Releases>(&text).unwrap().release
}

impl Release {
    fn file(&self) -> PathBuf {
        directory().join("tests/data/releases").join(format!("{}.txt", self.version))
    }

    /// Returns the lines of the release.
    fn lines(&self) -> String {
        let file = self.file();
        if !file.exists() && std::env::var_os(RECORD).is_some() {
            assert_eq!(self.version, env!("CARGO_PKG_VERSION"), "this build is not that release");
            assert_eq!(self.protocol, PROTOCOL_VERSION, "the protocol of release {}", self.version);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, written()).unwrap();
        }
        std::fs::read_to_string(&file).unwrap_or_else(|error| {
            panic!("{}: {error}; {RECORD}=1 makes this test write it", file.display())
        })
    }
}

/// Returns the lines of this build.
fn written() -> String {
    let mut lines = String::new();
    for kind in kinds::messages() {
        let name = kind.name;
        for (container, shape) in &kind.registry {
            let shape = serde_json::to_string(shape).unwrap();
            writeln!(lines, "shape {name} {container} {shape}").unwrap();
        }
        for (variant, bytes) in sample::samples(&kind.registry, name) {
            assert_eq!((kind.again)(&bytes).as_deref(), Some(&bytes[..]), "{name} {variant}");
            writeln!(lines, "bytes {name} {variant} {}", digits(&bytes)).unwrap();
        }
    }
    lines + &store::written()
}

/// Returns what is wrong with the lines of a release for this build.
fn complaints(text: &str, protocol: u16) -> Vec<String> {
    let messages = kinds::messages();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let complaint = match words[..] {
            ["shape", kind, container, shape] => match kind_of(&messages, kind) {
                Some(kind) => match kind.registry.get(container) {
                    Some(today) => {
                        let golden = serde_json::from_str(shape).unwrap();
                        differs(&golden, today, false).then_some("its form has changed")
                    }
                    None => Some("it is gone"),
                },
                None => store::shape_complaint(kind, container, shape),
            },
            ["bytes", kind, variant, bytes] => {
                seen.insert((kind, variant));
                let bytes = undigits(bytes);
                let same = kind_of(&messages, kind).is_some_and(|kind| {
                    (kind.again)(&bytes).as_deref() == Some(&bytes[..]) && kind.variant(&bytes) == variant
                });
                (!same).then_some("it is read or written in another way")
            }
            _ => store::complaint(&words),
        };
        wrong.extend(complaint.map(|why| format!("{line:.100}: {why}")));
    }
    for kind in &messages {
        for (variant, bytes) in sample::samples(&kind.registry, kind.name) {
            if seen.contains(&(kind.name, &variant[..])) {
                continue;
            }
            // A message that the release does not have.
            if kind.is_of_nodes() && PROTOCOL_VERSION <= protocol {
                wrong.push(format!("{} {variant}: PROTOCOL_VERSION must grow", kind.name));
            }
            if (kind.since)(&bytes).is_some_and(|since| since <= protocol) {
                wrong.push(format!("{} {variant}: `since` says that the release has it", kind.name));
            }
        }
        // A variant within a message is as new as the message that needs it.
        let grown = kind.registry.iter().any(|(name, today)| {
            let line = format!("shape {} {name} {}", kind.name, serde_json::to_string(today).unwrap());
            !text.lines().any(|golden| golden == line)
        });
        if grown && kind.is_of_nodes() && PROTOCOL_VERSION <= protocol {
            wrong.push(format!("{} has grown: PROTOCOL_VERSION must grow", kind.name));
        }
    }
    wrong
}

fn kind_of<'a>(kinds: &'a [Kind], name: &str) -> Option<&'a Kind> {
    kinds.iter().find(|kind| kind.name == name)
}

/// Returns true if bytes of the golden form are not bytes of today's with the same meaning. Enumerations may
/// have more variants at the end; a record of the store may have more fields at the end.
fn differs(golden: &ContainerFormat, today: &ContainerFormat, is_record: bool) -> bool {
    match (golden, today) {
        (ContainerFormat::Enum(golden), ContainerFormat::Enum(today)) => {
            golden.iter().any(|(index, variant)| today.get(index) != Some(variant))
        }
        (ContainerFormat::Struct(golden), ContainerFormat::Struct(today)) if is_record => {
            !today.starts_with(golden)
        }
        (golden, today) => golden != today,
    }
}

#[test]
fn each_release_is_read_and_written_as_it_was() {
    for release in releases() {
        let text = release.lines();
        assert!(text.lines().count() > 100, "release {} has few lines", release.version);
        assert_eq!(complaints(&text, release.protocol), [""; 0], "release {}", release.version);
    }
}

#[test]
fn the_newest_release_and_this_build_speak_one_protocol() {
    let releases = releases();
    for release in &releases {
        assert!(release.commit.len() == 40 && release.commit.bytes().all(|b| b.is_ascii_hexdigit()));
    }
    let newest = releases.last().unwrap();
    assert!((OLDEST_VERSION..=PROTOCOL_VERSION).contains(&newest.protocol), "{}", newest.version);
    assert!(releases.is_sorted_by_key(|release| release.protocol));
}

/// The check finds each way in which a build can leave a release.
#[test]
fn a_build_that_leaves_a_release_is_found() {
    let text = written();
    assert_eq!(complaints(&text, PROTOCOL_VERSION), [""; 0]);
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        complaints(&text.replace(from, to), PROTOCOL_VERSION)
    };
    // Two variants have changed places, and one is gone.
    let swapped = changed(r#""1":{"Relay""#, r#""1":{"Retry""#);
    assert!(swapped[0].contains("shape ToManager ToManager") && swapped[0].contains("its form has changed"));
    assert!(!changed("bytes ToNode Shutdown 0c", "bytes ToNode Gone 0c").is_empty());
    // A field has another type, or another name.
    assert!(!changed(r#"{"seq":"U64"}"#, r#"{"seq":"U32"}"#).is_empty());
    assert!(!changed(r#"{"seq":"U64"}"#, r#"{"number":"U64"}"#).is_empty());
    // The bytes of a message are others.
    assert!(!changed("bytes ToManager Leave 0a", "bytes ToManager Leave 0b").is_empty());
    // A message has no bytes.
    let without: String = text.lines().filter(|line| !line.starts_with("bytes ToNode AskJobs ")).fold(
        String::new(),
        |mut all, line| {
            writeln!(all, "{line}").unwrap();
            all
        },
    );
    let complaint = complaints(&without, PROTOCOL_VERSION);
    assert_eq!(
        complaint,
        [
            "ToNode AskJobs: PROTOCOL_VERSION must grow",
            "ToNode AskJobs: `since` says that the release has it"
        ]
    );
    // A record is lost, or its first field has another meaning.
    assert!(!changed("entry member/", "entry members/").is_empty());
    assert!(!changed("shape EndedRecord EndedRecord", "shape EndedRecord Ended").is_empty());
    assert!(!changed("entry user/", "entry name/").is_empty());
    assert!(!changed("backup 66", "backup 67").is_empty());
}

#[test]
fn enumerations_and_records_may_grow_at_the_end() {
    let shape = |text: &str| serde_json::from_str::<ContainerFormat>(text).unwrap();
    let two = shape(r#"{"ENUM":{"0":{"A":"UNIT"},"1":{"B":"UNIT"}}}"#);
    let three = shape(r#"{"ENUM":{"0":{"A":"UNIT"},"1":{"B":"UNIT"},"2":{"C":"UNIT"}}}"#);
    let other = shape(r#"{"ENUM":{"0":{"A":"UNIT"},"1":{"C":"UNIT"},"2":{"B":"UNIT"}}}"#);
    assert!(!differs(&two, &three, false) && differs(&three, &two, false) && differs(&two, &other, false));
    let short = shape(r#"{"STRUCT":[{"a":"U8"}]}"#);
    let long = shape(r#"{"STRUCT":[{"a":"U8"},{"b":"U8"}]}"#);
    assert!(differs(&short, &long, false) && !differs(&short, &long, true) && differs(&long, &short, true));
}
