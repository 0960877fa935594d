//! The objects that tasks share, and the start of tasks.

use super::serve::serve;
use super::step::{Step, draw};
use super::worker::Worker;
use crate::Cluster;
use crate::explore::TASKS;
use crate::explore::chaos::{Work, most_tasks};
use crate::explore::check::Check;
use crate::explore::random::Random;
use crate::explore::subject::Subject;
use lite::{Counter, Error, Lmr, NodeId, Permissions, Placement};
use platform::Platform;
use std::fmt::{Display, Formatter};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The length of a task's part of a shared region, in bytes. It is odd, so that parts are not aligned.
pub(in crate::explore) const PART: usize = 3001;
/// The number of shared objects of each kind.
pub(in crate::explore) const EACH: usize = 3;
/// The number of steps between two rounds of barriers.
const ROUND: u32 = 8;
/// The offsets in a cell, in bytes, of the word that its lock guards, and of the flag.
pub(super) const GUARDED: u64 = 3;
pub(super) const FLAG: u64 = 16;
/// The offset in a cell of the tallies: one word for each task.
pub(super) const TALLIES: u64 = 24;
/// The secret that a node must know to map a region with a secret.
pub(in crate::explore) const SECRET: &[u8] = b"secret";
pub(super) const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
/// The time limit of operations that the run needs to begin and to end.
pub(in crate::explore) const PATIENT: Duration = Duration::from_secs(20);

/// Returns the number of nodes that have all shared objects, in runs whose deaths spare these nodes.
pub(in crate::explore) const fn spared(initial: usize) -> usize {
    initial / 2
}

/// The shared objects and their makers.
pub(in crate::explore) struct Stage {
    pub(in crate::explore) steps: u32,
    pub(in crate::explore) initial: usize,
    pub(in crate::explore) owned: Arc<Mutex<Vec<Owned>>>,
    /// A node of the start that leaves in good order, and the step at which it does.
    leaver: Option<(usize, u32)>,
    /// The steps of tasks, each as many times as its weight.
    subject: Subject,
    likely: Arc<[Step]>,
    /// True if no fault happens in this run.
    calm: bool,
    /// The number of shared objects of each kind that tasks use before the last round.
    shared: usize,
    check: Arc<Check>,
}

/// A shared object, as the node that made it holds it.
pub(in crate::explore) struct Owned {
    pub(in crate::explore) node: usize,
    pub(in crate::explore) thing: Thing,
}

pub(in crate::explore) enum Thing {
    /// A region that all tasks write to, each to its part.
    Region(usize, Lmr),
    /// A region of any other kind.
    Other(Lmr),
    /// A region whose rights its maker grants and revokes.
    Gate(usize, Lmr),
    Counter(Counter),
    /// The name of a region whose master is now another node.
    Handed(String),
    /// The name of a lock or an event that may still exist: it outlives its maker.
    Lock(String),
    Event(String),
}

impl Thing {
    /// Returns true if the object may outlive the node of its maker.
    pub(in crate::explore) const fn outlives(&self) -> bool {
        matches!(self, Self::Handed(_) | Self::Lock(_) | Self::Event(_))
    }
}

impl Display for Thing {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Region(n, region) => write!(f, "region {n} on {}", region.node()),
            Self::Other(region) => write!(f, "a {region:?}"),
            Self::Gate(n, _) => write!(f, "gate {n}"),
            Self::Counter(counter) => write!(f, "{counter:?}"),
            Self::Handed(name) | Self::Lock(name) | Self::Event(name) => f.write_str(name),
        }
    }
}

impl Work for Stage {
    fn initial(&self) -> usize {
        self.initial
    }

    fn start(&self, cluster: &Cluster, node: usize, random: &mut Random) {
        self.start_tasks(cluster, node, random);
    }
}

impl Stage {
    /// Makes the shared objects.
    pub(in crate::explore) fn prepare(
        cluster: &mut Cluster,
        check: &Arc<Check>,
        subject: Subject,
        steps: u32,
        random: &mut Random,
    ) -> Self {
        let (owned, initial) = (Arc::new(Mutex::new(Vec::new())), cluster.joined());
        for i in 1..=initial {
            check.joined(&cluster.lite(i));
        }
        let homes = if subject.spares_homes() { spared(initial) } else { initial };
        for n in 0..EACH {
            let mut node = || 1 + random.below(homes as u64) as usize;
            let (maker, homes) = (node(), [0; 6].map(|_| NodeId(node() as u16)));
            let (lite, things_made) = (cluster.lite(maker).with_deadline(PATIENT), owned.clone());
            let len = (PART * most_tasks(initial)) as u64;
            let cell_len = TALLIES + 8 * most_tasks(initial) as u64;
            let striped = random.one_in(2);
            let make = async move {
                let place = if striped {
                    Placement::Striped { nodes: vec![homes[0], homes[1]], stripe: 4096 }
                } else {
                    homes[0].into()
                };
                let region = lite.alloc(place, len, RW | Permissions::SHARE).await?;
                region.publish(&format!("region-{n}")).await?;
                let rights = RW | Permissions::ATOMIC | Permissions::SHARE;
                let cell = lite.alloc(homes[1], cell_len, rights).await?;
                cell.publish(&format!("cell-{n}")).await?;
                let gate = lite.alloc(homes[2], 8, Permissions::READ | Permissions::SHARE).await?;
                gate.publish(&format!("gate-{n}")).await?;
                // These end with their homes, not with their makers.
                lite.create_lock(homes[4], &format!("lock-{n}")).await?;
                lite.create_event(homes[5], &format!("event-{n}")).await?;
                let things = [
                    Thing::Region(n, region),
                    Thing::Other(cell),
                    Thing::Gate(n, gate),
                    Thing::Counter(lite.create_counter(homes[2], &format!("counter-{n}")).await?),
                    Thing::Counter(lite.create_counter(homes[3], &format!("swap-{n}")).await?),
                ];
                let owned = things.into_iter().map(|thing| Owned { node: maker, thing });
                things_made.lock().expect("no panic under the lock").extend(owned);
                Ok::<(), Error>(())
            };
            if let Err(error) = cluster.world.run(PATIENT, make) {
                check.violated("a healthy cluster works", error);
            }
        }
        let leaves = initial > 3 && !subject.is_calm() && random.one_in(4);
        let leaver = leaves.then(|| (initial, random.below(u64::from(steps.max(1))) as u32));
        let likely = draw(subject.steps(), random).into();
        let (calm, shared) = (subject.is_calm(), subject.shared().unwrap_or(EACH));
        Self { steps, initial, subject, owned, leaver, likely, calm, shared, check: check.clone() }
    }

