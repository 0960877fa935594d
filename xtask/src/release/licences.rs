//! The licences of all crates that a release is built from.

use anyhow::{Context, Result, bail};
use lab::{cargo, image, tool};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Returns cargo's description of both workspaces with all their dependencies on Linux.
pub(crate) fn metadata() -> Result<[Value; 2]> {
    let describe = |mut command: std::process::Command| -> Result<Value> {
        command.args(["--format-version", "1", "--locked", "--filter-platform", cargo::TARGET]);
        serde_json::from_slice(&tool::output(&mut command)?).context("cargo metadata is no JSON")
    };
    Ok([describe(cargo::host("metadata"))?, describe(image::cargo("metadata"))?])
}

/// Returns a page that lists all crates of others with their licences. Fails if one names no licence.
pub(crate) fn page(metadata: &[Value]) -> Result<String> {
    // By name and version: both workspaces have some of the crates.
    let mut rows = BTreeMap::new();
    for package in metadata.iter().filter_map(|metadata| metadata["packages"].as_array()).flatten() {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        // Crates of this repository have no source.
        if package["source"].is_null() {
            continue;
        }
        let (name, version) = (text("name"), text("version"));
        let licence = match (text("license"), text("license_file")) {
            ("", "") => bail!("the crate {name} {version} names no licence"),
            ("", file) => format!("see its file {file}"),
            (licence, _) => licence.to_owned(),
        };
        rows.insert((name, version), (licence, text("repository")));
    }
    let mut page = String::from(
        "# Licences\n\nFerrolite itself is licensed under MIT or Apache-2.0, at your choice. The crates of this list are \
         used to\nbuild and test it; those that a program contains are among them.\n\n\
         | crate | version | licence | source |\n|---|---|---|---|\n",
    );
    for ((name, version), (licence, repository)) in rows {
        writeln!(page, "| {name} | {version} | {licence} | {repository} |")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn crates_of_others_are_listed_once_and_need_a_licence() {
        let ours = json!({"name": "lite", "version": "0.1.0", "source": null, "license": "MIT"});
        let spin = json!({"name": "spin", "version": "0.12.0", "source": "registry", "license": "MIT",
            "repository": "https://example.org/spin"});
        let both = [json!({"packages": [ours, spin]}), json!({"packages": [spin]})];
        let page = page(&both).unwrap();
        assert!(
            page.ends_with("|---|---|---|---|\n| spin | 0.12.0 | MIT | https://example.org/spin |\n"),
            "{page}"
        );
        let bare = json!({"packages": [{"name": "x", "version": "1.0.0", "source": "registry"}]});
        let why = super::page(&[bare]).unwrap_err().to_string();
        assert_eq!(why, "the crate x 1.0.0 names no licence");
    }

    #[test]
    fn the_dependencies_of_the_repository_have_licences() {
        let page = page(&metadata().unwrap()).unwrap();
        assert!(page.lines().count() > 50 && page.contains("| snow |"), "{page}");
    }
}
