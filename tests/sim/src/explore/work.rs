//! What tasks do.

use super::TASKS;
use super::chaos::most_tasks;
use super::check::Check;
use super::random::Random;
use crate::Cluster;
use lite::testing::Host;
use lite::{Counter, Error, Event, Lite, Lmr, Lock, NodeId, Permissions, Placement, RpcOptions};
use platform::{Instant, Platform};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// Bytes of a task's part of a shared region; its parts lie on no even border.
pub(super) const PART: usize = 3001;
/// Of each kind of shared thing.
pub(super) const EACH: usize = 3;
/// Between two rounds of barriers, in steps.
const ROUND: u32 = 8;
const CALLS: u32 = 1;
const MESSAGES: u32 = 2;
/// Calls that are answered at once, for the end.
pub(super) const PROBES: u32 = 3;
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
/// For what the run needs to begin and to end.
const PATIENT: Duration = Duration::from_secs(20);

/// What the tasks share, and who made it.
pub(super) struct Stage {
    pub(super) steps: u32,
    pub(super) initial: usize,
    pub(super) owned: Arc<Mutex<Vec<Owned>>>,
    check: Arc<Check>,
}

/// A shared thing, as the node holds it that made it.
pub(super) struct Owned {
    pub(super) node: usize,
    pub(super) thing: Thing,
}

pub(super) enum Thing {
    Region(usize, Lmr),
    Counter(Counter),
}

/// What a task does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Memset,
    Add,
    Swap,
    Exclusive,
    Shared,
    Call,
    Send,
    Signal,
    Await,
    Own,
    Refused,
    Remap,
    Move,
}

const STEPS: &[Step] = &[
    Step::Write,
    Step::Write,
    Step::Read,
    Step::Read,
    Step::Memset,
    Step::Add,
    Step::Add,
    Step::Swap,
    Step::Exclusive,
    Step::Exclusive,
    Step::Shared,
    Step::Call,
    Step::Call,
    Step::Send,
    Step::Signal,
    Step::Await,
    Step::Own,
    Step::Refused,
    Step::Remap,
    Step::Move,
    Step::Move,
];

