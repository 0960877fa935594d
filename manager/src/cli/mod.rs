//! The command line: `ferrolite NOUN VERB`, with a file for each noun. A verb is a variant of its noun's
//! `Verb`, which names its arguments and the function that runs it.

mod access;
mod args;
mod audit;
mod cluster;
mod config;
mod context;
mod daemon;
mod data;
mod exit;
mod group;
mod image;
mod inventory;
mod job;
mod key;
mod node;
mod old;
mod progress;
mod pxe;
mod queue;
mod report;
mod rollout;
mod shell;
mod shown;
mod signals;
mod toml_file;
mod user;

pub(crate) use exit::{Failure, sentence};

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use manager::client::Client;
use manager::core::json::Names;

/// Runs and drives a Ferrolite cluster.
#[derive(Debug, Parser)]
#[command(name = "ferrolite", version, about, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    noun: Noun,
}

/// The meaning of the exit status, as in [`Failure`].
const EXIT_CODES: &str = "Exit status: 0 success, 1 failed, 2 wrong arguments, 3 manager not reachable, \
                          4 denied, 5 not found, 6 timed out, 7 the job has failed";

#[derive(Debug, Subcommand)]
enum Noun {
    /// Jobs: runs, lists and ends them.
    #[command(subcommand)]
    Job(job::Verb),
    /// Nodes: lists them, and changes their power and images.
    #[command(subcommand)]
    Node(node::Verb),
    /// Images that the manager keeps.
    #[command(subcommand)]
    Image(image::Verb),
    /// Rollouts of images.
    #[command(subcommand)]
    Rollout(rollout::Verb),
    /// Datasets: outputs of jobs that were kept on the nodes.
    #[command(subcommand, visible_alias = "dataset")]
    Data(data::Verb),
    /// The cluster as a whole.
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// The users and their roles.
    #[command(subcommand)]
    User(user::Verb),
    /// The cluster key, and the keys of its roles.
    #[command(subcommand)]
    Key(key::Verb),
    /// The manager's daemon.
    #[command(subcommand)]
    Manager(daemon::Verb),
    /// Configuration files.
    #[command(subcommand)]
    Config(config::Verb),
    /// The boot service for nodes without a disk.
    #[command(subcommand)]
    Pxe(pxe::Verb),
    /// Prints the script with which a shell completes commands, and names of nodes, jobs and datasets:
    /// `source <(ferrolite completions bash)`.
    Completions(shell::CompletionsArgs),
    /// Writes the manual pages.
    #[command(hide = true)]
    Man(shell::ManArgs),
    /// Prints each command with the least role that it needs.
    #[command(hide = true)]
    Commands,
}

impl Cli {
    /// Parses the command line of this process. Ends the process if it is wrong.
    pub(crate) fn of_process() -> Self {
        clap_complete::CompleteEnv::with_factory(Self::command).var(shell::VARIABLE).complete();
        Self::parse_from(old::translated(std::env::args_os()))
    }

    /// Runs the chosen command.
    pub(crate) fn run(self) -> Result<()> {
        match self.noun {
            Noun::Job(verb) => verb.run(),
            Noun::Node(verb) => verb.run(),
            Noun::Image(verb) => verb.run(),
            Noun::Rollout(verb) => verb.run(),
            Noun::Data(verb) => verb.run(),
            Noun::Cluster(verb) => verb.run(),
            Noun::Key(verb) => verb.run(),
            Noun::Manager(verb) => verb.run(),
            Noun::Config(verb) => verb.run(),
            Noun::Pxe(verb) => verb.run(),
            Noun::User(verb) => verb.run(),
            Noun::Completions(args) => shell::completions(&args),
            Noun::Man(args) => shell::man(&args),
            Noun::Commands => {
                shell::commands();
                Ok(())
            }
        }
    }
}

/// Returns the names of all nodes.
fn names(client: &mut Client) -> Result<Names> {
    Ok(client.nodes()?.into_iter().map(|node| (node.node, node.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_consistent() {
        Cli::command().debug_assert();
    }

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(old::translated(words.iter().map(|word| word.into())))
    }

    /// Returns the message of the command line about the value of an argument.
    fn objection(words: &[&str]) -> String {
        let error = parse(&[&["ferrolite"], words].concat()).unwrap_err().to_string();
        error.lines().next().unwrap().rsplit_once("': ").expect("a value and what is wrong with it").1.into()
    }

    #[test]
    fn values_that_are_none_are_refused_in_a_sentence() {
        let submit = ["submit", "--app", "a", "--input", "i", "--output", "o"];
        for time in ["5", "0s", "soon"] {
            assert_eq!(
                objection(&[&submit[..], &["--time", time]].concat()),
                "want a time as in 90s, 15m or 2h"
            );
        }
        for job in ["banana", "-1", "1.5", ""] {
            assert_eq!(objection(&["cancel", "--", job]), format!("{job} is not a number of a job"));
        }
        for nodes in ["0", "4096", "many"] {
            let wanted = "want a number from 1 to 4095";
            assert_eq!(objection(&[&submit[..], &["--nodes", nodes]].concat()), wanted);
            assert_eq!(objection(&["nodes", "--wait", nodes]), wanted);
        }
        assert_eq!(objection(&["nodes", "--timeout", "1m"]), "want a number from 0 to 1000000000");
        assert_eq!(objection(&["daemon", "--lease-ms", "5s"]), "want a number from 100 to 600000");
    }

    #[test]
    fn zero_nodes_are_refused() {
        let words = ["ferrolite", "submit", "--app", "a", "--input", "i", "--output", "o", "--nodes", "0"];
        assert!(parse(&words).is_err());
    }
}
