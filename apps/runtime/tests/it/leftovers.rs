//! Tests that a job leaves nothing behind, however it ends.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions, RpcOptions};
use proto::{AppManifest, CutRule, InputFile, JobId, JobReport, JobStart, ToNode};
use runtime::{App, BoxFuture, JobContext, JobError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const FUNCTION: u32 = 7;
const MAILBOX: u32 = 8;

/// Counts the jobs that have made all their objects, and the tasks that are alive.
#[derive(Default)]
struct Counts {
    made: AtomicUsize,
    tasks: AtomicUsize,
}

/// An application that makes one object of each kind, cleans up none of them, and ends as its argument says.
struct Litter(Arc<Counts>);

/// Counts one task for as long as the task is alive.
struct Counted(Arc<Counts>);

impl Counted {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.tasks.fetch_add(1, Ordering::SeqCst);
        Self(counts.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.tasks.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The names that the job on the node of rank `rank` publishes.
fn names(rank: usize) -> [String; 4] {
    ["region", "lock", "event", "counter"].map(|what| format!("{what} {rank}"))
}

async fn litter(job: &JobContext, counts: &Arc<Counts>) -> Result<(), Error> {
    let lite = job.lite().with_deadline(Duration::from_secs(5));
    let other = job.nodes()[(job.rank() + 1) % job.nodes().len()];
    let [region, lock, event, counter] = names(job.rank());
    let lmr = lite.alloc(other, 1 << 20, Permissions::all()).await?;
    lmr.publish(&region).await?;
    lite.create_lock(other, &lock).await?;
    lite.create_event(other, &event).await?;
    lite.create_counter(other, &counter).await?;
    // The application forgets its handles, as a buggy one might.
    std::mem::forget(lite.register(FUNCTION, RpcOptions::default())?);
    std::mem::forget(lite.open_mailbox(MAILBOX, RpcOptions::default())?);
    let counted = Counted::new(counts);
    let waiting = lite.clone();
    let forever = async move {
        let _counted = counted;
        loop {
            waiting.sleep(Duration::from_millis(1)).await;
        }
    };
    lite.platform().spawn("litter", Box::pin(forever));
    Ok(())
}

impl App for Litter {
    fn manifest(&self) -> AppManifest {
        AppManifest { name: "litter".into(), about: String::new(), cut: CutRule::Anywhere }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(async move {
            litter(&job, &self.0).await.map_err(|error| JobError::Refused(error.to_string()))?;
            job.barrier("made").await?;
            self.0.made.fetch_add(1, Ordering::SeqCst);
            match job.start().args[0].as_str() {
                "done" => Ok(JobReport::default()),
                "failed" => Err(JobError::Refused("as was asked".into())),
                _ => std::future::pending().await,
            }
        })
    }
}

/// Returns two nodes that serve jobs of [`Litter`].
fn serve(counts: &Arc<Counts>) -> Cluster {
    let cluster = Cluster::new(1, 2, 16 << 20, &Config::default());
    for (host, lite) in &cluster.nodes {
        let apps: Vec<Box<dyn App>> = vec![Box::new(Litter(counts.clone()))];
        let lite = lite.clone();
        platform::Platform::spawn(
            &**host,
            "serve",
            Box::pin(async move { _ = runtime::serve(lite, apps).await }),
        );
    }
    cluster
}

fn tell_all(cluster: &Cluster, message: &ToNode) {
    for (_, lite) in &cluster.nodes {
        cluster.hub.send(lite.node_id(), message);
    }
}

/// Returns each node's regions, objects and tasks, and its free memory.
fn held(cluster: &Cluster) -> Vec<(Vec<(&'static str, usize)>, u64)> {
    let held = |lite: &Lite| (lite.audit(), lite.platform().memory().stats().free);
    cluster.nodes.iter().map(|(_, lite)| held(lite)).collect()
}

/// Runs a job that ends as `how` says, and lets the nodes clean up.
fn run(cluster: &mut Cluster, counts: &Counts, number: u64, how: &str) {
    let (job, before) = (JobId(number), counts.made.load(Ordering::SeqCst));
    let nodes: Vec<NodeId> = cluster.nodes.iter().map(|(_, lite)| lite.node_id()).collect();
    let inputs = vec![InputFile { name: "none".into(), len: 0 }];
    let (app, args) = ("litter".into(), vec![how.into()]);
    tell_all(
        cluster,
        &ToNode::JobStart(JobStart {
            job,
            app,
            args,
            nodes,
            inputs,
            datasets: vec![],
            share: 0,
            keep: false,
        }),
    );
    tell_all(cluster, &ToNode::JobInputEnd { job });
    let end = cluster.world.now() + LIMIT;
    cluster.world.run_until(end, || counts.made.load(Ordering::SeqCst) == before + 2);
    assert_eq!(counts.made.load(Ordering::SeqCst), before + 2, "{how}: the job makes all");
    if how == "cancelled" {
        tell_all(cluster, &ToNode::JobCancel { job, reason: "as was asked".into() });
    }
    cluster.world.run_for(Duration::from_secs(5));
}

#[test]
fn a_job_leaves_nothing_behind_however_it_ends() {
    let counts = Arc::<Counts>::default();
    let mut cluster = serve(&counts);
    let mut first = None;
    for (number, how) in (1..).zip(["done", "failed", "cancelled", "done"]) {
        run(&mut cluster, &counts, number, how);
        assert_eq!(counts.tasks.load(Ordering::SeqCst), 0, "{how}: tasks go on");
        let now = held(&cluster);
        for (audit, _) in &now {
            assert_eq!(audit, &[], "{how}: something is left");
        }
        // The first job has connected the nodes, and connections keep memory.
        assert_eq!(*first.get_or_insert_with(|| now.clone()), now, "{how}: memory is left");
        let lite = cluster.lite(1);
        cluster.world.run(LIMIT, async move {
            for rank in 0..2 {
                let [region, lock, event, counter] = names(rank);
                for name in [&region, &counter] {
                    assert_eq!(lite.map(name, Permissions::READ).await.err(), Some(Error::NoSuchName));
                }
                assert_eq!(lite.open_lock(&lock).await.err(), Some(Error::NoSuchName));
                assert_eq!(lite.open_event(&event).await.err(), Some(Error::NoSuchName));
            }
            for function in [FUNCTION, MAILBOX] {
                drop(lite.register(function, RpcOptions::default()).unwrap());
            }
        });
    }
}

/// Checks that objects which an application ends itself are freed at once and not at the end of the job.
#[test]
fn what_is_freed_in_time_is_free_at_once() {
    let mut cluster = Cluster::new(2, 2, 16 << 20, &Config::default());
    let lite = cluster.lite(1);
    let (scoped, scope) = lite.scoped(lite.platform().clone());
    let free = {
        let lite = lite.clone();
        move || lite.platform().memory().stats().free
    };
    let before = free();
    cluster.world.run(LIMIT, {
        let scoped = scoped.clone();
        async move {
            for round in 0..100 {
                let lmr = scoped.alloc(NodeId(1), 1 << 20, Permissions::all()).await.unwrap();
                lmr.publish("again").await.unwrap();
                assert_eq!(lmr.publish("again").await, Err(Error::NameTaken));
                if round % 2 == 0 {
                    lmr.free().await.unwrap();
                } else {
                    scoped.unpublish("again").await.unwrap();
                    drop(lmr);
                }
                let lock = scoped.create_lock(NodeId(1), "lock").await.unwrap();
                lock.destroy().await.unwrap();
            }
        }
    });
    cluster.world.run_for(Duration::from_secs(1));
    assert_eq!((free(), lite.audit()), (before, vec![]));
    cluster.world.run(LIMIT, async move { scope.end(Duration::from_secs(1)).await });
    let late = cluster.world.run(LIMIT, async move {
        let lmr = scoped.alloc(NodeId(1), 8, Permissions::all()).await.unwrap();
        (lmr.publish("late").await, scoped.create_lock(NodeId(1), "late").await.map(drop))
    });
    assert!(matches!(late, (Err(Error::Refused(_)), Err(Error::Refused(_)))), "{late:?}");
}
