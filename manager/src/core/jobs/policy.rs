//! The policy of the queue: which waiting jobs start now, on which nodes, and why the others wait.
//!
//! The policy is a pure function of the queue, the busy nodes and the time. It is first come, first served
//! within a priority, with conservative backfill: each job in turn gets the earliest time at which enough of
//! its nodes are free for as long as its time limit, and a later job may use these nodes only before that
//! time. So no job delays one before it in the queue. A job without a time limit is expected to take for
//! ever. A job whose earliest time is unknown, because jobs without a limit run, keeps the nodes that are
//! free first.
//!
//! `manager/tests/model/queue.py` is the same policy, written independently.

use platform::Instant;
use proto::{JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which a node is expected to be idle whose job is over its limit or ending.
const SOON: Duration = Duration::from_millis(1);

/// A waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The number of the job.
    pub(super) job: JobId,
    /// The number of nodes.
    pub(super) wanted: usize,
    /// The nodes on which the job may run, in the order of preference.
    pub(super) able: Vec<NodeId>,
    /// The longest time that the job takes; `None` if it is unknown.
    pub(super) time: Option<Duration>,
}

impl Waiting {
    /// Returns the time at which the job ends that starts at `from`. No job takes less than [`SOON`], so
    /// none starts on a node that is busy.
    fn until(&self, from: Instant) -> Option<Instant> {
        self.time.map(|time| from + time.max(SOON))
    }
}

/// The use of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A job runs until the given time at the latest; `None` if that is unknown.
    Runs(Option<Instant>),
    /// A job is ending.
    Ends,
}

/// The decision about a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The job starts on these nodes, by rank.
    Start(Vec<NodeId>),
    /// Fewer of its nodes are idle than the job wants.
    Busy,
    /// Enough nodes are idle, but kept for these jobs, which are before it in the queue.
    Turn(BTreeSet<JobId>),
}

/// A time in which a node is not free for others.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from: Instant,
    /// The end; `None` if it is unknown.
    until: Option<Instant>,
    /// The waiting job for which the node is kept; `None` for a job that runs.
    keeper: Option<JobId>,
}

impl Taken {
    fn overlaps(&self, from: Instant, until: Option<Instant>) -> bool {
        self.until.is_none_or(|end| from < end) && until.is_none_or(|end| self.from < end)
    }
}

/// The nodes' times.
#[derive(Debug, Default)]
struct Calendar(BTreeMap<NodeId, Vec<Taken>>);

impl Calendar {
    fn of(&self, node: NodeId) -> &[Taken] {
        self.0.get(&node).map_or(&[], Vec::as_slice)
    }

    fn take(&mut self, node: NodeId, taken: Taken) {
        self.0.entry(node).or_default().push(taken);
    }

    /// Returns the time from which on a node is free for ever; `None` if it is never.
    fn free_from(&self, node: NodeId, now: Instant) -> Option<Instant> {
        self.of(node).iter().try_fold(now, |latest, taken| Some(latest.max(taken.until?)))
    }

    /// Returns the earliest time at which a job has enough nodes for its whole time, and these nodes.
    fn earliest(&self, now: Instant, job: &Waiting) -> Option<(Instant, Vec<NodeId>)> {
        let ends = job.able.iter().flat_map(|&node| self.of(node)).filter_map(|taken| taken.until);
        let times: BTreeSet<Instant> = ends.filter(|end| *end > now).chain([now]).collect();
        times.into_iter().find_map(|from| {
            let until = job.until(from);
            let free = |node: &NodeId| !self.of(*node).iter().any(|taken| taken.overlaps(from, until));
            let nodes: Vec<NodeId> = job.able.iter().copied().filter(free).take(job.wanted).collect();
            (nodes.len() == job.wanted).then_some((from, nodes))
        })
    }
}

/// Decides about the jobs of the queue, which is in the order of their turns.
pub(super) fn decide(now: Instant, busy: &BTreeMap<NodeId, Use>, queue: &[Waiting]) -> Vec<(JobId, Verdict)> {
    let is_idle = |node: &NodeId| !busy.contains_key(node);
    if !queue.iter().any(|job| job.able.iter().any(is_idle)) {
        return queue.iter().map(|job| (job.job, Verdict::Busy)).collect();
    }
    let mut calendar = Calendar::default();
    for (&node, of) in busy {
        let until = match of {
            Use::Runs(until) => until.map(|until| until.max(now + SOON)),
            Use::Ends => Some(now + SOON),
        };
        calendar.take(node, Taken { from: now, until, keeper: None });
    }
    let mut started = BTreeSet::new();
    let mut verdicts = Vec::new();
    for job in queue {
        let idle = |node: &&NodeId| !busy.contains_key(node) && !started.contains(*node);
        let idle: Vec<NodeId> = job.able.iter().filter(idle).copied().collect();
        if job.able.len() < job.wanted {
            verdicts.push((job.job, Verdict::Busy));
            continue;
        }
        let earliest = calendar.earliest(now, job);
        if let Some((_, nodes)) = earliest.as_ref().filter(|(from, _)| *from == now) {
            let until = job.until(now);
            for &node in nodes {
                calendar.take(node, Taken { from: now, until, keeper: None });
                started.insert(node);
            }
            verdicts.push((job.job, Verdict::Start(nodes.clone())));
            continue;
        }
        let holders = |node: &NodeId| calendar.of(*node).iter().filter_map(|taken| taken.keeper);
        let kept: BTreeSet<JobId> = idle.iter().flat_map(holders).collect();
        let wait = if idle.len() < job.wanted { Verdict::Busy } else { Verdict::Turn(kept) };
        verdicts.push((job.job, wait));
        keep(&mut calendar, now, job, earliest);
    }
    verdicts
}

