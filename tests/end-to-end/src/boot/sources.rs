//! Settings of several sources in one boot, and settings on a partition.

use super::disks::{REMOVABLE, directory, place, second_directory};
use super::tools::Tools;
use super::trial::Trial;
use super::{Firmware, with_tools};
use crate::runner::Case;
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The sources that a boot by UEFI can have without a DHCP server, in the order of their precedence.
const SOURCES: [&str; 4] = ["command line", "initrd", "partition", "boot file"];
/// A setting for each pair of them, with the values of the first one and of the second one.
const CONFLICTS: [(&str, [u32; 2]); 6] = [
    ("lite.window", [2, 3]),
    ("lite.calls", [100, 101]),
    ("lite.retries", [5, 6]),
    ("lite.move-window", [4096, 8192]),
    ("lite.service-level", [1, 2]),
    ("lite.operations", [64, 128]),
];
/// The files of a partition.
const CONFIG: &str = "ferrolite/config";
const KEY: &str = "ferrolite/key";

pub(super) fn cases(full: bool) -> Vec<Case> {
    let case = |name: &str, check: fn(&Trial<'_>) -> Result<()>| {
        let check = move |tools: &Tools, log: &Path| check(&Trial::new(tools, log)?);
        with_tools(name, full, check).full_if(true)
    };
    vec![
        case("settings-of-each-pair-of-sources-ovmf", each_pair),
        case("settings-on-another-partition-ovmf", another_partition),
    ]
}

/// The settings of one source.
#[derive(Default)]
struct Words {
    counting: Vec<String>,
    overridden: Vec<String>,
}

impl Words {
    fn lines(&self) -> String {
        self.counting.iter().chain(&self.overridden).map(|word| format!("{word}\n")).collect()
    }
}

/// Returns the settings of all sources: each pair of sources sets one key to two values.
fn conflicts() -> BTreeMap<&'static str, Words> {
    let mut all: BTreeMap<_, Words> = SOURCES.into_iter().map(|source| (source, Words::default())).collect();
    let pairs = SOURCES
        .into_iter()
        .enumerate()
        .flat_map(|(at, first)| SOURCES.into_iter().skip(at + 1).map(move |second| [first, second]));
    for ([first, second], (key, [counts, does_not])) in pairs.zip(CONFLICTS) {
        all.entry(first).or_default().counting.push(format!("{key}={counts}"));
        all.entry(second).or_default().overridden.push(format!("{key}={does_not}"));
    }
    all
}

/// systemd-boot passes a command line and an initrd, the partition and the boot file have settings, too: the
/// node prints for each pair of these which one counts.
fn each_pair(trial: &Trial<'_>) -> Result<()> {
    let sources = conflicts();
    let lines = |source: &str| sources.get(source).map(Words::lines).unwrap_or_default();
    let esp = trial.directory("esp")?;
    trial.tools.copy("usr/lib/systemd/boot/efi/systemd-bootx64.efi", &esp.join(REMOVABLE))?;
    let (built_in, initrd) = (trial.path("built-in"), trial.path("initrd"));
    fs::write(&built_in, lines("boot file") + &trial.words()?.replace(' ', "\n"))?;
    let file = trial.image("efi", &["--config", &built_in.to_string_lossy()])?;
    place(&file, &esp, "ferrolite.efi")?;
    fs::write(&initrd, bootconfig::archive(&[(CONFIG, lines("initrd").as_bytes())]))?;
    place(&initrd, &esp, "initrd")?;
    put(trial, &esp, &lines("partition"))?;
    fs::create_dir_all(esp.join("loader/entries"))?;
    fs::write(esp.join("loader/loader.conf"), "timeout 0\ndefault ferrolite.conf\n")?;
    let words = lines("command line").replace('\n', " ");
    let entry = format!("title Ferrolite\nlinux /ferrolite.efi\ninitrd /initrd\noptions {words}\n");
    fs::write(esp.join("loader/entries/ferrolite.conf"), entry)?;

    trial.joins(directory(Firmware::Ovmf.machine(trial.tools)?, &esp), &["cluster key by partition"])?;
    let console = trial.console()?;
    for (source, words) in &sources {
        says(&console, &format!("settings by {source}:"), &words.counting)?;
        says(&console, &format!("settings by {source}, overridden:"), &words.overridden)?;
    }
    Ok(())
}

/// Fails unless the line with `title` has exactly these words about conflicts.
fn says(console: &str, title: &str, words: &[String]) -> Result<()> {
    let rest = console.lines().find_map(|line| Some(line.split_once(title)?.1));
    let mut said: Vec<_> = rest.unwrap_or_default().split_ascii_whitespace().collect();
    said.retain(|word| word.starts_with("lite."));
    let mut wanted: Vec<_> = words.iter().map(String::as_str).collect();
    said.sort_unstable();
    wanted.sort_unstable();
    ensure!(said == wanted, "`{title}` is followed by {said:?}, not by {wanted:?}");
    Ok(())
}

/// Writes settings and the key to a file system.
fn put(trial: &Trial<'_>, to: &Path, config: &str) -> Result<()> {
    fs::create_dir_all(to.join("ferrolite"))?;
    fs::write(to.join(CONFIG), config)?;
    place(trial.key(), to, KEY)
}

/// The firmware loads a boot file without any settings, which are on another disk.
fn another_partition(trial: &Trial<'_>) -> Result<()> {
    let (esp, disk) = (trial.directory("esp")?, trial.directory("disk")?);
    place(&trial.image("efi", &[])?, &esp, REMOVABLE)?;
    put(trial, &disk, &trial.words()?.replace(' ', "\n"))?;
    let machine = directory(Firmware::Ovmf.machine(trial.tools)?, &esp);
    let says = ["settings by partition: manager=", "cluster key by partition"];
    trial.joins(second_directory(machine, &disk), &says)
}
