//! After the run: all works again, what was written is there, and nothing is left behind.

use super::check::Check;
use super::work::EACH;
use super::work::{Owned, PART, PROBES, Stage, Thing};
use crate::Cluster;
use lite::{Error, Lite, Lmr, NodeId};
use platform::Instant;
use std::sync::Arc;
use std::time::Duration;

/// In which all that goes on by itself comes to its end: leases, timeouts, fences.
const SETTLE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);
/// For a task that takes each step once.
const ROUND_LIMIT: Duration = Duration::from_secs(300);

/// Checks what can only be checked now, ends all that is shared, and sees that nobody holds anything.
pub(super) fn verify(cluster: &mut Cluster, stage: Stage, check: &Arc<Check>) {
    cluster.world.run_for(SETTLE);
    check.look(cluster);
    let live: Vec<usize> = (1..=cluster.joined()).filter(|i| lives(cluster, *i)).collect();
    for (from, to) in live.iter().flat_map(|from| live.iter().map(move |to| (*from, *to))) {
        let (lite, target) = (cluster.lite(from), cluster.lite(to).node_id());
        if let Err(error) = cluster.world.run(LIMIT, async move { calls(&lite, target).await }) {
            check.violated("a healthy cluster works", format!("node {from} calls node {to}: {error}"));
        }
    }
    last_round(cluster, &stage, check, &live);
    if check.is_violated() {
        return;
    }
    check.words_hold();
    free_all(cluster, &stage, check, &live);
    cluster.world.run_for(SETTLE * 3);
    check.look(cluster);
    check.look_at_memory(cluster);
    let left = left_behind(cluster, &live);
    if !left.is_empty() {
        check.violated("nothing is left behind", left.join("; "));
    }
}

/// Each live node takes each step once more, and all succeed.
fn last_round(cluster: &mut Cluster, stage: &Stage, check: &Arc<Check>, live: &[usize]) {
    stage.start_calm(cluster, live);
    let end: Instant = cluster.world.now() + ROUND_LIMIT;
    if !cluster.world.run_until(end, || check.all_done() || check.is_violated()) {
        check.violated("a healthy cluster works", format_args!("these hang: {}", check.unfinished()));
    }
}

/// Reads what was written, and ends what was made.
fn free_all(cluster: &mut Cluster, stage: &Stage, check: &Arc<Check>, live: &[usize]) {
    let owned: Vec<Owned> = stage.owned.lock().expect("no panic under the lock").drain(..).collect();
    for Owned { node, thing } in owned {
        if !live.contains(&node) {
            // What it made has ended with it; so do its handles.
            drop(thing);
            continue;
        }
        let model = check.clone();
        let what = match &thing {
            Thing::Region(n, region) => format!("freeing region {n} of {node} on {}", region.node()),
            Thing::Other(_) | Thing::Gate(..) => format!("freeing a region of {node}"),
            Thing::Counter(_) => format!("ending a counter of {node}"),
        };
        let end = async move {
            match thing {
                Thing::Region(n, region) => {
                    read_all(&model, n, &region).await;
                    region.free().await
                }
                Thing::Other(region) | Thing::Gate(_, region) => region.free().await,
                Thing::Counter(counter) => counter.destroy().await,
            }
        };
        match cluster.world.run(LIMIT, end) {
            // It has ended with its home, or its task has freed it.
            Ok(()) | Err(Error::NodeDown(_) | Error::Freed) => {}
            Err(error) => check.violated("a healthy cluster works", format!("{what}: {error}")),
        }
    }
    let Some(first) = live.first() else { return };
    let lite = cluster.lite(*first);
    cluster.world.run(LIMIT, async move {
        for n in 0..EACH {
            // There is none if its home has died.
            if let Ok(lock) = lite.open_lock(&format!("lock-{n}")).await {
                let _ = lock.destroy().await;
            }
            if let Ok(event) = lite.open_event(&format!("event-{n}")).await {
                let _ = event.destroy().await;
            }
        }
    });
}

/// All parts of a region are what their tasks have written.
async fn read_all(check: &Check, n: usize, region: &Lmr) {
    let mut bytes = vec![0; region.len() as usize];
    let parts = bytes.len() / PART;
    let begun: Vec<_> = (0..parts).map(|who| check.reads(n, who)).collect();
    let result = region.read(0, &mut bytes).await;
    for (who, since) in begun.into_iter().enumerate() {
        let part = &bytes[who * PART..(who + 1) * PART];
        check.read(n, who, since, result.is_ok().then_some((0, part)));
    }
    // If its home has died there is nothing to read.
    if let Err(error) = result
        && !matches!(error, Error::NodeDown(_) | Error::Freed)
    {
        check.violated("a healthy cluster works", format_args!("reading region {n}: {error}"));
    }
}

/// What nodes hold though nothing is under way any more. What one node holds may be why another does: all are told.
fn left_behind(cluster: &Cluster, live: &[usize]) -> Vec<String> {
    let mut left = Vec::new();
    for i in live {
        let lite = cluster.lite(*i);
        let audit = lite.audit();
        if !audit.is_empty() {
            left.push(format!("node {i}: {audit:?}"));
            left.extend(lite.describe_regions());
        }
        // Connections may stay open; those that are closed have left nothing in the RNIC.
        let (there, known) = (queue_pairs(cluster, *i), lite.queue_pairs());
        if there != known {
            left.push(format!("node {i}: {there} queue pairs, of which connections have {known}"));
        }
    }
    left
}

/// The queue pairs of a node's RNIC.
fn queue_pairs(cluster: &Cluster, i: usize) -> usize {
    let mut count = None;
    cluster.rnic(i).counters(&mut |(name, n)| count = if name == "queue_pairs" { Some(n) } else { count });
    count.expect("it counts them") as usize
}

/// Calls enough to fill a ring whose credits are lost.
async fn calls(lite: &Lite, to: NodeId) -> Result<(), Error> {
    let mut broken = true;
    for id in 0..40u64 {
        let mut request = [0; 6000];
        request[..8].copy_from_slice(&(1 << 63 | id).to_le_bytes());
        match lite.call(to, PROBES, &request, 1).await {
            Ok(_) => {}
            // A connection that broke at one end in the troubles is found out by its next use.
            Err(Error::Unknown) if broken => broken = false,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lives(cluster: &Cluster, i: usize) -> bool {
    !cluster.host(i).is_dead() && cluster.lite(i).is_member()
}
