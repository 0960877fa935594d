//! Consoles: serial ports, the screen of a VGA, and a screen of pixels show the same lines.

use super::bare::Bare;
use super::machine::{EXIT, MODELS, SUCCESS, options};
use crate::runner::{Case, Outcome};
use anyhow::{Context, Result, bail, ensure};
use font8x8::legacy::BASIC_LEGACY;
use lab::cluster::Lab;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// The last line of a self-test that halts.
const HALTED: &str = "selftest halt: the end\r\n";
/// The columns of a VGA's screen.
const COLUMNS: usize = 80;
/// A cell of the screen of pixels.
const CELL: (usize, usize) = (8, 16);
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
    let file = log.with_extension("ppm");
    let name = file.to_str().context("a log whose path is no text")?;
    bare.execute("screendump", &json!({ "filename": name }))?;
    let image = std::fs::read(&file)?;
    let rows = read(&image)?;
    let columns = rows.first().map_or(0, String::len);
    compare(&rows, &bare.said(), columns)
}

/// Reads the text on a picture (PPM, 8 bits for each colour) in the font: each cell must be one of its
/// characters.
fn read(image: &[u8]) -> Result<Vec<String>> {
    let mut head = image.splitn(4, |byte| byte.is_ascii_whitespace());
    let mut number = || -> Result<usize> {
        let word = head.next().context("a cut picture")?;
        std::str::from_utf8(word)?.parse().context("a picture without a size")
    };
    ensure!(image.starts_with(b"P6"), "the picture is no PPM");
    let _ = number();
    let (width, height) = (number()?, number()?);
    let start = image.len().checked_sub(width * height * 3).context("a cut picture")?;
    let is_set = |x: usize, y: usize| image.get(start + 3 * (y * width + x)).is_some_and(|red| *red > 127);
    let glyph = |row: usize, column: usize| -> Result<char> {
        let line = |n: usize| {
            let bits = (0..CELL.0).filter(|x| is_set(column * CELL.0 + x, row * CELL.1 + n));
            bits.fold(0u8, |all, x| all | 1 << x)
        };
        let lines: Vec<u8> = (0..CELL.1).map(line).collect();
        ensure!(
            lines.chunks(2).all(|pair| pair.iter().all(|l| Some(l) == pair.first())),
            "lines are not twice"
        );
        let lines: Vec<u8> = lines.iter().step_by(2).copied().collect();
        match (' '..='~').find(|c| BASIC_LEGACY.get(*c as usize).is_some_and(|g| g.as_slice() == lines)) {
            Some(c) => Ok(c),
            None => bail!("row {row}, column {column} is no character of the font"),
        }
    };
    (0..height / CELL.1).map(|row| (0..width / CELL.0).map(|column| glyph(row, column)).collect()).collect()
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
