//! The election of the leader, as a state machine: each step sends one request, and the time comes from
//! outside.
//!
//! A leader holds a key that ends with its lease. The revision of the store at which the key was created is
//! the number of its term. A leader may act for half of a lease from the time at which it has asked for the
//! last renewal that was answered. The other half covers clocks of different speeds, and a member of etcd
//! that renews leases for a while after another member has been elected. A leader that may not act any more
//! pauses: it handles no event. If a later renewal shows that its lease has lasted, it goes on.

use super::kv::{Answer, Keys, Kv, Op, Pair, Request, Txn, When};
use crate::daemon::SaveError;
use std::time::Duration;

/// The pause between two looks of a standby at the leader's key.
const LOOK: Duration = Duration::from_millis(200);
/// The pause after a request without an answer.
const RETRY: Duration = Duration::from_millis(100);

/// The time in which a manager leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The revision of the store at which the leader's key was created. It is larger in each later term.
    pub revision: i64,
    /// The lease of the leader's key.
    lease: i64,
}

/// The position of a manager in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Another manager leads, or none does.
    Standby {
        /// The address of the leader, if one is known.
        leader: Option<String>,
    },
    /// This manager leads. It may not act at all times of its term.
    Leads(Term),
}

/// The next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Look,
    Grant,
    Claim(Lease),
    Renew(Term),
}

/// A lease that has no key yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    id: i64,
    /// The time at which it was asked for.
    asked: Duration,
}

/// A manager that wants to lead.
#[derive(Debug)]
pub struct Elector {
    keys: Keys,
    /// The length of a lease, in seconds.
    ttl: u64,
    /// The value of the leader's key when this manager leads: its address, and a number of its process.
    own: String,
    next: Next,
    /// The last lease of this process.
    lease: Option<Lease>,
    standing: Standing,
    /// The time until which the leader may act.
    until: Duration,
    /// The reason why the store does not answer.
    trouble: Option<String>,
}

impl Elector {
    /// Returns a manager that has asked for nothing yet. `address` is the address for nodes and clients,
    /// `process` a number that no other process has.
    #[must_use]
    pub fn new(prefix: &str, ttl: u64, address: &str, process: u64) -> Self {
        Self {
            keys: Keys::of(prefix),
            ttl,
            own: format!("{address} {process:016x}"),
            next: Next::Look,
            lease: None,
            standing: Standing::Standby { leader: None },
            until: Duration::ZERO,
            trouble: None,
        }
    }

    /// Returns the position of this manager.
    #[must_use]
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Returns the time until which a leader may act.
    #[must_use]
    pub const fn until(&self) -> Duration {
        self.until
    }

