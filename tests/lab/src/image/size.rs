//! Budgets of the image's size. A test enforces them; a user's build only prints a warning.

use crate::{tool, ui};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// The budget of the core image without symbols, in bytes: kernel, RNICs, LITE and word count.
pub(super) const CORE_BUDGET: u64 = 2_700_000;
/// The budget of an image with all applications, without symbols, in bytes.
pub const BUDGET: u64 = 4_000_000;

/// Returns the size of an image without symbols, in bytes.
pub(super) fn stripped(elf: &Path) -> Result<u64> {
    let stripped = elf.with_extension("stripped");
    tool::output(Command::new("strip").arg("-o").arg(&stripped).arg(elf))?;
    Ok(std::fs::metadata(stripped)?.len())
}

/// Returns the warning for an image that exceeds its budget.
pub(super) fn excess(bytes: u64, budget: u64) -> Option<String> {
    let (size, allowed) = (ui::bytes(bytes), ui::bytes(budget));
    (bytes > budget)
        .then(|| format!("the image has {size} ({bytes} bytes) without symbols, of {allowed} allowed"))
}

/// Fails if an image exceeds its budget. For tests.
pub fn check(bytes: u64, budget: u64) -> Result<()> {
    match excess(bytes, budget) {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_budget_fails_and_the_budget_does_not() {
        assert!(check(CORE_BUDGET, CORE_BUDGET).is_ok() && excess(0, 0).is_none());
        let why = check(CORE_BUDGET + 1, CORE_BUDGET).unwrap_err().to_string();
        assert!(why.contains(&format!("{} bytes", CORE_BUDGET + 1)), "{why}");
        assert_eq!(excess(CORE_BUDGET + 1, CORE_BUDGET), Some(why));
    }
}
