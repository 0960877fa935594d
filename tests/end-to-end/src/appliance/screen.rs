//! The text on QEMU's picture of a screen of pixels, read in the font of the kernel.

use super::bare::Bare;
use anyhow::{Context, Result, bail, ensure};
use font8x8::legacy::BASIC_LEGACY;
use serde_json::json;
use std::path::Path;

/// A cell of the screen, in pixels. Each line of a character is twice there.
const CELL: (usize, usize) = (8, 16);

/// Takes a picture of a machine's screen into `file`, and returns the rows of text on it.
pub(super) fn rows(bare: &mut Bare, file: &Path) -> Result<Vec<String>> {
    let name = file.to_str().context("a picture whose path is no text")?;
    bare.execute("screendump", &json!({ "filename": name }))?;
    read(&std::fs::read(file)?)
}

/// Reads the text on a picture (PPM, 8 bits for each colour): each cell must be one of the characters.
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
