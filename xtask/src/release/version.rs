//! The version of a release: that of all crates, and the commit.

use anyhow::{Context, Result, bail, ensure};
use lab::tool;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The directories of the workspaces.
const WORKSPACES: [&str; 3] = [".", "kernel", "fuzz"];

/// Returns the commit of a checkout without changes.
pub(crate) fn clean_commit(root: &Path) -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = tool::output(Command::new("git").arg("-C").arg(root).args(arguments))?;
        Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
    };
    let changes = git(&["status", "--porcelain"]).context("a release is made from a git checkout")?;
    if let Some(first) = changes.lines().next() {
        let file = first.get(3..).unwrap_or(first);
        bail!("the checkout has uncommitted changes, {file} among them: commit them, or use a fresh clone");
    }
    git(&["rev-parse", "HEAD"])
}

/// Returns the manifests of all crates of the repository, by `cargo metadata`.
pub(crate) fn manifests(root: &Path) -> Result<Vec<Value>> {
    let mut packages = Vec::new();
    for workspace in WORKSPACES {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root.join(workspace));
        let metadata: Value = serde_json::from_slice(&tool::output(&mut cargo)?)?;
        packages.extend(metadata["packages"].as_array().context("cargo metadata has no packages")?.clone());
    }
    Ok(packages)
}

/// Returns the version that all crates have.
pub(crate) fn of_all_crates(packages: &[Value]) -> Result<String> {
    let field = |package: &Value, name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let first = packages.first().context("the repository has no crate")?;
    let version = field(first, "version");
    for package in packages {
        let (name, other) = (field(package, "name"), field(package, "version"));
        ensure!(
            other == version,
            "crates have different versions: {} {version}, {name} {other}",
            field(first, "name")
        );
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::paths;
    use serde_json::json;

    #[test]
    fn a_checkout_with_changes_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"];
            let mut command = Command::new("git");
            command.arg("-C").arg(dir.path()).args(identity).args(arguments);
            assert!(command.output().unwrap().status.success(), "{arguments:?}");
        };
        let why = |dir: &Path| format!("{:#}", clean_commit(dir).unwrap_err());
        assert!(why(dir.path()).starts_with("a release is made from a git checkout"), "{}", why(dir.path()));
        git(&["init", "-q"]);
        git(&["commit", "-q", "--allow-empty", "-m", "first"]);
        assert_eq!(clean_commit(dir.path()).unwrap().len(), 40);
        std::fs::write(dir.path().join("new"), "").unwrap();
        assert_eq!(
            why(dir.path()),
            "the checkout has uncommitted changes, new among them: commit them, or use a fresh clone"
        );
    }

    #[test]
    fn all_crates_of_the_repository_have_one_version() {
        let version = of_all_crates(&manifests(&paths::root()).unwrap()).unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let mixed = [json!({"name": "a", "version": "0.1.0"}), json!({"name": "b", "version": "0.2.0"})];
        let why = of_all_crates(&mixed).unwrap_err().to_string();
        assert_eq!(why, "crates have different versions: a 0.1.0, b 0.2.0");
    }

    #[test]
    fn every_crate_has_a_description_and_a_front_page() {
        let mut lacking = Vec::new();
        for package in manifests(&paths::root()).unwrap() {
            let name = package["name"].as_str().unwrap();
            if package["description"].as_str().is_none_or(str::is_empty) {
                lacking.push(format!("{name} has no description"));
            }
            let targets = package["targets"].as_array().unwrap();
            let is_front = |target: &&Value| {
                let kinds = target["kind"].as_array().unwrap();
                kinds.iter().any(|kind| kind == "lib" || kind == "rlib" || kind == "bin")
            };
            for target in targets.iter().filter(is_front) {
                let source = target["src_path"].as_str().unwrap();
                if !std::fs::read_to_string(source).unwrap().starts_with("//! ") {
                    lacking.push(format!("{source} does not begin with its description"));
                }
            }
        }
        assert_eq!(lacking, [""; 0]);
    }
}
