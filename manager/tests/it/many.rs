//! The maximum number of members on the real daemon, each over a connection of its own.

use crate::daemon::{Daemon, Directory};
use crate::standin::{Candidate, Heard};
use crate::strangers::raise_own_limit;
use manager::client::{Inputs, Job, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const MEMBERS: u16 = 4095;
/// The number of members that die together at the end.
const DEATHS: u16 = 10;
/// The number of members that join at once.
const AT_ONCE: u16 = 32;
/// The limit of the memory of the daemon's process. docs/security.md states it.
const MOST_BYTES: usize = 1 << 30;
/// The lease: members that die are gone when it ends, and all of them share this machine until then.
const LEASE: Duration = Duration::from_secs(60);
/// The interval of heartbeats.
const BEAT: Duration = Duration::from_secs(6);
/// Joins all members, a few at a time: the next ones when all know each other. Returns two flags
/// that end some of them and the others.
fn join_all(
    runtime: &tokio::runtime::Runtime,
    daemon: &Daemon,
    heard: &Arc<Heard>,
) -> [watch::Sender<bool>; 2] {
    let [(kill, dies), (end, lives)] = [watch::channel(false), watch::channel(false)];
    for number in 1..=MEMBERS {
        let dies = if number <= DEATHS { &dies } else { &lives };
        let (address, key) = (daemon.address.clone(), daemon.key());
        let (heard_by, dies) = (heard.clone(), dies.clone());
        runtime.spawn(Candidate { address, key, number, heard: heard_by, beat: BEAT, dies }.join());
        if number.is_multiple_of(AT_ONCE) || number == MEMBERS {
            let all = usize::from(number);
            heard.wait("welcomes", |heard| &heard.welcomes, all);
            heard.wait("news of members", |heard| &heard.members, all * (all - 1));
        }
    }
    [kill, end]
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn as_many_members_as_there_can_be_join_are_listed_work_and_die() {
    raise_own_limit();
    let directory = Directory::new("many");
    let mut daemon = Daemon::start(&directory, &["--lease-ms", &LEASE.as_millis().to_string()]);
    let _log = daemon.collect_log();
    let (all, runtime) = (usize::from(MEMBERS), tokio::runtime::Runtime::new().unwrap());
    let (start, heard) = (Instant::now(), Arc::new(Heard::default()));
    let step = |what: &str| {
        println!("{what} after {:?}, {} MiB at most", start.elapsed(), daemon.most_memory() >> 20);
    };
    let [kill, _end] = join_all(&runtime, &daemon, &heard);
    step("all have joined and know each other");
    let listed = daemon.client().nodes().unwrap();
    assert_eq!(listed.len(), all);
    step("all are listed");

    let input = directory.file("in", &vec![b'\n'; 1 << 20]);
    let mut output = Output::create(&directory.join("out")).unwrap();
    let job = Job { app: "lines".into(), args: vec![], nodes: 0, on: vec![], limit: None, ..Job::default() };
    let done = daemon.client().submit(&job, Inputs::open(&[input]).unwrap(), &mut output, &|_| {}).unwrap();
    assert_eq!((done.reports.len(), done.counts()), (all, vec![("ended".into(), all as u64)]));
    step("a job on all is done");

    kill.send_replace(true);
    let (deaths, rest) = (usize::from(DEATHS), all - usize::from(DEATHS));
    heard.wait("notices of deaths", |heard| &heard.left, deaths * rest);
    heard.wait("settled deaths", |heard| &heard.settled, deaths * rest);
    assert_eq!(daemon.client().nodes().unwrap().len(), rest);
    step("some have died");
    assert!(daemon.most_memory() < MOST_BYTES, "{} MiB", daemon.most_memory() >> 20);
}
