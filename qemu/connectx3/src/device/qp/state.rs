//! The states of a queue pair, and the commands that change them.
//!
//! ```text
//!          RST2INIT        INIT2RTR                  RTR2RTS
//!   Reset ----------> Init ---------> ReadyToReceive --------> ReadyToSend
//!                                                               ^ |    ^ |
//!                                                       SQD2RTS | |    | | a send fails without the
//!                                                               | |    | | connection (UC, UD, raw)
//!                                                               | |    | |
//!                                                       RTS2SQD | v    | v
//!                                                 SendQueueDrained    SendQueueError
//!                                                                     SQERR2RTS leads back
//!
//!   any state but Reset --- 2ERR, or the transport fails ---> Error
//!   any state ------------- 2RST ---------------------------> Reset
//! ```
//!
//! INIT2INIT, RTS2RTS and SQD2SQD change the context and keep the state.

use crate::device::opcode as op;

/// The state of a queue pair, by its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueError = 4,
    SendQueueDrained = 5,
    Error = 6,
}

impl State {
    /// Returns whether the card fetches work from the send ring, to execute it or to flush it.
    #[must_use]
    pub(crate) const fn takes_sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueError | Self::Error)
    }

    /// Returns whether the queue pair accepts messages.
    #[must_use]
    pub(crate) const fn receives(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Error)
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    /// Extended reliable connection. Its receives come from the shared receive queues that its peer names.
    Xrc,
    /// Special queue pairs and raw Ethernet: the guest builds the headers.
    Raw,
}

/// The command of a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    ResetToInit,
    InitToInit,
    InitToRtr,
    RtrToRts,
    RtsToRts,
    SqErrorToRts,
    RtsToSqd,
    SqdToSqd,
    SqdToRts,
    ToError,
    ToReset,
}

impl Transition {
    /// Returns the transition of an opcode.
    #[must_use]
    pub(crate) const fn from_opcode(opcode: u16) -> Option<Self> {
        Some(match opcode {
            op::RST2INIT_QP => Self::ResetToInit,
            op::INIT2RTR_QP => Self::InitToRtr,
            op::RTR2RTS_QP => Self::RtrToRts,
            op::RTS2RTS_QP => Self::RtsToRts,
            op::SQERR2RTS_QP => Self::SqErrorToRts,
            op::TO_ERR_QP => Self::ToError,
            op::RTS2SQD_QP => Self::RtsToSqd,
            op::SQD2RTS_QP => Self::SqdToRts,
            op::TO_RST_QP => Self::ToReset,
            op::INIT2INIT_QP => Self::InitToInit,
            op::SQD2SQD_QP => Self::SqdToSqd,
            _ => return None,
        })
    }

    /// Returns whether the command has a mailbox with a context.
    #[must_use]
    pub(crate) const fn has_context(self) -> bool {
        !matches!(self, Self::ToError | Self::ToReset)
    }

    /// Returns the state after the transition, if it is allowed from `state`.
    #[must_use]
    pub(crate) fn from(self, state: State) -> Option<State> {
        use State as S;
        match (self, state) {
            (Self::ResetToInit, S::Reset) | (Self::InitToInit, S::Init) => Some(S::Init),
            (Self::InitToRtr, S::Init) => Some(S::ReadyToReceive),
            (Self::RtrToRts, S::ReadyToReceive)
            | (Self::RtsToRts, S::ReadyToSend)
            | (Self::SqErrorToRts, S::SendQueueError)
            | (Self::SqdToRts, S::SendQueueDrained) => Some(S::ReadyToSend),
            (Self::RtsToSqd, S::ReadyToSend) | (Self::SqdToSqd, S::SendQueueDrained) => {
                Some(S::SendQueueDrained)
            }
            (Self::ToError, S::Reset) => None,
            (Self::ToError, _) => Some(S::Error),
            (Self::ToReset, _) => Some(S::Reset),
            _ => None,
        }
    }
}
