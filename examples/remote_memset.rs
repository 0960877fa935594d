//! Remote memset: one node allocates memory on another node, fills it there, and reads a part of it back.
//!
//! It is the first example of the LITE paper. With plain RDMA verbs the same takes about 200 lines:
//! protection domain, memory registration, queue pairs, an exchange of keys and addresses, work
//! requests, completions.
//!
//! ```text
//! cargo run -q -p examples --example remote_memset
//! ```

use anyhow::{Result, ensure};
use examples::LocalCluster;
use futures_lite::future::block_on;
use lite::{Error, Permissions};

fn main() -> Result<()> {
    // A manager and two nodes. This program speaks for node0.
    let cluster = LocalCluster::start(2)?;
    let (lite, peer) = (cluster.lite(0)?, cluster.lite(1)?.node_id());
    block_on(async {
        // A region is memory that all nodes of the cluster can be given access to. This one consists of 1 MiB
        // of the other node's memory. No task of the other node takes part in any of the following, except
        // for LITE itself.
        let region = lite.alloc(peer, 1 << 20, Permissions::all()).await?;
        println!("node0 has {} bytes of the memory of node1", region.len());

        // A request by a message of LITE: the other node fills its own memory, and no data travel.
        region.memset(0, region.len(), 0x5a).await?;

        // A one-sided READ: the RNIC of the other node answers, its processor does not notice.
        let mut last = [0; 4];
        region.read(region.len() - 4, &mut last).await?;
        println!("the last four bytes are {last:02x?}");
        ensure!(last == [0x5a; 4], "the memset did not reach the end");

        // A one-sided WRITE, and an atomic operation, which is one-sided too.
        region.write(0, &40u64.to_ne_bytes()).await?;
        let before = region.fetch_add(0, 2).await?;
        println!("fetch-and-add returned {before}");

        // LITE checks bounds and rights before anything is sent. Every call has a deadline and a typed error.
        match region.read(region.len(), &mut last).await {
            Err(Error::OutOfBounds) => println!("a read beyond the end is refused"),
            other => println!("unexpected: {other:?}"),
        }
        region.free().await?;
        Ok(())
    })
}
