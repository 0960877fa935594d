//! Small programs in C for tasks that no program of Debian does: compiled on the host, run in the machines.

use super::Step;
use anyhow::Result;
use lab::cx3::Lab;
use lab::cx3::lab::SOON;
use lab::paths;
use tempfile::TempDir;

/// Returns a step that compiles `programs/NAME.c` for each name and copies the programs to `/usr/bin` of each
/// machine.
pub(super) fn built(names: &'static [&'static str]) -> Step {
    Step::new(format!("programs: {}", names.join(", ")), move |lab| {
        names.iter().try_for_each(|name| build(name, lab))
    })
}

fn build(name: &str, lab: &mut Lab) -> Result<()> {
    let dir = TempDir::with_prefix("ferrolite-")?;
    let source = paths::root().join(format!("tests/end-to-end/src/cx3/programs/{name}.c"));
    let program = dir.path().join(name);
    qemu::linux::compile(&source, &program, &paths::target().join("linux-guest"))?;
    let there = format!("/usr/bin/{name}");
    (0..lab.machines()).try_for_each(|machine| lab.guest(machine)?.copy_in(&program, &there, SOON))
}
