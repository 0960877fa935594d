//! `ferrolite cluster audit`: lists and verifies the audit log.

use super::args::ManagerArgs;
use super::report;
use super::shown::{List, LsArgs};
use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use manager::core::json::audit_json;
use proto::AuditEntry;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Lists the audit log.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Verifies the chain of hashes of the audit log, and prints the number and the hash of its last entry.
    Verify(VerifyArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Ls(args) => ls(&args),
            Self::Verify(args) => verify(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// An entry that was printed before, which must be in the log unchanged. It shows a log that was replaced
    /// as a whole.
    #[arg(long, value_name = "NUMBER:HASH")]
    expect: Option<String>,
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let entries = args.manager.connect()?.audit()?;
        Ok(List { table: report::audit_table(&entries), json: audit_json(&entries) })
    })
}

fn verify(args: &VerifyArgs) -> Result<()> {
    let entries = args.manager.connect()?.audit()?;
    check(&entries)?;
    if let Some(expected) = &args.expect {
        let found = entries.iter().any(|entry| format!("{}:{}", entry.number, entry.hash) == *expected);
        ensure!(found, "the audit log does not contain the entry {expected}");
    }
    match entries.last() {
        Some(last) => println!("{} entries, last {}:{}", entries.len(), last.number, last.hash),
        None => println!("0 entries"),
    }
    Ok(())
}

/// Checks each entry against the one before. The oldest entry is checked only if it is the first of all: the
/// manager forgets old entries.
fn check(entries: &[AuditEntry]) -> Result<()> {
    if let Some(first) = entries.first().filter(|first| first.number == 1) {
        ensure!(
            first.hash == first.expected_hash(Default::default()),
            "entry 1 of the audit log was changed"
        );
    }
    for pair in entries.windows(2) {
        let [before, entry] = pair else { continue };
        let number = entry.number;
        if number != before.number + 1 {
            bail!("entries between {} and {number} of the audit log are missing", before.number);
        }
        ensure!(
            entry.hash == entry.expected_hash(before.hash),
            "entry {number} of the audit log was changed"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<AuditEntry> {
        let mut hash = Default::default();
        let entry = |number| {
            let mut entry = AuditEntry {
                number,
                time_ms: 1000 * number,
                who: "alice".into(),
                what: format!("job cancel {number}"),
                result: "done".into(),
                hash,
            };
            entry.hash = entry.expected_hash(hash);
            hash = entry.hash;
            entry
        };
        (1..=5).map(entry).collect()
    }

    #[test]
    fn each_change_of_the_log_is_found() {
        assert!(check(&log()).is_ok());
        for at in 0..5 {
            let changes: [fn(&mut AuditEntry); 5] = [
                |entry| entry.time_ms ^= 1,
                |entry| entry.who = "bob".into(),
                |entry| entry.what.push(' '),
                |entry| entry.result.clear(),
                |entry| entry.hash.0[31] ^= 1,
            ];
            for change in changes {
                let mut log = log();
                change(&mut log[at]);
                assert!(check(&log).is_err(), "entry {}", at + 1);
            }
        }
        for at in 1..4 {
            let mut log = log();
            log.remove(at);
            assert!(check(&log).is_err(), "without entry {}", at + 1);
        }
    }
}
