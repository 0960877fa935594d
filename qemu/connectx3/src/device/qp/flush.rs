//! What becomes of work in the rings of a queue pair that has failed.

use super::connected::name;
use super::rings::Broken;
use super::{Qp, State};
use crate::device::host::Host;
use roce::transport::Env;
use verbs::{Completion, Status, WorkKind};

/// Ends what is in the send ring as flushed, at most one lap of it.
pub fn sends(qp: &mut Qp, host: &dyn Host, env: &mut Env<'_>) {
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

/// Ends what is in the receive ring as flushed, at most one lap of it; gives whether there was something.
pub fn receives(qp: &mut Qp, host: &dyn Host, env: &mut Env<'_>) -> bool {
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

/// A ring holds what cannot be understood, and so not what is behind it either. A work request whose size makes no sense
/// ends with that; if the ring cannot be read, an event says so.
pub fn broken(qp: &mut Qp, why: Broken, env: &mut Env<'_>) {
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
