//! The receives of a queue pair, from its own ring or from a shared receive queue.

use super::completed::{index_of, name, shared_name, srqn_of};
use super::connected::{RECEIVE_DEPTH, Shared, resolve};
use super::rings::Scatter;
use super::unfit::Unfit;
use super::{Qp, Service, State};
use crate::device::host::Host;
use crate::device::memory::{Access, Domain, Keyed, address};
use roce::transport::Env;
use roce::wire::Operation;
use verbs::{Completion, RecvWr, Sge, WorkKind};

/// Returns whether a request starts to use a receive or completes one. A receive that a message in progress
/// needs is already posted.
#[must_use]
pub(crate) const fn takes_receive(operation: Operation) -> bool {
    use Operation as O;
    matches!(
        operation,
        O::SendFirst
            | O::SendOnly
            | O::SendOnlyImm
            | O::SendOnlyInvalidate
            | O::WriteLastImm
            | O::WriteOnlyImm
    )
}

/// Posts receives from the guest's ring until the transport holds enough. The receives of an XRC queue pair
/// come from the shared queue that the peer names.
pub(crate) fn take_receives(
    qp: &mut Qp,
    named: Option<u32>,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    shared: &mut Shared<'_>,
) {
    let own = qp.context.domain();
    let srqn = match (qp.context.xrc_domain(), named) {
        (Some(domain), Some(srqn)) if shared.srqs.is_in(srqn, domain) => Some(srqn),
        // The transport refuses the request.
        _ if qp.service == Service::Xrc => return,
        _ => qp.context.srqn(),
    };
    let mut list: Vec<Scatter> = Vec::new();
    // From a shared queue only the receive needed now is fetched, because others use the queue too.
    let enough = if srqn.is_some() { 1 } else { RECEIVE_DEPTH / 2 };
    while qp.state != State::Error && qp.transport.receives_posted() < enough {
        let taken = match srqn {
            Some(srqn) => shared.srqs.next(srqn, keyed.host, &mut list),
            None => qp
                .receive
                .next(&qp.memory, keyed.host, &mut list)
                .map(|index| index.map(|index| (index, own.pd))),
        };
        let (index, pd) = match taken {
            Ok(None) => return,
            Ok(Some(taken)) => taken,
            Err(e) => {
                super::flush::broken(qp, e.into(), env);
                return;
            }
        };
        let who = Domain { pd, ..own };
        // A refused element fails the messages that reach it, and only those.
        let element = |e: &Scatter| {
            resolve(keyed, who, e.lkey, e.va, e.len, Access::LocalWrite).unwrap_or_else(|refused| {
                log::warn!("queue pair {:#x}: receive {index}: {refused}", own.qpn);
                Some(Sge { addr: address::NOWHERE, len: e.len })
            })
        };
        let scatter: Vec<Sge> = list.iter().filter_map(element).collect();
        let id = srqn.map_or(name(index, 0), |srqn| shared_name(index, srqn));
        if let Err(e) = qp.transport.post_recv(&RecvWr { id, scatter: &scatter }, env) {
            log::warn!("{:?}: receive {index}: {e}", qp.number);
            let failed = Completion::new(id, qp.number, Unfit::from(e).status(), WorkKind::Recv);
            env.completions.recv_ended(&failed);
            qp.transport.fail(env);
        }
    }
}

/// Returns unused receives to the shared queue from which they were fetched.
pub(crate) fn return_receives(qp: &mut Qp, named: Option<u32>, host: &dyn Host, shared: &mut Shared<'_>) {
    if !qp.context.shares_receives() {
        return;
    }
    while let Some(id) = qp.transport.take_back_receive() {
        shared.srqs.give_back(srqn_of(id), index_of(id));
    }
    if let Some(srqn) = qp.context.srqn().or(named) {
        shared.srqs.watch_limit(srqn, shared.eqs, host);
    }
}
