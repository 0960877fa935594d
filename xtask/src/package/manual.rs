//! Manual pages, which help2man makes of what the programs say about themselves.

use anyhow::{Context, Result};
use lab::{setup, tool};
use std::path::Path;
use std::process::Command;

/// A manual page of section 1.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) text: Vec<u8>,
}

/// Ensures that help2man exists.
pub(super) fn tool() -> Result<()> {
    setup::programs(&[("help2man", "help2man")])
}

/// Returns the page of a program, and those of its commands, as in `ferrolite-job-submit`.
pub(super) fn pages(program: &Path) -> Result<Vec<Page>> {
    let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
    let (mut pages, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(words) = open.pop() {
        let help = tool::output(Command::new(program).args(&words).arg("--help"))?;
        let help = String::from_utf8_lossy(&help);
        open.extend(commands(&help).into_iter().map(|command| [words.clone(), vec![command]].concat()));
        let page_name = [vec![name.clone()], words.clone()].concat().join("-");
        // The link of the former name of the program has this page.
        if page_name != "ferrolite-manager" {
            pages.push(page(program, page_name, &words, &help)?);
        }
    }
    Ok(pages)
}

/// Returns the names in the list of commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").map(String::from).collect()
}

/// Returns the page of a program or of one of its commands, which has this help text.
fn page(program: &Path, name: String, words: &[String], help: &str) -> Result<Page> {
    // help2man runs one program with one option; the words of a command are a part of the option.
    let help_option = [words, &["--help".to_owned()]].concat().join(" ");
    let mut help2man = Command::new("help2man");
    help2man.args(["--no-info", "--section=1", "--source=Ferrolite", "--manual=Ferrolite"]);
    help2man.arg(format!("--version-string={}", env!("CARGO_PKG_VERSION")));
    help2man.arg(format!("--help-option={help_option}")).arg(format!("--name={}", about(help))).arg(program);
    let text = tool::output(&mut help2man).with_context(|| format!("no manual page of {name}"))?;
    Ok(Page { name, text })
}

/// Returns the first sentence of a help text, as a phrase without its full stop.
fn about(help: &str) -> String {
    let first = help.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let sentence = first.split(". ").next().unwrap_or_default().trim_end_matches('.');
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |letter| letter.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "\
The manager of a cluster: the daemon. And more

Usage: m <COMMAND>

Commands:
  daemon  Runs the manager
          for ever
  submit  Runs a job
  help    Print this message

Options:
  -h, --help  Print help
";

    #[test]
    fn commands_are_those_of_the_list() {
        assert_eq!(commands(HELP), ["daemon", "submit"]);
        assert!(commands("Usage: x\n").is_empty());
    }

    #[test]
    fn the_phrase_is_the_first_sentence() {
        assert_eq!(about(HELP), "the manager of a cluster: the daemon");
    }
}
