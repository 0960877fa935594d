//! perftest between two appliances: raw verbs, beside which LITE is measured.

use anyhow::{Context, Result};
use lab::perftest::cell::{Cell, Direction};
use lab::perftest::lab::Lab as AppliancePair;
use serde::Serialize;

/// The figures of one program of perftest with one length of messages.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Raw {
    pub program: &'static str,
    /// The length of a message in bytes.
    pub size: u32,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// MB (10^6 bytes) per second.
    pub mb_s: Option<f64>,
}

/// Returns the cell of a program between two appliances, without loss.
pub(super) const fn cell(program: &'static str, size: u32, iterations: u32, mtu: u32) -> Cell {
    Cell { program, direction: Direction::ApplianceAppliance, size, mtu, loss: 0.0, iterations }
}

/// Measures a cell.
pub(super) fn measure(pair: &mut AppliancePair, cell: &Cell) -> Result<Raw> {
    let figure = pair.run(cell).with_context(|| cell.to_string())?;
    let mb_s = figure.average_mib_s().map(|mib_s| mib_s * f64::from(1 << 20) / 1e6);
    let Cell { program, size, .. } = *cell;
    Ok(Raw { program, size, p50_us: figure.p50_us(), p99_us: figure.p99_us(), mb_s })
}

/// Measures the cells, one after the other.
pub(super) fn measure_all(
    pair: &mut AppliancePair,
    cells: impl IntoIterator<Item = Cell>,
) -> Result<Vec<Raw>> {
    cells.into_iter().map(|cell| measure(pair, &cell)).collect()
}
