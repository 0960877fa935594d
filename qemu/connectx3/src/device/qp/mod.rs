//! Queue pairs: their contexts and queues.

mod context;
mod rings;
pub mod wqe;

pub use context::{Context, Service, State, Transition};
pub use rings::{Broken, ReceiveRing, Scatter, SendRing};
use rings::Ring;

use super::hcr::Status;
use super::host::Host;
use super::mailbox::Mailbox;
use super::queue_memory::{MttTable, QueueMemory};
use std::collections::BTreeMap;

/// A queue pair that the card owns.
pub struct Qp {
    /// Its context.
    pub context: Context,
    /// Its state.
    pub state: State,
    /// What it speaks.
    pub service: Service,
    /// Its buffer.
    pub memory: QueueMemory,
    /// Send ring.
    pub send: SendRing,
    /// Receive ring.
    pub receive: ReceiveRing,
}

/// All of them.
#[derive(Default)]
pub struct Qps {
    by_number: BTreeMap<u32, Qp>,
}

impl Qps {
    /// A transition.
    pub fn transition(
        &mut self,
        qpn: u32,
        transition: Transition,
        mailbox: &Mailbox,
        table: MttTable<'_>,
        host: &dyn Host,
    ) -> Result<(), Status> {
        let state = self.by_number.get(&qpn).map_or(State::Reset, |qp| qp.state);
        let next = transition.from(state).ok_or(Status::BadQpState)?;
        match (transition, self.by_number.get_mut(&qpn)) {
            (Transition::ToReset, _) => {
                self.by_number.remove(&qpn);
            }
            (Transition::ResetToInit, _) => {
                self.by_number.insert(qpn, create(mailbox, table, host)?);
            }
            (_, Some(qp)) => {
                qp.context.update(transition, mailbox);
                qp.state = next;
            }
            (_, None) => return Err(Status::BadQpState),
        }
        Ok(())
    }

    /// A queue pair by its number.
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        self.by_number.get_mut(&qpn)
    }

    /// QUERY_QP.
    pub fn query(&self, qpn: u32, out: &mut Mailbox) -> Result<(), Status> {
        let qp = self.by_number.get(&qpn).ok_or(Status::BadResource)?;
        qp.context.query(qp.state, out);
        Ok(())
    }
}

fn create(mailbox: &Mailbox, table: MttTable<'_>, host: &dyn Host) -> Result<Qp, Status> {
    let mut context = Context::default();
    context.update(Transition::ResetToInit, mailbox);
    let service = context.service().ok_or(Status::BadParameter)?;
    let (send_size, receive_size) = (context.send_size(), context.receive_size());
    let ring = |(log_entries, log_stride)| Ring { offset: 0, log_entries, log_stride };
    let (mut send, mut receive) = (ring(send_size), ring(receive_size));
    let (mtt, log_page, offset) = context.buffer();
    // A queue pair on a shared receive queue has no ring of its own.
    let own_receive = if context.srqn().is_some() { 0 } else { receive.bytes() };
    // The ring with the larger entries comes first; of equal ones, the send ring.
    if receive.log_stride > send.log_stride {
        send.offset = own_receive;
    } else {
        receive.offset = send.bytes();
    }
    let len = send.bytes() + own_receive;
    let memory = QueueMemory::new(table, host, mtt, log_page, offset, len).ok_or(Status::IcmError)?;
    let receive = ReceiveRing::new(receive, context.receive_record());
    Ok(Qp { context, state: State::Init, service, memory, send: SendRing::new(send), receive })
}
