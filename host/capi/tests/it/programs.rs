//! The common part of the tests of programs in C and Python: the library, the compiler, and nodes in this
//! process.

use crate::support::{Cluster, LIMIT};
use lite_node::{Clock, Nic, Node, Options};
use runtime::App;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of this crate.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Joins as a node in this process, on a port of the cluster's fabric; the node accepts jobs of `echo`.
pub(crate) fn join(cluster: &Cluster, name: &str, port: usize) -> Node {
    let clock = Clock::start();
    let nic = Nic::softroce(cluster.fabric.socket(port), 32 << 20).unwrap();
    let options = Options {
        manager: cluster.address.clone(),
        key: cluster.key(),
        name: name.into(),
        keep_id: false,
        cpus: 1,
        apps: vec![echo::Echo.manifest()],
        lite: lite::Config::default(),
        join_within: LIMIT,
    };
    Node::join(clock, nic, options).unwrap()
}

/// Returns the directory of the library: that of this test or its parent.
pub(crate) fn library(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let places = exe.ancestors().skip(1).take(2);
    places.map(|dir| dir.join(name)).find(|path| path.exists()).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the linker's arguments for the shared library.
pub(crate) fn shared() -> [String; 3] {
    let library = library("libferrolite.so");
    let dir = library.parent().unwrap().display();
    [format!("-L{dir}"), format!("-Wl,-rpath,{dir}"), "-lferrolite".into()]
}

/// Compiles a program in C and fails on warnings.
pub(crate) fn compile(cluster: &Cluster, source: &Path, name: &str, more: &[impl AsRef<str>]) -> PathBuf {
    let program = cluster.dir.path().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(self::source("include"));
    cc.arg(source).args(more.iter().map(AsRef::as_ref)).arg("-o").arg(&program);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    program
}

/// Compiles a program in C, with the shared library, for AddressSanitizer. Returns `None` if the compiler has
/// no such sanitizer, which an empty program shows.
pub(crate) fn compile_with_sanitizer(cluster: &Cluster, source: &Path, name: &str) -> Option<PathBuf> {
    let [sanitize, frames] = ["-fsanitize=address", "-fno-omit-frame-pointer"];
    let (empty, program) = (cluster.file("empty.c", b"int main(void) { return 0; }\n"), cluster.dir.path());
    let made = Command::new("cc").arg(sanitize).arg(empty).arg("-o").arg(program.join("empty")).output();
    let runs = made.unwrap().status.success()
        && Command::new(program.join("empty")).output().is_ok_and(|ran| ran.status.success());
    let more = [&[sanitize.to_owned(), frames.into(), "-g".into()][..], &shared()].concat();
    runs.then(|| compile(cluster, source, name, &more))
}

/// Reports a test that was not run, past the test runner, which shows no output of a test that passes.
pub(crate) fn skip(what: &str) {
    std::io::Write::write_all(&mut std::io::stderr(), format!("SKIPPED: {what}\n").as_bytes()).unwrap();
}

/// Returns Python with the module, for a script.
pub(crate) fn python(script: &Path) -> Command {
    let mut python = Command::new("python3");
    python.arg(script).env("PYTHONPATH", source("python"));
    python.env("FERROLITE_LIBRARY", library("libferrolite.so")).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}
