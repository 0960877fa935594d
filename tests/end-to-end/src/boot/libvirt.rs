//! The description of a virtual machine for libvirt, which libvirt's own program accepts.

use super::GROUP;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::{paths, tool};
use qemu::Packages;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The packages with `virt-xml-validate`, and with the program that it starts.
const PACKAGES: [&str; 2] = ["libvirt-clients", "libxml2-utils"];
/// The directory of schemas, as the program names it.
const SCHEMAS: &str = "/usr/share/libvirt";
const DESCRIPTION: &str = "docs/guide/ferrolite-vfio.xml";

pub(super) fn cases(full: bool) -> Vec<Case> {
    let check = move |log: &Path| match Packages::get(&paths::target().join("libvirt"), &PACKAGES) {
        Ok(packages) => validates(&packages, log).map(|()| Outcome::Passed),
        Err(error) if full => Err(error),
        Err(error) => Ok(Outcome::Skipped(format!("no packages of libvirt: {error:#}"))),
    };
    vec![Case::new(format!("{GROUP}libvirt-xml-validates"), check).full_if(true)]
}

/// Validates the description, and one with a mistake, which must be refused.
fn validates(packages: &Packages, log: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let script = fs::read_to_string(packages.path("usr/bin/virt-xml-validate")?)?;
    let schemas = packages.path(SCHEMAS.trim_start_matches('/'))?;
    // The packages are unpacked elsewhere than the program expects.
    let (program, description) = (dir.path().join("virt-xml-validate"), dir.path().join("mistaken.xml"));
    fs::write(&program, script.replace(SCHEMAS, &schemas.to_string_lossy()))?;
    let text = fs::read_to_string(paths::root().join(DESCRIPTION)).context(DESCRIPTION)?;
    fs::write(&description, text.replace("<hostdev mode=\"subsystem\"", "<hostdev mode=\"none\""))?;
    let validate = |file: &Path| -> Result<tool::Finished> {
        let xmllint = packages.command("xmllint")?;
        let mut command = Command::new("sh");
        command.envs(xmllint.get_envs().filter_map(|(name, value)| Some((name, value?))));
        tool::run(command.arg(&program).arg(file).arg("domain"), log, LIMIT)
    };
    let done = validate(&paths::root().join(DESCRIPTION))?;
    ensure!(done.status.success(), "{DESCRIPTION} is refused: {}", done.output.trim());
    ensure!(!validate(&description)?.status.success(), "a mistake is accepted");
    Ok(())
}
