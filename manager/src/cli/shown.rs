//! The output of a command that lists: a table or JSON, once or again and again.

use super::args::{ManagerArgs, interval, write_whole};
use anyhow::Result;
use clap::{Args, ValueEnum};
use manager::client::ClientError;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The form of a list on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for people.
    Table,
    /// One JSON object on one line.
    Json,
}

/// The options of a command that lists.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// The form of the list.
    #[arg(short = 'o', long, value_enum, value_name = "FORM", default_value = "table")]
    format: Format,
    /// A file to which the list is also written, as a JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Lists again each S seconds, until it is interrupted [default: 2].
    #[arg(
        long,
        value_name = "S",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = interval
    )]
    watch: Option<u64>,
}

/// The arguments of a command that lists what the manager knows.
#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    pub(super) manager: ManagerArgs,
    #[command(flatten)]
    pub(super) list: ListArgs,
}

/// A list in both forms.
pub(super) struct List {
    /// The lines for people, each with its line feed.
    pub(super) table: String,
    /// The object for programs.
    pub(super) json: Value,
}

impl ListArgs {
    /// Shows what `ask` returns, with a connection of its own each time. While it is repeated, a manager that
    /// does not answer is reported and asked again.
    pub(super) fn show(&self, mut ask: impl FnMut() -> Result<List>) -> Result<()> {
        self.print(&ask()?)?;
        let Some(seconds) = self.watch else { return Ok(()) };
        loop {
            std::thread::sleep(Duration::from_secs(seconds));
            match ask() {
                Ok(list) => self.print(&list)?,
                Err(error) if is_passing(&error) => eprintln!("ferrolite: {error}"),
                Err(error) => return Err(error),
            }
        }
    }

    fn print(&self, list: &List) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match self.format {
            Format::Table => {
                if self.watch.is_some() && out.is_terminal() {
                    // ECMA-48: the cursor to the first place, and the rest of the screen empty.
                    write!(out, "\x1b[H\x1b[J")?;
                }
                write!(out, "{}", list.table)?;
            }
            Format::Json => writeln!(out, "{}", list.json)?,
        }
        out.flush()?;
        match &self.json {
            Some(file) => write_whole(file, list.json.to_string().as_bytes()),
            None => Ok(()),
        }
    }
}

/// Returns true if the manager may answer later.
fn is_passing(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(ClientError::Unreachable { .. } | ClientError::Silent(_) | ClientError::Lost(_))
    )
}
