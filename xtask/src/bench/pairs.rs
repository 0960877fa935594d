//! Compares figures of two sides that were measured in turn.

use super::stats::median;
use super::table::{maybe, number};
use serde::Serialize;

/// One figure of both sides.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub what: &'static str,
    pub unit: &'static str,
    /// Our median.
    pub ours: Option<f64>,
    /// The other side's median.
    pub theirs: Option<f64>,
    /// Our share of the other side's figure: the median over pairs of consecutive runs.
    pub ratio: Option<f64>,
    /// The ratios of these pairs, in order.
    pub ratios: Vec<f64>,
}

impl Line {
    /// Compares consecutive runs. Missing figures are skipped.
    pub(super) fn new(
        what: &'static str,
        unit: &'static str,
        ours: &[Option<f64>],
        theirs: &[Option<f64>],
    ) -> Self {
        let pairs = ours.iter().zip(theirs).filter_map(|(ours, theirs)| ours.zip(*theirs));
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let middle = |runs: &[Option<f64>]| median(runs.iter().copied().flatten().collect());
        Self { what, unit, ours: middle(ours), theirs: middle(theirs), ratio: median(ratios.clone()), ratios }
    }

    /// Returns a row of a table: name, ours, theirs, unit, ratio, the ratios' spread.
    pub(super) fn cells(&self) -> [String; 6] {
        let (what, unit) = (self.what.to_owned(), self.unit.to_owned());
        [what, maybe(self.ours), maybe(self.theirs), unit, maybe(self.ratio), self.spread()]
    }

    /// Returns the first and the third quartile of the ratios, as one of the ratios each.
    pub(super) fn middle_half(&self) -> String {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        let quartile = |quarters: usize| ratios.get(ratios.len().saturating_sub(1) * quarters / 4).copied();
        quartile(1)
            .zip(quartile(3))
            .map_or_else(|| "-".to_owned(), |(a, b)| format!("{} to {}", number(a), number(b)))
    }

    /// Returns the least and the greatest ratio.
    pub(super) fn spread(&self) -> String {
        let least = self.ratios.iter().copied().reduce(f64::min);
        let greatest = self.ratios.iter().copied().reduce(f64::max);
        least.zip(greatest).map_or_else(|| "-".to_owned(), |(a, b)| format!("{} to {}", number(a), number(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_compared() {
        let line = Line::new(
            "x",
            "us",
            &[Some(60.0), Some(80.0), Some(90.0), None],
            &[Some(200.0), Some(100.0), None, Some(1.0)],
        );
        assert_eq!((line.ours, line.theirs), (Some(80.0), Some(100.0)));
        assert_eq!((&*line.ratios, line.ratio), (&[0.3, 0.8][..], Some(0.55)));
        assert_eq!(line.spread(), "0.30 to 0.80");
        let none = Line::new("x", "us", &[], &[]);
        assert_eq!((none.spread(), none.middle_half()), ("-".into(), "-".into()));
        let ours: Vec<_> = [5.0, 1.0, 2.0, 4.0, 3.0].map(Some).into();
        assert_eq!(Line::new("x", "us", &ours, &[Some(1.0); 5]).middle_half(), "2.00 to 4.00");
    }
}
