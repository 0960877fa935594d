//! The tasks of a node that work on the log.

use super::super::check::Check;
use super::super::random::Random;
use super::super::work::cut;
use super::model::{Model, entries};
use super::{NAME, Stage, TASKS};
use crate::Cluster;
use lite::{Error, Lite, Permissions};
use litelog::{AppendError, Log, Position, Writer};
use platform::Platform;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most records that one step of a scan returns.
const RECORDS: usize = 60;
/// The least time between a record's commit and its truncation, in slots behind the tail.
const KEPT: u64 = 200;

struct Task {
    lite: Lite,
    host: Arc<lite::testing::Host>,
    check: Arc<Check>,
    model: Arc<Model>,
    random: Random,
    name: String,
    number: u64,
    count: u64,
    log: Option<Log>,
    writer: Arc<Mutex<Option<Writer>>>,
    /// The position of the scan that this task continues.
    at: Option<Position>,
}

/// Starts the tasks of a node. One of them scans, the others commit, and all do everything now and then.
pub(super) fn start(stage: &Stage, cluster: &Cluster, node: usize, random: &mut Random) {
    let (lite, host) = (cluster.lite(node), cluster.host(node));
    let writer = Arc::new(Mutex::new(None));
    for number in 0..TASKS {
        let millis = random.pick(&[20, 200, 2000]);
        let mut task = Task {
            lite: lite.with_deadline(Duration::from_millis(millis)),
            host: host.clone(),
            check: stage.check.clone(),
            model: stage.model.clone(),
            random: random.fork(),
            name: format!("{node}.{number}"),
            number: (node * TASKS + number) as u64,
            count: 0,
            log: None,
            writer: writer.clone(),
            at: None,
        };
        let (steps, check) = (stage.steps, stage.check.clone());
        check.begin(node, number, "start");
        let work = async move {
            for step in 0..steps {
                task.check.begin(node, number, format_args!("step {step}"));
                task.step(number == 0).await;
                if !task.lite.is_member() || task.model.is_over() {
                    break;
                }
                if task.random.one_in(3) {
                    let pause = Duration::from_micros(task.random.below(5000));
                    task.lite.sleep(pause).await;
                }
            }
            *task.writer.lock().expect("no panic under the lock") = None;
            task.check.finish(node, number);
        };
        host.spawn("worker", Box::pin(work));
    }
}

impl Task {
    fn say(&self, line: impl std::fmt::Display) {
        self.check.log(self.host.true_time(), format_args!("{} {line}", self.name));
    }

    /// Runs an operation, or a part of one: some are dropped before their end.
    async fn run<T, E: std::fmt::Display>(
        &mut self,
        what: &str,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let polls = if self.random.one_in(12) { 1 + self.random.below(6) } else { u64::MAX };
        self.say(what);
        let result = cut(operation, polls).await;
        let (kind, outcome) = match &result {
            Some(Ok(_)) => (0, "ok".to_owned()),
            Some(Err(error)) => (1, error.to_string()),
            None => (2, "dropped".to_owned()),
        };
        self.say(format_args!("{what}: {outcome}"));
        self.check.count(kind);
        result
    }

    async fn step(&mut self, scans: bool) {
        let Some(log) = self.open().await else { return };
        let kind = self.random.below(20);
        match kind {
            0 => self.writer(&log, true).await,
            1 => self.truncate(&log).await,
            2 => self.hole().await,
            3..=5 => self.read(&log).await,
            6..=8 => self.scan(&log).await,
            _ if scans => self.scan(&log).await,
            _ => self.commit(&log).await,
        }
    }

    async fn open(&mut self) -> Option<Log> {
        if self.log.is_none() {
            let lite = self.lite.clone();
            self.log = self.run("open", Log::open(&lite, NAME)).await?.ok();
        }
        self.log.clone()
    }

