//! Appliances whose RNIC is the emulated card: `cargo xtask run --nic cx3`, judged by coreutils, and the
//! suite of LITE's semantics on them.

use super::GROUP;
use crate::appliance::semantics::on_appliances;
use crate::job::inputs::Input;
use crate::job::word_count::word_count;
use crate::job::xtask;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use connectx3::device::Profile;
use lab::cx3::Tools;
use lab::tool;
use std::path::Path;
use std::time::Duration;

/// The most commands that the driver may send to its card in a run of two nodes. A physical function gets 65,
/// a virtual one 110.
const MOST_COMMANDS: u64 = 200;
/// The longest silence of a run on a busy host.
const LIMIT: Duration = Duration::from_secs(300);

/// The profiles for which other files have cases.
const ELSEWHERE: [&str; 3] = ["pro", "vf", "ib"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(Input::SmallText, 2, false, "cx3", &[]),
        case(Input::SmallText, 3, false, "cx3-vf,softroce,cx3:cx3", &[]),
        case(Input::Text, 4, false, "cx3", &[]).full_if(true),
        case(Input::Text, 4, true, "cx3", &[]).full_if(true),
        case(Input::Text, 4, false, "cx3-vf", &[]).full_if(true),
        case(Input::Text, 4, true, "cx3-vf,softroce", &[]).full_if(true),
        case(Input::Text, 4, false, "cx3,softroce", &[]).full_if(true),
        case(Input::SmallText, 2, false, "cx3", &["--machine", "q35"]).full_if(true),
        case(Input::SmallText, 2, false, "cx3", &["--one-nic"]),
        case(Input::SmallText, 2, false, "cx3,cx3-vf", &["--remote", "physical"]).full_if(true),
        case(Input::SmallText, 3, false, "cx3,softroce,cx3-vf", &["--remote", "arena"]),
        case(Input::SmallText, 3, true, "cx3-vf,softroce,cx3:cx3", &["--one-nic"]).full_if(true),
        case(Input::SmallText, 2, false, "cx3", &["--cpus", "2"]).full_if(true),
    ];
    for profile in Profile::NAMES.iter().filter(|profile| !ELSEWHERE.contains(profile)) {
        cases.push(case(Input::SmallText, 2, false, &format!("cx3:{profile}"), &[]).full_if(true));
        cases.push(semantics(&format!("cx3:{profile}")).full_if(true));
    }
    cases.push(Case::new(format!("{GROUP}appliances come up"), |log| match Tools::get()? {
        Ok(_) => comes_up(log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    }));
    cases.push(Case::new(format!("{GROUP}appliances on InfiniBand"), |log| match Tools::get()? {
        Ok(_) => infiniband(log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    }));
    cases.push(case(Input::Text, 4, true, "cx3:ib", &[]).full_if(true));
    cases.push(semantics("cx3:ib").full_if(true));
    cases.push(semantics("cx3").full_if(true));
    cases.push(semantics("cx3-vf").full_if(true));
    cases.push(semantics("cx3-vf,softroce,cx3").full_if(true));
    cases
}

/// Returns the test that runs all cases of `tests/semantics`, each of which counts.
fn semantics(nic: &str) -> Case {
    let owned = nic.to_owned();
    Case::new(format!("{GROUP}semantics {nic}"), move |log| match Tools::get()? {
        Ok(_) => on_appliances(&owned, log),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}

fn case(input: Input, nodes: u16, faulty: bool, nic: &str, options: &'static [&'static str]) -> Case {
    let faults = if faulty { " with faults" } else { "" };
    let more: String = options.iter().map(|option| format!(" {}", option.trim_start_matches('-'))).collect();
    let name = format!("{GROUP}appliances {nic} {} {nodes} nodes{faults}{more}", input.name());
    let nic = nic.to_owned();
    Case::new(name, move |log| match Tools::get()? {
        Ok(_) => word_count(input, nodes, faulty, &nic, options, log).map(|()| Outcome::Passed),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}

/// Checks that opensm assigns the appliances' LIDs and reports no problem, and that they count words.
fn infiniband(log: &Path) -> Result<()> {
    let consoles = log.with_extension("consoles");
    let options = ["--console", consoles.to_str().context("the log's path is not text")?];
    word_count(Input::SmallText, 3, false, "cx3:ib", &options, log)?;
    let said = std::fs::read_to_string(consoles.join("opensm.log"))?;
    ensure!(said.contains("SUBNET UP"), "opensm has not brought the subnet up: {said}");
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains(" ERR ")).collect();
    ensure!(complaints.is_empty(), "opensm says: {}", complaints.join("; "));
    Ok(())
}

/// Checks that the consoles of a physical and a virtual function name the card and print the times of its
/// start, reset and link. The criterion is the number of commands, at most [`MOST_COMMANDS`], because a busy
/// host makes each command take longer.
fn comes_up(log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (input, consoles) = (dir.path().join("in"), dir.path().join("consoles"));
    std::fs::write(&input, "a")?;
    let mut run = xtask();
    run.args(["run", "--nic", "cx3,cx3-vf", "--nodes", "2"]);
    run.arg("--input").arg(&input).arg("--console").arg(&consoles);
    tool::run_ok(&mut run, log, LIMIT)?;
    let counts = std::fs::read_to_string(consoles.join("cx3.log"))?;
    for (node, served, card) in [
        ("node0", "card0: ", "Mellanox ConnectX-3 Pro at pci "),
        ("node1", "card1: ", "Mellanox ConnectX-3 virtual function at pci "),
    ] {
        let commands = counts.lines().filter_map(|line| {
            let (count, what) = line.strip_prefix(served)?.split_once(' ')?;
            what.starts_with("command ").then(|| count.parse::<u64>().ok())?
        });
        let commands: u64 = commands.sum();
        ensure!((1..=MOST_COMMANDS).contains(&commands), "{node} gave its card {commands} commands");
        let console = std::fs::read_to_string(consoles.join(format!("{node}.log")))?;
        let line = |wanted: &str| {
            let line = console.lines().find(|line| line.contains(wanted));
            line.with_context(|| format!("{node} does not say `{wanted}`: {console}"))
        };
        let about = line(card)?;
        for part in ["board FER", "firmware 2.42.5000", "port 1 ", " active", " KiB of tables"] {
            ensure!(about.contains(part), "{node}: no `{part}` in `{about}`");
        }
        line("rnic: GID 10.77.0.")?;
        line("brought up in ")?;
    }
    Ok(())
}
