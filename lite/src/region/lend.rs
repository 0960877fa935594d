//! Loans: a node that maps a region lets another node map it too, with rights that it has itself, for one
//! operation that the other node does for it. A borrowed mapping is like any other: it is revoked with the
//! region, and unmapped when the operation has ended.

use crate::base::member::MemberId;
use crate::sometimes::sometimes;
use crate::{Error, Permissions};
use alloc::collections::BTreeMap;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// The maximum number of loans that an owner keeps for nodes that have not taken them yet.
const MOST: usize = 4096;
/// The longest lifetime of a loan.
const LONGEST: Duration = Duration::from_secs(3600);

/// A mapping that another node may take once.
pub(crate) struct Loan {
    /// The lender, and the lender's number of the mapping.
    pub(crate) mapping: (MemberId, u64),
    pub(crate) to: NodeId,
    pub(crate) rights: Permissions,
    pub(crate) until: Instant,
}

/// The loans that have not been taken yet, by token.
#[derive(Default)]
pub(super) struct Loans(BTreeMap<u64, Loan>);

impl Loans {
    /// Adds a loan. Removes those that have expired or whose mapping no longer `is_there`.
    pub(super) fn add(
        &mut self,
        now: Instant,
        token: u64,
        loan: Loan,
        is_there: impl Fn(&(MemberId, u64)) -> bool,
    ) -> Result<(), Error> {
        if loan.rights.contains(Permissions::ADMIN) {
            return Err(Error::Permission);
        }
        self.0.retain(|_, loan| loan.until > now && is_there(&loan.mapping));
        if self.0.len() >= MOST || self.0.contains_key(&token) {
            return Err(Error::Refused("no more loans".into()));
        }
        let until = loan.until.min(now + LONGEST);
        self.0.insert(token, Loan { until, ..loan });
        Ok(())
    }

    /// Takes the loan of `token` to `by`, which succeeds once.
    pub(super) fn take(&mut self, now: Instant, token: u64, by: NodeId) -> Option<Loan> {
        if self.0.get(&token).is_none_or(|loan| loan.to != by || loan.until <= now) {
            sometimes!("a loan had expired or ended");
            return None;
        }
        self.0.remove(&token)
    }

    /// Removes the loans of and to an incarnation that has ended.
    pub(super) fn forget(&mut self, member: MemberId) {
        self.0.retain(|_, loan| loan.mapping.0 != member && loan.to != member.0);
    }

    /// Returns true if one of these mappings is lent to a node that has not taken it yet.
    pub(super) fn any_of(&self, now: Instant, is_one: impl Fn(&(MemberId, u64)) -> bool) -> bool {
        self.0.values().any(|loan| loan.until > now && is_one(&loan.mapping))
    }

    /// Adds a loan again that could not be used.
    pub(super) fn put_back(&mut self, token: u64, loan: Loan) {
        self.0.insert(token, loan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Incarnation;

    #[test]
    fn a_loan_is_taken_once_by_whom_it_is_for_and_in_time() {
        let mut loans = Loans::default();
        let at = Instant::from_nanos;
        let lender = (NodeId(1), Incarnation(5));
        let loan =
            |until| Loan { mapping: (lender, 7), to: NodeId(2), rights: Permissions::READ, until: at(until) };
        loans.add(at(0), 1, loan(10), |_| true).unwrap();
        assert!(loans.add(at(0), 1, loan(10), |_| true).is_err(), "a number is used once");
        assert!(loans.take(at(1), 2, NodeId(2)).is_none());
        assert!(loans.take(at(1), 1, NodeId(3)).is_none());
        assert!(loans.take(at(10), 1, NodeId(2)).is_none());
        assert_eq!(loans.take(at(9), 1, NodeId(2)).map(|l| l.mapping), Some((lender, 7)));
        assert!(loans.take(at(9), 1, NodeId(2)).is_none());
        let admin = Loan { rights: Permissions::ADMIN, ..loan(10) };
        assert_eq!(loans.add(at(0), 1, admin, |_| true), Err(Error::Permission));
        // Loans of mappings that have ended are removed.
        loans.add(at(0), 1, loan(10), |_| true).unwrap();
        loans.add(at(0), 2, loan(10), |mapping| mapping.1 != 7).unwrap();
        assert!(loans.take(at(1), 1, NodeId(2)).is_none());
        // So are those of incarnations that have ended, the lender's or the borrower's.
        for (token, gone) in [(3, lender), (4, (NodeId(2), Incarnation(1)))] {
            loans.add(at(0), token, loan(10), |_| true).unwrap();
            loans.forget((NodeId(1), Incarnation(4)));
            assert!(loans.0.contains_key(&token), "another incarnation of the lender has ended");
            loans.forget(gone);
            assert!(loans.take(at(1), token, NodeId(2)).is_none());
        }
    }
}
