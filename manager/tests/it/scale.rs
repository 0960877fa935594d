//! The maximum number of members: the messages that they send and receive, and the memory that the core uses
//! for them.

use crate::support::{join, submit};
use manager::core::{Action, Config, ConnId, Core, Event, Message, Saved};
use platform::Instant;
use proto::channel::MAX_MESSAGE;
use proto::*;
use std::time::Duration;

const MEMBERS: u16 = 4095;
/// The number of members that die together at the end.
const DEATHS: u16 = 10;
/// The limit of the bytes that the core may use at any moment for the maximum number of members, each with a
/// description of one kilobyte, and with a job on all of them. docs/security.md states it.
const MOST_BYTES: u64 = 24 << 20;

/// The actions that an event caused, without the messages themselves.
#[derive(Default)]
struct Sums {
    messages: usize,
    longest: usize,
    closed: usize,
}

struct Scale {
    core: Core,
    now: Instant,
    /// The messages to the client, which is the last connection.
    told: Vec<ToClient>,
    client: ConnId,
}

impl Scale {
    fn event(&mut self, event: Event<'_>) -> Sums {
        let (mut sums, mut saved) = (Sums::default(), Vec::new());
        for action in self.core.handle(self.now, event) {
            match action {
                Action::Send { conn, message } => {
                    sums.messages += 1;
                    sums.longest = sums.longest.max(message.encode().len());
                    if let Message::ToClient(message) = message
                        && conn == self.client
                    {
                        self.told.push(message);
                    }
                }
                Action::Close { .. } => sums.closed += 1,
                Action::Save(record) => saved.push(record),
                _ => {}
            }
        }
        for record in saved {
            let released = self.event(Event::Saved { record: &record });
            sums.messages += released.messages;
            sums.longest = sums.longest.max(released.longest);
        }
        assert!(sums.longest <= MAX_MESSAGE, "a message of {} bytes", sums.longest);
        sums
    }

    fn say<M: serde::Serialize>(&mut self, conn: ConnId, message: &M) -> Sums {
        self.event(Event::Received { conn, bytes: &encode(message) })
    }

    fn told(&mut self) -> Vec<ToClient> {
        std::mem::take(&mut self.told)
    }
}

/// Returns the connection of a member, by its number.
fn member(number: u16) -> ConnId {
    ConnId(number.into())
}

/// Makes the join message of an appliance: twenty stages of its boot, and six applications.
fn wish(number: u16) -> Join {
    let mut wish = join(&format!("appliance-{number:04}"));
    wish.rnic.mac.0[4..].copy_from_slice(&number.to_be_bytes());
    wish.boot.stages = (0..20).map(|stage| (format!("stage number {stage:02}"), 1_000_000)).collect();
    let app =
        |i| AppManifest { name: format!("application{i}"), about: "x".repeat(60), cut: CutRule::Anywhere };
    wish.apps.extend((0..5).map(app));
    assert!((700..1400).contains(&encode(&wish).len()), "{}", encode(&wish).len());
    wish
}

