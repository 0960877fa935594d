//! The daemon of a manager that shares its state with others: it waits as a standby, leads when it is
//! elected, and is a standby again when its term ends.

use super::election::{Elector, Term};
use super::kv::Kv;
use super::state::State;
use super::tenure::{Election, Tenure};
use crate::daemon::acceptor::Acceptor;
use crate::daemon::connection::Shared;
use crate::daemon::{Daemon, DaemonError, Ended, Options, Reload, Reloads, door, limits, listen};
use crate::http::{self, Tls};
use crate::log::Log;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The pause after an attempt to take over that has failed.
const AGAIN: Duration = Duration::from_millis(200);

/// A group of managers that share their state.
#[derive(Debug)]
pub struct Group {
    /// The store that they share.
    pub store: Box<dyn Kv>,
    /// The beginning of all keys of the group.
    pub prefix: String,
    /// The length of the leader's lease, in seconds.
    pub ttl: u64,
    /// The address of this manager for nodes and clients. `None`: the one on which it listens.
    pub advertise: Option<String>,
}

/// A manager of a group that listens.
#[derive(Debug)]
pub struct Candidate {
    listener: TcpListener,
    web: Option<TcpListener>,
    /// The SHA-256 of the certificate.
    certificate: Option<String>,
    complaint: Option<String>,
    options: Options,
    group: Group,
    reloads: Reloads,
}

impl Candidate {
    /// Opens the ports, and raises the process's limit of open files. The directory of the state is not used.
    pub async fn bind(mut options: Options, group: Group) -> Result<Self, DaemonError> {
        let detach = |listener: tokio::net::TcpListener| listener.into_std().map_err(DaemonError::Socket);
        let listener = detach(listen(options.listen).await?)?;
        let (mut web, mut certificate, mut complaint) = (None, None, None);
        if let Some(http) = &mut options.http {
            let listener = detach(listen(http.listen).await?)?;
            http.listen = listener.local_addr().map_err(DaemonError::Socket)?;
            if let Some(directory) = &http.tls {
                let tls = Tls::load_or_make(directory, http.listen.ip())?;
                complaint = tls.check_time().err().map(|complaint| complaint.to_string());
                certificate = Some(tls.fingerprint);
            }
            web = Some(listener);
        }
        let reloads = Reloads::default();
        Ok(Self { listener, web, certificate, complaint, options, group, reloads })
    }

    /// Accepts new settings, as [`Daemon::reloads`] does. A standby uses them once it leads.
    #[must_use]
    pub fn reloads(mut self, reloads: mpsc::Receiver<Result<Reload, String>>) -> Self {
        self.reloads = Reloads::of(reloads);
        self
    }