    /// Returns the task `task` of node `node`, counted from 1.
    fn worker(&self, cluster: &Cluster, node: usize, task: usize, random: Random) -> Worker {
        let made_here = |owned: &&Owned| owned.node == node;
        let owned = self.owned.lock().expect("no panic under the lock");
        let regions = owned.iter().filter(made_here).filter_map(|owned| match &owned.thing {
            Thing::Region(n, region) => Some((*n, region.clone())),
            _ => None,
        });
        let gates = owned.iter().filter(made_here).filter_map(|owned| match &owned.thing {
            Thing::Gate(n, gate) => Some((*n, gate.clone())),
            _ => None,
        });
        let (regions, gates) = (regions.collect(), gates.collect());
        drop(owned);
        Worker {
            lite: cluster.lite(node),
            host: cluster.host(node),
            control: cluster.control(node),
            check: self.check.clone(),
            random,
            name: format!("{node}.{task}"),
            node,
            number: (node - 1) * TASKS + task,
            initial: self.initial,
            count: 0,
            calm: self.calm,
            shared: self.shared,
            partly_gone: false,
            made: self.owned.clone(),
            regions: [const { None }; EACH],
            gates: [const { None }; EACH],
            cells: [const { None }; EACH],
            subject: self.subject,
            owned: regions,
            owned_gates: gates,
            named: None,
            kept: None,
            pooled: None,
            borrowed: [const { None }; EACH],
            private: None,
            watcher: None,
        }
    }

    fn start_tasks(&self, cluster: &Cluster, node: usize, random: &mut Random) {
        let (lite, host) = (cluster.lite(node), cluster.host(node));
        self.check.joined(&lite);
        let delay = random.pick(&[0, 50, 3000]);
        serve(&lite, &host, &self.check, delay);
        let late = node > self.initial && random.one_in(2);
        for task in 0..TASKS {
            let mut worker = self.worker(cluster, node, task, random.fork());
            let (steps, likely, check) = (self.steps, self.likely.clone(), self.check.clone());
            let leaves = match self.leaver {
                _ if task > 0 => None,
                Some((leaver, step)) if leaver == node => Some(step),
                _ => late.then(|| steps.saturating_sub(1)),
            };
            check.begin(node, task, "start");
            let work = async move {
                for step in 0..steps {
                    let alone = task > 0 || node > worker.initial || step % ROUND > 0;
                    let doing = worker.random.pick(&likely);
                    let what = if alone { format!("{doing:?}") } else { "barriers".into() };
                    check.begin(node, task, format_args!("step {step}: {what}"));
                    let member = if leaves == Some(step) {
                        worker.leave().await
                    } else if alone {
                        worker.step(doing).await
                    } else {
                        worker.barriers(step / ROUND).await
                    };
                    if !member {
                        break;
                    }
                    if worker.random.one_in(3) {
                        let pause = Duration::from_micros(worker.random.below(20_000));
                        worker.lite.sleep(pause).await;
                    }
                }
                worker.end();
                check.finish(node, task);
            };
            host.spawn("worker", Box::pin(work));
        }
    }

    /// Returns a task of the last round on node `node`. All its operations must succeed.
    fn calm_worker(&self, cluster: &Cluster, node: usize) -> Worker {
        let mut worker = self.worker(cluster, node, 0, Random::new(node as u64));
        // No earlier task has used these numbers.
        (worker.calm, worker.shared, worker.count) = (true, EACH, 1 << 20);
        worker
    }

    /// Starts a task on node `node` that takes each step once. All must succeed.
    pub(in crate::explore) fn start_calm(&self, cluster: &Cluster, node: usize) {
        let mut worker = self.calm_worker(cluster, node);
        let check = self.check.clone();
        check.begin(node, 0, "start of the last round");
        let work = async move {
            for step in Step::ALL {
                check.begin(node, 0, format_args!("last round: {step:?}"));
                worker.step(*step).await;
            }
            worker.end();
            check.finish(node, 0);
        };
        cluster.host(node).spawn("worker", Box::pin(work));
    }

    /// Lets all of these nodes meet at a barrier, which must open.
    pub(in crate::explore) fn meet(&self, cluster: &Cluster, live: &[usize]) {
        let group: Vec<NodeId> = live.iter().map(|i| cluster.lite(*i).node_id()).collect();
        for node in live {
            let mut worker = self.calm_worker(cluster, *node);
            let (check, node, group) = (self.check.clone(), *node, group.clone());
            check.begin(node, 0, "the last barrier");
            let work = async move {
                worker.barrier("last-barrier".to_owned(), &group, PATIENT).await;
                check.finish(node, 0);
            };
            cluster.host(node).spawn("worker", Box::pin(work));
        }
    }
}
