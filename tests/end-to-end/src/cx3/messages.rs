//! Compares the drivers' messages in the kernel's log with committed records, in which each warning has its
//! reason.

use anyhow::{Result, bail, ensure};
use lab::cx3::Lab;

/// The command that prints the drivers' log lines, without the command line, which names their parameters
/// too.
const LINES: &str = "dmesg -r | grep mlx4 | grep -v -i 'command line'";

/// A record: lines as in the log, `<LEVEL>text`, without their time. A line with `#` is a remark on the next
/// line.
struct Record {
    /// The beginning of `uname -r`.
    kernel: &'static str,
    /// The cards of the record: profiles, or the way in which the drivers were loaded.
    of: &'static [&'static str],
    text: &'static str,
}

/// The key of the record of the usual card, which other cards share.
const USUAL: &str = "";

/// The message of a link that is up. Its time varies, and so does the name of its interface: the comparison
/// considers only whether the link is up in the end.
const UP: &str = ": Link Up";
/// The message of a link that is down. The number of these before the link is up is ignored, on a card whose
/// record contains one.
const DOWN: &str = ": Link Down";
/// The command that waits until a link is up.
const AWAIT_UP: &str = "for i in $(seq 100); do dmesg | grep -q 'mlx4.*: Link Up' && break; sleep 0.2; done";

const RECORDS: [Record; 10] = [
    Record { kernel: "6.1.", of: &[USUAL], text: include_str!("messages/6.1.txt") },
    Record { kernel: "6.1.", of: &["pro-2port", "vpi-2port"], text: include_str!("messages/6.1-2port.txt") },
    Record { kernel: "6.1.", of: &["ib"], text: include_str!("messages/6.1-ib.txt") },
    Record { kernel: "6.1.", of: &["vf"], text: include_str!("messages/6.1-vf.txt") },
    Record { kernel: "6.1.", of: &["pro.dmfs"], text: include_str!("messages/6.1-dmfs.txt") },
    Record { kernel: "6.1.", of: &["a0"], text: include_str!("messages/6.1-a0.txt") },
    Record { kernel: "6.1.", of: &["slow"], text: include_str!("messages/6.1-slow.txt") },
    Record { kernel: "6.12.", of: &[USUAL], text: include_str!("messages/6.12.txt") },
    Record { kernel: "6.12.", of: &["ib"], text: include_str!("messages/6.12-ib.txt") },
    Record { kernel: "6.12.", of: &["vf"], text: include_str!("messages/6.12-vf.txt") },
];

/// Checks that the log of a machine whose drivers have been loaded once equals the record of its kernel for
/// the usual card.
pub(super) fn as_recorded(lab: &mut Lab, machine: usize) -> Result<()> {
    as_recorded_of(lab, machine, USUAL)
}

/// Checks the log as [`as_recorded`] does, for other cards or another way to load the drivers. Without a
/// record of their own, the usual card's is used.
pub(super) fn as_recorded_of(lab: &mut Lab, machine: usize, of: &str) -> Result<()> {
    let kernel = lab.check(machine, "uname -r")?;
    let of_kernel = || RECORDS.iter().filter(|record| kernel.starts_with(record.kernel));
    let record = of_kernel()
        .find(|record| record.of.contains(&of))
        .or_else(|| of_kernel().find(|record| record.of.contains(&USUAL)));
    if record.is_some_and(|record| record.text.contains(UP)) {
        lab.check(machine, AWAIT_UP)?;
    }
    let said = lab.check(machine, LINES)?;
    let is_late = record.is_some_and(|record| record.text.contains(DOWN));
    let is_link = |line: &str| line.ends_with(UP) || (is_late && line.ends_with(DOWN));
    let (links, said): (Vec<String>, Vec<String>) = said.lines().map(masked).partition(|line| is_link(line));
    let Some(record) = record else {
        bail!("there is no record for Linux {}; it says:\n{}", kernel.trim(), said.join("\n"));
    };
    let lines = remarked(record.text).map(|(line, _)| line);
    let (links_recorded, recorded): (Vec<&str>, Vec<&str>) = lines.partition(|line| is_link(line));
    let is_up = links.iter().any(|line| line.ends_with(UP));
    let was_up = links_recorded.iter().any(|line| line.ends_with(UP));
    ensure!(is_up == was_up, "machine {machine}: what it says of links: {links:?}");
    let new = said.iter().filter(|line| !recorded.contains(&line.as_str())).map(|line| format!("+{line}"));
    let gone = recorded.iter().filter(|line| !said.iter().any(|said| said == *line));
    let gone = gone.map(|line| format!("-{line}"));
    ensure!(
        said == recorded,
        "machine {machine} (Linux {}) says something else: {}; in all:\n{}",
        kernel.trim(),
        new.chain(gone).collect::<Vec<_>>().join("; "),
        said.join("\n")
    );
    Ok(())
}

/// Removes the time from a line `<6>[   12.345678] text`.
fn masked(line: &str) -> String {
    match line.split_once('[').and_then(|(level, rest)| Some((level, rest.split_once("] ")?.1))) {
        Some((level, text)) => format!("{level}{text}"),
        None => line.to_owned(),
    }
}

/// Returns the lines of a committed text, each with a flag that is true if the line before is a remark.
pub(super) fn remarked(text: &'static str) -> impl Iterator<Item = (&'static str, bool)> {
    let mut remark = false;
    text.lines().filter_map(move |line| {
        let is_remark = line.starts_with('#');
        let before = std::mem::replace(&mut remark, is_remark);
        (!is_remark && !line.is_empty()).then_some((line, before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least severe level that is a warning.
    const WARNING: u32 = 4;

    #[test]
    fn each_warning_has_a_reason() {
        for record in RECORDS {
            for (line, remark) in remarked(record.text) {
                let level =
                    line.strip_prefix('<').and_then(|rest| rest.split_once('>')?.0.parse::<u32>().ok());
                let level = level.unwrap_or_else(|| panic!("{}: no level: {line}", record.kernel));
                assert!(level > WARNING || remark, "{}: a warning without its reason: {line}", record.kernel);
            }
        }
    }

    #[test]
    fn times_are_left_out() {
        assert_eq!(masked("<6>[   12.345678] mlx4: [a] b"), "<6>mlx4: [a] b");
        assert_eq!(masked("<4>no time"), "<4>no time");
    }
}
