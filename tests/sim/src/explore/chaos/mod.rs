//! What goes wrong, and when.

mod agree;
mod trouble;

use super::check::Check;
use super::jobs;
use super::random::Random;
use super::swarm::{Kind, Swarm};
use super::work::Stage;
use super::{LEASE, TASKS};
use crate::{Cluster, Crash, DiskFaults, Way};
use platform::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trouble::{Trouble, fill, heal};

/// So many members are never killed.
const SURVIVORS: usize = 3;
/// How often the card of a node fails at most: fewer times than its driver mends it in a row.
const CARD_FAILURES: u32 = 3;
/// Tasks that may stand still while the others of their node go on.
const HELD: &[&str] = &[
    "lite-control-in",
    "lite-control-in",
    "lite-control-out",
    "lite-rpc",
    "lite-rpc",
    "lite-connect",
    "lite-left",
    "lite-answer",
    "lite-unlock",
    "lite-fence",
    "lite-unmap",
    "serve",
    "worker",
];
/// How often the manager dies at most.
const CRASHES: u64 = 2;
/// Between two looks, one machine in so many that is no member any more starts anew.
const RESTART: u64 = 100;
/// In which the manager comes back once all is healed.
const RECOVERY: Duration = Duration::from_secs(30);

/// Machines that join after the start, at most: new ones, and those that start anew.
const fn later(initial: usize) -> usize {
    3 + if initial < 8 { initial } else { 8 }
}

/// Numbers of all tasks that there can be.
pub(super) const fn most_tasks(initial: usize) -> usize {
    (initial + later(initial) + 1) * TASKS
}

/// The faults of a run.
pub(super) struct Chaos {
    random: Random,
    swarm: Swarm,
    troubles: Vec<(Instant, Trouble)>,
    dead: BTreeSet<usize>,
    /// Machines that may still join.
    left: usize,
    /// How often the card of each node has failed.
    failed: BTreeMap<usize, u32>,
    counts: BTreeMap<&'static str, u64>,
}

