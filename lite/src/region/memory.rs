//! The memory of regions: taken in as many runs as it takes, here and on other nodes, which hold it for the owner.

use super::layout::{Layout, Piece};
use super::owner::Shape;
use crate::Error;
use crate::bounce::Run;
use crate::lock::Mutex;
use crate::membership::Life;
use crate::node::Node;
use crate::rpc::{Answer, Ask, Call, answer};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// Taken at once: memory is zeroed as it is taken, and other tasks want their turn.
const STEP: u64 = 16 << 20;
/// Most runs that a node's share of a region may be made of.
const MOST_RUNS: usize = 4096;
/// How long another node may take to take its share: it zeroes it.
const RESERVE_DEADLINE: Duration = Duration::from_secs(30);

/// How much memory on which nodes a region is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Bytes of a stripe if each share is a column; 0: the shares follow each other in one column.
    pub(crate) stripe: u64,
    /// Node and bytes.
    pub(crate) shares: Vec<(NodeId, u64)>,
}

/// Keeps one share of a region's memory.
pub(crate) enum Share {
    /// Here, until dropped.
    Here {
        /// What it lies in.
        _runs: Vec<Run>,
    },
    /// On another node, until that is told.
    There {
        /// The node.
        at: Life,
        /// This node's number of what that one holds.
        holding: u64,
    },
}

/// Memory that is held, and the pieces that it makes.
type Holding = (Vec<Run>, Vec<Piece>);

/// What this node holds for regions of other owners, by owner and its number. None: it is being taken.
#[derive(Default)]
pub(crate) struct Holdings(Mutex<BTreeMap<(Life, u64), Option<Holding>>>);

impl Holdings {
    /// Nobody reaches anything of that owner any more.
    pub(crate) fn settle(&self, owner: Life) {
        let mut table = self.0.lock();
        let keys: Vec<_> = table.range((owner, 0)..=(owner, u64::MAX)).map(|(key, _)| *key).collect();
        let gone: Vec<_> = keys.iter().filter_map(|key| table.remove(key)).collect();
        drop(table);
        drop(gone);
    }

    /// Some pieces of a holding.
    pub(crate) fn pieces(&self, owner: Life, holding: u64, from: u32) -> Result<Answer, Error> {
        let table = self.0.lock();
        let held = table.get(&(owner, holding)).and_then(Option::as_ref).ok_or(Error::Freed)?;
        let page = held.1.iter().skip(from as usize).take(super::owner::PAGE_PIECES);
        Ok(Answer::Pieces(page.copied().collect()))
    }

    /// The owner needs it no more.
    pub(crate) fn give_back(&self, owner: Life, holding: u64) {
        let removed = self.0.lock().remove(&(owner, holding));
        drop(removed);
    }

    /// Whether those bytes are held for that owner.
    pub(crate) fn holds(&self, owner: Life, part: &Piece) -> bool {
        let table = self.0.lock();
        let held = table.range((owner, 0)..=(owner, u64::MAX)).filter_map(|(_, held)| held.as_ref());
        let inside = |piece: &Piece| {
            let offset = part.addr.0.checked_sub(piece.addr.0);
            offset.and_then(|offset| offset.checked_add(part.len)).is_some_and(|end| end <= piece.len)
        };
        held.flat_map(|(_, pieces)| pieces).any(inside)
    }
}

/// Shares that go back if this is dropped.
struct Taken<'a> {
    node: &'a Arc<Node>,
    shares: Vec<Share>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.node.give_memory(core::mem::take(&mut self.shares));
    }
}

impl Node {
    /// Takes `len` bytes of this node's memory, zeroed, in one run if it can be.
    pub(crate) async fn take_runs(&self, len: u64) -> Result<Vec<Run>, Error> {
        let memory = self.platform.memory();
        let no_memory = || Error::NoMemory { asked: len, free: memory.stats().free };
        if len > memory.stats().free {
            return Err(no_memory());
        }
        if len <= STEP
            && let Some(run) = Run::take(&self.platform, len.max(1))
        {
            return Ok(alloc::vec![run]);
        }
        let mut runs = Vec::new();
        let mut left = len;
        while left > 0 {
            let step = left.min(STEP);
            let run = Run::take(&self.platform, step).map(|run| (run, step)).or_else(|| {
                let largest = memory.stats().largest_free.min(step);
                (largest > 0).then(|| Some((Run::take(&self.platform, largest)?, largest)))?
            });
            let (run, taken) = run.filter(|_| runs.len() < MOST_RUNS).ok_or_else(no_memory)?;
            runs.push(run);
            left -= taken;
            platform::yield_now().await;
        }
        Ok(runs)
    }

