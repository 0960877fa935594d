//! The destination of a benchmark's figures, and the rule by which they are judged.

use super::gaps::Gaps;
use super::host::Host;
use super::target::{self, Target};
use crate::output;
use anyhow::Result;
use clap::Args;
use lab::interrupt;
use serde::Serialize;
use std::path::PathBuf;
use tempfile::NamedTempFile;

/// The options of a benchmark that writes and judges figures.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Options {
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Refuses to start while the machine is busy, and fails if a target is missed or was not measured
    #[arg(long)]
    strict: bool,
}

impl Options {
    /// Begins a benchmark: describes the host, opens the file for the figures, and watches for an interrupt.
    pub(super) fn begin(&self) -> Result<(Host, Destination)> {
        let host = Host::ready(self.strict)?;
        let json = self.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
        interrupt::watch()?;
        Ok((host, Destination { json, strict: self.strict }))
    }
}

/// A benchmark's destination while it runs.
pub(super) struct Destination {
    json: Option<(NamedTempFile, PathBuf)>,
    strict: bool,
}

impl Destination {
    /// Writes the figures, and judges their targets.
    pub(super) fn end(self, figures: &impl Serialize, targets: &[Target], gaps: &Gaps) -> Result<()> {
        if let Some((file, path)) = self.json {
            super::write_json(figures, file, &path)?;
        }
        target::judge(self.strict, targets, gaps.all())
    }
}
