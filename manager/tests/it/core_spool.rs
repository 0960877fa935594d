//! Jobs without a client on a virtual clock: their input and output in the spool, its bounds, and restarts.

use crate::support::{Harness, request};
use manager::core::{Config, ConnId, MemorySpool, Rules, SpoolFile, SpoolLimits};
use proto::*;
use std::time::Duration;

fn config(spool: SpoolLimits) -> Config {
    Config {
        lease: Duration::from_secs(1_000_000),
        rules: Rules { spool, ..Rules::default() },
        ..Config::default()
    }
}

fn harness(spool: SpoolLimits) -> Harness {
    Harness::with(config(spool), Default::default())
}

/// Returns a manager with the state of the former, as after a crash.
fn restarted(h: &Harness) -> Harness {
    let mut again = Harness::with(config(SpoolLimits::default()), h.restart());
    again.spool = h.spool.clone();
    again
}

/// Makes a submission of a job without a client on one node.
fn detached(lens: &[u64]) -> FromClient {
    let terms = Terms { wait: true, detach: true, requeue: true, ..Terms::default() };
    FromClient::SubmitOn { request: request(1, lens), terms }
}

/// Submits a job without a client with one file, and returns its number.
fn submitted(h: &mut Harness, bytes: &[u8]) -> JobId {
    let client = h.client();
    h.say(client, &detached(&[bytes.len() as u64]));
    let heard = h.client_heard(client);
    let [ToClient::InputWanted { job }] = heard[..] else { panic!("{heard:?}") };
    for piece in bytes.chunks(48 << 10) {
        assert_eq!(h.client_heard(client), []);
        h.say(client, &FromClient::Input { job, bytes: piece.to_vec() });
    }
    assert_eq!(h.client_heard(client), [ToClient::Submitted { job }]);
    h.drop(client);
    job
}

/// Returns the numbers of the jobs that a node is told to start.
fn starts(h: &mut Harness, node: ConnId) -> Vec<JobId> {
    let start = |message| match message {
        ToNode::JobStart(start) => Some(start.job),
        _ => None,
    };
    h.node_heard(node).into_iter().filter_map(start).collect()
}