    /// Makes the node's writer, or another one in its place.
    async fn writer(&mut self, log: &Log, another: bool) {
        let present = self.writer.lock().expect("no panic under the lock").clone();
        if present.is_some() && !another {
            return;
        }
        drop(present);
        if let Some(Ok(made)) = self.run("writer", log.writer()).await {
            *self.writer.lock().expect("no panic under the lock") = Some(made);
            self.model.count("writers");
        }
    }

    async fn commit(&mut self, log: &Log) {
        self.writer(log, false).await;
        let Some(writer) = self.writer.lock().expect("no panic under the lock").clone() else { return };
        self.count += 1;
        let id = (self.number + 1) << 32 | self.count;
        let all = entries(id, log.key());
        let parts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        self.model.begins(id);
        let model = self.model.clone();
        let result = self.run(&format!("commit {id:#x}"), writer.commit(&parts)).await;
        if let Some(result) = &result {
            self.say(format_args!("commit {id:#x} is {result:?}"));
            model.ended(id, result);
            model.count(match result {
                Ok(_) => "commits that were acknowledged",
                Err(AppendError::Unknown(_)) => "commits of unknown outcome",
                Err(AppendError::Full) => "commits to a full log",
                Err(_) => "commits that were not appended",
            });
        }
        if matches!(result, Some(Err(AppendError::Full))) {
            self.truncate(log).await;
        }
    }

    /// Makes a hole that has no writer, as a commit whose fetch-add was lost.
    async fn hole(&mut self) {
        let lite = self.lite.clone();
        let slots = 1 + self.random.below(6);
        let hole = async {
            let directory = lite.map(&format!("log/{NAME}"), Permissions::ATOMIC).await?;
            directory.fetch_add(0, slots).await
        };
        if let Some(Ok(_)) = self.run(&format!("a hole of {slots} slots"), hole).await {
            self.model.count("holes");
        }
    }

    async fn truncate(&mut self, log: &Log) {
        let Some(before) = self.model.position(&mut self.random) else { return };
        let Some(Ok(tail)) = self.run("tail", log.tail()).await else { return };
        if before.to_u64() + KEPT > tail.to_u64() && !self.random.one_in(4) {
            return;
        }
        self.model.truncates(before);
        if let Some(Ok(())) = self.run(&format!("truncate before {before}"), log.truncate(before)).await {
            self.model.count("truncations");
        }
    }

    async fn read(&mut self, log: &Log) {
        let Some(at) = self.model.position(&mut self.random) else { return };
        // Sometimes within a record.
        let at =
            if self.random.one_in(3) { Position::from_u64(at.to_u64() + self.random.below(8)) } else { at };
        let known = self.model.knows(at);
        match self.run(&format!("read {at}"), log.read(at)).await {
            Some(Ok(record)) => self.model.found(&record, log.key()),
            Some(Err(error)) => self.model.refused(at, &error, known),
            None => {}
        }
    }

    /// Continues a scan, or begins one.
    async fn scan(&mut self, log: &Log) {
        let begin = self.at.filter(|_| !self.random.one_in(4));
        let begin = begin.or_else(|| self.model.position(&mut self.random));
        let from = begin.unwrap_or(Position::START);
        let truncated = self.model.truncated();
        if from < truncated {
            self.at = None;
            return;
        }
        self.at = Some(from);
        self.say(format_args!("scan from {from}"));
        let mut scan = log.scan(from);
        for _ in 0..RECORDS {
            let at = scan.position();
            let known = self.model.knows(at);
            match cut(scan.next(), if self.random.one_in(100) { 3 } else { u64::MAX }).await {
                Some(Ok(Some(record))) => {
                    self.model.scanned_with(at, &record, log.key());
                    self.at = Some(scan.position());
                }
                Some(Ok(None)) => return,
                Some(Err(error)) => {
                    self.say(format_args!("scan at {at}: {error}"));
                    if matches!(error, litelog::ReadError::Lite(Error::NodeDown(_))) {
                        self.at = None;
                    }
                    return self.model.refused(at, &error, known);
                }
                None => return,
            }
        }
    }
}
