//! A program of the operator's as a power controller: it is run with the name of a node and one of the words
//! `on`, `off` and `status`. For `status` it prints `on` or `off`.

use super::Trouble;
use super::child::{self, Ended};
use proto::printable;
use std::path::Path;
use tokio::process::Command;

pub(super) async fn set(program: &Path, node: &str, on: bool) -> Result<(), Trouble> {
    run(program, node, if on { "on" } else { "off" }).await.map(drop)
}

pub(super) async fn look(program: &Path, node: &str) -> Result<bool, Trouble> {
    let ended = run(program, node, "status").await?;
    match ended.stdout.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        other => {
            let first = other.lines().next().unwrap_or_default();
            let first: String = printable(first).chars().take(100).collect();
            Err(Trouble::other(format!("its status is `{first}`, neither on nor off")))
        }
    }
}

async fn run(program: &Path, node: &str, word: &str) -> Result<Ended, Trouble> {
    let shown = program.display();
    let ended = child::run(Command::new(program).args([node, word])).await;
    let ended = ended.map_err(|error| Trouble::other(format!("cannot run {shown}: {error}")))?;
    if !ended.status.success() {
        return Err(child::failed(&ended));
    }
    Ok(ended)
}
