//! The daemon: processes that join, take part in jobs, leave, and die.

use crate::support::{Cluster, LIMIT, Process, reference, text};
use manager::client::{Inputs, Job, Output, Update};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Starts `lite-node` with the given name, on port `port` of the fabric.
pub(crate) fn daemon(cluster: &Cluster, name: &str, port: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lite-node"));
    command.args(["--manager", &cluster.address, "--key-file"]).arg(cluster.key_file());
    command.args(["--name", name, "--nic", "softroce", "--fabric-socket"]).arg(cluster.fabric.socket(port));
    command.args(["--memory", "64M", "--cpus", "2"]);
    command
}

fn three(cluster: &Cluster) -> Vec<Process> {
    let start = |n| Process::start(&mut daemon(cluster, &format!("host{n}"), n));
    let processes = (0..3).map(start).collect();
    cluster.wait_nodes(3);
    processes
}

/// Submits the job to all nodes.
pub(crate) fn word_count() -> Job {
    Job { app: "wordcount".into(), args: Vec::new(), nodes: 0, on: Vec::new(), limit: None, ..Job::default() }
}

#[test]
fn three_processes_count_words_and_leave() {
    let cluster = Cluster::start(3);
    let processes = three(&cluster);
    let input = cluster.file("in", &text(3 << 20));
    let path = cluster.dir.path().join("out");
    for round in 0..2 {
        let mut output = Output::create(&path).unwrap();
        let inputs = Inputs::open(std::slice::from_ref(&input)).unwrap();
        let done = cluster.client().submit(&word_count(), inputs, &mut output, &|_| {}).unwrap();
        output.finish().unwrap();
        assert_eq!(done.reports.len(), 3);
        assert!(std::fs::read(&path).unwrap() == reference(&input), "round {round}: another result");
    }
    // A signal ends one node, the manager the others.
    let mut processes = processes.into_iter();
    let first = processes.next().unwrap();
    first.signal("-TERM");
    let (status, said) = first.wait();
    assert!(status.success(), "{said}");
    cluster.wait_members(&["host1", "host2"]);
    cluster.client().shutdown().unwrap();
    for process in processes {
        let (status, said) = process.wait();
        assert!(status.success(), "{said}");
    }
}

#[test]
fn a_killed_process_fails_its_job_by_name_and_the_others_go_on() {
    let cluster = Cluster::start(3);
    let mut processes = three(&cluster);
    let victim = processes.remove(1);
    let input = cluster.file("in", &text(24 << 20));
    let path = cluster.dir.path().join("out");
    let mut output = Output::create(&path).unwrap();
    let (running, runs) = std::sync::mpsc::channel();
    let killer = thread::spawn(move || {
        runs.recv_timeout(LIMIT).unwrap();
        victim.signal("-KILL");
        victim.wait()
    });
    let inputs = Inputs::open(std::slice::from_ref(&input)).unwrap();
    let watch = |update: Update<'_>| {
        if let Update::Accepted { .. } = update {
            // The node is told once.
            let _ = running.send(());
        }
    };
    let error = cluster.client().submit(&word_count(), inputs, &mut output, &watch).unwrap_err();
    assert!(error.to_string().contains("host1"), "{error}");
    drop(output);
    assert!(!path.exists());
    assert!(!killer.join().unwrap().0.success());
    cluster.wait_members(&["host0", "host2"]);
    // The other nodes accept the next job.
    let input = cluster.file("in2", &text(100_000));
    let mut output = Output::create(&path).unwrap();
    let inputs = Inputs::open(std::slice::from_ref(&input)).unwrap();
    let done = cluster.client().submit(&word_count(), inputs, &mut output, &|_| {}).unwrap();
    output.finish().unwrap();
    assert_eq!(done.reports.len(), 2);
    assert!(std::fs::read(&path).unwrap() == reference(&input));
}

/// Word count of a text, kept on the nodes, and read by grep.
#[test]
fn a_job_reads_what_another_has_kept_until_a_node_is_gone() {
    let cluster = Cluster::start(3);
    let mut processes = three(&cluster);
    let input = cluster.file("in", &text(1 << 20));
    let path = cluster.dir.path().join("out");
    let run = |job: &Job, files: &[std::path::PathBuf]| {
        let mut output =
            if job.keep.is_some() { Output::none() } else { Output::create(&path).expect("a new file") };
        let done = cluster.client().submit(job, Inputs::open(files)?, &mut output, &|_| {})?;
        output.finish().map(|()| done)
    };
    let keep = Job { keep: Some("counts".into()), ..word_count() };
    let done = run(&keep, std::slice::from_ref(&input)).unwrap();
    let whole = reference(&input);
    assert_eq!((done.kept_bytes(), done.output_bytes), (whole.len() as u64, 0));
    let listed = cluster.client().datasets().unwrap();
    assert_eq!((listed.len(), listed[0].bytes, &*listed[0].app), (1, whole.len() as u64, "wordcount"));
    let error = run(&keep, &[]).unwrap_err().to_string();
    assert_eq!(error, "there is a dataset counts already");
    // Grep finds all lines of the dataset, whose order is that of the text.
    let grep =
        Job { app: "grep".into(), args: vec!["e".into()], datasets: vec!["counts".into()], ..Job::default() };
    let done = run(&grep, &[]).unwrap();
    assert_eq!(done.reports.len(), 3);
    assert!(done.reports.iter().all(|(_, report)| report.used.iter().any(|used| used.0 == "peak_memory")));
    let wanted: Vec<&[u8]> = whole.split_inclusive(|&b| b == b'\n').filter(|l| l.contains(&b'e')).collect();
    let found = std::fs::read(&path).unwrap();
    let suffix = |line: &[u8]| found.split_inclusive(|&b| b == b'\n').any(|found| found.ends_with(line));
    assert!(!wanted.is_empty() && wanted.iter().all(|line| suffix(line)), "lines are missing");
    // A dataset ends with the first of the nodes that hold it.
    let holder = listed[0].nodes[0];
    let name = cluster.client().nodes().unwrap().into_iter().find(|node| node.node == holder).unwrap().name;
    let rank: usize = name.strip_prefix("host").unwrap().parse().unwrap();
    processes.remove(rank).signal("-KILL");
    let deadline = Instant::now() + LIMIT;
    while !cluster.client().datasets().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the dataset outlives its node");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(run(&grep, &[]).unwrap_err().to_string(), "there is no dataset counts");
    assert_eq!(
        cluster.client().drop_dataset("counts").unwrap_err().to_string(),
        "there is no dataset counts"
    );
}

