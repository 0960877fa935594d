//! The examples in C and Python, against two nodes that run the job `echo`, over software RDMA.
use crate::programs::{compile, join, library, python, shared, source};
use crate::support::{Cluster, LIMIT};
use manager::client::{Inputs, Job, Output, Update};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

/// A node in this process that serves the job until it is shut down.
fn serve(cluster: &Cluster, name: &str, port: usize) -> thread::JoinHandle<runtime::End> {
    let node = join(cluster, name, port);
    thread::spawn(move || node.serve(vec![Box::new(echo::Echo)]))
}

/// Runs a demonstration to its successful end.
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
    let demo = source("examples/demo.c");
    let with_shared = compile(&cluster, &demo, "shared", &shared());
    let fixed = library("libferrolite.a");
    let fixed = [fixed.to_str().unwrap(), "-lgcc_s", "-lm", "-ldl", "-lpthread"];
    let with_fixed = compile(&cluster, &demo, "static", &fixed);

    let (accepted, begun) = channel();
    let client = cluster.client();
    let (input, output) = (cluster.file("none", b""), cluster.dir.path().join("out"));
    let job = thread::spawn(move || {
        let job = Job {
            app: "echo".into(),
            args: Vec::new(),
            nodes: 0,
            on: Vec::new(),
            limit: None,
            ..Job::default()
        };
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
    run(&cluster, &mut python(&source("examples/demo.py")), "demo-py", &[]);
    run(&cluster, &mut Command::new(with_fixed), "demo-static", &["end"]);
    assert_eq!(job.join().unwrap().unwrap(), 2);

    cluster.client().shutdown().unwrap();
    for node in nodes {
        assert_eq!(node.join().unwrap(), runtime::End::Shutdown);
    }
}
