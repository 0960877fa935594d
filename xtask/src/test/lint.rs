//! Formatting, Clippy, documentation, and builds.

use super::cases::{Case, Lane, Outcome};
use super::end_to_end::xtask;
use crate::cargo::{self, LIBIBVERBS, Profile};
use crate::documents;
use crate::image::{self, Apps, Contents};
use crate::language::{self, Report, each_source};
use crate::run::manager;
use crate::{paths, tool};
use anyhow::{Context, Result, ensure};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence of a compiler.
pub const SILENCE: Duration = Duration::from_secs(600);

/// The two workspaces, which no single cargo invocation may mix.
#[derive(Clone, Copy)]
enum Workspace {
    Host,
    Kernel,
}

impl Workspace {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Kernel => "kernel",
        }
    }

    fn cargo(self, subcommand: &str) -> Command {
        match self {
            Self::Kernel => image::cargo(subcommand),
            Self::Host => cargo::host(subcommand),
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Kernel => Lane::Kernel,
            Self::Host => Lane::Host,
        }
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for workspace in [Workspace::Host, Workspace::Kernel] {
        let name = workspace.name();
        cases.push(Case::new(format!("lint::format-{name}"), move |log| {
            check(workspace.cargo("fmt").args(["--all", "--check"]), log)
        }));
        let clippy = Case::new(format!("lint::clippy-{name}"), move |log| {
            let mut command = workspace.cargo("clippy");
            command.arg("--workspace");
            // The kernel's tests run in QEMU, so it has no test targets.
            match workspace {
                Workspace::Host => command.args(["--all-targets", "--features", LIBIBVERBS]),
                Workspace::Kernel => command.args(["--features", "selftest,semantics"]),
            };
            check(command.args(["--", "-D", "warnings"]), log)
        });
        cases.push(clippy.compiles(workspace.lane()));
        let doc = Case::new(format!("lint::doc-{name}"), move |log| {
            let mut command = workspace.cargo("doc");
            command.args(["--workspace", "--no-deps", "--document-private-items"]);
            if matches!(workspace, Workspace::Host) {
                command.args(["--features", LIBIBVERBS]);
            }
            check(command.env("RUSTDOCFLAGS", "-D warnings"), log)
        });
        cases.push(doc.compiles(workspace.lane()));
    }
    cases.push(Case::new("lint::no-test-is-left-out", no_test_is_left_out));
    cases.push(Case::new("lint::language", language_budgets));
    cases
        .push(Case::new("lint::cycles", |_| language::cycles("", &mut io::sink()).map(|()| Outcome::Passed)));
    cases.push(Case::new("lint::types", |_| language::types("", &mut io::sink()).map(|()| Outcome::Passed)));
    cases.push(Case::new("lint::documents", documents));
    // The host's libraries without the bindings to libibverbs, which the cases above include.
    cases.push(
        Case::new("lint::clippy-ibverbs-bare", |log| {
            let mut command = Workspace::Host.cargo("clippy");
            check(command.args(["--workspace", "--lib", "--", "-D", "warnings"]), log)
        })
        .compiles(Lane::Host),
    );
    cases
}

/// Checks that the counts of `docs/style.md` are within their budgets.
fn language_budgets(_log: &Path) -> Result<Outcome> {
    let over = Report::of_the_repository()?.over_budget()?;
    ensure!(over.is_empty(), "{}", over.join("; "));
    Ok(Outcome::Passed)
}

/// Checks the links of all documents, the lengths of pages, and the list of tests.
fn documents(_log: &Path) -> Result<Outcome> {
    let cases: Vec<String> = super::all(true)?.into_iter().map(|case| case.name).collect();
    let faults = documents::faults(&cases)?;
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(Outcome::Passed)
}

/// Checks that a library without a test program (`test = false`) has no test in `src/`, because such a test
/// would never run.
fn no_test_is_left_out(_log: &Path) -> Result<Outcome> {
    let workspace = std::fs::read_to_string(paths::root().join("Cargo.toml"))?;
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.context("Cargo.toml lists no members")?;
    let mut left_out = Vec::new();
    for member in members.split('"').skip(1).step_by(2) {
        let manifest = paths::root().join(member).join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest)?;
        let without = text.split("[lib]").nth(1).is_some_and(|lib| {
            lib.lines().take_while(|line| !line.starts_with('[')).any(|line| line == "test = false")
        });
        if without && let Some(package) = manifest.parent() {
            each_source(&package.join("src"), &mut |path, text| {
                if text.contains("#[test]") {
                    left_out.push(path.display().to_string());
                }
            })?;
        }
    }
    ensure!(left_out.is_empty(), "tests that never run: {}", left_out.join(", "));
    Ok(Outcome::Passed)
}

/// Builds the programs and images that the tests need, as users build them. Each build checks that the image
/// contains no `syscall`.
pub fn builds() -> Vec<Case> {
    let image = |contents: Contents| {
        move |log: &Path| {
            let image = image::build_quietly(&contents, |cargo| tool::run_ok(cargo, log, SILENCE).map(drop))?;
            image::check_size(image.stripped_bytes, image.budget).map(|()| Outcome::Passed)
        }
    };
    vec![
        Case::new("build::host", host).compiles(Lane::Host),
        Case::new("build::image-size-and-syscalls", image(Contents::default())).compiles(Lane::Kernel),
        Case::new("build::core-image-size-and-syscalls", image(Contents::with(Apps::core())))
            .compiles(Lane::Kernel),
        Case::new("build::tests-image-has-self-tests-and-no-other-has", self_tests).compiles(Lane::Kernel),
        Case::new("build::too-large-an-image-is-built-with-a-warning", too_large).in_lane(Lane::Kernel),
        Case::new("build::manager", manager).compiles(Lane::Host),
    ]
}

/// Compiles all programs, tests and examples of the host workspace.
fn host(log: &Path) -> Result<Outcome> {
    check(cargo::host("test").args(["--workspace", "--features", LIBIBVERBS, "--no-run"]), log)
}

/// Builds the image that tests boot, whose size does not matter. Checks that it contains the self-tests and
/// that the shipped images do not; the former shows that they would be found.
fn self_tests(log: &Path) -> Result<Outcome> {
    let has = |contents: Contents| {
        let image = image::build_quietly(&contents, |cargo| tool::run_ok(cargo, log, SILENCE).map(drop))?;
        image::has_self_tests(&image.elf)
    };
    ensure!(has(Contents::tests())?, "no self-test is found in the image for tests");
    for contents in [Contents::default(), Contents::with(Apps::core())] {
        let name = contents.name();
        ensure!(!has(contents)?, "the image of {name} has self-tests");
    }
    Ok(Outcome::Passed)
}

/// Builds the manager as `cargo xtask run` does.
fn manager(_log: &Path) -> Result<Outcome> {
    manager::build(Profile::Dev).map(|_| Outcome::Passed)
}

/// Checks that an image which exceeds its budget (as any image exceeds one byte) is built with a warning:
/// only tests fail for its size.
fn too_large(log: &Path) -> Result<Outcome> {
    let said = tool::run_ok(xtask().args(["build", "--budget", "1"]), log, SILENCE)?;
    let warns = said.lines().any(|line| line.starts_with("warning: the image has "));
    ensure!(warns && image::check_size(image::build()?.stripped_bytes, 1).is_err(), "no warning: {said}");
    Ok(Outcome::Passed)
}

fn check(command: &mut Command, log: &Path) -> Result<Outcome> {
    tool::run_ok(command, log, SILENCE).map(|_| Outcome::Passed)
}
