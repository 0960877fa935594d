//! Queue pairs: their contexts and queues.

pub(super) mod completed;
pub(super) mod connected;
mod context;
pub(super) mod datagram;
pub(super) mod flush;
mod gather;
pub(super) mod local;
mod path;
pub(super) mod receives;
mod rings;
mod state;
pub(super) mod syndrome;
mod transport;
mod tunnel;
mod unfit;
pub(super) mod wqe;

pub(super) use context::Context;
use context::Live;
pub(super) use gather::gather;
use rings::Ring;
pub(super) use rings::{MAX_RECEIVE, MAX_WQE, ReceiveRing, Scatter, SendRing, scatter_list};
pub(crate) use state::{Service, State, Transition};
pub(super) use transport::{Connection, Ended, Transport};

use super::ethernet::rss::Rss;
use super::hcr::Status;
use super::host::Host;
use super::mailbox::Mailbox;
use super::port::Port;
use super::queue_memory::{Held, MttTable, QueueMemory};
use platform::Instant;
use std::collections::BTreeMap;
use verbs::QpNum;

/// A queue pair that the card owns.
pub(super) struct Qp {
    /// The queue pair number.
    pub number: QpNum,
    /// The context.
    pub context: Context,
    /// The state of the queue pair.
    pub state: State,
    /// The transport service.
    pub service: Service,
    /// The buffer of the rings.
    pub memory: QueueMemory,
    /// The send ring.
    pub send: SendRing,
    /// The receive ring.
    pub receive: ReceiveRing,
    /// The transport's state machine.
    pub transport: Transport,
    /// The receive side scaling context, if the queue pair distributes frames over others.
    pub rss: Option<Box<Rss>>,
    /// True if the ring or the completion queue is inaccessible and an event must report it.
    pub fatal: bool,
    /// True if the queue pair has received a packet since it became ready to receive.
    pub has_received: bool,
    /// The queue pair's share of the process's memory limit.
    _held: Held,
    /// `Some` while the send queue drains; `true` if an event must report its end.
    pub draining: Option<bool>,
}

/// All queue pairs of a card.
#[derive(Default)]
pub(super) struct Qps {
    by_number: BTreeMap<u32, Qp>,
}

impl Qps {
    /// Runs the command of a transition.
    pub(super) fn transition(
        &mut self,
        qpn: u32,
        transition: Transition,
        mailbox: &Mailbox,
        table: MttTable<'_>,
        ports: &[Port],
        host: &dyn Host,
    ) -> Result<(), Status> {
        let state = self.by_number.get(&qpn).map_or(State::Reset, |qp| qp.state);
        let next = transition.from(state).ok_or(Status::BadQpState)?;
        match (transition, self.by_number.get_mut(&qpn)) {
            (Transition::ToReset, _) => {
                self.by_number.remove(&qpn);
            }
            (Transition::ResetToInit, _) => {
                self.by_number.insert(qpn, create(qpn, mailbox, table, host)?);
            }
            (_, Some(qp)) => {
                qp.context.update(transition, mailbox);
                qp.follow(transition, ports)?;
                qp.state = next;
                qp.draining = None;
            }
            (_, None) => return Err(Status::BadQpState),
        }
        Ok(())
    }

    /// Returns a queue pair by number.
    pub(super) fn get(&self, qpn: u32) -> Option<&Qp> {
        self.by_number.get(&qpn)
    }

    /// Returns a queue pair by number, for modification.
    pub(super) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        self.by_number.get_mut(&qpn)
    }

    /// Returns the queue pairs whose deadline has passed, and the earliest deadline of the others.
    pub(super) fn due(&self, now: Instant) -> (Vec<u32>, Instant) {
        let (mut due, mut next) = (Vec::new(), Instant::MAX);
        for (&qpn, qp) in &self.by_number {
            match qp.transport.deadline() {
                Some(at) if at <= now => due.push(qpn),
                Some(at) => next = next.min(at),
                None => {}
            }
        }
        (due, next)
    }

    /// UPDATE_QP: changes the fields that may change at any time.
    pub(super) fn amend(&mut self, qpn: u32, mailbox: &Mailbox) -> Result<(), Status> {
        self.get_mut(qpn).ok_or(Status::BadResource)?.context.amend(mailbox);
        Ok(())
    }

    /// QUERY_QP: writes the context of a queue pair to `out`.
    pub(super) fn query(&self, qpn: u32, out: &mut Mailbox) -> Result<(), Status> {
        let qp = self.by_number.get(&qpn).ok_or(Status::BadResource)?;
        let mut live = qp.context.clone();
        live.set_live(&qp.live());
        live.query(if qp.draining.is_some() { DRAINING } else { qp.state as u32 }, out);
        Ok(())
    }
}

