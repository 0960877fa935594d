//! A lock: three nodes add to the same number, one after the other.
//!
//! Each step is a READ, an addition and a WRITE. Without the lock two nodes would sometimes read the same
//! value, and one addition would be lost. (For a sum alone, `fetch_add` or a counter is enough; a lock
//! protects any number of operations.)
//!
//! ```text
//! cargo run -q -p examples --example lock
//! ```

use anyhow::{Result, ensure};
use examples::LocalCluster;
use futures_lite::future::block_on;
use lite::{Error, Lite, Permissions};
use std::thread;

const NODES: usize = 3;
const STEPS: u64 = 50;

/// Adds 1 to the number in each of the steps. Each node runs this.
async fn add(lite: Lite) -> Result<(), Error> {
    // Regions and locks are found by name, wherever they are.
    let lock = lite.open_lock("guard of the sum").await?;
    let sum = lite.map("sum", Permissions::READ | Permissions::WRITE).await?;
    for _ in 0..STEPS {
        let guard = lock.lock().await?;
        let mut bytes = [0; 8];
        sum.read(0, &mut bytes).await?;
        let next = u64::from_ne_bytes(bytes) + 1;
        sum.write(0, &next.to_ne_bytes()).await?;
        // The next holder gets the lock only when this write can no longer change memory. If this node died
        // here, the next holder would be told (`LockGuard::after_death`).
        guard.unlock().await?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let cluster = LocalCluster::start(NODES)?;
    let lites: Vec<Lite> = (0..NODES).map(|node| cluster.lite(node)).collect::<Result<_>>()?;
    let first = cluster.lite(0)?;
    // node0 keeps the number and the lock. Other nodes may map the region, read it and write it.
    let region = block_on(async {
        let all = Permissions::READ | Permissions::WRITE | Permissions::SHARE;
        let region = first.alloc(first.node_id(), 8, all).await?;
        region.publish("sum").await?;
        first.create_lock(first.node_id(), "guard of the sum").await?;
        Ok::<_, Error>(region)
    })?;
    let threads: Vec<_> = lites.into_iter().map(|lite| thread::spawn(move || block_on(add(lite)))).collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a node's thread has panicked"))??;
    }
    let mut bytes = [0; 8];
    block_on(region.read(0, &mut bytes))?;
    let sum = u64::from_ne_bytes(bytes);
    println!("{NODES} nodes added 1 {STEPS} times each: {sum}");
    ensure!(sum == NODES as u64 * STEPS, "an addition was lost");
    Ok(())
}