    /// Returns the length of the leader's lease.
    pub(super) const fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl)
    }

    /// Returns the reason why the store does not answer, if it does not.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns the time for which a leader may act after it has asked for a renewal.
    const fn valid(&self) -> Duration {
        Duration::from_millis(self.ttl * 500)
    }

    /// Returns the longest time to wait for an answer.
    const fn patience(&self) -> Duration {
        Duration::from_millis(self.ttl * 200)
    }

    /// Sends one request at the time `now`. Returns the pause before the next one.
    pub fn step(&mut self, now: Duration, kv: &mut dyn Kv) -> Duration {
        let request = self.request();
        match kv.ask(&request, self.patience()) {
            Ok(answer) => {
                self.trouble = None;
                self.heard(now, answer)
            }
            Err(error) => self.unheard(error),
        }
    }

    fn request(&self) -> Request {
        let leader = &self.keys.leader;
        match self.next {
            Next::Look => Request::Range { from: leader.clone(), end: format!("{leader}\0"), limit: 1 },
            Next::Grant => Request::Grant { ttl: self.ttl },
            Next::Renew(Term { lease, .. }) => Request::Renew { lease },
            Next::Claim(Lease { id, .. }) => {
                let (key, value) = (leader.clone(), self.own.clone().into_bytes());
                Request::Txn(Txn {
                    when: vec![When::Absent(leader.clone())],
                    then: vec![Op::Put { key, value, lease: Some(id) }],
                    otherwise: Vec::new(),
                })
            }
        }
    }

    fn heard(&mut self, now: Duration, answer: Answer) -> Duration {
        match (self.next, answer) {
            (Next::Look, Answer::Range { pairs, .. }) => match pairs.into_iter().next() {
                Some(pair) => self.look_at(&pair),
                None => {
                    self.standing = Standing::Standby { leader: None };
                    let fresh = self.lease.filter(|lease| now < lease.asked + self.valid());
                    self.next = fresh.map_or(Next::Grant, Next::Claim);
                    Duration::ZERO
                }
            },
            (Next::Grant, Answer::Granted { lease }) => {
                let lease = Lease { id: lease, asked: now };
                (self.lease, self.next) = (Some(lease), Next::Claim(lease));
                Duration::ZERO
            }
            (Next::Claim(lease), Answer::Txn { held: true, revision, .. }) => self.lead(lease, revision),
            (Next::Renew(_), Answer::Renewed { lasts: true }) => {
                self.until = self.until.max(now + self.valid());
                self.patience()
            }
            (Next::Renew(_), _) => {
                // The lease has ended, and the key with it.
                (self.next, self.lease, self.until) = (Next::Look, None, Duration::ZERO);
                self.standing = Standing::Standby { leader: None };
                Duration::ZERO
            }
            (Next::Look | Next::Grant | Next::Claim(_), _) => {
                self.next = Next::Look;
                Duration::ZERO
            }
        }
    }

    /// Handles the leader's key. It may be the key of this manager, whose claim had no answer.
    fn look_at(&mut self, pair: &Pair) -> Duration {
        let own = self.lease.filter(|lease| pair.value == self.own.as_bytes() && pair.lease == lease.id);
        if let Some(lease) = own {
            return self.lead(lease, pair.created);
        }
        let value = String::from_utf8_lossy(&pair.value);
        let address = value.split_once(' ').map(|(address, _)| proto::printable(address));
        self.standing = Standing::Standby { leader: address };
        LOOK
    }

    fn lead(&mut self, Lease { id, asked }: Lease, revision: i64) -> Duration {
        let term = Term { revision, lease: id };
        self.until = asked + self.valid();
        (self.standing, self.next) = (Standing::Leads(term), Next::Renew(term));
        Duration::ZERO
    }

    fn unheard(&mut self, error: SaveError) -> Duration {
        self.trouble = Some(error.to_string());
        if !matches!(self.next, Next::Renew(_)) {
            // A claim may have its effect later, so the leader's key comes first.
            self.next = Next::Look;
            self.standing = Standing::Standby { leader: None };
        }
        RETRY
    }

    /// Leads at once, if no manager does.
    pub(super) fn lead_alone(&mut self, kv: &mut dyn Kv) -> Result<Term, SaveError> {
        // A look, a lease and a claim.
        for _ in 0..3 {
            self.step(Duration::ZERO, kv);
            match (&self.standing, self.trouble()) {
                (Standing::Leads(term), _) => return Ok(*term),
                (Standing::Standby { leader: Some(leader) }, _) => {
                    return Err(format!("the manager at {leader} leads: stop all managers first").into());
                }
                (Standing::Standby { leader: None }, Some(trouble)) => return Err(trouble.into()),
                (Standing::Standby { leader: None }, None) => {}
            }
        }
        Err("a manager has begun to lead: stop all managers first".into())
    }

    /// Ends the term of this manager at once, because another one leads.
    pub fn step_down(&mut self) {
        (self.next, self.lease, self.until) = (Next::Look, None, Duration::ZERO);
        self.standing = Standing::Standby { leader: None };
    }

    /// Releases the leadership, if this manager has it. The manager must not act any more.
    pub fn resign(&mut self, kv: &mut dyn Kv) {
        self.until = Duration::ZERO;
        if let Some(Lease { id, .. }) = self.lease.take() {
            // Without an answer, the lease ends by itself.
            let _ = kv.ask(&Request::Revoke { lease: id }, self.patience());
        }
        self.step_down();
    }
}
