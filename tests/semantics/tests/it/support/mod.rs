//! Support for cases on a simulated cluster.
#![allow(dead_code, reason = "each of the tests uses its part")]

use platform::Platform;
use semantics::{Case, Context, Outcome};
use sim::{Cluster, Options};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The memory of each node in bytes: less than an appliance has in QEMU.
const MEMORY: u64 = 192 << 20;
/// A time longer than any case may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// Creates nodes that are connected, so that the memory of connections is already allocated.
pub(crate) fn cluster(seed: u64, nodes: u16) -> Cluster {
    let mut cluster = Cluster::new(Options { seed, nodes, memory: MEMORY, ..Options::default() });
    let lites: Vec<_> = (1..=usize::from(nodes)).map(|i| cluster.lite(i)).collect();
    cluster.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                let one = lite.alloc(other.node_id(), 1, lite::Permissions::READ).await;
                one.expect("memory").free().await.expect("freed");
            }
        }
    });
    cluster
}

/// Runs a task on each node to its end. Returns their results, by rank.
pub(crate) fn on_each<T, F>(cluster: &mut Cluster, task: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let count = cluster.joined();
    let ended: Arc<Mutex<Vec<(usize, T)>>> = Arc::default();
    for rank in 0..count {
        let (task, ended) = (task(rank), ended.clone());
        let task = async move {
            let result = task.await;
            ended.lock().expect("no task panics").push((rank, result));
        };
        cluster.host(rank + 1).spawn("case", Box::pin(task));
    }
    let end = cluster.world.now() + LIMIT;
    let done = cluster.world.run_until(end, || ended.lock().expect("no task panics").len() == count);
    assert!(done, "not all nodes have ended");
    let mut ended = core::mem::take(&mut *ended.lock().expect("no task panics"));
    ended.sort_by_key(|(rank, _)| *rank);
    ended.into_iter().map(|(_, result)| result).collect()
}

/// Runs a case on all nodes. Returns the results, by rank.
pub(crate) fn run(cluster: &mut Cluster, case: Case) -> Vec<Outcome> {
    let lites: Vec<_> = (1..=cluster.joined()).map(|i| cluster.lite(i)).collect();
    let nodes: Vec<_> = lites.iter().map(lite::Lite::node_id).collect();
    on_each(cluster, |rank| {
        let context = Context::new(&lites[rank], &nodes, case.name.into(), 0).expect("a node of the case");
        async move { case.run(&context).await }
    })
}
