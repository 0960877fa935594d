//! Members that only send heartbeats, each over a connection of its own, and measure the time until the
//! manager acknowledges them.

use crate::daemon::{Daemon, join_as};
use manager::client::{ClientError, Connection};
use proto::{ToManager, ToNode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time that the last acknowledgement may take.
const LAST: Duration = Duration::from_secs(60);

/// An acknowledged heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// The moment when the heartbeat was sent.
    pub sent: Instant,
    /// The time until its acknowledgement.
    pub took: Duration,
}

/// The measurements that a member of the herd makes.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub acks: Vec<Ack>,
    /// The longest time from the sending of a heartbeat to the acknowledgement of a later one. If it is
    /// longer than the lease, the member has lost its lease.
    pub unheard: Duration,
    /// The reason why the connection ended, if it did.
    pub lost: Option<String>,
}

/// Members that send heartbeats until they are told to stop.
pub(crate) struct Herd {
    stop: Arc<AtomicBool>,
    members: Vec<JoinHandle<Seen>>,
}

impl Herd {
    /// Starts `count` members that join and send a heartbeat every `every`.
    pub(crate) fn start(daemon: &Daemon, count: usize, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let connections: Vec<Connection> =
            (0..count).map(|index| join_as(daemon, &format!("member{index}")).0).collect();
        let member = |connection| {
            let stop = stop.clone();
            std::thread::spawn(move || live(connection, every, &stop))
        };
        Self { members: connections.into_iter().map(member).collect(), stop }
    }

    /// Stops the members after the acknowledgement of a last heartbeat, and returns their measurements.
    pub(crate) fn stop(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.members.into_iter().map(|member| member.join().unwrap()).collect()
    }
}

/// Returns the 99th percentile of the times of all acknowledgements.
pub(crate) fn percentile_99(seen: &[Seen]) -> Duration {
    percentile_99_of(seen.iter().flat_map(|seen| &seen.acks))
}

/// Returns the 99th percentile of the times of some acknowledgements.
pub(crate) fn percentile_99_of<'a>(acks: impl Iterator<Item = &'a Ack>) -> Duration {
    let mut all: Vec<Duration> = acks.map(|ack| ack.took).collect();
    all.sort();
    all[all.len() * 99 / 100]
}

/// Asserts that no member was lost, by its own count or by the daemon's, and that each received its last
/// acknowledgement.
pub(crate) fn assert_none_lost(seen: &[Seen], lease: Duration) {
    for (index, seen) in seen.iter().enumerate() {
        assert_eq!(seen.lost, None, "member{index}");
        assert!(seen.unheard < lease, "member{index} was not heard for {:?}", seen.unheard);
    }
}

/// Sends heartbeats and receives acknowledgements.
fn live(mut connection: Connection, every: Duration, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut heard = Instant::now();
    let mut beats: Vec<Instant> = Vec::new();
    loop {
        let last = stop.load(Ordering::Relaxed);
        let seq = beats.len() as u64;
        let beat = Instant::now();
        beats.push(beat);
        if let Err(error) = connection.sending.send(&ToManager::Heartbeat { seq }) {
            seen.lost = Some(error.to_string());
            return seen;
        }
        let until = beat + if last { LAST } else { every };
        loop {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match connection.receiving.receive(Some(left)) {
                Ok(ToNode::HeartbeatAck { seq: acked, .. }) => {
                    let now = Instant::now();
                    seen.unheard = seen.unheard.max(now - heard);
                    heard = beats[acked as usize];
                    seen.acks.push(Ack { sent: heard, took: now - heard });
                    if last && acked == seq {
                        return seen;
                    }
                }
                Ok(_) => {}
                Err(ClientError::Silent(_)) if last => {
                    seen.lost = Some("the last heartbeat was not acknowledged".into());
                    return seen;
                }
                Err(ClientError::Silent(_)) => break,
                Err(error) => {
                    seen.lost = Some(error.to_string());
                    return seen;
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
    }
}
