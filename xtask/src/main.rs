//! `cargo xtask`: set-up, build, run, test and measurement of the repository.
#![forbid(unsafe_code)]

mod bench;
mod build;
mod cluster;
mod doctor;
mod documents;
mod effort;
mod findings;
mod image;
mod language;
mod linux_peer;
mod new_app;
mod output;
mod package;
mod perftest;
mod release;
mod run;
mod setup;
mod share;
mod sim;
mod test;
mod trace;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use clap::{Parser, Subcommand};
use lab::ui;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set up, build, run, test and measure Ferrolite"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs missing packages (as root) or says what to install; fetches the default text
    Setup,
    /// Builds the appliance's kernel image and checks it
    Build(build::Options),
    /// Writes the appliance's boot file: for servers, loaders, PXE, kexec and virtual machines
    Image(image::Options),
    /// Boots a cluster of appliances in QEMU, runs an application on it, and prints the result
    Run(Box<run::Options>),
    /// A cluster that stays: starts it, shows it, runs jobs on it, ends it
    Cluster(cluster::Options),
    /// Makes an application of one's own below `apps/`, compiled into the image and `lite-node`, and tests it
    NewApp(new_app::Options),
    /// Boots a Linux machine with SoftRoCE, built from Debian packages, as a peer on a fabric
    LinuxPeer(Box<linux_peer::Options>),
    /// Runs perftest between appliances and a Linux guest in each direction, and compares the received bytes
    Perftest(perftest::Options),
    /// Describes a ConnectX-3 of this host, and what an appliance would do with it; changes nothing
    Doctor(doctor::Options),
    /// Runs the tests; the last line is `N passed, N failed`
    Test(test::Options),
    /// Counts violations of docs/style.md in comments and functions, and lists them
    Lint(language::Options),
    /// Measures boot times, latencies and throughput
    Bench(bench::Bench),
    /// Prints the lines of code of each application, and those that call LITE, beside the paper's
    Effort,
    /// Makes the files of a release: images, manager, library, licences, checksums
    Release(release::Options),
    /// Makes Debian packages of the manager, the Linux node and the emulated card
    Package(package::Options),
    /// Runs simulated clusters under random work and faults, and checks their behaviour against models
    Sim(sim::Options),
    /// Prints the timeline of a small simulated cluster: every operation, message and connection
    Trace(trace::Options),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() && e.kind() != DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("{}", ui::first_paragraph(&e.to_string()));
            return ExitCode::from(2);
        }
        Err(e) => e.exit(),
    };
    let result = match cli.command {
        Command::Setup => setup::setup(),
        Command::Build(options) => build::build(&options),
        Command::Image(options) => image::image(&options),
        Command::Run(options) => run::run(&options),
        Command::Cluster(options) => cluster::cluster(&options),
        Command::NewApp(options) => new_app::new_app(&options),
        Command::LinuxPeer(options) => {
            return linux_peer::linux_peer(&options).unwrap_or_else(|e| {
                eprintln!("error: {}", ui::one_line(&e));
                ExitCode::FAILURE
            });
        }
        Command::Perftest(options) => perftest::perftest(&options),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::Test(options) => return test::test(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Lint(options) => language::lint(&options),
        Command::Effort => effort::effort(),
        Command::Package(options) => package::package(&options),
        Command::Release(options) => release::release(&options),
        Command::Sim(options) => sim::sim(&options),
        Command::Trace(options) => trace::trace(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {}", ui::one_line(&e));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_of_all_commands_fit_together() {
        Cli::command().debug_assert();
    }
}