/// Keeps nodes for a job that starts later.
fn keep(calendar: &mut Calendar, now: Instant, job: &Waiting, earliest: Option<(Instant, Vec<NodeId>)>) {
    let keeper = Some(job.job);
    if let Some((from, nodes)) = earliest {
        let until = job.until(from);
        return nodes.into_iter().for_each(|node| calendar.take(node, Taken { from, until, keeper }));
    }
    // The earliest time is unknown: the job keeps the nodes that are free first, from then on.
    let mut nodes: Vec<(Option<Instant>, NodeId)> =
        job.able.iter().map(|&node| (calendar.free_from(node, now), node)).collect();
    // The sort is stable: of nodes that are free at one time, the preferred ones are first.
    nodes.sort_by_key(|(from, _)| from.map_or((1, now), |from| (0, from)));
    for (from, node) in nodes.into_iter().take(job.wanted) {
        if let Some(from) = from {
            calendar.take(node, Taken { from, until: None, keeper });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn at(seconds: u64) -> Instant {
        NOW + Duration::from_secs(seconds)
    }

    fn nodes(ids: impl IntoIterator<Item = u16>) -> Vec<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    fn job(job: u64, wanted: usize, time: Option<u64>) -> Waiting {
        Waiting { job: JobId(job), wanted, able: nodes(1..=4), time: time.map(Duration::from_secs) }
    }

    fn busy(uses: &[(u16, Option<u64>)]) -> BTreeMap<NodeId, Use> {
        uses.iter().map(|&(node, until)| (NodeId(node), Use::Runs(until.map(at)))).collect()
    }

    fn turn(jobs: &[u64]) -> Verdict {
        Verdict::Turn(jobs.iter().copied().map(JobId).collect())
    }

    /// Returns the verdicts on a queue.
    fn verdicts(uses: &[(u16, Option<u64>)], queue: &[Waiting]) -> Vec<Verdict> {
        decide(NOW, &busy(uses), queue).into_iter().map(|(_, verdict)| verdict).collect()
    }

    #[test]
    fn jobs_start_side_by_side() {
        let queue = [job(1, 2, None), job(2, 2, None), job(3, 1, None)];
        let want = [Verdict::Start(nodes([1, 2])), Verdict::Start(nodes([3, 4])), Verdict::Busy];
        assert_eq!(verdicts(&[], &queue), want);
    }

    #[test]
    fn a_short_job_runs_before_a_wide_one_that_waits_longer() {
        let queue = [job(1, 4, Some(5)), job(2, 1, Some(10)), job(3, 1, Some(11)), job(4, 1, None)];
        let want = [Verdict::Busy, Verdict::Start(nodes([2])), turn(&[1]), turn(&[1])];
        assert_eq!(verdicts(&[(1, Some(10))], &queue), want);
    }

    #[test]
    fn a_wide_job_is_not_starved_while_jobs_without_a_limit_run() {
        let queue = [job(1, 3, None), job(2, 1, Some(1)), job(3, 1, Some(1))];
        // Nodes 2 and 3 are kept for the wide job, and node 4 is not idle.
        assert_eq!(verdicts(&[(1, None), (4, None)], &queue), [Verdict::Busy, turn(&[1]), turn(&[1])]);
        // Four are wanted of which one is free: all of them are kept.
        let queue = [job(1, 4, None), job(2, 1, Some(1))];
        assert_eq!(verdicts(&[(1, None), (2, None), (3, None)], &queue), [Verdict::Busy, turn(&[1])]);
    }

    #[test]
    fn a_job_without_any_time_waits_for_its_nodes() {
        assert_eq!(verdicts(&[(1, None), (2, Some(0))], &[job(1, 3, Some(0))]), [Verdict::Busy]);
    }

    #[test]
    fn a_job_over_its_limit_frees_its_node_soon() {
        let queue = [job(1, 4, Some(1)), job(2, 1, Some(1))];
        let verdicts = decide(at(20), &busy(&[(1, Some(10))]), &queue);
        assert_eq!(verdicts[1].1, turn(&[1]));
    }

    #[test]
    fn a_job_without_its_nodes_delays_no_other() {
        let few = Waiting { able: nodes([1]), ..job(1, 2, None) };
        assert_eq!(verdicts(&[], &[few, job(2, 4, None)]), [Verdict::Busy, Verdict::Start(nodes(1..=4))]);
    }
}
