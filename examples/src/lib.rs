//! A Ferrolite cluster in one process, for the examples of this folder.
//!
//! [`LocalCluster`] contains the parts of a real cluster: the manager's daemon (crate `manager`), nodes that
//! are Linux processes in real life (crate `lite-node`, with LITE in it), and the switch between their
//! software RNICs (crate `fabric`). It needs no privileges, no virtual machine and no RDMA
//! hardware. `README.md` in this folder shows each example with its command and its output.
#![forbid(unsafe_code)]

mod daemon;

use anyhow::{Context, Result};
use daemon::Daemon;
use fabric::{Fabric, FabricConfig};
use futures_lite::future::block_on;
use lite::Lite;
use lite_node::{Clock, Nic, Node, Options};
use manager::client::Client;
use manager::key;
use netfault::Faults;
use runtime::App;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;

/// The memory that each node contributes to the cluster, in bytes.
const MEMORY: u64 = 32 << 20;
/// The time limit of a node's join.
const JOIN: Duration = Duration::from_secs(60);
/// The time that operations in flight have to end when a node leaves.
const LEAVE: Duration = Duration::from_secs(5);

/// A manager and some nodes, `node0`, `node1` and so on, in this process. Dropping it ends the cluster.
pub struct LocalCluster {
    nodes: Vec<Arc<Node>>,
    /// The threads in which the nodes serve jobs, and leave when the cluster is shut down.
    servers: Vec<JoinHandle<Result<(), lite::Error>>>,
    fabric: Fabric,
    manager: Daemon,
    /// The directory of the key, of the manager's state, and of the switch's sockets.
    dir: TempDir,
}

impl LocalCluster {
    /// Starts a cluster whose nodes run no jobs.
    ///
    /// # Errors
    /// Fails if a file, a socket or a thread cannot be made.
    pub fn start(nodes: usize) -> Result<Self> {
        Self::with_apps(nodes, Vec::new)
    }

    /// Starts a cluster whose nodes accept jobs of the applications that `apps` returns.
    ///
    /// # Errors
    /// Fails if a file, a socket or a thread cannot be made.
    pub fn with_apps(nodes: usize, apps: fn() -> Vec<Box<dyn App>>) -> Result<Self> {
        // The path of a socket has at most 108 bytes, so the directory's name is short.
        let dir = TempDir::with_prefix("ferro-").context("cannot make a temporary directory")?;
        let manager = Daemon::start(dir.path())?;
        // One port of the switch is left for a further process.
        let (ports, faults) = (nodes + 1, Faults::default());
        let config = FabricConfig { ports, dir: dir.path().to_owned(), faults, seed: 0, pcap: None };
        let fabric = Fabric::start(&config)?;
        let mut cluster = Self { nodes: Vec::new(), servers: Vec::new(), fabric, manager, dir };
        for number in 0..nodes {
            let node = Arc::new(cluster.join(number, apps)?);
            cluster.nodes.push(node.clone());
            cluster.servers.push(thread::spawn(move || {
                node.serve(apps());
                node.leave(LEAVE)
            }));
        }
        // A node may have joined before the others have heard of it.
        for node in &cluster.nodes {
            block_on(all_known(node.lite(), nodes))?;
        }
        Ok(cluster)
    }

    fn join(&self, number: usize, apps: fn() -> Vec<Box<dyn App>>) -> Result<Node> {
        let clock = Clock::start();
        let nic = Nic::softroce(self.fabric.socket(number), MEMORY)?;
        let options = Options {
            manager: self.manager.address.clone(),
            key: key::load(&self.key_file())?,
            name: format!("node{number}"),
            keep_id: false,
            cpus: 1,
            apps: apps().iter().map(|app| app.manifest()).collect(),
            lite: lite::Config::default(),
            join_within: JOIN,
        };
        Ok(Node::join(clock, nic, options)?)
    }

    /// Returns the LITE of a node, the first of which is number 0.
    ///
    /// # Errors
    /// Fails if the cluster has no such node.
    pub fn lite(&self, node: usize) -> Result<Lite> {
        let node = self.nodes.get(node).with_context(|| format!("there is no node{node}"))?;
        Ok(node.lite().clone())
    }

    /// Returns a client of the manager, which can submit a job.
    ///
    /// # Errors
    /// Fails if the manager does not answer.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.manager.address, &key::load(&self.key_file())?)?)
    }

    /// Returns the manager's address, `host:port`.
    #[must_use]
    pub fn manager(&self) -> &str {
        &self.manager.address
    }

    /// Returns the file that contains the cluster's key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.dir.path().join("cluster.key")
    }

    /// Returns the socket of the switch's port that no node of this process uses.
    #[must_use]
    pub fn free_port(&self) -> &Path {
        self.fabric.socket(self.nodes.len())
    }

    /// Writes a file that exists as long as the cluster does, and returns its path.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Waits until the node knows `members` members, itself included.
async fn all_known(lite: &Lite, members: usize) -> Result<(), lite::Error> {
    let mut watcher = lite.watch();
    while lite.members().len() < members {
        watcher.next().await?;
    }
    Ok(())
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        // The nodes leave, which ends the threads that serve jobs; then the manager ends. Errors mean that a
        // part has ended before.
        if let Ok(mut client) = self.client() {
            let _ = client.shutdown();
        }
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
        self.nodes.clear();
        self.manager.stop();
    }
}
