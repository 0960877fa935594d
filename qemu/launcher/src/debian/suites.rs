//! Suites of Debian other than the host's: apt with separate sources and lists, from the mirror that the
//! host's apt uses.

use super::apt::{Apt, WITHIN_S};
use super::command::{bounded, output};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The keys that sign the releases of Debian (package `debian-archive-keyring`).
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

impl Apt {
    /// Returns apt with the newest packages of some suites, of which the last is preferred. Its lists are
    /// kept in `dir` and downloaded if they are missing, which needs no privileges.
    pub(crate) fn of_suites(dir: &Path, suites: &[&str]) -> Result<Self> {
        let preferred = suites.last().context("no suite")?;
        let dir = &std::path::absolute(dir)?;
        ensure!(Path::new(KEYRING).is_file(), "there is no {KEYRING}: this host is not Debian");
        let [lists, archives] = ["state/lists/partial", "cache/archives/partial"].map(|sub| dir.join(sub));
        for sub in [&lists, &archives] {
            fs::create_dir_all(sub).with_context(|| format!("cannot create {}", sub.display()))?;
        }
        let (sources, status) = (dir.join("sources.list"), dir.join("status"));
        let fresh = !sources.is_file();
        let wanted = sources_list(&mirror()?, suites);
        if fresh || fs::read_to_string(&sources)? != wanted {
            fs::write(&status, "")?;
            fs::write(&sources, wanted)?;
        }
        let path = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not text");
        let mut options = vec![
            format!("Dir::Etc::SourceList={}", path(&sources)?),
            format!("Dir::State={}", path(&dir.join("state"))?),
            format!("Dir::State::status={}", path(&status)?),
            format!("Dir::Cache={}", path(&dir.join("cache"))?),
            format!("APT::Default-Release={preferred}"),
        ];
        // Ignores the host's settings for suites and versions, and skips unused lists. With root as the
        // sandbox user, apt can write to a directory that is only accessible to the caller.
        options.extend(
            [
                "Dir::Etc::SourceParts=/dev/null",
                "Dir::Etc::Preferences=/dev/null",
                "Dir::Etc::PreferencesParts=/dev/null",
                "Acquire::Languages=none",
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
                "APT::Sandbox::User=root",
            ]
            .map(str::to_owned),
        );
        let apt = Self::with_options(options);
        if fresh {
            apt.update().inspect_err(|_| drop(fs::remove_file(&sources)))?;
        }
        Ok(apt)
    }
}

fn sources_list(mirror: &str, suites: &[&str]) -> String {
    suites.iter().fold(String::new(), |mut list, suite| {
        let _ = writeln!(list, "deb [signed-by={KEYRING}] {mirror} {suite} main");
        list
    })
}

/// Returns the Debian mirror of the host's apt.
fn mirror() -> Result<String> {
    let ask = || {
        let mut command = bounded("apt-get", WITHIN_S);
        command.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"]);
        let targets = output(&mut command)?;
        debian_of(&targets).map(str::to_owned).context("apt has no Debian mirror in its sources")
    };
    // The label is in the lists, which may not have been downloaded yet.
    ask().or_else(|first| {
        Apt::host().update().with_context(|| format!("after: {first:#}"))?;
        ask()
    })
}

/// Finds the address of Debian itself, in contrast to its security updates, in lines of the form `LABEL
/// ADDRESS`.
fn debian_of(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| line.strip_prefix("Debian ")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_debian_itself() {
        let targets = "Debian-Security http://m/debian-security/\nDebian http://m/debian/\nOther http://o/\n";
        assert_eq!(debian_of(targets), Some("http://m/debian/"));
        assert_eq!(debian_of("Ubuntu http://u/\n"), None);
    }

    #[test]
    fn sources_name_the_keyring() {
        let list = sources_list("http://m/", &["a", "a-backports"]);
        assert_eq!(list.lines().count(), 2);
        assert!(list.ends_with(&format!("deb [signed-by={KEYRING}] http://m/ a-backports main\n")));
    }
}
