//! The placement of a region's memory, as applications ask for it.

use super::layout::{GRAIN, column_len};
use super::request::Plan;
use crate::Error;
use alloc::vec;
use alloc::vec::Vec;
use proto::NodeId;

/// The most shares of a region.
pub(super) const MOST_SHARES: usize = 1024;

/// The nodes that shall have the memory of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All memory on the given node.
    Node(NodeId),
    /// Memory of these nodes in turn, `stripe` bytes each time. Large transfers use the links of all nodes.
    Striped {
        /// The nodes, at most 1024; the first keeps the region's tables.
        nodes: Vec<NodeId>,
        /// The length of a stripe in bytes, a multiple of 8.
        stripe: u64,
    },
    /// One share after the other, each a node and a number of bytes: multiples of 8 except for the last; at
    /// most 1024 shares. The first node keeps the region's tables.
    Shares(Vec<(NodeId, u64)>),
    /// The node with the most free memory; shares on several nodes if no node has enough.
    Anywhere,
}

impl From<NodeId> for Placement {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

fn refused(why: &str) -> Error {
    Error::Refused(why.into())
}

impl Placement {
    /// Returns the plans to try one after the other for `len` bytes. `free` is the free memory of the
    /// nodes, the most first; it matters only for [`Anywhere`](Self::Anywhere).
    pub(crate) fn plans(self, len: u64, free: &[(NodeId, u64)]) -> Result<Vec<Plan>, Error> {
        let one = |node| Plan { stripe: 0, shares: vec![(node, len)] };
        match self {
            Self::Node(node) => Ok(vec![one(node)]),
            Self::Striped { nodes, stripe } => {
                if stripe == 0 || !stripe.is_multiple_of(GRAIN) {
                    return Err(refused("a stripe is a multiple of 8 bytes"));
                }
                if nodes.is_empty() || nodes.len() > MOST_SHARES {
                    return Err(refused("a striped region has 1 to 1024 nodes"));
                }
                let count = (nodes.len() as u64).min(len.div_ceil(stripe)).max(1);
                let shares: Vec<_> = (0..count)
                    .zip(nodes)
                    .map(|(i, node)| (node, column_len(len, stripe, count, i)))
                    .collect();
                Ok(vec![Plan { stripe: if count == 1 { 0 } else { stripe }, shares }])
            }
            Self::Shares(shares) => {
                let sum = shares.iter().try_fold(0u64, |sum, (_, share)| sum.checked_add(*share));
                let Some((_, but_last)) = shares.split_last() else {
                    return Err(refused("a region has at least one share"));
                };
                if sum != Some(len) || shares.len() > MOST_SHARES {
                    return Err(refused("the shares of a region, at most 1024, add up to its length"));
                }
                let whole = |(_, share): &(NodeId, u64)| *share > 0 && share.is_multiple_of(GRAIN);
                if !but_last.iter().all(whole) || (len > 0 && shares.last().is_some_and(|s| s.1 == 0)) {
                    return Err(refused("shares but the last are multiples of 8 bytes, and none is empty"));
                }
                Ok(vec![Plan { stripe: 0, shares }])
            }
            Self::Anywhere => {
                let fits = free.iter().filter(|(_, bytes)| *bytes >= len);
                let mut plans: Vec<_> = fits.map(|(node, _)| one(*node)).collect();
                if plans.is_empty() {
                    plans.push(spread(len, free)?);
                }
                Ok(plans)
            }
        }
    }
}

/// Returns shares on the nodes with the most free memory.
fn spread(len: u64, free: &[(NodeId, u64)]) -> Result<Plan, Error> {
    let (mut left, mut shares) = (len, Vec::new());
    for (node, bytes) in free.iter().take(MOST_SHARES) {
        let share = left.min(bytes / GRAIN * GRAIN);
        if share > 0 {
            shares.push((*node, share));
            left -= share;
        }
    }
    if left > 0 || shares.is_empty() {
        return Err(Error::NoMemory { asked: len, free: len - left });
    }
    Ok(Plan { stripe: 0, shares })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn plans() {
        let plans = |p: Placement, len| p.plans(len, &[(B, 100), (A, 60)]);
        let plan = |stripe, shares: &[(NodeId, u64)]| Plan { stripe, shares: shares.to_vec() };
        assert_eq!(plans(A.into(), 5), Ok(vec![plan(0, &[(A, 5)])]));
        assert_eq!(plans(Placement::Anywhere, 50), Ok(vec![plan(0, &[(B, 50)]), plan(0, &[(A, 50)])]));
        assert_eq!(plans(Placement::Anywhere, 80), Ok(vec![plan(0, &[(B, 80)])]));
        assert_eq!(plans(Placement::Anywhere, 150), Ok(vec![plan(0, &[(B, 96), (A, 54)])]));
        assert_eq!(plans(Placement::Anywhere, 200), Err(Error::NoMemory { asked: 200, free: 152 }));
        let striped = |nodes: &[NodeId], stripe| Placement::Striped { nodes: nodes.to_vec(), stripe };
        assert_eq!(plans(striped(&[A, B], 16), 70), Ok(vec![plan(16, &[(A, 38), (B, 32)])]));
        // Fewer stripes than nodes, and one node.
        assert_eq!(plans(striped(&[A, B], 16), 16), Ok(vec![plan(0, &[(A, 16)])]));
        assert_eq!(plans(striped(&[A, B], 16), 0), Ok(vec![plan(0, &[(A, 0)])]));
        for (p, len) in [
            (striped(&[A], 0), 1),
            (striped(&[A, B], 12), 100),
            (striped(&[], 8), 1),
            (Placement::Shares(vec![]), 0),
            (Placement::Shares(vec![(A, 7), (B, 1)]), 8),
            (Placement::Shares(vec![(A, 8), (B, 1)]), 8),
            (Placement::Shares(vec![(A, 8), (B, 0)]), 8),
            (Placement::Shares(vec![(A, u64::MAX), (B, 9)]), 8),
        ] {
            assert!(matches!(plans(p.clone(), len), Err(Error::Refused(_))), "{p:?}");
        }
        assert_eq!(plans(Placement::Shares(vec![(A, 8), (B, 1)]), 9), Ok(vec![plan(0, &[(A, 8), (B, 1)])]));
    }

    proptest! {
        /// The shares of any plan are what the layout expects.
        #[test]
        fn stripes_add_up(len: u64, nodes in 1usize..20, stripe in 1u64..1 << 40) {
            let nodes: Vec<_> = (1..=nodes as u16).map(NodeId).collect();
            let plans = Placement::Striped { nodes, stripe: stripe * 8 }.plans(len, &[]).unwrap();
            let sum: u128 = plans[0].shares.iter().map(|s| u128::from(s.1)).sum();
            prop_assert_eq!(sum, u128::from(len));
            prop_assert!(len == 0 || plans[0].shares.iter().all(|s| s.1 > 0));
        }
    }
}