    /// Takes all the memory of a plan.
    pub(crate) async fn take_memory(self: &Arc<Self>, plan: &Plan) -> Result<(Layout, Vec<Share>), Error> {
        let (mut pieces, mut taken, mut len) = (Vec::new(), Taken { node: self, shares: Vec::new() }, 0u64);
        let nonsense = || Error::Refused("that is no plan for a region".into());
        for (node, share) in &plan.shares {
            len = len.checked_add(*share).ok_or_else(nonsense)?;
            if *node == self.me {
                let runs = self.take_runs(*share).await?;
                pieces.extend(self.pieces_of(&runs, *share));
                taken.shares.push(Share::Here { _runs: runs });
                continue;
            }
            let (at, holding) = (self.life_of(*node)?, self.random());
            taken.shares.push(Share::There { at, holding });
            pieces.extend(self.reserve_there(at, holding, *share).await?);
        }
        let columns = if plan.stripe == 0 { 1 } else { plan.shares.len() };
        let layout = Layout::new(len, plan.stripe, columns, pieces).ok_or_else(nonsense)?;
        self.report_memory();
        Ok((layout, core::mem::take(&mut taken.shares)))
    }

    async fn reserve_there(self: &Arc<Self>, at: Life, holding: u64, len: u64) -> Result<Vec<Piece>, Error> {
        let deadline = self.platform.now() + RESERVE_DEADLINE;
        let nonsense = || Error::Refused("the memory is not what was asked for".into());
        let Answer::Shape(shape) = self.ask_node(at, &Ask::Reserve { holding, len }, deadline).await? else {
            return Err(nonsense());
        };
        let mut pieces = shape.first;
        while pieces.len() < shape.count as usize {
            let ask = Ask::Reserved { holding, from: pieces.len() as u32 };
            match self.ask_node_long(at, &ask, deadline).await? {
                Answer::Pieces(more) if !more.is_empty() => pieces.extend(more),
                _ => return Err(nonsense()),
            }
        }
        let sum = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        let fine = sum == Some(len) && pieces.iter().all(|piece| piece.at == at);
        if fine { Ok(pieces) } else { Err(nonsense()) }
    }

    /// Gives memory back that nobody reaches any more.
    pub(crate) fn give_memory(self: &Arc<Self>, memory: Vec<Share>) {
        for share in memory {
            if let Share::There { at, holding } = share {
                self.spawn_insist(at, Ask::Yield { holding });
            }
        }
        self.report_memory();
    }

    /// For an owner: takes memory and holds it, then answers.
    pub(crate) fn reserve(self: &Arc<Self>, call: Call, holding: u64, len: u64) {
        let owner = (call.from(), call.incarnation());
        {
            let mut table = self.holdings.0.lock();
            // Under the lock, so that its end is seen here or ends the holding.
            if !self.is_live(owner) {
                drop(table);
                return answer(call, Err(Error::NodeDown(owner.0)));
            }
            table.insert((owner, holding), None);
        }
        let node = self.clone();
        let task = async move {
            let result = node.take_runs(len).await;
            let mut table = node.holdings.0.lock();
            let place = table.get_mut(&(owner, holding)).filter(|held| held.is_none());
            let result = match (result, place) {
                (Ok(runs), Some(place)) => {
                    let pieces = node.pieces_of(&runs, len);
                    let first = pieces.iter().take(super::owner::FIRST_PIECES).copied().collect();
                    let count = pieces.len() as u32;
                    *place = Some((runs, pieces));
                    Ok(Answer::Shape(Shape { generation: 0, len, stripe: 0, columns: 1, count, first }))
                }
                (Err(error), _) => {
                    table.remove(&(owner, holding));
                    Err(error)
                }
                (Ok(_), None) => Err(Error::Freed),
            };
            drop(table);
            node.report_memory();
            answer(call, result);
        };
        self.platform.spawn("lite-reserve", Box::pin(task));
    }

    /// The pieces that `len` bytes in `runs` make: runs that touch are one.
    pub(crate) fn pieces_of(&self, runs: &[Run], len: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut left = len;
        for run in runs {
            let len = run.len().min(left);
            left -= len;
            match pieces.last_mut() {
                Some(last) if last.addr.checked_add(last.len) == Some(run.addr()) => last.len += len,
                _ => pieces.push(Piece { at: (self.me, self.incarnation), addr: run.addr(), len }),
            }
        }
        pieces
    }

    /// Tells the manager how much memory is free, if that has changed much since it was told.
    pub(crate) fn report_memory(&self) {
        let stats = self.platform.memory().stats();
        self.control.report_free(stats.free, stats.total / 64);
    }
}
