//! A port's table of addresses or VLANs, in which the slave occupies rows. Each value has one row with a
//! count of its users.

use super::tracker::{INVALID, NO_SUCH, Result};

/// The rows of an address table, with their values.
#[derive(Debug)]
pub(super) struct Rows<T> {
    rows: Vec<Option<(T, u32)>>,
}

impl<T: Copy + PartialEq> Rows<T> {
    /// Creates a table of `count` free rows.
    #[must_use]
    pub(super) fn new(count: usize) -> Self {
        Self { rows: vec![None; count] }
    }

    /// Adds a user to a value and returns its row, which is a free row if the value is new.
    pub(super) fn register(&mut self, value: T) -> Result<usize> {
        let has = |row: &Option<(T, u32)>| row.is_some_and(|(held, _)| held == value);
        if let Some(index) = self.rows.iter().position(has) {
            if let Some(Some((_, users))) = self.rows.get_mut(index) {
                *users += 1;
            }
            return Ok(index);
        }
        // Linux reports a full table as ENOSPC, for which there is no status.
        let index = self.rows.iter().position(Option::is_none).ok_or(NO_SUCH)?;
        *self.rows.get_mut(index).ok_or(INVALID)? = Some((value, 1));
        Ok(index)
    }

    /// Removes a user of a value. Returns the row if it is now free. A value without a row is no error.
    pub(super) fn unregister(&mut self, value: T) -> Option<usize> {
        let index = self.rows.iter().position(|row| row.is_some_and(|(held, _)| held == value))?;
        let slot = self.rows.get_mut(index)?;
        match slot {
            Some((_, users)) if *users > 1 => {
                *users -= 1;
                None
            }
            _ => {
                *slot = None;
                Some(index)
            }
        }
    }

    /// Returns whether a row is in use.
    #[must_use]
    pub(super) fn holds(&self, index: usize) -> bool {
        self.rows.get(index).is_some_and(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_row_as_long_as_it_has_users() {
        let mut rows = Rows::new(2);
        assert_eq!(rows.register(7), Ok(0));
        assert_eq!(rows.register(8), Ok(1));
        assert_eq!(rows.register(7), Ok(0));
        assert_eq!(rows.register(9), Err(NO_SUCH));
        assert_eq!(rows.unregister(7), None);
        assert!(rows.holds(0));
        assert_eq!(rows.unregister(7), Some(0));
        assert!(!rows.holds(0));
        assert_eq!(rows.unregister(7), None);
        assert_eq!(rows.register(9), Ok(0));
    }
}
