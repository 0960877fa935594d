//! The memory of regions: allocated in as many runs as necessary, here and on other nodes, which hold it
//! for the owner.

use super::holdings::{Holding, Holdings};
use super::layout::{Layout, Piece};
use super::pages::{MOST_PIECES, MOST_SHARE_PIECES, PiecePages};
use super::placement::MOST_SHARES;
use super::request::Plan;
use super::request::Shape;
use crate::Error;
use crate::base::bounce::Run;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::region::request::{Request, Response};
use crate::rpc::Call;
use crate::rpc::Rpc;
use crate::rpc::answer;
use crate::sometimes::sometimes;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::Pages;

/// The bytes taken at once: memory is zeroed when it is taken, and other tasks must run in between.
const STEP: u64 = 16 << 20;
/// The time that another node may take to take and zero its share.
const RESERVE_DEADLINE: Duration = Duration::from_secs(30);

/// The holder of one share of a region's memory.
pub(crate) enum Share {
    /// A share on this node, until dropped.
    Here {
        /// The memory of the share, until the share is dropped.
        _stock: Arc<Stock>,
    },
    /// A share on another node, which holds it until it is told to free it.
    There {
        /// The node that holds the share.
        at: MemberId,
        /// This node's number of the holding.
        holding: u64,
    },
}

impl Share {
    /// Returns true if the share is on `member`; `me` is this node.
    pub(super) fn is_on(&self, member: MemberId, me: MemberId) -> bool {
        match self {
            Self::Here { .. } => member == me,
            Self::There { at, .. } => *at == member,
        }
    }
}

/// Memory of this node, until dropped.
pub(crate) struct Stock {
    runs: Vec<Run>,
    pieces: Vec<Piece>,
    len: u64,
}

impl Stock {
    /// Returns the pieces that the runs make; adjacent runs are joined.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Adds a run of which `len` bytes count. Returns `false` if there is no room for it, or if it would be
    /// one piece too many.
    fn add(&mut self, at: MemberId, run: Run, len: u64) -> bool {
        let touches = |last: &Piece| last.addr.checked_add(last.len) == Some(run.addr());
        let more = !self.pieces.last().is_some_and(touches);
        if more && self.pieces.len() >= MOST_SHARE_PIECES
            || self.runs.try_reserve(1).is_err()
            || self.pieces.try_reserve(1).is_err()
        {
            return false;
        }
        match self.pieces.last_mut() {
            Some(last) if !more => last.len += len,
            _ => self.pieces.push(Piece { at, addr: run.addr(), len }),
        }
        self.runs.push(run);
        self.len += len;
        true
    }
}

/// The memory of regions on this node. It extends [`Rpc`].
pub(crate) struct RegionMemory {
    rpc: Arc<Rpc>,
    /// The memory of this node in regions of other owners.
    pub(crate) holdings: Holdings,
    /// True while the node takes no memory for regions, because it is about to leave.
    vacating: AtomicBool,
    pub(super) orders: Mutex<Orders>,
}

/// The manager's orders to vacate this node.
#[derive(Default)]
pub(super) struct Orders {
    /// The number of orders to begin.
    pub(super) begun: u64,
    /// True while a task carries them out.
    pub(super) obeyed: bool,
}

impl Deref for RegionMemory {
    type Target = Arc<Rpc>;

    #[inline]
    fn deref(&self) -> &Arc<Rpc> {
        &self.rpc
    }
}

/// Shares that are given back if this is dropped.
struct Taken<'a> {
    node: &'a Arc<RegionMemory>,
    shares: Vec<Share>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.node.give_memory(core::mem::take(&mut self.shares));
    }
}

impl RegionMemory {
    pub(crate) fn new(rpc: Arc<Rpc>) -> Self {
        Self {
            rpc,
            holdings: Holdings::default(),
            vacating: AtomicBool::new(false),
            orders: Mutex::default(),
        }
    }

    /// Begins or ends to refuse memory of this node for regions.
    pub(super) fn set_vacating(&self, vacating: bool) {
        self.vacating.store(vacating, Ordering::SeqCst);
        self.report_memory();
    }

    /// Returns true while memory of this node for regions is refused.
    pub(super) fn is_vacating(&self) -> bool {
        self.vacating.load(Ordering::SeqCst)
    }

