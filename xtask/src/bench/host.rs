//! The measuring machine, and its load.

use anyhow::{Context, Result, bail};
use lab::{paths, tool};
use serde::Serialize;
use std::process::Command;

/// The greatest load, per processor, that other work may cause during a measurement.
const BUSY: f64 = 0.4;

/// The machine and the conditions under which the figures were measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    /// Load averages at the start, before anything is built: over 1, 5 and 15 minutes.
    load: [f64; 3],
    /// The number of processors.
    host_cpus: usize,
    /// The name of the processors.
    host_cpu: String,
    /// The accelerator of the guests: always the same, because the Linux guests and the targets are made for
    /// it.
    accel: &'static str,
    /// The measured commit, followed by `+` if the checkout differs in more than docs; `unknown` outside of a
    /// checkout.
    commit: String,
}

impl Host {
    /// Examines the machine as it is now.
    fn look() -> Result<Self> {
        let load = std::fs::read_to_string("/proc/loadavg").context("cannot read the load average")?;
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            load: parse_load(&load).with_context(|| format!("the load average is `{}`", load.trim()))?,
            host_cpus: std::thread::available_parallelism()?.get(),
            host_cpu: model(&cpuinfo).unwrap_or("unknown").to_owned(),
            accel: "tcg",
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
        })
    }

    /// Examines the machine before a measurement. Warns if it is too busy, or fails if `strict`.
    pub(super) fn ready(strict: bool) -> Result<Self> {
        let host = Self::look()?;
        match host.busy() {
            Some(busy) if strict => bail!("{busy}"),
            Some(busy) => eprintln!("  warning: {busy}"),
            None => {}
        }
        Ok(host)
    }

    /// Returns a message if the machine is too busy for meaningful figures.
    pub(super) fn busy(&self) -> Option<String> {
        let allowed = BUSY * self.host_cpus as f64;
        (self.load[0] > allowed).then(|| {
            format!(
                "the load average is {:.2}, above {allowed:.2}: other work on this machine spoils the figures",
                self.load[0]
            )
        })
    }

    /// Returns a sentence with all properties, for the head of a report of several runs.
    pub(super) fn sentence(&self, runs: u32) -> String {
        self.describe(&format!("medians of {runs} runs"))
    }

    /// Returns a sentence with all properties and the amount of measurements.
    pub(super) fn describe(&self, amount: &str) -> String {
        let [one, five, fifteen] = self.load;
        format!(
            "Commit {}, {} processors ({}), QEMU with {}, {amount}, load at the start \
             {one:.2} {five:.2} {fifteen:.2}.",
            self.commit,
            self.host_cpus,
            self.host_cpu,
            self.accel.to_uppercase()
        )
    }
}

/// Parses the first three numbers of `/proc/loadavg`.
fn parse_load(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// Returns the processor's name in `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| tool::output(Command::new("git").args(args).current_dir(paths::root())).ok();
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    let differs = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"])?;
    let mark = if differs.is_empty() { "" } else { "+" };
    Some(format!("{}{mark}", String::from_utf8_lossy(&hash).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_model_are_read() {
        assert_eq!(parse_load("0.52 1.00 8.60 2/180 4711\n"), Some([0.52, 1.0, 8.6]));
        assert_eq!(parse_load("0.52"), None);
        assert_eq!(model("processor\t: 0\nmodel name\t: A CPU\n"), Some("A CPU"));
    }

    #[test]
    fn a_busy_machine_is_told() {
        let host = |load| Host {
            load: [load, 0.0, 0.0],
            host_cpus: 2,
            host_cpu: String::new(),
            accel: "tcg",
            commit: String::new(),
        };
        assert!(host(0.7).busy().is_none());
        assert!(host(1.5).busy().unwrap().contains("1.50"));
    }
}
