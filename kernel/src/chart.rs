//! The boot chart: the time of each stage of the boot, in microseconds since the first instruction.

use crate::arch::cpu;
use crate::sync::IrqMutex;
use crate::time;

const MAX_STAGES: usize = 32;

struct Chart {
    stages: [(&'static str, u64); MAX_STAGES],
    len: usize,
}

static CHART: IrqMutex<Chart> = IrqMutex::new(Chart { stages: [("", 0); MAX_STAGES], len: 0 });

/// Records that `stage` is done now. Usable from the first instruction on.
// One copy for all stages: code that runs once is loaded, or translated, once.
#[inline(never)]
pub(crate) fn mark(stage: &'static str) {
    let now = cpu::tsc();
    let mut chart = CHART.lock();
    // A stage may be repeated: an attempt to join. The last time counts.
    let at = chart.stages.iter().take(chart.len).position(|(name, _)| *name == stage).unwrap_or(chart.len);
    if let Some(slot) = chart.stages.get_mut(at) {
        *slot = (stage, now);
        chart.len = chart.len.max(at + 1);
    }
}

/// Prints the chart, one stage a line: `bootchart: <stage> <microseconds since entry>`.
pub(crate) fn print() {
    each(|stage, us| crate::println!("bootchart: {stage:<20} {us:>8} us"));
}

/// Calls `f` with each stage and its time in microseconds since the first instruction. No lock is held during
/// the call.
pub(crate) fn each(mut f: impl FnMut(&'static str, u32)) {
    for i in 0..MAX_STAGES {
        let (stage, tsc) = {
            let chart = CHART.lock();
            match chart.stages.get(i).filter(|_| i < chart.len) {
                Some(s) => *s,
                None => return,
            }
        };
        f(stage, u32::try_from(time::at_tsc(tsc).as_nanos() / 1000).unwrap_or(u32::MAX));
    }
}
