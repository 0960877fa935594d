//! The graph that all sides read, written by our generator.

use anyhow::{Context, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A graph in two files: `.el` has two numbers in each line, `.wel` a weight behind them.
#[derive(Debug, Serialize)]
pub(super) struct Graph {
    pub(super) scale: u32,
    pub(super) vertices: u64,
    /// The number of edges, each of which leads in both directions.
    pub(super) edges: u64,
    /// The vertex from which searches begin.
    pub(super) source: u64,
    /// The SHA-256 of the files, in hexadecimal digits.
    el_sha256: String,
    wel_sha256: String,
    /// The path without the ending.
    #[serde(skip)]
    path: PathBuf,
}

impl Graph {
    /// Writes a graph into a directory.
    pub(super) fn write(native: &Path, dir: &Path, scale: u32) -> Result<Self> {
        let path = dir.join(format!("kron-{scale}"));
        let mut command = Command::new(native);
        command.arg("--write").arg(&path).args(["--scale", &scale.to_string()]);
        let said = super::program::run(&mut command)?;
        let number = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            line.with_context(|| format!("the generator does not tell the number of {name}"))
        };
        let mut graph = Self {
            scale,
            vertices: number("vertices")?,
            edges: number("edges")?,
            source: number("source")?,
            el_sha256: String::new(),
            wel_sha256: String::new(),
            path,
        };
        graph.el_sha256 = sha256(&graph.plain())?;
        graph.wel_sha256 = sha256(&graph.weighted())?;
        Ok(graph)
    }

    /// Returns the file without weights.
    pub(super) fn plain(&self) -> PathBuf {
        self.path.with_extension("el")
    }

    /// Returns the file with weights.
    pub(super) fn weighted(&self) -> PathBuf {
        self.path.with_extension("wel")
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scale, vertices, edges, source, el_sha256, wel_sha256, .. } = self;
        writeln!(f, "scale {scale}: {vertices} vertices, {edges} edges in both directions, source {source}")?;
        write!(f, "  .el  SHA-256 {el_sha256}\n  .wel SHA-256 {wel_sha256}")
    }
}

fn sha256(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}
