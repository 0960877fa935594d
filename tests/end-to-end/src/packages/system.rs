//! A disk with a minimal Debian with systemd, which mmdebstrap makes of the packages of the host's suite.

use super::LIMIT;
use anyhow::{Context, Result, ensure};
use lab::{paths, setup, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages beside those that each system has: what the packages under test depend on, so that nothing is
/// downloaded later, and the shells whose completion is tested.
const PACKAGES: &str = "systemd-sysv,udev,init-system-helpers,bash-completion,zsh,iproute2,procps,\
                        ibverbs-providers,libibverbs1,libgcc-s1,python3-minimal";
/// Makes a file system of a tree. mmdebstrap has mounted `/proc` and others there, which a bind mount leaves
/// out, and has forbidden packages to start services, which packages on the disk shall do.
const MAKE_DISK: &str = r#"set -e
rm -f "$1/usr/sbin/policy-rc.d"
truncate -s 2G "$2"
mkdir "$2.tree"
mount --bind "$1" "$2.tree"
mkfs.ext4 -q -d "$2.tree" "$2"
"#;

/// The disk.
pub(super) struct System {
    pub(super) disk: PathBuf,
}

impl System {
    /// Returns the disk, which the first call makes.
    pub(super) fn get() -> Result<Self> {
        let dir = paths::made(paths::target().join("system"))?;
        let lock = fs::File::create(dir.join("lock"))?;
        lock.lock().context("cannot lock the directory of the system")?;
        let disk = dir.join("disk");
        let (suite, recipe) = (suite()?, format!("{PACKAGES}\n{MAKE_DISK}"));
        let made_of = format!("{suite}\n{recipe}");
        if disk.exists() && fs::read_to_string(dir.join("recipe")).is_ok_and(|former| former == made_of) {
            return Ok(Self { disk });
        }
        make(&dir, &suite, &disk)?;
        fs::write(dir.join("recipe"), made_of)?;
        Ok(Self { disk })
    }
}

/// Returns the name of the host's suite, as in `bookworm`.
fn suite() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("this host is not Debian")?;
    ensure!(release.lines().any(|line| line == "ID=debian"), "this host is not Debian");
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    suite.map(str::to_owned).context("/etc/os-release names no suite")
}

fn make(dir: &Path, suite: &str, disk: &Path) -> Result<()> {
    setup::programs(&[("mmdebstrap", "mmdebstrap")])?;
    setup::programs(&[("mkfs.ext4", "e2fsprogs")])?;
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(dir)?;
    let (script, new) = (work.path().join("make-disk"), work.path().join("disk"));
    fs::write(&script, MAKE_DISK)?;
    let hook = format!("unshare --mount sh {} \"$1\" {}", script.display(), new.display());
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--variant=minbase", "--format=null", &format!("--include={PACKAGES}")]);
    mmdebstrap.arg(format!("--customize-hook={hook}")).args([suite, "/dev/null"]);
    // The host's own mirror of Debian.
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    mmdebstrap.args(sources.iter().find(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0)));
    tool::run_ok(&mut mmdebstrap, &dir.join("log"), LIMIT)
        .with_context(|| format!("see {}", dir.join("log").display()))?;
    fs::rename(&new, disk).context("cannot keep the disk")
}
