//! The flush of work in the rings of a failed queue pair.

use super::completed::name;
use super::rings::Broken;
use super::{Qp, State};
use crate::device::host::Host;
use roce::transport::Env;
use verbs::{Completion, Status, WorkKind};

/// Completes the posted sends as flushed, at most one lap of the send ring.
pub(crate) fn sends(qp: &mut Qp, host: &dyn Host, env: &mut Env<'_>) {
    if qp.context.is_xrc_target() {
        return;
    }
    for _ in 0..qp.send.entries() {
        let Ok(Some((index, control, _))) = qp.send.next(&qp.memory, host) else { return };
        let id = name(index, control.code());
        let flushed = Completion::new(id, qp.number, Status::WorkRequestFlushed, WorkKind::Send);
        env.completions.send_ended(&flushed, true);
    }
}

/// Flushes the receive ring, at most one lap of it. Returns whether it contained anything.
pub(crate) fn receives(qp: &mut Qp, host: &dyn Host, env: &mut Env<'_>) -> bool {
    if qp.context.shares_receives() {
        return false;
    }
    for lap in 0..qp.receive.entries() {
        let Ok(Some(index)) = qp.receive.skip(host) else { return lap > 0 };
        let flushed = Completion::new(name(index, 0), qp.number, Status::WorkRequestFlushed, WorkKind::Recv);
        env.completions.recv_ended(&flushed);
    }
    true
}

/// Fails a queue pair whose ring contains an invalid entry, behind which nothing can be parsed. A work
/// request of invalid size completes with that error; an unreadable ring is reported by an event.
pub(crate) fn broken(qp: &mut Qp, why: Broken, env: &mut Env<'_>) {
    log::warn!("{:?}: {why}", qp.number);
    match why {
        Broken::Malformed(_) => {
            let status = Status::LocalQpOperationError;
            let failed = Completion::new(name(qp.send.index(), 0), qp.number, status, WorkKind::Send);
            env.completions.send_ended(&failed, true);
        }
        Broken::Dma(_) => qp.fatal = true,
    }
    qp.transport.fail(env);
    qp.state = State::Error;
}