/// The state code of a draining send queue, which is not a separate state.
const DRAINING: u32 = 7;

impl Qp {
    /// Returns whether all requests fetched from the send ring have ended.
    #[must_use]
    pub(super) fn sends_idle(&self) -> bool {
        match &self.transport {
            Transport::Connected(connection) => connected::is_idle(connection),
            Transport::Datagram(_) | Transport::Raw => true,
        }
    }

    /// Returns the fields of the context that the card updates.
    fn live(&self) -> Live {
        let (send, acknowledged, receive) = match &self.transport {
            Transport::Connected(connection) => connection.psns(),
            Transport::Datagram(_) | Transport::Raw => {
                (self.context.send_psn(), self.context.send_psn(), self.context.receive_psn())
            }
        };
        Live {
            send_psn: send,
            acknowledged_psn: acknowledged,
            receive_psn: receive,
            receive_index: self.receive.index(),
            send_index: self.send.index(),
        }
    }

    /// Applies a transition to the transport.
    fn follow(&mut self, transition: Transition, ports: &[Port]) -> Result<(), Status> {
        let context = &self.context;
        // Some drivers mark the queue pair as Ethernet only in a later transition.
        if self.service == Service::Raw && context.is_ethernet() {
            self.transport = Transport::Raw;
        }
        match (&mut self.transport, transition) {
            (transport, Transition::SqErrorToRts) => transport.resume_sending(),
            (Transport::Connected(connection), Transition::InitToRtr) => {
                let port = ports.get(context.port()).ok_or(Status::BadParameter)?;
                let path = connected::path(context, port).ok_or(Status::BadParameter)?;
                let connect = connected::connect(context, connected::address(context));
                connection.ready_to_receive(&connect, path).map_err(|_| Status::BadQpState)?;
            }
            (Transport::Connected(connection), Transition::RtrToRts) => {
                let connect = connected::connect(context, connected::address(context));
                connection.ready_to_send(&connect).map_err(|_| Status::BadQpState)?;
            }
            (Transport::Connected(_) | Transport::Raw, _) => {}
            (Transport::Datagram(qp), _) => datagram::follow(qp, context, transition),
        }
        Ok(())
    }
}

fn create(qpn: u32, mailbox: &Mailbox, table: MttTable<'_>, host: &dyn Host) -> Result<Qp, Status> {
    let mut context = Context::default();
    context.update(Transition::ResetToInit, mailbox);
    context.set_number(qpn);
    let service = context.service().ok_or(Status::BadParameter)?;
    let (send_size, receive_size) = (context.send_size(), context.receive_size());
    let ring = |(log_entries, log_stride)| Ring { offset: 0, log_entries, log_stride };
    let (mut send, mut receive) = (ring(send_size), ring(receive_size));
    let (mtt, log_page, offset) = context.buffer();
    let own_receive = if context.has_receive_ring() { receive.bytes() } else { 0 };
    // The ring with the larger entries comes first; if they are equal, the send ring.
    if own_receive > 0 && receive.log_stride > send.log_stride {
        send.offset = own_receive;
    } else {
        receive.offset = send.bytes();
    }
    let len = send.bytes() + own_receive;
    let memory = QueueMemory::new(table, host, mtt, log_page, offset, len).ok_or(Status::IcmError)?;
    let held = table.icm.allowance().take(connected::footprint(&context)).ok_or(Status::ExceedsLimit)?;
    let transport = match service {
        Service::Rc => Transport::Connected(connected::reliable(qpn, &context)),
        Service::Uc => Transport::Connected(connected::unreliable(qpn, &context)),
        Service::Xrc => Transport::Connected(connected::extended(qpn, &context)),
        Service::Raw if context.is_ethernet() => Transport::Raw,
        // A special queue pair receives datagrams.
        Service::Ud | Service::Raw => Transport::Datagram(Box::new(datagram::transport(qpn, &context))),
    };
    let receive = ReceiveRing::new(receive, context.receive_record());
    let rss = context.rss().map(Box::new);
    let (number, send) = (QpNum::new(qpn), SendRing::new(send));
    Ok(Qp {
        number,
        context,
        state: State::Init,
        service,
        memory,
        send,
        receive,
        transport,
        rss,
        fatal: false,
        has_received: false,
        draining: None,
        _held: held,
    })
}
