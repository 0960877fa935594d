//! The random choices of a seed: the kinds of faults and their frequency, and the sizes and times of its
//! cluster. Few runs have all kinds, so each kind occurs with and without the others.

use super::jobs::manifest;
use super::random::Random;
use super::subject::Subject;
use super::{LEASE, Scenario};
use crate::{ControlLinks, Forgery, Late, Options};
use lite::{Config, Retransmission};
use netfault::Faults;
use proto::PROTOCOL_VERSION;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A machine dies.
    Death,
    /// A machine is paused.
    Pause,
    /// Some tasks of a node are held up, as if another processor had them and were late.
    Held,
    /// Two nodes do not reach each other.
    Part,
    /// One node does not reach another, which reaches the first.
    PartOneWay,
    /// The frames of one node come to another 10 to 100 ms late.
    Slow,
    /// A node and the manager do not reach each other.
    Stall,
    /// The manager's messages do not reach a node; those of the node reach the manager.
    Deaf,
    /// A node's messages do not reach the manager; those of the manager reach the node.
    Mute,
    /// The control connection of a node fails.
    Break,
    /// A node has no memory.
    Full,
    /// A card fails.
    Card,
    /// The manager is paused.
    ManagerPause,
    /// The manager dies.
    ManagerCrash,
    /// The manager's disk is slow, full or fails.
    Disk,
}

/// All kinds, each with its weight in a run that has all of them. The manager's death is not among them: it
/// ends the incarnation of every node, so it is drawn separately.
const KINDS: &[(Kind, usize)] = &[
    (Kind::Death, 1),
    (Kind::Pause, 4),
    (Kind::Held, 3),
    (Kind::Part, 4),
    (Kind::PartOneWay, 3),
    (Kind::Slow, 2),
    (Kind::Stall, 2),
    (Kind::Deaf, 2),
    (Kind::Mute, 2),
    (Kind::Break, 1),
    (Kind::Full, 2),
    (Kind::Card, 1),
    (Kind::ManagerPause, 2),
    (Kind::Disk, 2),
];

/// The least memory of a node, in bytes.
const MEMORY: u64 = 6 << 20;
/// The most cores of a node.
const MOST_CORES: usize = 3;

/// The faults of a run.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    /// The kinds, each as many times as its weight.
    pub(super) kinds: Vec<Kind>,
    /// The inverse probability, per look, that a fault begins.
    pub(super) pace: u64,
    /// The maximum length of a fault, if it is not that of all kinds.
    pub(super) longest: Option<Duration>,
    pub(super) late: Option<Late>,
    pub(super) forgery: Option<Forgery>,
}

impl Swarm {
    pub(super) fn draw(random: &mut Random, subject: Subject) -> Self {
        let intruder = Forgery { each: 2, within: Duration::from_secs(1) };
        let forgery = (subject != Subject::Health && random.one_in(2)).then_some(intruder);
        if let Some((kinds, pace)) = subject.faults() {
            return Self { kinds: kinds.to_vec(), pace, longest: subject.longest(), late: None, forgery };
        }
        let all = random.one_in(4);
        let mut kinds = Vec::new();
        for (kind, often) in KINDS {
            if all || random.one_in(2) {
                kinds.extend([*kind].repeat(*often));
            }
        }
        if kinds.is_empty() {
            kinds.push(Kind::Pause);
        }
        if random.one_in(6) {
            kinds.push(Kind::ManagerCrash);
        }
        let late = [
            None,
            None,
            Some(Late { one_in: 2000, by: Duration::from_secs(5) }),
            Some(Late { one_in: 200, by: Duration::from_secs(2) }),
        ];
        Self { kinds, pace: random.pick(&[6, 12, 12, 40]), longest: None, late: random.pick(&late), forgery }
    }
}

/// Returns the cluster of a scenario.
pub(super) fn options(scenario: &Scenario, random: &mut Random) -> Options {
    let wires = [
        "delay_us=5",
        "loss=0.01,dup=0.005,reorder=0.01,corrupt=0.005,delay_us=5",
        "loss=0.05,reorder=0.05,reorder_us=300,delay_us=20",
        "delay_us=50,rate_mbit=1000,queue=64",
    ];
    let millis = |n| Duration::from_millis(n);
    let control = [
        ControlLinks::INSTANT,
        ControlLinks { latency: Duration::from_micros(100), rate: 1_000_000 },
        ControlLinks { latency: millis(3), rate: 100_000 },
        ControlLinks { latency: millis(40), rate: 10_000 },
    ];
    // The machines of every second scenario have different numbers of cores.
    let cores = if scenario.seed.is_multiple_of(2) { MOST_CORES } else { 1 };
    Options {
        seed: scenario.seed,
        nodes: scenario.nodes,
        nics: scenario.nics.clone(),
        memory: MEMORY.max(u64::from(scenario.nodes) << 19) * cores as u64,
        cores,
        lease: LEASE,
        faults: Faults::parse(random.pick(&wires)).expect("well formed"),
        control: random.pick(&control),
        keep_ids: random.one_in(2),
        versions: vec![PROTOCOL_VERSION],
        apps: vec![manifest()],
        drift: random.pick(&[0, 200, 20_000]),
        config: config(random),
    }
}

/// Returns sizes and times of LITE. They are often small, so that tasks wait for each other.
fn config(random: &mut Random) -> Config {
    let (millis, seconds) = (Duration::from_millis, Duration::from_secs);
    let ack_timeout = random.pick(&[Duration::from_micros(300), millis(2)]);
    Config {
        operations: random.pick(&[16, 64, 1024]),
        calls: random.pick(&[2, 8, 32]),
        queue_pairs: random.pick(&[1, 2, 4]),
        send_depth: random.pick(&[8, 128]),
        peers: random.pick(&[2, 2, 3, 64, 64, 64]),
        idle: random.pick(&[None, None, Some(millis(8)), Some(millis(300))]),
        bounce: random.pick(&[
            Config::default().bounce,
            Config::default().bounce,
            [(256, 8), (1024, 4), (4096, 2)],
            [(64, 1), (256, 1), (16384, 1)],
        ]),
        window: random.pick(&[1, 4, 8]),
        ring: random.pick(&[16 << 10, 32 << 10, 128 << 10]),
        backlog: random.pick(&[64 << 10, 1 << 20]),
        reply_slot: random.pick(&[256, 4096]),
        connect_timeout: random.pick(&[millis(200), seconds(2)]),
        retransmission: Retransmission {
            ack_timeout,
            retries: random.pick(&[4, 7, 7]),
            ..Retransmission::default()
        },
        silence: random.pick(&[Some(seconds(2)), Some(seconds(600)), None]),
        move_window: random.pick(&[64, 4096, 4 << 20]),
        ..Config::default()
    }
}
