//! Builds of the programs and images that other tests need.

use crate::job::xtask;
use crate::runner::{Case, Lane, Outcome};
use anyhow::{Result, ensure};
use lab::cargo::{self, LIBIBVERBS, Profile};
use lab::image::{self, Apps, Contents};
use lab::{manager, tool};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The name of the build of everything in the host workspace.
const HOST: &str = "build::host";
/// The name of the build of the shipped image.
const IMAGE: &str = "build::image-size-and-syscalls";
/// The longest silence of a compiler, which links an image without a word, on a busy host.
const SILENCE: Duration = Duration::from_secs(1800);

/// Builds the programs and images that the tests need, as users build them. Each build checks that the image
/// contains no `syscall`.
pub fn cases() -> Vec<Case> {
    let image = |contents: Contents| {
        move |log: &Path| {
            let image = image::build_quietly(&contents, |cargo| tool::run_ok(cargo, log, SILENCE).map(drop))?;
            image::check_size(image.stripped_bytes, image.budget).map(|()| Outcome::Passed)
        }
    };
    vec![
        Case::new(HOST, host).compiles(Lane::Host),
        Case::new(IMAGE, image(Contents::default())).compiles(Lane::Kernel),
        Case::new("build::core-image-size-and-syscalls", image(Contents::with(Apps::core())))
            .compiles(Lane::Kernel),
        Case::new("build::tests-image-has-self-tests-and-no-other-has", self_tests).compiles(Lane::Kernel),
        Case::new("build::too-large-an-image-is-built-with-a-warning", too_large).in_lane(Lane::Kernel),
        Case::new("build::manager", build_manager).compiles(Lane::Host),
    ]
}

/// Returns the builds of what the tests run, as far as the tests do not include them.
pub fn missing(tests: &[Case]) -> impl Iterator<Item = Case> + use<> {
    programs(tests).into_iter().chain(images(tests))
}

/// Returns the build of the images that boot files are made of, if the tests do not include it. Boot files
/// are made by another process, whose silence has a limit that is meant for machines.
fn images(tests: &[Case]) -> Option<Case> {
    let has = |begin: &str| tests.iter().any(|case| case.name.starts_with(begin));
    if has(IMAGE) || !has(crate::BOOT_MATRIX) {
        return None;
    }
    let of_tests = has(crate::boot::CANARY).then(Contents::tests);
    let build = move |log: &Path| {
        for contents in [Contents::default()].into_iter().chain(of_tests) {
            image::build_quietly(&contents, |cargo| tool::run_ok(cargo, log, SILENCE).map(drop))?;
        }
        image::stub(|cargo| tool::run_ok(cargo, log, SILENCE).map(drop)).map(|_| Outcome::Passed)
    };
    Some(Case::new("build::images", build).compiles(Lane::Kernel))
}

/// Returns the build of the programs that the tests run, if the tests do not include the whole build.
fn programs(tests: &[Case]) -> Option<Case> {
    let wanted: BTreeSet<_> =
        tests.iter().map(|case| case.programs).filter(|args| !args.is_empty()).collect();
    if wanted.is_empty() || tests.iter().any(|case| case.name == HOST) {
        return None;
    }
    let build = move |log: &Path| {
        let mut command = cargo::host("build");
        command.args(["--workspace", "--features", LIBIBVERBS]).args(wanted.into_iter().flatten());
        tool::run_ok(&mut command, log, SILENCE).map(|_| Outcome::Passed)
    };
    Some(Case::new("build::programs", build).compiles(Lane::Host))
}

/// Compiles all programs, tests and examples of the host workspace.
fn host(log: &Path) -> Result<Outcome> {
    let mut command = cargo::host("test");
    command.args(["--workspace", "--features", LIBIBVERBS, "--no-run"]);
    tool::run_ok(&mut command, log, SILENCE).map(|_| Outcome::Passed)
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
fn build_manager(_log: &Path) -> Result<Outcome> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_tests_are_built_unless_everything_is() {
        let test = |name: &str| Case::new(name, |_| Ok(Outcome::Passed));
        let built = |tests: Vec<Case>| -> Vec<String> {
            missing(&tests).filter(|case| case.compiles).map(|case| case.name).collect()
        };
        assert_eq!(built(vec![test("a")]), [""; 0]);
        assert_eq!(built(vec![test("a"), test("b").runs(&["--bin", "lite-node"])]), ["build::programs"]);
        assert_eq!(built(vec![test(HOST), test("b").runs(&["--bin", "lite-node"])]), [""; 0]);
        assert_eq!(built(vec![test("boot::a"), test("b")]), ["build::images"]);
        assert_eq!(built(vec![test("boot::a"), test(IMAGE)]), [""; 0]);
    }

    #[test]
    fn tests_of_a_mixed_cluster_run_programs() {
        let cases = crate::cases(false);
        let case = cases.iter().find(|case| case.name == "cx3::no link in common");
        assert!(case.is_some_and(|case| case.programs == ["--bin", "lite-node"]));
    }
}
