//! The right of a manager to act, which its election grants and which each of its threads asks for.

use super::election::{Elector, Standing, Term};
use super::kv::Kv;
use proto::{standby_behind, standby_without};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// Returns the time since the start of the host. It counts also while the host or the process is stopped.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let parts = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(parts.0.unwrap_or_default(), parts.1.unwrap_or_default())
}

/// The state of the election, as the other threads see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    standing: Standing,
    /// The reason why the store does not answer.
    trouble: Option<String>,
}

/// The right to act. Clones share it.
#[derive(Clone, Debug)]
pub struct Tenure(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The time until which the leader may act, in nanoseconds of [`now`].
    until: AtomicU64,
    view: watch::Sender<View>,
    /// The length of the leader's lease.
    ttl: Duration,
    /// Wakes the election, with the term that has ended.
    ended: mpsc::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    /// Another manager leads.
    End(Term),
    /// Give the leadership back.
    Resign,
}

/// The thread of an election.
#[derive(Debug)]
pub(crate) struct Election {
    pub(crate) tenure: Tenure,
    thread: JoinHandle<()>,
}

impl Election {
    /// Starts the election of a manager.
    pub(crate) fn start(mut elector: Elector, mut kv: Box<dyn Kv>) -> io::Result<Self> {
        let (ended, orders) = mpsc::channel();
        let standing = elector.standing().clone();
        let (view, _) = watch::channel(View { standing, trouble: None });
        let (until, ttl) = (AtomicU64::new(0), elector.ttl());
        let tenure = Tenure(Arc::new(Shared { until, view, ttl, ended }));
        let own = tenure.clone();
        let thread = thread::Builder::new().name("election".into()).spawn(move || {
            loop {
                let pause = elector.step(now(), &mut *kv);
                own.publish(&elector);
                match orders.recv_timeout(pause) {
                    Ok(Order::End(term)) if *elector.standing() == Standing::Leads(term) => {
                        elector.step_down();
                        own.publish(&elector);
                    }
                    Ok(Order::Resign) | Err(RecvTimeoutError::Disconnected) => break,
                    Ok(Order::End(_)) | Err(RecvTimeoutError::Timeout) => {}
                }
            }
            own.forbid();
            elector.resign(&mut *kv);
            own.publish(&elector);
        })?;
        Ok(Self { tenure, thread })
    }

    /// Waits until the thread has ended by a failure, which ends this manager too.
    pub(crate) async fn failure(&self) -> io::Error {
        while !self.thread.is_finished() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.tenure.forbid();
        io::Error::other("the thread of the election has ended")
    }

    /// Releases the leadership, if this manager has it. Returns once the store has answered, or does not.
    pub(crate) fn resign(self) {
        let _ = self.tenure.0.ended.send(Order::Resign);
        let _ = self.thread.join();
    }
}

impl Tenure {
    /// Returns a right without an election, which never holds: for a state that is used without a daemon.
    #[must_use]
    pub fn detached() -> Self {
        let (ended, _) = mpsc::channel();
        let standing = Standing::Standby { leader: None };
        let (view, _) = watch::channel(View { standing, trouble: None });
        Self(Arc::new(Shared { until: AtomicU64::new(0), view, ttl: Duration::ZERO, ended }))
    }

    fn publish(&self, elector: &Elector) {
        let until = u64::try_from(elector.until().as_nanos()).unwrap_or(0);
        self.0.until.store(until, Ordering::SeqCst);
        let view =
            View { standing: elector.standing().clone(), trouble: elector.trouble().map(str::to_owned) };
        self.0.view.send_if_modified(|present| {
            let changed = *present != view;
            *present = view;
            changed
        });
    }

    fn forbid(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Returns true if this manager leads, and may act now.
    pub(crate) fn holds(&self) -> bool {
        now() < Duration::from_nanos(self.0.until.load(Ordering::SeqCst))
    }

    /// Ends a term of this manager, because the store says that another one leads.
    pub(super) fn end(&self, term: Term) {
        self.forbid();
        let _ = self.0.ended.send(Order::End(term));
    }

    /// Waits until this manager leads, and returns its term.
    pub(crate) async fn won(&self) -> Term {
        let mut view = self.0.view.subscribe();
        loop {
            if let Standing::Leads(term) = view.borrow_and_update().standing {
                return term;
            }
            if view.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until a term has ended.
    pub(crate) async fn lost(&self, term: Term) {
        let mut view = self.0.view.subscribe();
        while view.borrow_and_update().standing == Standing::Leads(term) {
            if view.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the leader may act. Returns false if it does not within the length of its lease, or has
    /// become a standby: its peers must look for another leader then.
    pub(crate) async fn regained(&self) -> bool {
        tokio::time::timeout(self.0.ttl, self.may_act()).await.is_ok() && self.holds()
    }

    /// Waits until the leader may act, or has become a standby.
    pub(crate) async fn may_act(&self) {
        // The time until which it may act is no part of what is watched.
        while !self.holds() && matches!(self.0.view.borrow().standing, Standing::Leads(_)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the reason why peers must ask another manager, or ask later. `None`: this manager acts.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.holds() {
            return None;
        }
        let View { standing, trouble } = &*self.0.view.borrow();
        let trouble = trouble.as_deref();
        Some(match standing {
            Standing::Standby { leader: Some(leader) } => standby_behind(leader),
            Standing::Standby { leader: None } => standby_without(trouble.unwrap_or("no manager leads now")),
            Standing::Leads(_) => {
                let trouble = trouble.unwrap_or("it waits for the answer of etcd");
                standby_without(&format!("it cannot renew its leadership, and changes nothing: {trouble}"))
            }
        })
    }
}
