//! Formatting, Clippy, documentation, and builds.

use crate::documents;
use crate::language::{self, Report, each_source};
use anyhow::{Context, Result, ensure};
use end_to_end::runner::{Case, Lane, Outcome};
use lab::cargo::{self, LIBIBVERBS};
use lab::{image, paths, tool};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest silence of a compiler.
pub(super) const SILENCE: Duration = Duration::from_secs(600);

/// The crates of the host's workspace that do not forbid unsafe code. None of applications and of LITE is
/// among them.
const UNSAFE: [&str; 7] = [
    "drivers/ibverbs",
    "drivers/roce",
    "drivers/virtqueue",
    "host/capi",
    "qemu/connectx3",
    "qemu/fabric",
    "qemu/launcher",
];

/// The workspaces, which no single cargo invocation may mix.
#[derive(Clone, Copy)]
enum Workspace {
    Host,
    Kernel,
    Stub,
}

impl Workspace {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Kernel => "kernel",
            Self::Stub => "stub",
        }
    }

    fn cargo(self, subcommand: &str) -> Command {
        match self {
            Self::Kernel => image::cargo(subcommand),
            Self::Stub => image::stub_cargo(subcommand),
            Self::Host => cargo::host(subcommand),
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Kernel | Self::Stub => Lane::Kernel,
            Self::Host => Lane::Host,
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for workspace in [Workspace::Host, Workspace::Kernel, Workspace::Stub] {
        let name = workspace.name();
        cases.push(Case::new(format!("lint::format-{name}"), move |log| {
            check(workspace.cargo("fmt").args(["--all", "--check"]), log)
        }));
        let clippy = Case::new(format!("lint::clippy-{name}"), move |log| {
            let mut command = workspace.cargo("clippy");
            command.arg("--workspace");
            // The kernel's tests run in QEMU, so it has no test targets.
            match workspace {
                Workspace::Stub => &mut command,
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
    cases.push(Case::new("lint::unsafe-code", unsafe_code));
    cases.push(Case::new("lint::language", language_budgets));
    cases
        .push(Case::new("lint::cycles", |_| language::cycles("", &mut io::sink()).map(|()| Outcome::Passed)));
    cases
        .push(Case::new("lint::layers", |_| language::layers("", &mut io::sink()).map(|()| Outcome::Passed)));
    cases.push(Case::new("lint::types", |_| language::types("", &mut io::sink()).map(|()| Outcome::Passed)));
    cases.push(Case::new("lint::documents", documents));
    cases.push(Case::new("lint::kernel-has-the-lints-of-the-workspace", kernel_lints));
    // The variants that ship: the host's libraries without the bindings to libibverbs, and the kernel without
    // its tests. The cases above include these.
    for (name, workspace, targets) in [
        ("lint::clippy-ibverbs-bare", Workspace::Host, "--lib"),
        ("lint::clippy-kernel-shipped", Workspace::Kernel, "--bins"),
    ] {
        let clippy = Case::new(name, move |log| {
            let mut command = workspace.cargo("clippy");
            check(command.args(["--workspace", targets, "--", "-D", "warnings"]), log)
        });
        cases.push(clippy.compiles(workspace.lane()));
    }
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
    let cases: Vec<String> = super::all(true).into_iter().map(|case| case.name).collect();
    let faults = documents::faults(&cases)?;
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(Outcome::Passed)
}

/// Checks that the kernel, a workspace of its own, has the lints of the host workspace.
fn kernel_lints(_log: &Path) -> Result<Outcome> {
    let read = |path: &str| std::fs::read_to_string(paths::root().join(path));
    let (host, kernel) = (read("Cargo.toml")?, read("kernel/Cargo.toml")?);
    for tool in ["rust", "clippy"] {
        let wanted = section(&host, &format!("[workspace.lints.{tool}]"));
        let found = section(&kernel, &format!("[lints.{tool}]"));
        ensure!(!wanted.is_empty(), "Cargo.toml has no lints of {tool}");
        ensure!(
            found == wanted,
            "kernel/Cargo.toml has the lints {found:?} of {tool}, the workspace {wanted:?}"
        );
    }
    Ok(Outcome::Passed)
}

/// Returns the settings below a heading of a manifest.
fn section<'a>(manifest: &'a str, heading: &str) -> Vec<&'a str> {
    let below = manifest.lines().skip_while(|line| *line != heading).skip(1);
    let settings = below.take_while(|line| !line.starts_with('['));
    settings.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Checks that a library without a test program (`test = false`) has no test in `src/`, because such a test
/// would never run.
fn no_test_is_left_out(_log: &Path) -> Result<Outcome> {
    let mut left_out = Vec::new();
    for member in members()? {
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

/// Checks that each library and program but those of [`UNSAFE`] forbids unsafe code.
fn unsafe_code(_log: &Path) -> Result<Outcome> {
    let mut lacking = Vec::new();
    for member in members()?.into_iter().filter(|member| !UNSAFE.contains(&&**member)) {
        let source = paths::root().join(&member).join("src");
        let roots = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let mut roots = roots.iter().filter(|root| root.exists()).peekable();
        ensure!(roots.peek().is_some(), "{member} has neither a library nor a program");
        for root in roots {
            if !std::fs::read_to_string(root)?.lines().any(|line| line == "#![forbid(unsafe_code)]") {
                lacking.push(root.display().to_string());
            }
        }
    }
    ensure!(lacking.is_empty(), "unsafe code is not forbidden by {}", lacking.join(", "));
    Ok(Outcome::Passed)
}

/// Returns the directories of the workspace's crates.
fn members() -> Result<Vec<String>> {
    let workspace = std::fs::read_to_string(paths::root().join("Cargo.toml"))?;
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.context("Cargo.toml lists no members")?;
    Ok(members.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

fn check(command: &mut Command, log: &Path) -> Result<Outcome> {
    tool::run_ok(command, log, SILENCE).map(|_| Outcome::Passed)
}