    /// Returns the address on which the manager listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the address on which the manager serves HTTP, if it does.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.web.as_ref()?.local_addr().ok()
    }

    /// Returns the SHA-256 of the certificate, for people, if HTTP is served with TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// Returns the reason why clients refuse the certificate, if they do.
    #[must_use]
    pub fn certificate_complaint(&self) -> Option<String> {
        self.complaint.clone()
    }

    /// Waits for the leadership and leads, again and again, until `stop` is done. Then gives the leadership
    /// back. Nodes, jobs and clients go on with the next leader.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let writer = Log::start(io::stderr(), self.options.format).map_err(DaemonError::Thread)?;
        let ended = self.serve_with(stop, writer.log()).await;
        writer.finish(crate::daemon::LAST_LINES);
        ended
    }

    async fn serve_with(mut self, stop: impl Future<Output = ()>, log: Log) -> Result<(), DaemonError> {
        let own = self.local_addr().map_err(DaemonError::Socket)?;
        let address = self.group.advertise.clone().unwrap_or_else(|| own.to_string());
        let mut process = [0; 8];
        getrandom::fill(&mut process)?;
        let process = u64::from_le_bytes(process);
        let elector = Elector::new(&self.group.prefix, self.group.ttl, &address, process);
        let election = Election::start(elector, self.group.store.another()).map_err(DaemonError::Thread)?;
        let tenure = election.tenure.clone();
        let stop = std::pin::pin!(stop);
        let ended = tokio::select! {
            ended = self.take_turns(&tenure, stop, &log) => ended,
            failure = election.failure() => Err(DaemonError::Thread(failure)),
        };
        log.line("gives the leadership back");
        let _ = tokio::task::spawn_blocking(move || election.resign()).await;
        ended
    }

    /// Waits for the leadership and leads, again and again, until `stop` is done.
    async fn take_turns(
        &mut self,
        tenure: &Tenure,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        log: &Log,
    ) -> Result<(), DaemonError> {
        loop {
            let term = tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                term = self.stand_by(tenure, log) => term?,
            };
            if self.lead(term, tenure, stop.as_mut(), log).await? == Ended::Stopped {
                return Ok(());
            }
        }
    }

    /// Refuses all peers until this manager is elected.
    async fn stand_by(&mut self, tenure: &Tenure, log: &Log) -> Result<Term, DaemonError> {
        let Self { listener, web, certificate, options, reloads, .. } = self;
        let (core, _) = mpsc::channel(1);
        let keys = options.roles()?;
        let shared = Arc::new(Shared { keys, core, log: log.clone(), tenure: Some(tenure.clone()) });
        let (_open, opened) = oneshot::channel::<()>();
        let door = door(limits::raise_descriptors(), log);
        let accepting = Acceptor::new(again(listener)?, door, shared).run(opened);
        let web = async {
            match web {
                Some(web) => http::stand_by(again(web)?, certificate.is_some(), tenure.clone()).await,
                None => std::future::pending().await,
            }
            Ok::<(), DaemonError>(())
        };
        let mut said = String::new();
        let told = async {
            loop {
                // The reason why etcd does not answer may change with each request.
                let kind = |reason: &str| reason.split("etcd at").next().unwrap_or_default().to_owned();
                if let Some(reason) = tenure.refusal().filter(|reason| kind(reason) != said) {
                    log.line(&reason);
                    said = kind(&reason);
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        let elected = async {
            loop {
                let term = tenure.won().await;
                tenure.may_act().await;
                if tenure.holds() {
                    return term;
                }
            }
        };
        let settled = async {
            while let Some(reload) = reloads.next().await {
                match reload {
                    Ok(_) => log.line("has read its settings again"),
                    Err(reason) => log.line(&format!("keeps its settings: {reason}")),
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            term = elected => Ok(term),
            _ = accepting => std::future::pending().await,
            ended = web => match ended {
                Ok(()) => std::future::pending().await,
                Err(error) => Err(error),
            },
            () = told => std::future::pending().await,
            () = settled => std::future::pending().await,
        }
    }

    /// Takes over the state and acts until the term ends.
    async fn lead(
        &mut self,
        term: Term,
        tenure: &Tenure,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        log: &Log,
    ) -> Result<Ended, DaemonError> {
        log.line(&format!("leads in term {}", term.revision));
        let (kv, prefix, right) = (self.group.store.another(), self.group.prefix.clone(), tenure.clone());
        let taking = tokio::task::spawn_blocking(move || State::take_over(kv, &prefix, term, right));
        let taken = tokio::select! {
            biased;
            () = stop.as_mut() => return Ok(Ended::Stopped),
            taken = taking => taken,
        };
        let (store, saved) = match taken {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => {
                log.line(&format!("cannot take over the state: {error}"));
                tokio::time::sleep(AGAIN).await;
                return Ok(Ended::Lost);
            }
            Err(_) => return Ok(Ended::Lost),
        };
        let mut options = self.options.clone();
        self.reloads.settle(&mut options);
        let web = self.web.as_ref().map(again).transpose()?;
        let daemon = Daemon::assemble(again(&self.listener)?, web, options, store, saved)?;
        let ended = daemon.run(stop, log.clone(), Some((tenure.clone(), term)), &mut self.reloads).await?;
        if ended == Ended::Lost {
            log.line("closes all connections, because it cannot renew its leadership or has lost it");
        }
        Ok(ended)
    }
}

/// Returns another handle of a listening socket, which outlasts its users.
fn again(listener: &TcpListener) -> Result<tokio::net::TcpListener, DaemonError> {
    listener.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(DaemonError::Socket)
}