    /// Fails with `NoMemory` while the node takes no memory for regions.
    pub(super) fn check_vacating(&self, asked: u64) -> Result<(), Error> {
        if self.is_vacating() { Err(Error::NoMemory { asked, free: 0 }) } else { Ok(()) }
    }

    /// Turns pages into memory of this node that can be lent, with their content: in place if the platform
    /// lends memory there, otherwise by one copy.
    pub(crate) async fn take_pages(&self, pages: Pages) -> Result<Stock, Error> {
        let len = pages.len() as u64;
        let lent = if len > 0 { self.platform.memory().lend_pages(pages) } else { Err(pages) };
        let pages = match lent {
            Ok(run) => {
                let mut stock = Stock { runs: Vec::new(), pieces: Vec::new(), len: 0 };
                let added = stock.add((self.me, self.incarnation), run, len);
                return added.then_some(stock).ok_or(Error::NoMemory { asked: len, free: 0 });
            }
            Err(pages) => pages,
        };
        let stock = self.take_stock(len).await?;
        let mut rest = &*pages;
        for run in &stock.runs {
            let (now, more) = rest.split_at(rest.len().min(run.size() as usize));
            run.write(0, now).map_err(|_| Error::OutOfBounds)?;
            self.counters.bytes_copied.add(now.len() as u64);
            rest = more;
            platform::yield_now().await;
        }
        Ok(stock)
    }

    /// Takes `len` zeroed bytes of this node's memory, in one piece if possible.
    pub(crate) async fn take_stock(&self, len: u64) -> Result<Stock, Error> {
        let memory = self.platform.memory();
        let free = memory.stats().free;
        if len > free {
            return Err(Error::NoMemory { asked: len, free });
        }
        let mut stock = Stock { runs: Vec::new(), pieces: Vec::new(), len: 0 };
        let mut longest = STEP;
        // A region without bytes has an address, too.
        while stock.len < len || stock.runs.is_empty() {
            let left = len - stock.len;
            let run = memory.lend(left.min(longest).max(1)).or_else(|| {
                longest = longest.min(memory.largest_free());
                (longest > 0).then(|| memory.lend(left.min(longest)))?
            });
            let had = stock.len;
            let added = run.is_some_and(|run| {
                let len = run.size().min(left);
                stock.add((self.me, self.incarnation), run, len)
            });
            if !added {
                // `had` is less than was asked for: the rest of the memory, in as many pieces as are
                // allowed.
                return Err(Error::NoMemory { asked: len, free: had });
            }
            if stock.len < len {
                sometimes!("memory was taken in several runs");
                platform::yield_now().await;
            }
        }
        Ok(stock)
    }

    /// Takes all the memory of a plan.
    pub(crate) async fn take_memory(self: &Arc<Self>, plan: &Plan) -> Result<(Layout, Vec<Share>), Error> {
        let (mut pieces, mut taken, mut len) = (Vec::new(), Taken { node: self, shares: Vec::new() }, 0u64);
        let nonsense = || Error::Refused("the plan for the region is not valid".into());
        let sum = plan.shares.iter().try_fold(0u64, |sum, (_, share)| sum.checked_add(*share));
        let asked = sum.filter(|_| plan.shares.len() <= MOST_SHARES).ok_or_else(nonsense)?;
        for (node, share) in &plan.shares {
            let more = if *node == self.me {
                let stock = self.take_stock(*share).await?;
                let more = stock.pieces().to_vec();
                taken.shares.push(Share::Here { _stock: Arc::new(stock) });
                more
            } else {
                let (at, holding) = (self.member_now(*node)?, self.random());
                taken.shares.push(Share::There { at, holding });
                self.reserve_there(at, holding, *share).await?
            };
            if pieces.len() + more.len() > MOST_PIECES {
                return Err(Error::NoMemory { asked, free: len });
            }
            pieces.extend(more);
            len += share;
        }
        let columns = if plan.stripe == 0 { 1 } else { plan.shares.len() };
        let layout = Layout::new(len, plan.stripe, columns, pieces).ok_or_else(nonsense)?;
        self.report_memory();
        Ok((layout, core::mem::take(&mut taken.shares)))
    }

