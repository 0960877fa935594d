//! The formats and rings that driver and card share while data flows: work requests, completions, and
//! doorbells.

pub(crate) mod cqe;
pub(crate) mod doorbell;
pub(crate) mod ring;
pub(crate) mod wqe;
