//! The checks after the run: everything works again, all written data is there, and no resource remains in
//! use.

use super::check::Check;
use super::work::{EACH, Owned, PART, PATIENT, PROBES, SECRET, Stage, Thing};
use crate::Cluster;
use lite::{Error, Lite, Lmr, NodeId, Permissions};
use std::sync::Arc;
use std::time::Duration;

/// The time in which all processes without input come to their end: leases, timeouts, fences.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit for ending all shared objects.
const END_LIMIT: Duration = Duration::from_secs(600);
/// The time limit of a task that takes each step once.
const ROUND_LIMIT: Duration = Duration::from_secs(300);

/// Checks the invariants that can only be checked at the end, ends all shared objects, and checks that no
/// node holds anything.
pub(super) fn verify(cluster: &mut Cluster, stage: Stage, check: &Arc<Check>) {
    cluster.world.run_for(SETTLE);
    check.look(cluster);
    let live: Vec<usize> = (1..=cluster.joined()).filter(|i| is_live(cluster, *i)).collect();
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

/// Lets each live node take each step once more. All must succeed.
fn last_round(cluster: &mut Cluster, stage: &Stage, check: &Arc<Check>, live: &[usize]) {
    // The nodes take turns: nodes with few permits for connections may wait for each other in a circle.
    for node in live {
        stage.start_calm(cluster, *node);
        finish(cluster, check);
    }
    stage.meet(cluster, live);
    finish(cluster, check);
}

/// Runs until all tasks have ended.
fn finish(cluster: &mut Cluster, check: &Check) {
    let end = cluster.world.now() + ROUND_LIMIT;
    if !cluster.world.run_until(end, || check.all_done() || check.is_violated()) {
        check.violated("a healthy cluster works", format_args!("these hang: {}", check.unfinished()));
    }
}

/// Reads all written data, and ends all shared objects.
fn free_all(cluster: &mut Cluster, stage: &Stage, check: &Arc<Check>, live: &[usize]) {
    let lites: Vec<Lite> = live.iter().map(|i| cluster.lite(*i).with_deadline(PATIENT)).collect();
    let mut owned: Vec<Owned> = stage.owned.lock().expect("no panic under the lock").drain(..).collect();
    for n in 0..EACH {
        for thing in [Thing::Lock(format!("lock-{n}")), Thing::Event(format!("event-{n}"))] {
            owned.push(Owned { node: 0, thing });
        }
    }
    // The objects of a dead maker have ended with it, and so have their handles. Locks and events end with
    // their homes.
    owned.retain(|Owned { node, thing }| live.contains(node) || thing.outlives());
    let model = check.clone();
    let end = async move {
        for Owned { node, thing } in owned {
            let what = thing.to_string();
            match free(&lites, &model, thing).await {
                // The object has ended with its home, or its task has ended it. A connection that failed at
                // one end during the faults is detected by its next use, and the free continues.
                Ok(()) | Err(Error::NodeDown(_) | Error::Freed | Error::NoSuchName | Error::Unknown) => {}
                Err(error) => {
                    let seen = format_args!("ending {what} of {node}: {error}");
                    model.violated("a healthy cluster works", seen);
                }
            }
        }
    };
    cluster.world.run(END_LIMIT, end);
    free_orphans(cluster, check, live);
}

/// Frees the regions that have outlived their masters. Every node may.
fn free_orphans(cluster: &mut Cluster, check: &Arc<Check>, live: &[usize]) {
    let names: Vec<String> = live.iter().flat_map(|i| cluster.lite(*i).orphans()).collect();
    let Some(lite) = live.first().map(|i| cluster.lite(*i).with_deadline(PATIENT)) else { return };
    let model = check.clone();
    let end = async move {
        for name in names {
            model.sometimes("a region outlived its master");
            let freed = async {
                let mapped = match lite.map(&name, Permissions::ADMIN).await {
                    Err(Error::Permission) => lite.map_secret(&name, Permissions::ADMIN, SECRET).await,
                    mapped => mapped,
                };
                mapped?.free().await
            };
            // Another name of the region was first.
            if let Err(error) = freed.await
                && !matches!(error, Error::Freed | Error::NoSuchName)
            {
                model.violated("a healthy cluster works", format_args!("freeing {name}: {error}"));
            }
        }
    };
    cluster.world.run(END_LIMIT, end);
}

/// Ends one object. `lites` are those of all nodes.
async fn free(lites: &[Lite], check: &Check, thing: Thing) -> Result<(), Error> {
    let Some(lite) = lites.first() else { return Ok(()) };
    match thing {
        Thing::Region(n, region) => {
            read_all(check, n, &region).await;
            region.with_deadline(PATIENT).free().await
        }
        Thing::Other(region) | Thing::Gate(_, region) => region.with_deadline(PATIENT).free().await,
        Thing::Counter(counter) => counter.with_deadline(PATIENT).destroy().await,
        Thing::Handed(name) => {
            // Only the present master has the rights, whichever node it is. The region may have ended with
            // its maker.
            for lite in lites {
                if let Ok(region) = lite.map_secret(&name, Permissions::ADMIN, SECRET).await {
                    return region.free().await;
                }
            }
            Ok(())
        }
        Thing::Lock(name) => lite.open_lock(&name).await?.destroy().await,
        Thing::Event(name) => lite.open_event(&name).await?.destroy().await,
    }
}

/// Checks that all parts of a region contain the data that their tasks have written.
async fn read_all(check: &Check, n: usize, region: &Lmr) {
    let mut bytes = vec![0; region.len() as usize];
    let parts = bytes.len() / PART;
    let begun: Vec<_> = (0..parts).map(|who| check.reads(n, who)).collect();
    let result = region.read(0, &mut bytes).await;
    for (who, since) in begun.into_iter().enumerate() {
        let part = &bytes[who * PART..(who + 1) * PART];
        check.read(n, who, since, result.is_ok().then_some((0, part)));
    }
    // If the home has died, there is nothing to read.
    if let Err(error) = result
        && !matches!(error, Error::NodeDown(_) | Error::Freed)
    {
        check.violated("a healthy cluster works", format_args!("reading region {n}: {error}"));
    }
}

/// Returns the resources that nodes hold although nothing is in flight any more. One node may hold a resource
/// because another does, so all are listed.
pub(super) fn left_behind(cluster: &Cluster, live: &[usize]) -> Vec<String> {
    let mut left = Vec::new();
    for i in live {
        let lite = cluster.lite(*i);
        let audit = lite.audit();
        if !audit.is_empty() {
            left.push(format!("node {i}: {audit:?}"));
            left.extend(lite.describe_regions());
        }
        // Connections may stay open. Closed ones must have left nothing in the RNIC.
        let (there, known) = (queue_pairs(cluster, *i), lite.queue_pairs());
        if there != known {
            left.push(format!("node {i}: {there} queue pairs, of which connections have {known}"));
        }
    }
    left
}

/// Returns the number of queue pairs of a node's RNIC.
fn queue_pairs(cluster: &Cluster, i: usize) -> usize {
    let mut count = None;
    cluster.rnic(i).counters(&mut |(name, n)| count = if name == "queue_pairs" { Some(n) } else { count });
    count.expect("it counts them") as usize
}

/// Makes enough calls to fill a ring whose credits are lost.
async fn calls(lite: &Lite, to: NodeId) -> Result<(), Error> {
    let mut broken = true;
    for id in 0..40u64 {
        let mut request = [0; 6000];
        request[..8].copy_from_slice(&(1 << 63 | id).to_le_bytes());
        match lite.call(to, PROBES, &request, 1).await {
            Ok(_) => {}
            // A connection that failed at one end during the faults is detected by its next use.
            Err(Error::Unknown) if broken => broken = false,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn is_live(cluster: &Cluster, i: usize) -> bool {
    !cluster.host(i).is_dead() && cluster.lite(i).is_member()
}
