//! The cluster, and the manager that it sees.

use crate::job::{Bench, Desk, Order};
use crate::node;
use crate::text::Pair;
use lite::testing::{DirectFabric, Hub, Words};
use platform::{ControlLink, Instant, IoAddr, LinkDown};
use proto::{JobId, JobStart, NodeId, ToManager, ToNode};
use runtime::App;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use verbs::{Gid, MacAddr, PortAddress};

/// Bytes of LITE memory per node.
const MEMORY: u64 = 64 << 20;

/// A control connection that ends the process when a job ends, for no job should.
struct Watch(Arc<dyn ControlLink>);

impl ControlLink for Watch {
    fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<Result<(), LinkDown>> {
        match proto::decode::<ToManager>(message).unwrap() {
            ToManager::JobFailed { reason, .. } => {
                eprintln!("the job has failed: {reason}");
                std::process::exit(1);
            }
            _ => self.0.poll_send(cx, message),
        }
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, LinkDown>> {
        self.0.poll_recv(cx)
    }

    fn lease_until(&self) -> Instant {
        self.0.lease_until()
    }

    fn version(&self) -> u16 {
        self.0.version()
    }
}

/// Nodes that have been given one job, which obeys orders.
pub(crate) struct Cluster {
    desks: Vec<Arc<Desk>>,
    /// True while the job obeys an order.
    busy: Arc<AtomicBool>,
}

impl Cluster {
    pub(crate) fn start(nodes: u8, graph: Vec<Pair>, source: u64) -> Self {
        let (fabric, hub, graph) = (DirectFabric::new(), Hub::new(), Arc::new(graph));
        let (mut desks, busy) = (Vec::new(), Arc::<AtomicBool>::default());
        for number in 1..=nodes {
            let memory = Words::new(IoAddr(u64::from(number) << 40), MEMORY);
            let gid = Gid::from_ipv4([10, 0, 0, number]);
            let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, number]), gid, lid: 0 };
            let rnic = fabric.rnic(port, Arc::new(memory.clone()));
            let (link, welcome) = hub.join(&*rnic);
            let lite = node::start(busy.clone(), number.into(), memory, rnic, Arc::new(Watch(link)), welcome);
            let desk = Arc::new(Desk::default());
            let bench = Bench { graph: graph.clone(), source, desk: desk.clone() };
            let served = lite.clone();
            lite.platform().spawn(
                "serve",
                Box::pin(async move {
                    runtime::serve(served, vec![Box::new(bench) as Box<dyn App>]).await;
                }),
            );
            desks.push(desk);
        }
        let all: Vec<NodeId> = (1..=u16::from(nodes)).map(NodeId).collect();
        for node in &all {
            let start = JobStart {
                job: JobId(1),
                app: "bench".into(),
                args: Vec::new(),
                nodes: all.clone(),
                inputs: Vec::new(),
                share: 0,
                datasets: Vec::new(),
                keep: false,
            };
            hub.send(*node, &ToNode::JobStart(start));
            hub.send(*node, &ToNode::JobInputEnd { job: JobId(1) });
        }
        Self { desks, busy }
    }

    /// Runs an algorithm on all nodes. Returns the seconds from the first start to the last end.
    pub(crate) fn run(&mut self, algorithm: &str) -> f64 {
        self.busy.store(true, Ordering::Relaxed);
        for desk in &self.desks {
            desk.order(Order::Run(algorithm.into()));
        }
        let ended: Vec<_> = self.desks.iter().map(|desk| desk.ended()).collect();
        self.busy.store(false, Ordering::Relaxed);
        let begin = ended.iter().map(|run| run.begin).min().unwrap();
        let end = ended.iter().map(|run| run.end).max().unwrap();
        (end - begin).as_secs_f64()
    }

    /// Writes the result of the latest run: a line for each vertex, or one number.
    pub(crate) fn write(&self, file: &Path) {
        let mut out = BufWriter::new(std::fs::File::create(file).unwrap());
        for desk in &self.desks {
            desk.with_result(|text| out.write_all(text).unwrap());
        }
        out.flush().unwrap();
    }
}
