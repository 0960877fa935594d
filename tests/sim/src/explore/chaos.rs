//! What goes wrong, and when.

use super::check::Check;
use super::random::Random;
use super::work::Stage;
use super::{LEASE, TASKS};
use crate::Cluster;
use platform::{Instant, Lent, Platform};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many nodes are never killed.
const SURVIVORS: usize = 3;
/// Replacements that join at most.
const REPLACEMENTS: usize = 3;

/// How often the card of a node fails at most.
const CARD_FAILURES: u32 = 3;

/// Something that ends by itself.
enum Trouble {
    Paused(usize),
    Parted(usize, usize),
    Stalled(usize),
    Full(usize, Vec<Box<dyn Lent>>),
}

/// The faults of a run.
pub(super) struct Chaos {
    random: Random,
    troubles: Vec<(Instant, Trouble)>,
    dead: BTreeSet<usize>,
    replaced: usize,
    /// How often the card of each node has.
    failed: BTreeMap<usize, u32>,
    counts: BTreeMap<&'static str, u64>,
}

impl Chaos {
    pub(super) fn new(random: Random) -> Self {
        let (troubles, counts) = (Vec::new(), BTreeMap::new());
        Self { random, troubles, dead: BTreeSet::new(), replaced: 0, failed: BTreeMap::new(), counts }
    }

    /// Faults by kind.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts.iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Ends what is due, and perhaps begins something.
    pub(super) fn act(&mut self, cluster: &mut Cluster, stage: &Stage, check: &Check) {
        let now = cluster.world.now();
        let due: Vec<_> = self.troubles.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, trouble) in due {
            heal(cluster, check, trouble);
        }
        if !self.random.one_in(12) {
            return;
        }
        // Mostly shorter than a lease, sometimes longer.
        let limit = if self.random.one_in(4) { 3 * LEASE } else { LEASE / 4 };
        let until = now + Duration::from_micros(self.random.below(limit.as_micros() as u64));
        let node = 1 + self.random.below(cluster.joined() as u64) as usize;
        if self.dead.contains(&node) {
            return;
        }
        let host = cluster.host(node);
        let (kind, trouble) = match self.random.below(16) {
            0 => {
                if cluster.joined() - self.dead.len() <= SURVIVORS {
                    return;
                }
                host.kill();
                self.dead.insert(node);
                check.died(node);
                check.log(now, format_args!("-- node {node} dies"));
                *self.counts.entry("deaths").or_default() += 1;
                if self.replaced < REPLACEMENTS && self.random.one_in(2) {
                    self.replaced += 1;
                    let new = cluster.join();
                    check.log(now, format_args!("-- node {new} joins"));
                    stage.start(cluster, new, &mut self.random);
                }
                return;
            }
            1..=4 => {
                host.pause(true);
                ("pauses", Trouble::Paused(node))
            }
            5..=9 => {
                let other = 1 + self.random.below(cluster.joined() as u64) as usize;
                if other == node {
                    return;
                }
                cluster.part(node, other, true);
                ("partitions", Trouble::Parted(node, other))
            }
            10..=12 => {
                cluster.manager.stall(cluster.lite(node).node_id(), true);
                ("cut off from the manager", Trouble::Stalled(node))
            }
            13 if self.may_fail(node) && cluster.fail_card(node) => {
                check.log(now, format_args!("-- the card of node {node} fails"));
                *self.counts.entry("cards that fail").or_default() += 1;
                return;
            }
            _ => {
                let memory = host.memory();
                let mut taken = Vec::new();
                // A little is left, or nothing.
                let leave = self.random.pick(&[0, 4096, 100_000]);
                while let free @ 1.. = memory.largest_free().saturating_sub(leave) {
                    let Some(run) = memory.lend(free) else { break };
                    taken.push(run);
                }
                ("out of memory", Trouble::Full(node, taken))
            }
        };
        if matches!(trouble, Trouble::Paused(_) | Trouble::Stalled(_)) {
            check.stands(node, now, true);
        }
        check.log(now, format_args!("-- node {node}: {kind} until {:.6}", until.as_nanos() as f64 / 1e9));
        *self.counts.entry(kind).or_default() += 1;
        self.troubles.push((until, trouble));
    }

    /// Whether the card of a node may fail once more: fewer times than its driver mends it in a row.
    fn may_fail(&mut self, node: usize) -> bool {
        let failed = self.failed.entry(node).or_default();
        *failed += 1;
        *failed <= CARD_FAILURES
    }

    /// Ends everything but death.
    pub(super) fn end(&mut self, cluster: &mut Cluster, check: &Check) {
        for (_, trouble) in self.troubles.drain(..) {
            heal(cluster, check, trouble);
        }
    }
}

fn heal(cluster: &Cluster, check: &Check, trouble: Trouble) {
    let now = cluster.world.now();
    match trouble {
        Trouble::Paused(node) => {
            cluster.host(node).pause(false);
            check.stands(node, now, false);
            check.log(now, format_args!("-- node {node} goes on"));
        }
        Trouble::Parted(a, b) => {
            cluster.part(a, b, false);
            check.log(now, format_args!("-- nodes {a} and {b} see each other"));
        }
        Trouble::Stalled(node) => {
            cluster.manager.stall(cluster.lite(node).node_id(), false);
            check.stands(node, now, false);
            check.log(now, format_args!("-- node {node} hears from the manager"));
        }
        Trouble::Full(node, taken) => {
            drop(taken);
            check.log(now, format_args!("-- node {node} has memory"));
        }
    }
}

/// Numbers of all tasks that there can be.
pub(super) const fn most_tasks(initial: usize) -> usize {
    (initial + REPLACEMENTS + 1) * TASKS
}