fn whole_life() {
    let config = Config { lease: Duration::from_secs(600), ..Config::default() };
    let client = ConnId(u64::from(u16::MAX));
    let core = Core::new(config, Saved::default(), VouchingSecret::from_bytes([7; 32]));
    let mut s = Scale { core, now: Instant::ZERO, told: Vec::new(), client };
    for number in 1..=MEMBERS {
        s.event(Event::Opened { conn: member(number), peer: "10.0.0.1:40000" });
        let sums = s.say(member(number), &Hello::Node(wish(number)));
        // The others receive the news. The new member receives the welcome with as many members as fit, then
        // the rest, and the question for its image.
        let others = usize::from(number) - 1;
        assert_eq!(sums.messages, others + 2 + others.saturating_sub(Welcome::MAX_MEMBERS));
    }
    s.event(Event::Opened { conn: ConnId(5000), peer: "10.0.0.1:40000" });
    assert_eq!(s.say(ConnId(5000), &Hello::Node(wish(MEMBERS + 1))).closed, 1, "the cluster is full");
    s.event(Event::Opened { conn: client, peer: "10.0.0.1:40000" });
    s.say(client, &Hello::Client { version: PROTOCOL_VERSION });
    s.told();
    list(&mut s);
    run_a_job(&mut s);
    // Some die at once. Each of the others is told, acknowledges it, and is told that all have.
    for number in 1..=DEATHS {
        s.say(member(number), &ToManager::LastWords { reason: "a test".into() });
    }
    let mut settled = 0;
    for by in DEATHS + 1..=MEMBERS {
        for number in 1..=DEATHS {
            let seen = ToManager::LeftSeen { node: NodeId(number), incarnation: Incarnation(number.into()) };
            settled += s.say(member(by), &seen).messages;
        }
    }
    assert_eq!(settled, usize::from(DEATHS) * usize::from(MEMBERS - DEATHS));
}

/// Lists all members, first with a wait and then page by page.
fn list(s: &mut Scale) {
    s.say(s.client, &FromClient::WaitNodes { count: MEMBERS, timeout_ms: 1000 });
    let (mut listed, mut pages) = (0, 0);
    loop {
        let page = s.told();
        let [ToClient::Nodes { nodes, more }] = &page[..] else { panic!("one page at a time") };
        assert!(nodes.iter().all(|status| {
            listed += 1;
            status.node == NodeId(listed)
        }));
        pages += 1;
        if !more {
            break;
        }
        s.say(s.client, &FromClient::Nodes { after: NodeId(listed) });
    }
    assert_eq!(listed, MEMBERS);
    assert!(pages < 40, "{pages}");
}

/// Runs a job on all members, with a short input and long reports.
fn run_a_job(s: &mut Scale) {
    let all = usize::from(MEMBERS);
    assert_eq!(s.say(s.client, &submit(0, &[1 << 20])).messages, all, "each is told to start");
    for number in 1..=MEMBERS {
        s.say(member(number), &ToManager::JobAccepted { job: JobId(1) });
        let bytes = ToNode::INPUT_WINDOW;
        s.say(member(number), &ToManager::JobInputCredit { job: JobId(1), bytes });
    }
    assert!(matches!(&s.told()[..], [ToClient::Accepted { nodes, .. }] if nodes.len() == all));
    let mut pieces = 0;
    for _ in 0..(1 << 20) / (32 << 10) {
        pieces +=
            s.say(s.client, &FromClient::Input { job: JobId(1), bytes: vec![b'\n'; 32 << 10] }).messages;
    }
    // There is about one piece for each member, some in two parts where a message of the client ends, and the
    // end of the input.
    assert!((2 * all - 32..2 * all + 32).contains(&pieces), "{pieces}");
    let counts: Vec<_> = (0..20).map(|i| (format!("a count of number {i:02}"), u64::MAX)).collect();
    let report = JobReport {
        times_us: counts.clone(),
        used: counts.clone(),
        kept: vec![1; proto::Dataset::MAX_PIECES],
        counts,
    };
    for number in 1..=MEMBERS {
        s.say(member(number), &ToManager::JobDone { job: JobId(1), report: report.clone() });
        s.told.truncate(2);
    }
    assert!(matches!(s.told()[..], [ToClient::Report { .. }, ToClient::Report { .. }]));
    s.say(s.client, &FromClient::Jobs);
    assert_eq!(s.told(), [ToClient::Jobs(vec![])]);
}

#[test]
fn as_many_members_as_there_can_be_stay_within_the_stated_memory() {
    let info = allocation_counter::measure(whole_life);
    println!("{} bytes at most", info.bytes_max);
    assert!(info.bytes_max <= MOST_BYTES, "{} bytes", info.bytes_max);
}