impl Stage {
    /// Makes what is shared.
    pub(super) fn prepare(
        cluster: &mut Cluster,
        check: &Arc<Check>,
        initial: usize,
        steps: u32,
        random: &mut Random,
    ) -> Self {
        let owned = Arc::new(Mutex::new(Vec::new()));
        for n in 0..EACH {
            let mut node = || 1 + random.below(initial as u64) as usize;
            let (maker, homes) = (node(), [0; 6].map(|_| NodeId(node() as u16)));
            let (lite, things_made) = (cluster.lite(maker).with_deadline(PATIENT), owned.clone());
            let len = (PART * most_tasks(initial)) as u64;
            let striped = random.one_in(2);
            let make = async move {
                let place = if striped {
                    Placement::Striped { nodes: vec![homes[0], homes[1]], stripe: 4096 }
                } else {
                    homes[0].into()
                };
                let region = lite.alloc(place, len, RW | Permissions::SHARE).await?;
                region.publish(&format!("region-{n}")).await?;
                let cell = lite.alloc(homes[1], 16, RW | Permissions::SHARE).await?;
                cell.publish(&format!("cell-{n}")).await?;
                // These end with their homes, not with who made them.
                lite.create_lock(homes[4], &format!("lock-{n}")).await?;
                lite.create_event(homes[5], &format!("event-{n}")).await?;
                let things = [
                    Thing::Region(n, region),
                    Thing::Region(EACH + n, cell),
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
        Self { steps, initial, owned, check: check.clone() }
    }

    /// The regions that all write to and that this node has made.
    fn regions_of(&self, node: usize) -> Vec<(usize, Lmr)> {
        let owned = self.owned.lock().expect("no panic under the lock");
        let regions =
            owned.iter().filter(|owned| owned.node == node).filter_map(|owned| match &owned.thing {
                Thing::Region(n, region) if *n < EACH => Some((*n, region.clone())),
                _ => None,
            });
        regions.collect()
    }

    /// Starts the tasks of node `node`, counted from 1.
    pub(super) fn start(&self, cluster: &Cluster, node: usize, random: &mut Random) {
        let (lite, host) = (cluster.lite(node), cluster.host(node));
        let delay = random.pick(&[0, 50, 3000]);
        serve(&lite, &host, &self.check, delay);
        for task in 0..TASKS {
            let number = (node - 1) * TASKS + task;
            let name = format!("{node}.{task}");
            let mut worker = Worker {
                lite: lite.clone(),
                host: host.clone(),
                check: self.check.clone(),
                random: random.fork(),
                name,
                node,
                number,
                initial: self.initial,
                count: 0,
                regions: [const { None }; EACH],
                owned: self.regions_of(node),
            };
            let (steps, check) = (self.steps, self.check.clone());
            check.begin(node, task, "start");
            let work = async move {
                for step in 0..steps {
                    let alone = task > 0 || node > worker.initial || step % ROUND > 0;
                    let doing = worker.random.pick(STEPS);
                    let what = if alone { format!("{doing:?}") } else { "barriers".into() };
                    check.begin(node, task, format_args!("step {step}: {what}"));
                    let member =
                        if alone { worker.step(doing).await } else { worker.barriers(step / ROUND).await };
                    if !member {
                        break;
                    }
                    if worker.random.one_in(3) {
                        let pause = Duration::from_micros(worker.random.below(20_000));
                        worker.lite.sleep(pause).await;
                    }
                }
                drop(worker);
                check.finish(node, task);
            };
            host.spawn("worker", Box::pin(work));
        }
    }
}

/// Answers calls with their bytes reversed, and takes messages.
fn serve(lite: &Lite, host: &Arc<Host>, check: &Arc<Check>, delay_us: u64) {
    let server = Arc::new(lite.register(CALLS, RpcOptions::default()).expect("nothing is registered"));
    for _ in 0..2 {
        let (lite, check, server) = (lite.clone(), check.clone(), server.clone());
        host.spawn(
            "serve",
            Box::pin(async move {
                while let Ok(call) = server.receive().await {
                    check.executed(id_of(call.request()));
                    lite.sleep(Duration::from_micros(delay_us)).await;
                    let mut reply = call.request().to_vec();
                    reply.reverse();
                    // The caller may have left.
                    let _ = call.reply(&reply).await;
                }
            }),
        );
    }
    let probes = lite.register(PROBES, RpcOptions::default()).expect("nothing is registered");
    host.spawn(
        "probes",
        Box::pin(async move {
            while let Ok(call) = probes.receive().await {
                let _ = call.reply(b"!").await;
            }
        }),
    );
    let mailbox = lite.open_mailbox(MESSAGES, RpcOptions::default()).expect("nothing is registered");
    let check = check.clone();
    host.spawn(
        "receive",
        Box::pin(async move {
            while let Ok(message) = mailbox.receive().await {
                check.executed(id_of(message.data()));
            }
        }),
    );
}

fn id_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |id| u64::from_le_bytes(*id))
}

/// Polls `future` at most `polls` times, then drops it.
async fn cut<T>(future: impl Future<Output = T>, polls: u64) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => {
                // As soon as it would be woken: until then it is as if it went on.
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// One task.
struct Worker {
    lite: Lite,
    host: Arc<Host>,
    check: Arc<Check>,
    random: Random,
    name: String,
    node: usize,
    /// Its number among all tasks: which part of the regions is its own.
    number: usize,
    initial: usize,
    /// Things that it has numbered so far.
    count: u64,
    regions: [Option<Lmr>; EACH],
    /// Shared regions that its node has made.
    owned: Vec<(usize, Lmr)>,
}

impl Worker {
    fn now(&self) -> Instant {
        self.host.true_time()
    }

    fn fresh(&mut self) -> u64 {
        self.count += 1;
        (self.number as u64 + 1) << 32 | self.count
    }

    fn shared(&mut self) -> usize {
        self.random.below(EACH as u64) as usize
    }

    /// Some node of the start, alive or not.
    fn anyone(&mut self) -> NodeId {
        NodeId(1 + self.random.below(self.initial as u64) as u16)
    }

    fn patience(&mut self) -> Duration {
        Duration::from_millis(self.random.pick(&[2, 20, 200, 2000]))
    }

    /// Runs one operation that has `patience`, and sees that it keeps it. `None`: it was dropped midway.
    async fn run<T>(
        &mut self,
        what: impl std::fmt::Display + Send,
        patience: Duration,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let polls = if self.random.one_in(10) { 1 + self.random.below(6) } else { u64::MAX };
        let from = self.now();
        self.check.log(from, format_args!("{} {what}", self.name));
        let result = cut(operation, polls).await;
        let to = self.now();
        let outcome = match &result {
            Some(Ok(_)) => "ok".into(),
            Some(Err(error)) => error.to_string(),
            None => "dropped".into(),
        };
        self.check.log(to, format_args!("{} {what}: {outcome}", self.name));
        self.check.count(match &result {
            Some(Ok(_)) => 0,
            Some(Err(_)) => 1,
            None => 2,
        });
        // Its clock may be slow.
        let limit = patience + patience / 40 + Duration::from_millis(1);
        if to.saturating_since(from) > limit && !self.check.stood_still(self.node, from, to) {
            let took = to.saturating_since(from);
            self.check.violated(
                "no operation outlives its deadline",
                format!("{} {what} took {took:?} of {patience:?}", self.name),
            );
        }
        if let Some(Err(
            error @ (Error::OutOfBounds | Error::Permission | Error::Misaligned | Error::TooLarge { .. }),
        )) = &result
        {
            self.check.violated("no error without a cause", format!("{} {what}: {error}", self.name));
        }
        result
    }

    /// Does a step; gives whether this node is still a member.
    async fn step(&mut self, step: Step) -> bool {
        let done = match step {
            Step::Write | Step::Read | Step::Memset => self.memory(step).await,
            Step::Add => self.add().await,
            Step::Swap => self.swap().await,
            Step::Exclusive => self.exclusive().await,
            Step::Shared => self.hold_shared().await,
            Step::Call => self.call().await,
            Step::Send => self.send().await,
            Step::Signal => self.signal().await,
            Step::Await => self.wait().await,
            Step::Move => self.relocate().await,
            Step::Own => self.own_region().await,
            Step::Refused => self.refused().await,
            Step::Remap => {
                let n = self.shared();
                self.regions[n] = None;
                Some(())
            }
        };
        // Whatever failed: only without membership there is nothing more to do.
        let _ = done;
        self.lite.is_member()
    }

    async fn region(&mut self, n: usize) -> Option<Lmr> {
        if self.regions[n].is_none() {
            let patience = self.patience();
            let lite = self.lite.with_deadline(patience);
            let name = format!("region-{n}");
            let map = async { lite.map(&name, RW).await };
            self.regions[n] = Some(self.run(format!("map {name}"), patience, map).await?.ok()?);
        }
        self.regions[n].clone()
    }

    async fn memory(&mut self, step: Step) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let patience = self.patience();
        let region = region.with_deadline(patience);
        let at = self.random.below(PART as u64) as usize;
        let len = 1 + self.random.below((PART - at) as u64) as usize;
        let offset = (self.number * PART + at) as u64;
        let what = format!("{step:?} {len} at {offset} of region {n}");
        let data = match step {
            Step::Read => {
                let mut got = vec![0; len];
                self.run(what, patience, region.read(offset, &mut got)).await?.ok()?;
                self.check.read(n, self.number, at, &got);
                return Some(());
            }
            Step::Memset => vec![self.random.next() as u8; len],
            _ => self.random.bytes(len),
        };
        self.check.writes(n, self.number, at, &data);
        let result = if matches!(step, Step::Memset) {
            self.run(what, patience, region.memset(offset, len as u64, data[0])).await
        } else {
            self.run(what, patience, region.write(offset, &data)).await
        };
        match result {
            Some(Ok(())) => self.check.wrote(n, self.number, true),
            None | Some(Err(Error::Unknown | Error::NodeDown(_) | Error::LinkDown)) => {}
            Some(Err(_)) => self.check.wrote(n, self.number, false),
        }
        Some(())
    }

    async fn counter(&mut self, kind: &str, n: usize) -> Option<Counter> {
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("{kind}-{n}");
        let open = async { lite.open_counter(&name).await };
        self.run(format!("open {name}"), PATIENT, open).await?.ok()
    }

    async fn add(&mut self) -> Option<()> {
        let n = self.shared();
        let patience = self.patience();
        let counter = self.counter("counter", n).await?.with_deadline(patience);
        let from = self.now();
        self.check.adds(n);
        let result = self.run(format!("add to counter {n}"), patience, counter.add(1)).await;
        let to = self.now();
        match result {
            Some(Ok(value)) => self.check.added(n, from, to, Some(value)),
            None | Some(Err(Error::Unknown | Error::NodeDown(_) | Error::LinkDown)) => {}
            Some(Err(_)) => self.check.added(n, from, to, None),
        }
        Some(())
    }

    async fn swap(&mut self) -> Option<()> {
        let n = self.shared();
        let patience = self.patience();
        let cell = self.counter("swap", n).await?.with_deadline(patience);
        let seen = self.run(format!("get swap {n}"), patience, cell.get()).await?.ok()?;
        let mine = self.fresh();
        let swap = cell.compare_swap(seen, mine);
        let before = self.run(format!("swap {n} from {seen:#x}"), patience, swap).await?.ok()?;
        if before == seen {
            self.check.swapped(n, seen);
        }
        Some(())
    }

    async fn open_lock(&mut self, n: usize) -> Option<(Lock, Lmr)> {
        let lite = self.lite.with_deadline(PATIENT);
        let (lock, cell) = (format!("lock-{n}"), format!("cell-{n}"));
        let open = async { Ok((lite.open_lock(&lock).await?, lite.map(&cell, RW).await?)) };
        // Two operations.
        self.run(format!("open lock {n}"), 2 * PATIENT, open).await?.ok()
    }

    async fn cell(&mut self, n: usize, cell: &Lmr, patience: Duration) -> Option<u64> {
        let mut got = [0; 8];
        self.run(format!("read cell {n}"), patience, cell.read(3, &mut got)).await?.ok()?;
        Some(u64::from_le_bytes(got))
    }

    async fn exclusive(&mut self) -> Option<()> {
        let n = self.shared();
        let (lock, cell) = self.open_lock(n).await?;
        let patience = self.patience();
        let lock = lock.with_deadline(patience);
        let cell = cell.with_deadline(PATIENT);
        let held = self.run(format!("lock {n}"), patience, lock.lock()).await?.ok()?;
        let value = self.cell(n, &cell, PATIENT).await?;
        self.check.guarded_read(n, value);
        if self.random.one_in(2) {
            let pause = Duration::from_micros(self.random.below(3000));
            self.lite.sleep(pause).await;
        }
        let next = value + 1;
        let result = cell.write(3, &next.to_le_bytes()).await;
        self.check.log(self.now(), format_args!("{} writes {next} under lock {n}: {result:?}", self.name));
        match result {
            Ok(()) => self.check.guarded_write(n, next, true),
            Err(Error::Unknown | Error::NodeDown(_) | Error::LinkDown) => {
                self.check.guarded_write(n, next, false);
            }
            Err(_) => {}
        }
        if self.random.one_in(2) {
            drop(held);
        } else {
            // The home may be out of reach: then the lock is given back later.
            let _ = self.run(format!("unlock {n}"), patience, held.unlock()).await;
        }
        Some(())
    }

    async fn hold_shared(&mut self) -> Option<()> {
        let n = self.shared();
        let (lock, cell) = self.open_lock(n).await?;
        let patience = self.patience();
        let lock = lock.with_deadline(patience);
        let cell = cell.with_deadline(PATIENT);
        let held = self.run(format!("lock {n} shared"), patience, lock.lock_shared()).await?.ok()?;
        let first = self.cell(n, &cell, PATIENT).await?;
        let pause = Duration::from_micros(self.random.below(2000));
        self.lite.sleep(pause).await;
        let second = self.cell(n, &cell, PATIENT).await?;
        // Whoever has lost its membership holds nothing any more.
        if !held.is_lost() && self.lite.is_member() {
            self.check.guarded_twice(n, first, second);
        }
        Some(())
    }

    async fn call(&mut self) -> Option<()> {
        let to = self.anyone();
        let patience = self.patience();
        let lite = self.lite.with_deadline(patience);
        let id = self.fresh();
        let len = self.random.pick(&[8, 100, 5000, 60_000]);
        let mut request = self.random.bytes(len);
        request[..8].copy_from_slice(&id.to_le_bytes());
        let call = lite.call(to, CALLS, &request, len);
        let reply = self.run(format!("call {id:#x} of {len} to {to}"), patience, call).await?.ok()?;
        self.check.answered(id);
        request.reverse();
        if reply != request {
            self.check.violated("a reply is the handler's", format!("call {id:#x} got other bytes"));
        }
        Some(())
    }

    async fn send(&mut self) -> Option<()> {
        let to = self.anyone();
        let patience = self.patience();
        let lite = self.lite.with_deadline(patience);
        let id = self.fresh();
        let mut message = self.random.bytes(8 + id as usize % 300);
        message[..8].copy_from_slice(&id.to_le_bytes());
        let send = lite.send(to, MESSAGES, &message);
        self.run(format!("send {id:#x} to {to}"), patience, send).await?.ok()
    }

    async fn event(&mut self, n: usize) -> Option<Event> {
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("event-{n}");
        let open = async { lite.open_event(&name).await };
        self.run(format!("open {name}"), PATIENT, open).await?.ok()
    }

    async fn signal(&mut self) -> Option<()> {
        let n = self.shared();
        let patience = self.patience();
        let event = self.event(n).await?.with_deadline(patience);
        // It may count from now on, whatever this task hears.
        self.check.signals(n);
        self.run(format!("signal event {n}"), patience, event.signal()).await?.ok().map(drop)
    }

    async fn wait(&mut self) -> Option<()> {
        let n = self.shared();
        let patience = self.patience();
        let event = self.event(n).await?.with_deadline(patience);
        let past = self.random.below(10);
        let wait = event.wait(past);
        let count = self.run(format!("wait for event {n} past {past}"), patience, wait).await?.ok()?;
        self.check.seen(n, past, count);
        Some(())
    }

    /// Two different nodes, or one.
    fn anywhere(&mut self) -> Placement {
        let (a, b) = (self.anyone(), self.anyone());
        match self.random.below(4) {
            0 if a != b => {
                let stripe = 8 * (1 + self.random.below(1000));
                Placement::Striped { nodes: vec![a, b], stripe }
            }
            1 => Placement::Anywhere,
            _ => a.into(),
        }
    }

    /// Moves a region that all use.
    async fn relocate(&mut self) -> Option<()> {
        if self.owned.is_empty() {
            return None;
        }
        let pick = self.random.below(self.owned.len() as u64) as usize;
        let (n, region) = self.owned[pick].clone();
        let patience = self.patience();
        let region = region.with_deadline(patience);
        let to = self.anywhere();
        let what = format!("move region {n} to {to:?}");
        self.run(what, patience, region.move_to(to)).await?.ok()
    }

    /// A region of its own: fresh memory is zero, and holds what is written.
    async fn own_region(&mut self) -> Option<()> {
        let home = self.anywhere();
        let on = format!("{home:?}");
        let patience = self.patience();
        let lite = self.lite.with_deadline(patience);
        let len = 1 + self.random.below(100_000) as usize;
        let alloc = lite.alloc(home, len as u64, RW);
        let region = self.run(format!("alloc {len} on {on}"), patience, alloc).await?.ok()?;
        let mut got = vec![1; len];
        self.run("read fresh memory", patience, region.read(0, &mut got)).await?.ok()?;
        if got.iter().any(|byte| *byte != 0) {
            self.check.violated("fresh memory is zero", format!("{} found bytes on {on}", self.name));
        }
        let data = self.random.bytes(len);
        self.run("write to it", patience, region.write(0, &data)).await?.ok()?;
        self.run("read it", patience, region.read(0, &mut got)).await?.ok()?;
        if got != data {
            self.check.violated("memory equals the model", format!("{}'s own region on {on}", self.name));
        }
        if self.random.one_in(2) {
            self.run("free it", patience, region.free()).await?.ok()?;
        }
        Some(())
    }

    /// What must be refused is refused.
    async fn refused(&mut self) -> Option<()> {
        let n = self.shared();
        let lite = self.lite.with_deadline(PATIENT);
        let name = format!("region-{n}");
        let map = async { lite.map(&name, Permissions::READ).await };
        let region = self.run(format!("map {name} to read"), PATIENT, map).await?.ok()?;
        let len = region.len();
        let beyond = 1 + self.random.below(100);
        let refusals = [
            ("a write without the right", region.write(0, &[1]).await, Error::Permission),
            ("a memset without the right", region.memset(0, 1, 1).await, Error::Permission),
            ("an atomic without the right", region.fetch_add(0, 1).await.map(drop), Error::Permission),
            ("a free without the right", region.clone().free().await, Error::Permission),
            ("a read across the end", region.read(len - 50, &mut [0; 151]).await, Error::OutOfBounds),
            ("a read beyond the end", region.read(len + beyond, &mut [0]).await, Error::OutOfBounds),
            ("a read at the end of all", region.read(u64::MAX, &mut [0]).await, Error::OutOfBounds),
        ];
        for (what, result, expected) in refusals {
            let gone = matches!(result, Err(Error::Freed | Error::NodeDown(_) | Error::LinkDown));
            if result != Err(expected) && !gone {
                self.check.violated("rights and bounds hold", format!("{} {what}: {result:?}", self.name));
            }
        }
        Some(())
    }

    /// All barriers of a round that this node belongs to, in the order that all keep.
    async fn barriers(&mut self, round: u32) -> bool {
        const PATIENCE: Duration = Duration::from_secs(5);
        let count = self.initial;
        for first in 0..count {
            let group: Vec<NodeId> = (0..3).map(|i| NodeId(((first + i) % count + 1) as u16)).collect();
            let me = NodeId(self.node as u16);
            if !group.contains(&me) {
                continue;
            }
            let name = format!("barrier-{round}-{first}");
            let lite = self.lite.with_deadline(PATIENCE);
            let barrier = lite.barrier(&name, &group);
            let result = self.run(name.clone(), PATIENCE, barrier).await;
            let home = group.iter().min().copied().unwrap_or(me);
            self.check.passed(&name, home, me, result);
        }
        self.lite.is_member()
    }
}