/// Runs for longer than a lease: while its only thread for applications computes, a node sends heartbeats,
/// reads their acknowledgements and serves reads of its memory.
#[test]
fn membership_and_reads_go_on_while_an_application_computes() {
    let cluster = Cluster::start(2);
    let start = |n| Process::start(daemon(&cluster, &format!("host{n}"), n).args(["--cpus", "1"]));
    let _processes: Vec<Process> = (0..2).map(start).collect();
    cluster.wait_nodes(2);
    let job = Job {
        app: "progress".into(),
        args: vec!["7".into()],
        nodes: 2,
        on: Vec::new(),
        limit: None,
        ..Job::default()
    };
    let inputs = Inputs::open(&[cluster.file("none", b"")]).unwrap();
    let mut output = Output::create(&cluster.dir.path().join("out")).unwrap();
    let done = cluster.client().submit(&job, inputs, &mut output, &|_| {}).unwrap();
    let counts: Vec<_> = done.reports.iter().flat_map(|(_, report)| report.counts.clone()).collect();
    let reads = counts.iter().find(|(name, _)| name == "reads").unwrap().1;
    assert!(reads > 20, "{reads} reads while the other computes");
}

#[test]
fn the_example_runs_against_two_processes() {
    let cluster = Cluster::start(3);
    let start = |n| Process::start(&mut daemon(&cluster, &format!("host{n}"), n));
    let _processes: Vec<Process> = (0..2).map(start).collect();
    cluster.wait_nodes(2);
    let path = cluster.dir.path().join("out");
    let inputs = Inputs::open(&[cluster.file("none", b"")]).unwrap();
    let (running, runs) = std::sync::mpsc::channel();
    let client = cluster.client();
    let job = thread::spawn(move || {
        let watch = |update: Update<'_>| {
            if let Update::Accepted { .. } = update {
                running.send(()).unwrap();
            }
        };
        let job = Job {
            app: "echo".into(),
            args: Vec::new(),
            nodes: 0,
            on: Vec::new(),
            limit: None,
            ..Job::default()
        };
        client
            .submit(&job, inputs, &mut Output::create(&path).unwrap(), &watch)
            .map(|done| done.reports.len())
    });
    runs.recv_timeout(LIMIT).unwrap();
    // Cargo puts examples beside the directory of tests.
    let exe = std::env::current_exe().unwrap();
    let mut example = Command::new(exe.ancestors().nth(2).unwrap().join("examples/demo"));
    example.arg(&cluster.address).arg(cluster.key_file()).arg("demo");
    example.arg(format!("softroce={}", cluster.fabric.socket(2).display()));
    let done = example.args(["host0", "host1", "end"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.ends_with("all is well\n"), "{out}{err}");
    assert_eq!(job.join().unwrap().unwrap(), 2);
}

/// Returns the one line that a daemon prints which must not start.
pub(crate) fn refusal(command: &mut Command) -> String {
    let (status, said) = Process::start(command).wait();
    assert!(!status.success(), "it started");
    assert_eq!(said.lines().count(), 1, "one clear line: {said}");
    said
}

#[test]
fn refusals_are_one_line() {
    let cluster = Cluster::start(2);
    let _first = Process::start(&mut daemon(&cluster, "host", 0));
    cluster.wait_nodes(1);
    let said = refusal(&mut daemon(&cluster, "host", 1));
    assert!(said.contains("the name host is in use"), "{said}");
    let other = cluster.file("other.key", "5a".repeat(32).as_bytes());
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let said = refusal(daemon(&cluster, "b", 1).arg("--key-file").arg(&other));
    assert!(said.contains("wrong cluster key"), "{said}");
    let said = refusal(daemon(&cluster, "b", 1).arg("--key-file").arg(cluster.dir.path().join("none")));
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    let nowhere = cluster.dir.path().join("no.sock");
    // The key is checked before all other errors.
    let whole = manager::key::load(&cluster.key_file()).unwrap();
    let clients = cluster.dir.path().join("client.key");
    manager::key::make_for_role(&clients, &whole, proto::channel::Role::Client).unwrap();
    let said = refusal(
        daemon(&cluster, "b", 1).arg("--key-file").arg(&clients).arg("--fabric-socket").arg(&nowhere),
    );
    assert!(said.contains("this is the key of a client"), "{said}");
    let said = refusal(daemon(&cluster, "b", 1).arg("--fabric-socket").arg(&nowhere));
    assert!(said.contains("no.sock"), "{said}");
}
