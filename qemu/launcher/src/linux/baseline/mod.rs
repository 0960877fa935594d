//! The baselines to which the appliance is compared: the same work on Linux, in the same kind of machine.

mod rxe;
mod words;

pub use rxe::{RxeBaseline, RxePair, Wire};
pub use words::{PipelineRun, WordCountGuest, WordRate, build_rate};
