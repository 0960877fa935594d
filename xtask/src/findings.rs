//! The pages of findings and of checks of applications name tests that exist.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The pages that list findings, and checks of applications, each with its tests.
const PAGES: [&str; 2] = ["docs/reference/findings.md", "docs/reference/applications-checks.md"];

/// A test of `cargo test`.
struct Test {
    package: String,
    /// The path of its file without the extension, by component.
    modules: Vec<String>,
    function: String,
}

/// Returns one line for each name of the form `PACKAGE::MODULE::TEST` on the pages for which there is no such
/// test.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let (mut tests, mut faults) = (Vec::new(), Vec::new());
    collect(root, "", &mut tests)?;
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        let names = text.split('`').skip(1).step_by(2).filter(|name| name.split("::").count() == 3);
        let absent =
            names.filter(|name| **name != *"PACKAGE::MODULE::TEST" && !tests.iter().any(|t| t.is(name)));
        faults.extend(absent.map(|name| format!("{page}: there is no test {name}")));
    }
    Ok(faults)
}

impl Test {
    fn is(&self, name: &str) -> bool {
        let parts: Vec<&str> = name.split("::").collect();
        let [package, module, function] = parts[..] else { return false };
        self.package == package && self.function == function && self.modules.iter().any(|m| m == module)
    }
}

/// Adds the tests of all sources below a directory that belongs to `package`.
fn collect(dir: &Path, package: &str, tests: &mut Vec<Test>) -> Result<()> {
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    let own = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let package = own.unwrap_or(package);
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
            collect(&path, package, tests)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let modules: Vec<String> =
                path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
            tests.extend(functions(&text).map(|function| Test {
                package: package.into(),
                modules: modules.clone(),
                function: function.into(),
            }));
        }
    }
    Ok(())
}

/// Returns the names of the test functions of a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("test]\n").skip(1).chain(text.split("test(").skip(1));
    after.filter_map(|rest| {
        let (_, named) = rest.split_once("fn ")?;
        named.split_once('(').map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::paths;

    #[test]
    fn every_test_of_a_finding_exists() {
        assert_eq!(faults(&paths::root()).unwrap(), [""; 0]);
    }

    #[test]
    fn a_name_without_a_test_is_found() {
        let text =
            "#[test]\nfn one() {}\nfn two() {}\n    #[test]\n    #[ignore = \"long\"]\n    fn three() {}\n";
        assert_eq!(functions(text).collect::<Vec<_>>(), ["one", "three"]);
        let modules = ["root", "lite", "tests", "it", "sync"].map(String::from).to_vec();
        let test = Test { package: "lite".into(), modules, function: "one".into() };
        assert!(test.is("lite::sync::one"));
        for name in ["lite::sync::two", "lite::rpc::one", "sim::sync::one", "sync::one"] {
            assert!(!test.is(name), "{name}");
        }
    }
}
