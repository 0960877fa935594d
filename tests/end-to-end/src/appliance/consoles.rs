//! Consoles: serial ports, the screen of a VGA, and a screen of pixels show the same lines.

use super::bare::Bare;
use super::machine::{EXIT, MODELS, SUCCESS, options};
use super::screen;
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use lab::cluster::Lab;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// The last line of a self-test that halts.
const HALTED: &str = "selftest halt: the end\r\n";
/// The columns of a VGA's screen.
const COLUMNS: usize = 80;
/// The longest time for a serial port to catch up with another one, on a busy host.
const LIMIT: Duration = Duration::from_secs(240);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("machine::console-ports-and-text", |log| text(log).map(|()| Outcome::Passed)),
        Case::new("machine::console-pixels", |log| pixels(log).map(|()| Outcome::Passed)),
        Case::new("machine::console-second-port", |log| second_port(log).map(|()| Outcome::Passed)),
    ]
}

/// The serial ports COM1 to COM4 get the same bytes, and a VGA shows the last lines of them.
fn text(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[0];
    let ports: Vec<_> = (2..=4).map(|n| log.with_extension(format!("com{n}.log"))).collect();
    let all = std::iter::once(log).chain(ports.iter().map(|port| port.as_path()));
    let serial: String = all.map(|port| format!(" -serial file:{}", port.display())).collect();
    let options = options(machine, "-smp 1 -m 64M -vga std")?;
    let mut rest = vec!["-append", "selftest=halt console=com1,com2,com3,com4,vga"];
    rest.extend(serial.split_ascii_whitespace());
    let mut bare = Bare::start_with(&Lab::get()?.qemu, &options, &rest, log)?;
    bare.says(HALTED)?;
    let said = bare.said();
    for port in &ports {
        let begun = Instant::now();
        while std::fs::read_to_string(port)? != said {
            ensure!(begun.elapsed() < LIMIT, "{} differs from {}", port.display(), log.display());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let file = log.with_extension("screen");
    let name = file.to_str().context("a log whose path is no text")?;
    bare.execute("pmemsave", &json!({ "val": 0xb_8000, "size": 0x8000, "filename": name }))?;
    let cells = std::fs::read(&file)?;
    let text: Vec<u8> = cells.iter().step_by(2).copied().collect();
    let rows: Vec<_> = text.chunks(COLUMNS).map(|row| String::from_utf8_lossy(row).into_owned()).collect();
    // The window ends after the last row that holds text.
    let last =
        rows.iter().rposition(|row| row.contains(HALTED.trim_end())).context("the screen lacks the end")?;
    compare(rows.get(last.saturating_sub(23)..=last).unwrap_or_default(), &said, COLUMNS)
}

/// A screen of pixels shows the lines in the font.
fn pixels(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[1];
    let options = options(machine, "-smp 1 -m 64M -vga none -device ramfb")?;
    let rest = ["-append", "selftest=halt console=com1,ramfb"];
    let mut bare = Bare::start(&Lab::get()?.qemu, &options, &rest, log)?;
    bare.says(HALTED)?;
    let rows = screen::rows(&mut bare, &log.with_extension("ppm"))?;
    let columns = rows.first().map_or(0, String::len);
    compare(&rows, &bare.said(), columns)
}

/// Compares the rows of a screen with the last lines of a serial port. Empty rows do not count.
fn compare(rows: &[String], said: &str, columns: usize) -> Result<()> {
    let text = |row: &str| row.trim_end().to_owned();
    let shown: Vec<_> = rows.iter().map(|row| text(row)).filter(|row| !row.is_empty()).collect();
    let wanted = said.lines().flat_map(|line| line.as_bytes().chunks(columns));
    let wanted: Vec<_> =
        wanted.map(|row| text(&String::from_utf8_lossy(row))).filter(|row| !row.is_empty()).collect();
    let last = wanted.get(wanted.len().saturating_sub(shown.len())..).unwrap_or_default();
    ensure!(shown.len() > 10 && last == shown, "the screen shows {shown:#?}, not {last:#?}");
    Ok(())
}

/// A machine whose only serial port is COM2 writes there.
fn second_port(log: &Path) -> Result<()> {
    let (_, machine) = MODELS[1];
    let options =
        options(machine, &format!("-smp 1 -m 64M {EXIT} -chardev file,id=c,path={}", log.display()))?;
    let rest = ["-append", "selftest=boot", "-device", "isa-serial,chardev=c,index=1", "-serial", "none"];
    let status = Bare::start_with(&Lab::get()?.qemu, &options, &rest, log)?.ends()?;
    ensure!(status.code() == Some(SUCCESS), "selftest=boot: {status}; see {}", log.display());
    let said = std::fs::read_to_string(log)?;
    ensure!(said.contains("bootchart: executor"), "the second serial port lacks the boot chart");
    Ok(())
}
