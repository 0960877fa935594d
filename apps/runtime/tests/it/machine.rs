//! Orders of the manager to a machine, while the node looks which image the machine runs.

use lite::Config;
use lite::testing::Cluster;
use proto::{RunningImage, ToNode};
use runtime::{End, Look, Machine};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The steps of a look at the image.
const STEPS: usize = 10_000;

/// A machine that counts the steps.
struct Slow(Arc<AtomicUsize>);

impl Machine for Slow {
    fn load(&self, _: &[u8]) -> Result<(), String> {
        Err("not here".into())
    }

    fn image(&self) -> Look {
        let steps = self.0.clone();
        Box::new(move || {
            let done = steps.fetch_add(1, Ordering::SeqCst) == STEPS;
            done.then(|| RunningImage { kernel: [1; 32], version: "1".into() })
        })
    }
}

#[test]
fn an_order_does_not_wait_for_a_look_at_the_image() {
    let mut cluster = Cluster::new(1, 1, 16 << 20, &Config::default());
    let steps = Arc::<AtomicUsize>::default();
    let (sender, ends) = channel();
    for (host, lite) in &cluster.nodes {
        let (lite, machine) = (lite.clone(), Slow(steps.clone()));
        let (steps, sender) = (steps.clone(), sender.clone());
        let task = async move {
            let end = runtime::serve_on(&machine, lite, vec![]).await;
            sender.send((end, steps.load(Ordering::SeqCst))).unwrap();
        };
        platform::Platform::spawn(&**host, "serve", Box::pin(task));
    }
    for (_, lite) in &cluster.nodes {
        cluster.hub.send(lite.node_id(), &ToNode::AskImage);
        cluster.hub.send(lite.node_id(), &ToNode::Shutdown);
    }
    cluster.world.run_for(Duration::from_secs(1));
    let (end, done) = ends.try_recv().unwrap();
    assert_eq!(end, End::Shutdown);
    assert!(done < STEPS, "the node has looked for {done} steps before it ends");
}