    async fn reserve_there(
        self: &Arc<Self>,
        at: MemberId,
        holding: u64,
        len: u64,
    ) -> Result<Vec<Piece>, Error> {
        let deadline = self.platform.now() + RESERVE_DEADLINE;
        let nonsense = || Error::Refused("the memory is not what was asked for".into());
        let Response::Shape(shape) = self.request(at, &Request::Reserve { holding, len }, deadline).await?
        else {
            return Err(nonsense());
        };
        let mut pages = PiecePages::new(shape.first, shape.count, MOST_SHARE_PIECES)?;
        while let Some(from) = pages.missing() {
            match self.request_long(at, &Request::Reserved { holding, from }, deadline).await? {
                Response::Pieces(more) => pages.add(more)?,
                _ => return Err(nonsense()),
            }
        }
        let pieces = pages.all();
        let sum = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        let fine = sum == Some(len)
            && pieces.iter().all(|piece| piece.at == at)
            && self.are_published(pieces.iter());
        if fine { Ok(pieces) } else { Err(nonsense()) }
    }

    /// Frees memory that no node reaches any more.
    pub(crate) fn give_memory(self: &Arc<Self>, memory: Vec<Share>) {
        for share in memory {
            if let Share::There { at, holding } = share {
                self.spawn_retry(at, Request::Yield { holding });
            }
        }
        self.report_memory();
    }

    /// Takes and holds memory for another owner, then answers.
    pub(crate) fn reserve(self: &Arc<Self>, call: Call, holding: u64, len: u64) {
        let owner = (call.from(), call.incarnation());
        {
            let key = (owner, holding);
            let mut table = match self.lock_for(&self.holdings.0, owner) {
                Ok(table) => table,
                Err(error) => return answer::<Response>(call, &Err(error)),
            };
            if table.contains_key(&key) {
                drop(table);
                return answer::<Response>(call, &Err(Error::Refused("that number is in use".into())));
            }
            table.insert(key, Holding::default());
        }
        let node = self.clone();
        let task = async move {
            let result = match node.check_vacating(len) {
                Ok(()) => node.take_stock(len).await,
                Err(error) => Err(error),
            };
            let mut table = node.holdings.0.lock();
            let entry = table.get_mut(&(owner, holding)).filter(|held| held.stock.is_none());
            let result = match (result, entry) {
                (Ok(stock), Some(entry)) => {
                    let pieces = stock.pieces();
                    let first = pieces.iter().take(super::request::FIRST_PIECES).copied().collect();
                    let count = pieces.len() as u32;
                    entry.stock = Some(stock);
                    Ok(Response::Shape(Shape { generation: 0, len, stripe: 0, columns: 1, count, first }))
                }
                (Err(error), _) => {
                    table.remove(&(owner, holding));
                    Err(error)
                }
                (Ok(_), None) => {
                    sometimes!("memory came for an owner that was gone");
                    Err(Error::Freed)
                }
            };
            drop(table);
            node.report_memory();
            answer(call, &result);
        };
        self.platform.spawn("lite-reserve", Box::pin(task));
    }

    /// Returns whether pieces lie in memory that their nodes have published as reachable, as far as this
    /// node knows those nodes. An access to other memory would break the connection to that node, which
    /// other tasks use.
    pub(super) fn are_published<'p>(&self, mut pieces: impl Iterator<Item = &'p Piece>) -> bool {
        let peers = self.peers.lock();
        let published = |piece: &Piece| {
            let key = if piece.at == (self.me, self.incarnation) {
                self.key
            } else {
                match peers.get(&piece.at.0).filter(|peer| peer.member.incarnation == piece.at.1) {
                    Some(peer) => peer.member.rnic.key,
                    None => return true,
                }
            };
            let offset = piece.addr.0.checked_sub(key.base.0);
            offset.and_then(|offset| offset.checked_add(piece.len)).is_some_and(|end| end <= key.len)
        };
        pieces.all(published)
    }

    /// Reports the free memory to the manager, if it has changed much since the last report.
    pub(crate) fn report_memory(&self) {
        let stats = self.platform.memory().stats();
        let free = if self.is_vacating() { 0 } else { stats.free };
        self.control.report_free(free, stats.total / 64);
    }
}
