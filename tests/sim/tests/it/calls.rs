//! Every public call of LITE is a step of the exploration, or has a stated reason why not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The calls that no task of the exploration makes, with the reasons.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("App::name", "constant"),
    ("CompletionQueue::len", "is_empty is called, which is made of it"),
    ("Config::peer_memory", "arithmetic on settings"),
    ("Config::set", "settings: lite/src/base/settings.rs has tests"),
    ("ControlMessages::next", "for appliances: jobs come from the manager"),
    ("Lite::control_messages", "for appliances: jobs come from the manager"),
    ("Lite::counters", "statistics"),
    ("Lite::manager_knows", "for what talks to the manager; sim/tests/it/drain.rs has both versions"),
    ("Lite::next_deadline", "for whoever polls: the executor"),
    ("Lite::next_deadline_of", "for whoever polls: the executor"),
    ("Lite::platform", "the task has it already"),
    ("Lite::poll", "for whoever polls: the executor"),
    ("Lite::poll_core", "for whoever polls: lite/benches/cores"),
    ("Lite::pollers", "for whoever polls: the kernel"),
    ("Lite::rnic_counters", "statistics"),
    ("Lite::send_control", "for appliances: jobs come from the manager"),
    ("Lite::set_tracing", "tests/sim/tests/it/trace.rs"),
    ("Lite::start", "the cluster starts its nodes"),
    ("Lite::traced", "tests/sim/tests/it/trace.rs"),
    ("Lite::traffic", "statistics"),
    ("Lmr::outlive", "Lite::vacate calls what it is made of; lite/tests/it/vacate.rs"),
    ("Lmr::owner", "a region may change its owner at any time: lite/tests/it/vacate.rs"),
    ("Lmr::poll_until", "looks again and again: tests/semantics/src/one_sided.rs"),
    ("LocalMemory::is_empty", "constant"),
    ("Setting::wanted", "settings: lite/src/base/settings.rs has tests"),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let deeper = folders.iter().filter(|path| !path.ends_with("testing")).flat_map(|path| sources(path));
    files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).chain(deeper).collect()
}

/// Returns the names after `pub use` in LITE's lib.rs.
fn exported(lib: &str) -> BTreeSet<String> {
    let uses = lib.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = uses.flat_map(|one| one.split(|c: char| !c.is_alphanumeric() && c != '_'));
    names
        .filter(|name| name.starts_with(char::is_uppercase))
        .map(str::to_owned)
        .chain(["Lite".into()])
        .collect()
}

/// Returns `Type::name` of each `pub fn` in an `impl` of an exported type, up to a file's unit tests.
fn public_calls(text: &str, exported: &BTreeSet<String>) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let mut calls = Vec::new();
    let mut of = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl ") {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            of = (exported.contains(&name) && !rest.contains(" for ")).then_some(name);
        } else if line == "}" {
            of = None;
        }
        let Some(rest) = line.strip_prefix("    pub ") else { continue };
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let rest = rest.strip_prefix("async ").unwrap_or(rest);
        if let (Some(of), Some(name)) = (&of, rest.strip_prefix("fn ")) {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            calls.push(format!("{of}::{name}"));
        }
    }
    calls
}

#[test]
fn every_public_call_is_a_step() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lite = here.join("../../lite/src");
    let exported = exported(&fs::read_to_string(lite.join("lib.rs")).unwrap());
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let calls: BTreeSet<String> =
        sources(&lite).iter().flat_map(|path| public_calls(&read(path), &exported)).collect();
    assert!(calls.len() > 100 && calls.contains("Lmr::write") && calls.contains("Lite::leave"), "{calls:?}");
    let steps: String = sources(&here.join("src/explore")).iter().map(read).collect();
    let is_called = |call: &String| {
        let name = call.rsplit("::").next().unwrap();
        steps.contains(&format!(".{name}("))
            || steps.contains(&format!("::{name}"))
            || steps.contains(&format!("{call}("))
    };
    let excepted: BTreeSet<&str> = EXCEPTIONS.iter().map(|(call, _)| *call).collect();
    let missing: Vec<_> =
        calls.iter().filter(|call| !is_called(call) && !excepted.contains(call.as_str())).collect();
    assert!(missing.is_empty(), "no step calls {missing:?}");
    let idle: Vec<_> = excepted.iter().filter(|call| !calls.contains(**call)).collect();
    assert!(idle.is_empty(), "exceptions for what is not there: {idle:?}");
}