impl Chaos {
    pub(super) fn new(mut random: Random, cluster: &Cluster) -> Self {
        let swarm = Swarm::draw(&mut random);
        cluster.wire.set_late(swarm.late);
        Self {
            random,
            swarm,
            troubles: Vec::new(),
            dead: BTreeSet::new(),
            left: later(cluster.joined()),
            failed: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Faults by kind.
    pub(super) fn counts(&self, cluster: &Cluster) -> Vec<(&'static str, u64)> {
        let more = [
            ("writes of the manager that a crash tore", cluster.manager.disk().torn()),
            ("frames that came seconds late", cluster.wire.delayed()),
        ];
        self.counts.iter().map(|(kind, count)| (*kind, *count)).chain(more).collect()
    }

    /// Whether machines join.
    pub(super) fn expects(&self, cluster: &Cluster) -> bool {
        cluster.joining() > 0
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// Ends what is due, and perhaps begins something.
    pub(super) fn act(&mut self, cluster: &mut Cluster, stage: &Stage, check: &Check) {
        let now = cluster.world.now();
        for node in cluster.poll_joins() {
            check.log(now, format_args!("-- node {node} joins as {}", cluster.lite(node).node_id()));
            self.count("machines that joined later");
            stage.start(cluster, node, &mut self.random);
            jobs::serve(cluster, node, self.random.fork());
        }
        if let Some(seen) = cluster.manager.violation() {
            check.violated("the manager gives no number twice and forgets nothing", seen);
        }
        let due: Vec<_> = self.troubles.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, trouble) in due {
            heal(cluster, check, trouble);
        }
        self.restart(cluster, check);
        if self.random.one_in(self.swarm.pace) {
            self.begin(cluster, check);
        }
        self.crash_in_a_save(cluster, check);
    }

    /// Where the manager dies at all, it dies once more while its disk works: saves are rare, and chance alone misses them.
    fn crash_in_a_save(&mut self, cluster: &Cluster, check: &Check) {
        let manager = &cluster.manager;
        let dies = self.swarm.kinds.contains(&Kind::ManagerCrash) && manager.crashes() <= CRASHES;
        if dies && manager.saves() && self.random.one_in(4) {
            let now = cluster.world.now();
            manager.crash(Crash::Machine, now + LEASE / 4);
            self.count("the manager dies while it saves");
            check.log(now, "-- the manager dies while it saves");
        }
    }

    /// Machines that have lost their membership start anew, each after a while.
    fn restart(&mut self, cluster: &mut Cluster, check: &Check) {
        for node in 1..=cluster.joined() {
            let out = !self.dead.contains(&node) && !cluster.lite(node).is_member();
            if out && self.left > 0 && self.random.one_in(RESTART) {
                self.kill(cluster, check, node);
                self.left -= 1;
                check.log(cluster.world.now(), format_args!("-- the machine of node {node} starts anew"));
                cluster.begin_join(Some(node));
            }
        }
    }

    fn kill(&mut self, cluster: &Cluster, check: &Check, node: usize) {
        cluster.host(node).kill();
        self.dead.insert(node);
        check.died(node, &cluster.lite(node));
    }

    fn members(&self, cluster: &Cluster) -> usize {
        (1..=cluster.joined()).filter(|i| !self.dead.contains(i) && cluster.lite(*i).is_member()).count()
    }

    /// Something begins.
    fn begin(&mut self, cluster: &mut Cluster, check: &Check) {
        let now = cluster.world.now();
        // Mostly shorter than a lease, sometimes longer.
        let limit = if self.random.one_in(4) { 3 * LEASE } else { LEASE / 4 };
        let until = now + Duration::from_micros(self.random.below(limit.as_micros() as u64));
        let kind = self.random.pick(&self.swarm.kinds);
        let node = 1 + self.random.below(cluster.joined() as u64) as usize;
        let begun = match kind {
            Kind::ManagerStands | Kind::ManagerCrash | Kind::Disk => self.at_manager(cluster, kind, until),
            _ if self.dead.contains(&node) || !cluster.lite(node).is_member() => None,
            Kind::Death => return self.death(cluster, check, node),
            Kind::Break if self.members(cluster) > SURVIVORS => {
                cluster.manager.sever(cluster.lite(node).node_id());
                Some(("control connections that break", None))
            }
            Kind::Card if self.may_fail(node) && cluster.fail_card(node) => Some(("cards that fail", None)),
            _ => self.at_node(cluster, kind, node),
        };
        let Some((what, trouble)) = begun else { return };
        self.count(what);
        check.log(now, format_args!("-- node {node}: {what} until {:.6}", until.as_nanos() as f64 / 1e9));
        if let Some(trouble) = trouble {
            if let Some(node) = trouble.stands() {
                check.stands(node, now, true);
            }
            self.troubles.push((until, trouble));
        }
    }

    /// A node dies. Its peers are told at once, as of a process that is killed, or when its lease is over. Another may join in its
    /// place, or the same machine starts anew.
    fn death(&mut self, cluster: &mut Cluster, check: &Check, node: usize) {
        if self.members(cluster) <= SURVIVORS {
            return;
        }
        let now = cluster.world.now();
        self.kill(cluster, check, node);
        self.count("deaths");
        check.log(now, format_args!("-- node {node} dies"));
        if self.random.one_in(2) {
            cluster.manager.sever(cluster.lite(node).node_id());
            self.count("deaths that are seen at once");
            check.log(now, "-- and its connection breaks");
        }
        if self.left > 0 && self.random.one_in(2) {
            self.left -= 1;
            let same = self.random.one_in(2);
            check.log(now, if same { "-- it starts anew" } else { "-- another machine joins" });
            cluster.begin_join(same.then_some(node));
        }
    }

    fn at_manager(
        &mut self,
        cluster: &Cluster,
        kind: Kind,
        until: Instant,
    ) -> Option<(&'static str, Option<Trouble>)> {
        let manager = &cluster.manager;
        match kind {
            Kind::ManagerStands if manager.is_up() => {
                manager.stand(true);
                Some(("the manager stands still", Some(Trouble::ManagerStands)))
            }
            Kind::ManagerCrash if manager.crashes() < CRASHES => {
                let (crash, what) = self.random.pick(&[
                    (Crash::Process, "the manager's process dies"),
                    (Crash::Machine, "the manager's machine dies"),
                ]);
                manager.crash(crash, until);
                Some((what, None))
            }
            Kind::Disk => {
                let none = DiskFaults::default();
                let (faults, what) = self.random.pick(&[
                    (DiskFaults { slow: true, ..none }, "the manager's disk is slow"),
                    (DiskFaults { full: true, ..none }, "the manager's disk is full"),
                    (DiskFaults { failing: true, ..none }, "the manager's disk fails"),
                ]);
                manager.disk().set_faults(faults);
                Some((what, Some(Trouble::Disk)))
            }
            _ => None,
        }
    }

    fn at_node(
        &mut self,
        cluster: &Cluster,
        kind: Kind,
        node: usize,
    ) -> Option<(&'static str, Option<Trouble>)> {
        let id = cluster.lite(node).node_id();
        let other = 1 + self.random.below(cluster.joined() as u64) as usize;
        let (what, trouble) = match kind {
            Kind::Pause => {
                cluster.host(node).pause(true);
                ("pauses", Trouble::Paused(node))
            }
            Kind::Held => {
                let task = self.random.pick(HELD);
                cluster.host(node).hold(task, true);
                ("tasks that stand still", Trouble::Held(node, task))
            }
            Kind::Part | Kind::PartOneWay if other == node => return None,
            Kind::Part => {
                cluster.part(node, other, true);
                ("partitions", Trouble::Parted(node, other))
            }
            Kind::PartOneWay => {
                cluster.deafen(node, other, true);
                ("partitions in one direction", Trouble::Parted(node, other))
            }
            Kind::Stall => {
                cluster.manager.stall(id, true);
                ("cut off from the manager", Trouble::Stalled(node))
            }
            Kind::Deaf => {
                cluster.manager.hold(id, Way::FromManager, true);
                ("does not hear the manager", Trouble::Stalled(node))
            }
            Kind::Mute => {
                cluster.manager.hold(id, Way::ToManager, true);
                ("is not heard by the manager", Trouble::Stalled(node))
            }
            Kind::Full => {
                // A little is left, or nothing.
                let leave = self.random.pick(&[0, 4096, 100_000]);
                ("out of memory", Trouble::Full(node, fill(cluster, node, leave)))
            }
            _ => return None,
        };
        Some((what, Some(trouble)))
    }

    /// Whether the card of a node may fail once more.
    fn may_fail(&mut self, node: usize) -> bool {
        let failed = self.failed.entry(node).or_default();
        *failed += 1;
        *failed <= CARD_FAILURES
    }

    /// Ends everything but death: all links carry, the manager and its disk work, no machine joins any more, and nobody lacks
    /// memory by force.
    pub(super) fn end(&mut self, cluster: &mut Cluster, check: &Check) {
        for (_, trouble) in self.troubles.drain(..) {
            heal(cluster, check, trouble);
        }
        cluster.wire.set_late(None);
        cluster.manager.release_all();
        cluster.end_joins();
        let (manager, limit) = (cluster.manager.clone(), cluster.world.now() + RECOVERY);
        if !cluster.world.run_until(limit, || manager.is_up()) {
            check.violated("the manager comes back", manager.log().join("; "));
        }
        check.log(cluster.world.now(), "-- all is healed");
        agree::agree(cluster, check);
    }
}
