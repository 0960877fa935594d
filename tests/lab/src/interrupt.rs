//! Ctrl-C and SIGTERM: waiting code notices them, so that everything is cleaned up. The second one ends the
//! program at once.

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Records interrupts from now on instead of ending.
pub fn watch() -> Result<()> {
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(())
}

/// Returns an error once there was an interrupt.
pub fn check() -> Result<()> {
    if INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}
