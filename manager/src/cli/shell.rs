//! `ferrolite completions` and `ferrolite man`: completion for shells, and the manual pages.

use super::args::ManagerArgs;
use super::{Cli, access};
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use manager::client::Client;
use std::path::{Path, PathBuf};

/// A shell with completion.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The directory for the pages.
    directory: PathBuf,
}

/// The variable by which the script of a shell asks this program for candidates.
pub(super) const VARIABLE: &str = "COMPLETE";

/// Prints the script that makes a shell complete the words of this program by asking it.
pub(super) fn completions(args: &CompletionsArgs) -> Result<()> {
    let shell: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let name = "ferrolite";
    Ok(shell.write_registration(VARIABLE, name, name, name, &mut std::io::stdout())?)
}

/// Writes a manual page for the program and for each command.
pub(super) fn man(args: &ManArgs) -> Result<()> {
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot make {}", args.directory.display()))?;
    let mut command = Cli::command();
    command.build();
    pages(&command, "ferrolite", &args.directory)
}

fn pages(command: &Command, name: &str, directory: &Path) -> Result<()> {
    let file = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut page)?;
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    for sub in shown {
        pages(sub, &format!("{name}-{}", sub.get_name()), directory)?;
    }
    Ok(())
}

/// Prints each command with the least role that it needs, or `-` if it asks no manager.
pub(super) fn commands() {
    for path in access::paths(&Cli::command()) {
        let least = access::least(&path).map_or("?", |need| need.word());
        println!("{path}\t{least}");
    }
}

/// Returns candidates for the name of a node: the names that the manager of the context tells.
pub(super) fn nodes() -> ArgValueCandidates {
    candidates(|client| Some(client.nodes().ok()?.into_iter().map(|node| node.name).collect()))
}

/// Returns candidates for the number of a job.
pub(super) fn jobs() -> ArgValueCandidates {
    candidates(|client| {
        Some(client.job_list(true).ok()?.into_iter().map(|job| job.job.0.to_string()).collect())
    })
}

/// Returns candidates for the name of a dataset.
pub(super) fn datasets() -> ArgValueCandidates {
    candidates(|client| Some(client.datasets().ok()?.into_iter().map(|data| data.name).collect()))
}

fn candidates(ask: fn(&mut Client) -> Option<Vec<String>>) -> ArgValueCandidates {
    // Without an answer there are no candidates: a shell has no place for an error.
    ArgValueCandidates::new(move || {
        let names = ManagerArgs::default().connect().ok().and_then(|mut client| ask(&mut client));
        names.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
    })
}
