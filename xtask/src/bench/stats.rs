//! Medians of repeated measurements.

/// Returns the middle value, or the mean of the two middle ones; `None` if there are no values.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Returns the median of one figure over several measurements, or `None` if one of them lacks it.
pub(super) fn median_of<T>(all: &[T], figure: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(all.iter().map(figure).collect::<Option<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(vec![]), None);
        assert_eq!(median_of(&[1.0, 5.0, 3.0], |v| Some(*v)), Some(3.0));
        assert_eq!(median_of(&[1.0, 5.0, 3.0], |v| (*v < 4.0).then_some(*v)), None);
    }
}
