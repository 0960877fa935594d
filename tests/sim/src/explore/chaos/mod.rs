//! The faults of a run, and their times.

mod agree;
mod trouble;

use super::check::Check;
use super::jobs;
use super::random::Random;
use super::subject::Subject;
use super::swarm::{Kind, Swarm};
use super::work::spared;
use super::{LEASE, TASKS};
use crate::{Cluster, Crash, Direction, DiskFaults};
use platform::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trouble::{Trouble, fill, heal};

/// The number of members that are never killed.
const SURVIVORS: usize = 3;
/// The maximum number of failures of a node's card: fewer than its driver recovers from in a row.
const CARD_FAILURES: u32 = 3;
/// The tasks that may be held up while the other tasks of their node continue.
const HELD: &[&str] = &[
    "lite-control-in",
    "lite-control-in",
    "lite-control-out",
    "lite-rpc",
    "lite-rpc",
    "lite-connect",
    "lite-datagrams",
    "lite-left",
    "lite-answer",
    "lite-unlock",
    "lite-fence",
    "lite-unmap",
    "serve",
    "worker",
];
/// The maximum number of deaths of the manager.
const CRASHES: u64 = 2;
/// A machine that is no member any more restarts at one in this many checks.
const RESTART: u64 = 100;
/// The time in which the manager comes back once all faults have ended.
const RECOVERY: Duration = Duration::from_secs(30);

/// Returns the maximum number of machines that join after the start: new ones, and those that restart.
const fn later(initial: usize) -> usize {
    3 + if initial < 8 { initial } else { 8 }
}

/// Returns the maximum number of tasks of a run.
pub(super) const fn most_tasks(initial: usize) -> usize {
    (initial + later(initial) + 1) * TASKS
}

/// The work of a run, as far as the faults know it.
pub(super) trait Work {
    /// Returns the number of nodes at the start.
    fn initial(&self) -> usize;
    /// Starts the tasks of a node that has joined, counted from 1.
    fn start(&self, cluster: &Cluster, node: usize, random: &mut Random);
}

/// The faults of a run.
pub(super) struct Chaos {
    random: Random,
    subject: Subject,
    swarm: Swarm,
    troubles: Vec<(Instant, Trouble)>,
    /// The nodes that will die, each with the time.
    victims: Vec<(Instant, usize)>,
    dead: BTreeSet<usize>,
    /// The number of machines that may still join.
    left: usize,
    /// The number of failures of each node's card.
    failed: BTreeMap<usize, u32>,
    counts: BTreeMap<&'static str, u64>,
}

