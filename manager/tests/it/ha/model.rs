//! A model of etcd: revisions, leases and transactions, with connections that fail in several ways.

use manager::daemon::SaveError;
use manager::daemon::ha::{Answer, Kv, Op, Pair, Request, Txn, When};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The limits of etcd.
const MAX_REQUEST: usize = 3 << 19;
const MAX_OPS: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Model {
    /// The virtual time; real time passes if `start` is set.
    pub(crate) time: Duration,
    pub(crate) start: Option<Instant>,
    pub(crate) revision: i64,
    leases: BTreeMap<i64, (u64, Duration)>,
    next_lease: i64,
    pub(crate) keys: BTreeMap<String, Pair>,
    /// The revision of the leader's key at each change of another key.
    pub(crate) changes: Vec<(i64, String)>,
}

impl Model {
    fn now(&self) -> Duration {
        self.start.map_or(self.time, |start| start.elapsed())
    }

    /// Ends the leases whose time is over.
    fn expire(&mut self) {
        let now = self.now();
        let over: Vec<i64> =
            self.leases.iter().filter(|(_, (_, until))| *until <= now).map(|(&id, _)| id).collect();
        over.into_iter().for_each(|lease| self.end(lease));
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        self.revision += 1;
        self.keys.retain(|_, pair| pair.lease != lease);
    }

    fn holds(&self, when: &When) -> bool {
        match when {
            When::Absent(key) => !self.keys.contains_key(key),
            When::Created(key, revision) => self.keys.get(key).is_some_and(|p| p.created == *revision),
            When::Is(key, value) => self.keys.get(key).is_some_and(|pair| pair.value == *value),
        }
    }

    fn change(&mut self, op: &Op) {
        let leader = self.keys.iter().find(|(key, _)| key.ends_with("/leader"));
        let term = leader.map_or(0, |(_, pair)| pair.created);
        match op {
            Op::Put { key, value, lease } => {
                if !key.ends_with("/leader") {
                    self.changes.push((term, key.clone()));
                }
                let created = self.keys.get(key).map_or(self.revision, |pair| pair.created);
                let lease = lease.unwrap_or(0);
                let pair = Pair { key: key.clone(), value: value.clone(), created, lease };
                self.keys.insert(key.clone(), pair);
            }
            Op::Delete(key) => drop(self.keys.remove(key)),
            Op::DeleteAll(prefix) => self.keys.retain(|key, _| !key.starts_with(prefix)),
        }
    }

    /// Does what etcd does with a request.
    pub(crate) fn serve(&mut self, request: &Request) -> Result<Answer, SaveError> {
        self.expire();
        let now = self.now();
        Ok(match request {
            Request::Grant { ttl } => {
                self.next_lease += 1;
                self.leases.insert(self.next_lease, (*ttl, now + Duration::from_secs(*ttl)));
                Answer::Granted { lease: self.next_lease }
            }
            Request::Renew { lease } => {
                let found = self.leases.get_mut(lease);
                let lasts = found.is_some();
                if let Some((ttl, until)) = found {
                    *until = now + Duration::from_secs(*ttl);
                }
                Answer::Renewed { lasts }
            }
            Request::Revoke { lease } => {
                self.end(*lease);
                Answer::Revoked
            }
            Request::Range { from, end, limit } => {
                let mut pairs: Vec<Pair> =
                    self.keys.range(from.clone()..end.clone()).map(|(_, pair)| pair.clone()).collect();
                let more = pairs.len() > *limit as usize;
                pairs.truncate(*limit as usize);
                Answer::Range { pairs, more }
            }
            Request::Txn(Txn { when, then, otherwise }) => {
                let len = |op: &Op| match op {
                    Op::Put { key, value, .. } => key.len() + value.len(),
                    Op::Delete(key) | Op::DeleteAll(key) => key.len(),
                };
                let bytes: usize = then.iter().map(len).sum();
                if bytes > MAX_REQUEST || then.len() > MAX_OPS {
                    return Err("request is too large".into());
                }
                let held = when.iter().all(|when| self.holds(when));
                let mut pairs = Vec::new();
                if held {
                    for op in then {
                        if let Op::Put { lease: Some(lease), .. } = op
                            && !self.leases.contains_key(lease)
                        {
                            return Err("requested lease not found".into());
                        }
                    }
                    self.revision += 1;
                    then.iter().for_each(|op| self.change(op));
                } else {
                    pairs.extend(otherwise.iter().filter_map(|key| self.keys.get(key)).cloned());
                }
                Answer::Txn { held, revision: self.revision, pairs }
            }
        })
    }
}

/// A model that several connections share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Model>>);

impl Shared {
    /// Returns a model in which real time passes.
    pub(crate) fn in_real_time() -> Self {
        Self(Arc::new(Mutex::new(Model { start: Some(Instant::now()), ..Model::default() })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }
}

/// The fate of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    #[default]
    Answered,
    /// The request is lost.
    Lost,
    /// The request has its effect, and the answer is lost.
    AnswerLost,
    /// The request has its effect when the fate changes, and no answer.
    Late,
}

#[derive(Debug, Default)]
struct Line {
    fate: Fate,
    late: Vec<Request>,
}

/// A connection to a model. Connections that were made from it have the same fate.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) model: Shared,
    line: Arc<Mutex<Line>>,
}

impl Wire {
    pub(crate) fn to(model: &Shared) -> Self {
        Self { model: model.clone(), line: Arc::default() }
    }

    /// Changes the fate of requests. Those that were late have their effect now.
    pub(crate) fn fate(&self, fate: Fate) {
        let mut line = self.line.lock().unwrap();
        line.fate = fate;
        for request in line.late.drain(..) {
            let _ = self.model.lock().serve(&request);
        }
    }
}

impl Kv for Wire {
    fn ask(&mut self, request: &Request, _: Duration) -> Result<Answer, SaveError> {
        let mut line = self.line.lock().unwrap();
        match line.fate {
            Fate::Answered => self.model.lock().serve(request),
            Fate::Lost => Err("etcd is cut off".into()),
            Fate::AnswerLost => {
                let _ = self.model.lock().serve(request);
                Err("the answer of etcd is lost".into())
            }
            Fate::Late => {
                line.late.push(request.clone());
                Err("etcd is slow".into())
            }
        }
    }

    fn another(&self) -> Box<dyn Kv> {
        Box::new(self.clone())
    }
}