/// Accepts a job on a node, with credit for all input, and returns the input; `None` if it has no end yet.
fn loaded(h: &mut Harness, node: ConnId, job: JobId) -> Option<Vec<u8>> {
    h.say(node, &ToManager::JobAccepted { job });
    let (mut input, mut taken) = (Vec::new(), 0);
    loop {
        h.say(node, &ToManager::JobInputCredit { job, bytes: taken + (1 << 20) });
        let heard = h.node_heard(node);
        if heard.is_empty() {
            return None;
        }
        for message in heard {
            match message {
                ToNode::JobInput { bytes, .. } => {
                    taken += ToNode::input_charge(bytes.len());
                    input.extend(bytes);
                }
                ToNode::JobInputEnd { .. } => return Some(input),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn output(h: &mut Harness, node: ConnId, job: JobId, offset: u64, bytes: &[u8]) {
    h.say(node, &ToManager::JobOutput { job, offset, bytes: bytes.to_vec() });
}

fn done(h: &mut Harness, node: ConnId, job: JobId) {
    h.say(node, &ToManager::JobDone { job, report: JobReport::default() });
}

/// Fetches the output of a job.
fn fetched(h: &mut Harness, job: JobId) -> (Vec<u8>, bool) {
    let client = h.client();
    let (mut all, mut ended) = (Vec::new(), false);
    loop {
        h.say(client, &FromClient::JobOutput { job, offset: all.len() as u64 });
        match h.client_heard(client).pop() {
            Some(ToClient::JobOutput { bytes, whole }) if whole || bytes.is_empty() => {
                all.extend(bytes);
                ended |= whole;
                return (all, ended);
            }
            Some(ToClient::JobOutput { bytes, .. }) => all.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
}

fn shown(h: &mut Harness, job: JobId) -> JobInfo {
    match h.ask(&FromClient::JobShow { job }) {
        ToClient::JobShown(details) => details.info,
        other => panic!("{other:?}"),
    }
}

fn lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|line| format!("line {line}\n").into_bytes()).collect()
}

#[test]
fn a_job_without_a_client_reads_files_and_leaves_its_output() {
    let mut h = harness(SpoolLimits::default());
    let (node, _) = h.join("a");
    let input = lines(60_000);
    let job = submitted(&mut h, &input);
    assert_eq!(starts(&mut h, node), [job]);
    assert_eq!(loaded(&mut h, node, job).unwrap(), input);
    output(&mut h, node, job, 0, b"first ");
    assert_eq!(h.node_heard(node), [ToNode::JobOutputAck { job, bytes: 6 }], "it is stored");
    assert_eq!(fetched(&mut h, job), (b"first ".to_vec(), false));
    assert_eq!(shown(&mut h, job).output_bytes, Some(6));
    output(&mut h, node, job, 6, &[b'x'; 60_000]);
    done(&mut h, node, job);
    assert_eq!(h.spool.files.len(), 1, "the input is not needed any more");
    let want = [b"first ".to_vec(), vec![b'x'; 60_000]].concat();
    for _ in 0..2 {
        assert_eq!(fetched(&mut h, job), (want.clone(), true));
        let info = shown(&mut h, job);
        assert!(matches!(info.state, JobState::Ended(JobEnd::Done { .. })) && info.detached);
        assert_eq!((info.output_bytes, info.expired), (Some(60_006), false));
        h = restarted(&h);
    }
}

#[test]
fn empty_files_and_no_output_are_no_special_case() {
    let mut h = harness(SpoolLimits::default());
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &detached(&[0, 0]));
    let heard = h.client_heard(client);
    let [ToClient::Submitted { job }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!(starts(&mut h, node), [job]);
    assert_eq!(loaded(&mut h, node, job), Some(Vec::new()));
    done(&mut h, node, job);
    assert_eq!(fetched(&mut h, job), (Vec::new(), true));
}

#[test]
fn a_restart_of_the_manager_costs_no_byte() {
    let mut h = harness(SpoolLimits::default());
    let (_, welcome) = h.join("a");
    let input = lines(20_000);
    let job = submitted(&mut h, &input);
    // The node has a part of the input: the job starts again, under another number, with all of it.
    let mut h = restarted(&h);
    let node = h.resumes(&welcome);
    let again = starts(&mut h, node);
    assert!(again.len() == 1 && again[0] > job);
    assert_eq!(loaded(&mut h, node, again[0]).unwrap(), input);
    output(&mut h, node, again[0], 0, b"abc");
    // The node computes: the rest of the output is asked for from where the spool has it.
    let mut h = restarted(&h);
    let node = h.open();
    let Welcome { node: id, incarnation, ref secret, epoch, .. } = welcome;
    let (version, secret) = (PROTOCOL_VERSION, secret.clone());
    h.say(node, &Hello::Resume(Resume { version, node: id, incarnation, secret, epoch }));
    h.node_heard(node);
    let running = vec![(again[0], JobStanding::Running)];
    h.say(node, &ToManager::Jobs { jobs: running, kept: vec![] });
    let heard = h.node_heard(node);
    assert!(heard.contains(&ToNode::JobOutputFrom { job: again[0], offset: 3 }), "{heard:?}");
    output(&mut h, node, again[0], 3, b"def");
    done(&mut h, node, again[0]);
    assert_eq!(fetched(&mut h, job), (b"abcdef".to_vec(), true));
}

#[test]
fn a_job_whose_node_dies_begins_its_output_again() {
    let mut h = harness(SpoolLimits::default());
    let (first, _) = h.join("a");
    let job = submitted(&mut h, b"x\n");
    starts(&mut h, first);
    loaded(&mut h, first, job).unwrap();
    output(&mut h, first, job, 0, b"from the first");
    h.dies(first);
    let (second, _) = h.join("b");
    let again = starts(&mut h, second)[0];
    assert_eq!(loaded(&mut h, second, again).unwrap(), b"x\n");
    output(&mut h, second, again, 0, b"second");
    done(&mut h, second, again);
    assert_eq!(fetched(&mut h, job), (b"second".to_vec(), true));
}

#[test]
fn a_disk_that_fails_costs_one_job_and_not_the_manager() {
    let mut h = harness(SpoolLimits::default());
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &detached(&[2]));
    let Some(ToClient::InputWanted { job }) = h.client_heard(client).pop() else { panic!("refused") };
    h.spool.broken = Some("No space left on device".into());
    h.say(client, &FromClient::Input { job, bytes: b"x\n".to_vec() });
    assert_eq!(h.failure(client), "the input cannot be stored: No space left on device");
    h.spool.broken = None;
    let job = submitted(&mut h, b"x\n");
    assert_eq!(starts(&mut h, node), [job]);
    loaded(&mut h, node, job).unwrap();
    h.spool.broken = Some("No space left on device".into());
    output(&mut h, node, job, 0, b"y");
    let reason = "its output cannot be stored: No space left on device".to_owned();
    h.say(node, &ToManager::JobOver { job });
    assert_eq!(shown(&mut h, job).state, JobState::Ended(JobEnd::Failed { reason }));
    assert_eq!(h.spool.files.len(), 0);
    h.spool.broken = None;
    let job = submitted(&mut h, b"x\n");
    h.node_heard(node);
    loaded(&mut h, node, job).unwrap();
    done(&mut h, node, job);
    assert_eq!(fetched(&mut h, job), (Vec::new(), true));
}

#[test]
fn the_spool_is_bounded_for_a_job_and_for_all() {
    let mut h = harness(SpoolLimits { job_bytes: 100, bytes: 150, ..SpoolLimits::default() });
    let (node, _) = h.join("a");
    let refused = |h: &mut Harness, len| h.refusal(&detached(&[len]));
    assert_eq!(refused(&mut h, 101), "the spool accepts 100 bytes of input of a job, and this has 101");
    let first = submitted(&mut h, &[b'\n'; 90]);
    assert_eq!(refused(&mut h, 61), "the spool is full: 90 of 150 bytes are used");
    starts(&mut h, node);
    loaded(&mut h, node, first).unwrap();
    output(&mut h, node, first, 0, &[1; 60]);
    output(&mut h, node, first, 60, &[1]);
    h.say(node, &ToManager::JobOver { job: first });
    let reason = "its output cannot be stored: the spool is full: 150 of 150 bytes are used";
    assert_eq!(shown(&mut h, first).state.reason(), reason);
    let second = submitted(&mut h, &[b'\n'; 20]);
    starts(&mut h, node);
    loaded(&mut h, node, second).unwrap();
    output(&mut h, node, second, 0, &[1; 101]);
    h.say(node, &ToManager::JobOver { job: second });
    let reason = "the spool accepts 100 bytes of output of a job, and it has more";
    assert_eq!(shown(&mut h, second).state.reason(), reason);
    assert_eq!(h.spool.files.len(), 0);
}

/// Runs a job without a client and without input, with this output.
fn ran(h: &mut Harness, node: ConnId, bytes: &[u8]) -> JobId {
    let Ok(ToClient::Submitted { job }) = Ok::<_, ()>(h.ask(&detached(&[]))) else { panic!("refused") };
    starts(h, node);
    loaded(h, node, job).unwrap();
    output(h, node, job, 0, bytes);
    done(h, node, job);
    h.node_heard(node);
    job
}

#[test]
fn outputs_are_kept_for_a_time_and_up_to_a_length() {
    let hour = Duration::from_secs(3600);
    let limits = SpoolLimits { keep: hour, keep_bytes: 100, ..SpoolLimits::default() };
    let mut h = harness(limits);
    let (node, _) = h.join("a");
    let [first, second] = [0, 1].map(|_| ran(&mut h, node, &[7; 60]));
    let gone = |h: &mut Harness, job| {
        let info = shown(h, job);
        let client = h.client();
        h.say(client, &FromClient::JobOutput { job, offset: 0 });
        let answer = h.client_heard(client).pop();
        assert_eq!(info.output_bytes, Some(60));
        match answer {
            Some(ToClient::JobShown(_)) => assert!(info.expired),
            Some(ToClient::JobOutput { .. }) => assert!(!info.expired),
            other => panic!("{other:?}"),
        }
        info.expired
    };
    assert!(gone(&mut h, first), "both are too long");
    assert!(!gone(&mut h, second));
    h.pass(hour - Duration::from_secs(1));
    assert!(!gone(&mut h, second));
    h.pass(Duration::from_secs(2));
    h.event(manager::core::Event::Tick);
    assert!(gone(&mut h, second), "the history says so");
    assert_eq!(h.spool.files.len(), 0);
    // New bounds count at once.
    let third = ran(&mut h, node, &[7; 60]);
    assert!(!gone(&mut h, third));
    let shorter = SpoolLimits { keep_bytes: 59, ..limits };
    h.core.reconfigure(Rules { spool: shorter, ..Rules::default() });
    h.event(manager::core::Event::Tick);
    assert!(gone(&mut h, third));
}

#[test]
fn input_that_does_not_arrive_leaves_nothing() {
    let mut h = harness(SpoolLimits::default());
    h.join("a");
    let begin = |h: &mut Harness| {
        let client = h.client();
        h.say(client, &detached(&[10]));
        let Some(ToClient::InputWanted { job }) = h.client_heard(client).pop() else { panic!("refused") };
        h.say(client, &FromClient::Input { job, bytes: vec![1; 9] });
        (client, job)
    };
    // The client goes away.
    let (client, _) = begin(&mut h);
    h.drop(client);
    assert_eq!(h.spool.files.len(), 0);
    // The client is silent.
    let (client, _) = begin(&mut h);
    h.pass(Duration::from_secs(31));
    assert_eq!(h.failure(client), "the client sent no input");
    // The client breaks the rules.
    for (bytes, reason) in [(2, "more input than announced"), (49_153, "in one message")] {
        let (client, job) = begin(&mut h);
        h.say(client, &FromClient::Input { job, bytes: vec![1; bytes] });
        assert!(h.failure(client).contains(reason));
    }
    let (client, job) = begin(&mut h);
    h.say(client, &FromClient::Input { job: JobId(job.0 + 1), bytes: vec![1] });
    assert_eq!(h.failure(client), "input that no job waits for");
    // The manager is killed, or stops.
    let (_, job) = begin(&mut h);
    let mut again = restarted(&h);
    again.event(manager::core::Event::Tick);
    assert_eq!(again.spool.files.len(), 0, "{job:?} is unknown to everybody");
    let (client, _) = begin(&mut h);
    h.event(manager::core::Event::Stop);
    assert_eq!(h.failure(client), "the manager stops");
}

#[test]
fn a_job_whose_input_was_lost_fails_by_name() {
    let mut h = harness(SpoolLimits::default());
    let job = {
        let (node, _) = h.join("a");
        let busy = submitted(&mut h, b"x\n");
        assert_eq!(starts(&mut h, node), [busy]);
        submitted(&mut h, b"y\n")
    };
    h.spool = MemorySpool::default();
    let mut again = restarted(&h);
    again.event(manager::core::Event::Tick);
    let reason = "its input is not in the spool any more";
    assert_eq!(shown(&mut again, job).state.reason(), reason);
    assert!(!again.spool.files.contains_key(&SpoolFile::input(job)));
}