impl Chaos {
    pub(super) fn new(mut random: Random, cluster: &Cluster, subject: Subject) -> Self {
        let swarm = Swarm::draw(&mut random, subject);
        cluster.wire.set_late(swarm.late);
        cluster.wire.set_forger(swarm.forgery);
        Self {
            random,
            subject,
            swarm,
            troubles: Vec::new(),
            victims: Vec::new(),
            dead: BTreeSet::new(),
            left: later(cluster.joined()),
            failed: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Returns the number of faults, by kind.
    pub(super) fn counts(&self, cluster: &Cluster) -> Vec<(&'static str, u64)> {
        let more = [
            ("writes of the manager that a crash tore", cluster.manager.disk().torn()),
            ("frames that came seconds late", cluster.wire.delayed()),
            ("datagrams that an intruder sent", cluster.wire.forged()),
            ("changes of regions by RDMA that were judged", cluster.shadows.judged()),
        ];
        self.counts.iter().map(|(kind, count)| (*kind, *count)).chain(more).collect()
    }

    /// Returns whether machines are joining.
    pub(super) fn expects(&self, cluster: &Cluster) -> bool {
        cluster.joining() > 0
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// Ends the faults that are due, and may begin one.
    pub(super) fn act(&mut self, cluster: &mut Cluster, stage: &dyn Work, check: &Check) {
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
        for (_, victim) in self.victims.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            self.death(cluster, check, victim);
        }
        self.restart(cluster, check);
        if self.random.one_in(self.swarm.pace) {
            self.begin(cluster, stage, check);
        }
        self.crash_in_a_save(cluster, check);
    }

    /// Kills the manager once more while its disk works, in runs in which the manager dies at all: saves are
    /// rare, and random times miss them.
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

    /// Restarts machines that have lost their membership, each after a while.
    fn restart(&mut self, cluster: &mut Cluster, check: &Check) {
        for node in 1..=cluster.joined() {
            let out = !self.dead.contains(&node) && !cluster.lite(node).is_member();
            if out && self.left > 0 && self.random.one_in(RESTART) {
                self.kill(cluster, check, node);
                self.left -= 1;
                check.log(cluster.world.now(), format_args!("-- the machine of node {node} restarts"));
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

    /// Begins a fault.
    fn begin(&mut self, cluster: &mut Cluster, stage: &dyn Work, check: &Check) {
        let now = cluster.world.now();
        // The fault is mostly shorter than a lease, sometimes longer.
        let limit = if self.random.one_in(4) { 3 * LEASE } else { LEASE / 4 };
        let limit = self.swarm.longest.unwrap_or(limit);
        let until = now + Duration::from_micros(self.random.below(limit.as_micros() as u64));
        if self.swarm.kinds.is_empty() {
            return;
        }
        let kind = self.random.pick(&self.swarm.kinds);
        let mut node = 1 + self.random.below(cluster.joined() as u64) as usize;
        if kind == Kind::Death && self.subject.spares_homes() {
            let homes = spared(stage.initial());
            node = homes + 1 + self.random.below((cluster.joined() - homes) as u64) as usize;
        }
        if kind == Kind::Death && self.subject == Subject::Lives {
            // The tasks of the other nodes go on after they have heard of the death.
            return self.delayed_death(cluster, check, node);
        }
        if kind == Kind::Death && self.subject == Subject::Holders {
            // A node that holds no lock does not die.
            let holders = check.holders();
            let member = |i: &usize| (cluster.lite(*i).node_id(), cluster.lite(*i).incarnation());
            let first = spared(stage.initial()) + 1;
            let mut all = (first..=cluster.joined()).filter(|i| holders.contains(&member(i)));
            let Some(holder) = all.next() else { return };
            node = holder;
        }
        let begun = match kind {
            Kind::ManagerPause | Kind::ManagerCrash | Kind::Disk => self.at_manager(cluster, kind, until),
            _ if self.dead.contains(&node) || !cluster.lite(node).is_member() => None,
            Kind::Death if self.subject == Subject::Orphans => {
                if self.random.one_in(2) {
                    self.unheard_death(cluster, check, until);
                } else {
                    self.slow_death(cluster, check, node);
                }
                return;
            }
            Kind::Death if self.subject == Subject::Log => {
                self.writers_death(cluster, check, node, stage.initial());
                return;
            }
            Kind::Death => return self.death(cluster, check, node),
            Kind::Break if self.members(cluster) > SURVIVORS => {
                cluster.manager.sever(cluster.lite(node).node_id());
                Some(("control connections that break", None))
            }
            Kind::Card if self.may_fail(node) && cluster.fail_card(node) => {
                check.excuse(node);
                Some(("cards that fail", None))
            }
            _ => self.at_node(cluster, kind, node),
        };
        let Some((what, trouble)) = begun else { return };
        self.count(what);
        check.log(now, format_args!("-- node {node}: {what} until {:.6}", until.as_nanos() as f64 / 1e9));
        if let Some(trouble) = trouble {
            if let Some(node) = trouble.paused() {
                check.paused(node, now, true);
            }
            self.troubles.push((until, trouble));
        }
    }

    /// Kills a node. Its peers are told at once, as when a kernel panics, or when its lease ends. Another
    /// machine may join in its place, or the same machine restarts.
    fn death(&mut self, cluster: &mut Cluster, check: &Check, node: usize) {
        if self.members(cluster) <= SURVIVORS || self.dead.contains(&node) {
            return;
        }
        let now = cluster.world.now();
        self.kill(cluster, check, node);
        self.count("deaths");
        check.log(now, format_args!("-- node {node} dies"));
        if self.subject.revives() || self.random.one_in(2) {
            last_words(cluster, check, node);
            self.count("deaths that are seen at once");
            check.log(now, "-- with last words");
        }
        if self.left > 0 && (self.subject.revives() || self.random.one_in(2)) {
            self.left -= 1;
            let same = matches!(self.subject, Subject::Lives | Subject::Orphans) || self.random.one_in(2);
            check.log(now, if same { "-- it restarts" } else { "-- another machine joins" });
            cluster.begin_join(same.then_some(node));
        }
    }

    /// Kills the owner of a region that is lent, and keeps the news from another member for a while.
    fn unheard_death(&mut self, cluster: &mut Cluster, check: &Check, until: Instant) {
        let live = |i: &usize| !self.dead.contains(i) && cluster.lite(*i).is_member();
        let mut others: Vec<usize> = (1..=cluster.joined()).filter(live).collect();
        let lends = |i: &usize| cluster.lite(*i).describe_regions().iter().any(|line| line.contains("loan-"));
        let Some(at) = others.iter().position(lends).filter(|_| others.len() > SURVIVORS) else { return };
        let victim = others.remove(at);
        let deaf = bearer(cluster, self.random.pick(&others));
        cluster.manager.hold(cluster.lite(deaf).node_id(), Direction::FromManager, true);
        check.paused(deaf, cluster.world.now(), true);
        self.troubles.push((until, Trouble::Stalled(deaf)));
        self.death(cluster, check, victim);
    }

    /// Kills a node whose last frames arrive when all members know of its end.
    fn slow_death(&mut self, cluster: &mut Cluster, check: &Check, victim: usize) {
        let now = cluster.world.now();
        if self.members(cluster) <= SURVIVORS || self.dead.contains(&victim) {
            return;
        }
        for other in (1..=cluster.joined()).filter(|node| *node != victim) {
            cluster.slow(victim, other, Some(Duration::from_millis(30)));
            self.troubles.push((now + Duration::from_millis(10), Trouble::Slowed(victim, other)));
        }
        check.log(now, format_args!("-- the frames of node {victim} come late, and it dies soon"));
        self.victims.push((now + Duration::from_millis(10), victim));
    }

    /// Kills a node that writes to a log. Its last frames to a home of segments arrive late, and that home
    /// does not hear of the death meanwhile.
    fn writers_death(&mut self, cluster: &mut Cluster, check: &Check, victim: usize, initial: usize) {
        if self.members(cluster) <= SURVIVORS || self.dead.contains(&victim) {
            return;
        }
        let now = cluster.world.now();
        // The directory lies on the first home, which answers in time.
        let others = spared(initial).saturating_sub(1).max(1) as u64;
        let home = (2 + self.random.below(others) as usize).min(spared(initial));
        cluster.manager.hold(cluster.lite(home).node_id(), Direction::FromManager, true);
        check.paused(home, now, true);
        let late = Duration::from_millis(60);
        self.troubles.push((now + late, Trouble::Stalled(home)));
        cluster.slow(victim, home, Some(Duration::from_millis(30)));
        self.troubles.push((now + late, Trouble::Slowed(victim, home)));
        check.log(now, format_args!("-- node {victim} dies soon, unheard by node {home}"));
        self.victims.push((now + Duration::from_millis(10), victim));
    }

    /// Holds the tasks of all nodes while one dies, so that they handle answers of the dead one later.
    fn delayed_death(&mut self, cluster: &mut Cluster, check: &Check, victim: usize) {
        let now = cluster.world.now();
        if self.members(cluster) <= SURVIVORS || self.dead.contains(&victim) {
            return;
        }
        for node in (1..=cluster.joined()).filter(|node| *node != victim && !self.dead.contains(node)) {
            cluster.host(node).hold("worker", true);
            check.paused(node, now, true);
            self.troubles.push((now + Duration::from_millis(30), Trouble::Held(node, "worker")));
        }
        self.victims.push((now + Duration::from_millis(10), victim));
    }

    fn at_manager(
        &mut self,
        cluster: &Cluster,
        kind: Kind,
        until: Instant,
    ) -> Option<(&'static str, Option<Trouble>)> {
        let manager = &cluster.manager;
        match kind {
            Kind::ManagerPause if manager.is_up() => {
                manager.pause(true);
                Some(("the manager is paused", Some(Trouble::ManagerPause)))
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
        let stalled = Trouble::Stalled(bearer(cluster, node));
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
            Kind::Part | Kind::PartOneWay | Kind::Slow if other == node => return None,
            Kind::Part => {
                cluster.part(node, other, true);
                ("partitions", Trouble::Parted(node, other))
            }
            Kind::PartOneWay => {
                cluster.deafen(node, other, true);
                ("partitions in one direction", Trouble::Parted(node, other))
            }
            Kind::Slow => {
                let delay = Duration::from_millis(10 + self.random.below(90));
                cluster.slow(node, other, Some(delay));
                ("frames that come late to one node", Trouble::Slowed(node, other))
            }
            Kind::Stall => {
                cluster.manager.stall(id, true);
                ("cut off from the manager", stalled)
            }
            Kind::Deaf => {
                cluster.manager.hold(id, Direction::FromManager, true);
                ("does not hear the manager", stalled)
            }
            Kind::Mute => {
                cluster.manager.hold(id, Direction::ToManager, true);
                ("is not heard by the manager", stalled)
            }
            Kind::Full => {
                // A little memory is left, or none.
                let leave = self.random.pick(&[0, 4096, 100_000]);
                ("out of memory", Trouble::Full(node, fill(cluster, node, leave)))
            }
            _ => return None,
        };
        Some((what, Some(trouble)))
    }

    /// Returns whether the card of a node may fail once more, and counts the failure.
    fn may_fail(&mut self, node: usize) -> bool {
        let failed = self.failed.entry(node).or_default();
        *failed += 1;
        *failed <= CARD_FAILURES
    }

    /// Ends all faults except deaths: all links work, the manager and its disk work, no machine joins any
    /// more, and no node lacks memory because of a fault.
    pub(super) fn end(&mut self, cluster: &mut Cluster, check: &Check) {
        for (_, trouble) in self.troubles.drain(..) {
            heal(cluster, check, trouble);
        }
        cluster.wire.set_late(None);
        cluster.wire.set_forger(None);
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

/// Returns the last node to join under the number of a node, whose control connection a fault holds up: the
/// node itself may have lost its membership without knowing it.
fn bearer(cluster: &Cluster, node: usize) -> usize {
    let id = cluster.lite(node).node_id();
    (1..=cluster.joined()).rfind(|i| cluster.lite(*i).node_id() == id).unwrap_or(node)
}

/// Tells the manager that a node has died. By now the connection may be that of a later incarnation under
/// the same number.
fn last_words(cluster: &Cluster, check: &Check, node: usize) {
    let id = cluster.lite(node).node_id();
    (1..=cluster.joined()).filter(|i| cluster.lite(*i).node_id() == id).for_each(|i| check.excuse(i));
    cluster.manager.dies(id);
}
