//! RPC echo: one node registers a function, and another node calls it.
//!
//! A function is a number that each node may give a meaning to. A request is written straight into a ring in
//! the server's memory by RDMA, and the reply into a slot of the caller's memory. The caller does not know
//! anything about connections: LITE opens one at the first call.
//!
//! ```text
//! cargo run -q -p examples --example rpc_echo
//! ```

use anyhow::Result;
use examples::LocalCluster;
use futures_lite::future::block_on;
use lite::{Error, Lite, RpcOptions};

/// The number of the function.
const ECHO: u32 = 7;
/// The longest reply that a caller accepts, in bytes.
const LONGEST: usize = 1024;

/// Registers the function, and serves calls in a task of the node until the function is unregistered.
fn serve(lite: &Lite) -> Result<(), Error> {
    let function = lite.register(ECHO, RpcOptions::default())?;
    let task = async move {
        // An error means that the function or the node's membership has ended.
        while let Ok(call) = function.receive().await {
            let reply = [b"echo: ", call.request()].concat();
            // An error means that the caller has gone.
            let _ = call.reply(&reply).await;
        }
    };
    lite.platform().spawn("echo", Box::pin(task));
    Ok(())
}

fn main() -> Result<()> {
    let cluster = LocalCluster::start(2)?;
    let (client, server) = (cluster.lite(0)?, cluster.lite(1)?);
    serve(&server)?;
    block_on(async {
        for request in ["hello", "is anybody there?"] {
            let reply = client.call(server.node_id(), ECHO, request.as_bytes(), LONGEST).await?;
            println!("{request:?} -> {:?}", String::from_utf8_lossy(&reply));
        }
        // A function that does not exist is an error, and not a wait.
        match client.call(server.node_id(), ECHO + 1, b"hello", LONGEST).await {
            Err(Error::NoSuchFunction) => println!("function {} does not exist", ECHO + 1),
            other => println!("unexpected: {other:?}"),
        }
        Ok(())
    })
}
