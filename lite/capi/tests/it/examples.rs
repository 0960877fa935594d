//! The examples in C and Python, against two nodes that run the job `echo`, over software RDMA.
#[path = "../../../node/tests/support/mod.rs"]
mod support;

use lite_node::{Clock, Nic, Node, Options};
use manager::client::{Inputs, Job, Output, Update};
use runtime::App;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use support::{Cluster, LIMIT};

/// A node in this process that serves the job until it is shut down.
fn serve(cluster: &Cluster, name: &str, port: usize) -> thread::JoinHandle<runtime::End> {
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
    let node = Node::join(clock, nic, options).unwrap();
    thread::spawn(move || node.serve(vec![Box::new(echo::Echo)]))
}

/// Where cargo has put the library: beside this test or one up.
fn library(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let places = exe.ancestors().skip(1).take(2);
    places.map(|dir| dir.join(name)).find(|path| path.exists()).unwrap_or_else(|| panic!("no {name}"))
}

fn compile(cluster: &Cluster, name: &str, link: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = cluster.dir.path().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(root.join("include"));
    cc.arg(root.join("examples/demo.c")).args(link).arg("-o").arg(&program);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    program
}

/// Runs a demonstration to its good end.
fn run(cluster: &Cluster, command: &mut Command, name: &str, more: &[&str]) {
    command.arg(&cluster.address).arg(cluster.key_file()).arg(name);
    command.arg(format!("softroce={}", cluster.fabric.socket(2).display()));
    let done = command.args(["node0", "node1"]).args(more).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.ends_with("all is well\n"), "{name}: {out}{err}");
    cluster.wait_members(&["node0", "node1"]);
}

#[test]
fn the_examples_run_against_two_nodes() {
    let cluster = Cluster::start(3);
    let nodes = [serve(&cluster, "node0", 0), serve(&cluster, "node1", 1)];
    cluster.wait_nodes(2);
    let (shared, fixed) = (library("libferrolite.so"), library("libferrolite.a"));
    let dir = shared.parent().unwrap();
    let path = format!("-L{}", dir.display());
    let with_shared =
        compile(&cluster, "shared", &[&path, &format!("-Wl,-rpath,{}", dir.display()), "-lferrolite"]);
    let with_fixed =
        compile(&cluster, "static", &[fixed.to_str().unwrap(), "-lgcc_s", "-lm", "-ldl", "-lpthread"]);

    let (accepted, begun) = channel();
    let client = cluster.client();
    let (input, output) = (cluster.file("none", b""), cluster.dir.path().join("out"));
    let job = thread::spawn(move || {
        let job = Job { app: "echo".into(), args: Vec::new(), nodes: 0, on: Vec::new(), limit: None };
        let mut output = Output::create(&output).unwrap();
        let watch = |update: Update<'_>| {
            if let Update::Accepted { .. } = update {
                accepted.send(()).unwrap();
            }
        };
        client
            .submit(&job, Inputs::open(&[input]).unwrap(), &mut output, &watch)
            .map(|done| done.reports.len())
    });
    begun.recv_timeout(LIMIT).unwrap();

    run(&cluster, &mut Command::new(with_shared), "demo-c", &[]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(root.join("examples/demo.py")).env("PYTHONPATH", root.join("python"));
    python.env("FERROLITE_LIBRARY", &shared).env("PYTHONDONTWRITEBYTECODE", "1");
    run(&cluster, &mut python, "demo-py", &[]);
    run(&cluster, &mut Command::new(with_fixed), "demo-static", &["end"]);
    assert_eq!(job.join().unwrap().unwrap(), 2);

    cluster.client().shutdown().unwrap();
    for node in nodes {
        assert_eq!(node.join().unwrap(), runtime::End::Shutdown);
    }
}
