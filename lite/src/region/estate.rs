//! Handing a region over: another node becomes its owner, and keeps its tables.
//!
//! Operations on the region go on meanwhile: neither its memory nor its mappings change. Changes of the
//! region wait. The former owner holds still what only an owner does for others (memsets, grants), and sends
//! the region's record. The new owner asks for the pieces and the mappings page by page, enters the region
//! as one that is being formed, claims the memory at the nodes that hold it, and answers. From then on it has
//! the region. The former owner gives it the region's names, tells all nodes that map the region, and ends
//! with a last word ([`Settle`](Request::Settle)) to the new owner.
//!
//! If the new owner dies before its answer, nobody knows which memory it had claimed, so the region ends; a
//! node that holds memory of it holds it for the former owner again, which frees it. If the former owner dies
//! before its last word, the new owner ends the region, once that end is settled: for some nodes the region
//! has ended with the former owner, and the others use it until they learn of the end.

use super::layout::Layout;
use super::memory::Share;
use super::owner::RegionTable;
use super::pages::{MOST_PIECES, PiecePages};
use super::relocate::Mover;
use super::request::{Estate, Holder, LastWord, PAGE_HOLDERS, PAGE_PIECES, Request, Response};
use super::table::{Held, Region, RegionState};
use crate::Error;
use crate::base::member::MemberId;
use crate::base::names::{Bearer, Named};
use crate::base::wait::Gate;
use crate::sometimes::sometimes;
use crate::transport::transfer::RECONNECT_PAUSE;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

/// The time that one request of a handover may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The time for which a handover waits for loans that have not been taken.
const LOANS: Duration = Duration::from_secs(1);
/// The most mappings in one message about those that have ended.
const ENDED_AT_ONCE: usize = 256;
/// The most mappings of a region that is handed over.
const MOST_HOLDERS: u32 = 1 << 20;

/// A region that its owner hands over.
struct Handover {
    gate: Arc<Gate>,
    /// The tables for the new owner.
    estate: Estate,
    /// The mappings at the beginning.
    mappings: BTreeSet<(MemberId, u64)>,
}

impl RegionTable {
    /// Returns some pieces of a region that is handed over.
    pub(super) fn estate_pieces(&self, region: u64, from: u32) -> Result<Response, Error> {
        let mut table = self.table.lock();
        let r = table.live(region).filter(|r| r.moving).ok_or(Error::Freed)?;
        Ok(Response::Pieces(r.layout.pieces().skip(from as usize).take(PAGE_PIECES).copied().collect()))
    }

    /// Returns some mappings of a region that is handed over.
    pub(super) fn estate_holders(&self, region: u64, from: u32) -> Result<Response, Error> {
        let table = self.table.lock();
        let r = table.regions.get(&region).filter(|r| r.moving).ok_or(Error::Freed)?;
        let keys = r.holders.iter().skip(from as usize).take(PAGE_HOLDERS);
        let holder = |key: &(MemberId, u64)| {
            let held = table.mappings.get(key)?;
            let (lender, permissions) = (held.lender, held.permissions);
            Some(Holder { member: key.0, mapping: key.1, lender, permissions })
        };
        Ok(Response::Holders(keys.filter_map(holder).collect()))
    }

    /// Removes a name that a region's former owner could not pass on. Returns true if the region must be
    /// fenced because no node can reach it any more.
    fn lose_name(&self, by: MemberId, region: u64, name: &str) -> bool {
        let mut table = self.table.lock();
        let Some(r) = table.regions.get_mut(&region).filter(|r| r.former == Some(by)) else { return false };
        r.names.retain(|other| other != name);
        table.mark_if_unreachable(region)
    }

    /// Lets a region change again whose former owner, `by`, has told everybody. Returns true if the region
    /// must be fenced: all its mappings may have ended before this node learnt of them.
    fn settle_estate(&self, by: MemberId, region: u64) -> bool {
        let mut table = self.table.lock();
        if let Some(r) = table.regions.get_mut(&region).filter(|r| r.former == Some(by)) {
            (r.former, r.changing, r.moving) = (None, false, false);
        }
        let unreachable = table.mark_if_unreachable(region);
        drop(table);
        self.changed.wake_all();
        unreachable
    }

    /// Returns those of a region's former mappings that have ended.
    fn ended_of(&self, region: u64, former: &BTreeSet<(MemberId, u64)>) -> Vec<(MemberId, u64)> {
        let table = self.table.lock();
        let held = table.regions.get(&region).map(|r| &r.holders);
        former.iter().filter(|key| held.is_none_or(|held| !held.contains(key))).copied().collect()
    }

    /// Removes a region that another node has adopted, with its mappings here.
    fn disown(&self, region: u64) {
        let mut table = self.table.lock();
        if let Some(removed) = table.regions.remove(&region) {
            removed.gate.close();
            for key in &removed.holders {
                table.mappings.remove(key);
            }
        }
        drop(table);
        self.changed.wake_all();
    }

    /// Lets no node map a region of this node, none of whose memory is here.
    fn begin_handover(&self, region: u64) -> Result<Handover, Error> {
        let mut table = self.table.lock();
        let r = table.live(region).ok_or(Error::Freed)?;
        let there = |share: &Share| match share {
            Share::There { at, holding } => Some((*at, *holding)),
            Share::Here { .. } => None,
        };
        let memory: Option<Vec<_>> = r.memory.iter().map(there).collect();
        let Some(memory) = memory else {
            return Err(Error::Refused("memory of the region is on its owner".into()));
        };
        // No mapping is added from now on. Those that end meanwhile are told last.
        r.moving = true;
        let mut shape = r.shape();
        shape.first.truncate(1);
        let estate = Estate {
            key: r.key,
            secret: r.secret.clone(),
            rights: r.rights.clone(),
            master: r.master,
            outlives: r.outlives,
            names: r.names.clone(),
            shape,
            holders: r.holders.len() as u32,
            memory,
        };
        Ok(Handover { gate: r.gate.clone(), estate, mappings: r.holders.clone() })
    }
}

/// The side of the former owner.
impl Mover {
    /// Makes another member the owner of a region none of whose memory is here.
    ///
    /// # Errors
    /// After an error the region is as it was, unless the new owner has died, which ends it.
    pub(super) async fn hand_region(&self, region: u64, to: MemberId) -> Result<(), Error> {
        let change = self.regions.changed.until(|| self.regions.begin_change(region)).await?;
        self.await_loans(region).await;
        self.regions.changed.until(|| self.regions.end_naming(region).then_some(())).await;
        let Handover { gate, estate, mappings } = self.regions.begin_handover(region)?;
        // Nothing that this node does for others uses the region any more.
        gate.pause();
        gate.drained().await;
        let adopted = self.ask_to_adopt(region, to, estate.clone()).await;
        let number = match adopted {
            Ok(number) => number,
            Err(error) => {
                gate.reopen();
                drop(change);
                if matches!(error, Error::NodeDown(_)) {
                    sometimes!("a new owner died before it had a region");
                    self.end_region(region);
                }
                return Err(error);
            }
        };
        self.give_names(region, &estate, to, number).await;
        let holders = self.regions.holders(region);
        if !self.tell_holders(holders, |mappings| Request::Rehome { mappings, owner: to }).await {
            return Err(Error::LinkDown);
        }
        // A node that no longer used the region when it would have been told has told this node alone.
        for ended in self.regions.ended_of(region, &mappings).chunks(ENDED_AT_ONCE) {
            self.settle(to, number, LastWord::Ended(ended.to_vec())).await;
        }
        self.settle(to, number, LastWord::AllKnow).await;
        for (at, holding) in estate.memory {
            self.spawn_retry(at, Request::Yield { holding });
        }
        sometimes!("a region was handed over");
        self.regions.disown(region);
        drop(change);
        Ok(())
    }

    /// Passes the names of a region on to its new owner `to`, where the region has another `number`.
    async fn give_names(&self, region: u64, estate: &Estate, to: MemberId, number: u64) {
        for name in &estate.names {
            let named = Named::Region { owner: to.0, region: number, key: estate.key };
            if !self.give_name(name, Bearer::Region(region), to, &named).await {
                sometimes!("a name did not go to the new owner of its region");
                self.settle(to, number, LastWord::Lost(name.clone())).await;
            }
        }
    }

    async fn settle(&self, to: MemberId, region: u64, word: LastWord) {
        self.retry_until_done(to, &Request::Settle { region, word }).await;
    }

    /// Waits, not for long, until no mapping of a region is lent to a node that has not taken it.
    async fn await_loans(&self, region: u64) {
        let until = self.platform.now() + LOANS;
        let taken = || {
            let table = self.regions.table.lock();
            let of_region =
                |key: &(MemberId, u64)| table.mappings.get(key).is_some_and(|held| held.region == region);
            (!table.loans.any_of(self.platform.now(), of_region)).then_some(())
        };
        self.timers.before(until, self.regions.changed.until(taken)).await;
    }

    /// Asks a member to become the owner, until it answers or dies. Returns the region's new number.
    async fn ask_to_adopt(&self, region: u64, to: MemberId, estate: Estate) -> Result<u64, Error> {
        let ask = Request::Adopt { region, estate };
        let mut perhaps_heard = false;
        loop {
            let until = self.platform.now() + ATTEMPT;
            match self.request(to, &ask, until).await {
                Ok(Response::Adopted { region }) => return Ok(region),
                Err(Error::Unknown | Error::Deadline) => perhaps_heard = true,
                Err(error @ (Error::NodeDown(_) | Error::LinkDown)) => return Err(error),
                // The answer counts only if no earlier request can still be carried out.
                Err(error) if !perhaps_heard => return Err(error),
                Err(_) => {
                    sometimes!("a refusal to adopt a region was asked for again");
                    self.served_by(to).await;
                    perhaps_heard = false;
                }
                Ok(_) => {}
            }
            self.timers.until(self.platform.now() + RECONNECT_PAUSE).await;
        }
    }

    /// Ends a region whose tables or memory are lost.
    fn end_region(&self, region: u64) {
        let marked = {
            let mut table = self.regions.table.lock();
            table.live(region).map(|r| r.state = RegionState::Freeing).is_some()
        };
        if marked {
            self.spawn_fence(region);
        }
    }
}

/// The side of the new owner.
impl Mover {
    /// Becomes the owner of a region of `former`.
    pub(crate) async fn adopt(
        &self,
        former: MemberId,
        theirs: u64,
        estate: Estate,
    ) -> Result<Response, Error> {
        if let Some(region) = self.adopted_before(former, estate.key) {
            return Ok(Response::Adopted { region });
        }
        self.check_vacating(estate.shape.len)?;
        let layout = Arc::new(self.fetch_layout(former, theirs, &estate).await?);
        let holders = self.fetch_holders(former, theirs, estate.holders).await?;
        let names = estate.names.clone();
        let region = self.enter_estate(former, &estate, layout, &holders)?;
        for name in &names {
            self.control.bindings.adopt(name, Bearer::Region(region));
        }
        let mut memory = Vec::new();
        for &(at, holding) in &estate.memory {
            if at == self.own_id() {
                let stock = self.holdings.take(former, holding);
                memory.extend(stock.map(|stock| Share::Here { _stock: Arc::new(stock) }));
            } else {
                let number = self.random();
                self.retry_until_done(at, &Request::Claim { former, holding, number }).await;
                memory.push(Share::There { at, holding: number });
            }
        }
        let mut table = self.regions.table.lock();
        let unused = match table.regions.get_mut(&region) {
            Some(r) if r.state == RegionState::Forming => {
                (r.memory, r.state) = (memory, RegionState::Live);
                Vec::new()
            }
            // Nobody can reach it any more, or its master has left.
            Some(r) => {
                r.memory = memory;
                drop(table);
                self.spawn_fence(region);
                return Ok(Response::Adopted { region });
            }
            None => memory,
        };
        drop(table);
        self.give_memory(unused);
        Ok(Response::Adopted { region })
    }

    /// Handles a word of a region's former owner.
    pub(super) fn serve_settle(&self, by: MemberId, region: u64, word: &LastWord) -> Response {
        match word {
            LastWord::Ended(mappings) => {
                for &(member, mapping) in mappings {
                    if let Some(unreachable) = self.regions.unmap(member, mapping) {
                        self.spawn_fence(unreachable);
                    }
                }
            }
            LastWord::Lost(name) => {
                self.control.bindings.disown(name, Bearer::Region(region));
                if self.regions.lose_name(by, region, name) {
                    self.spawn_fence(region);
                }
            }
            LastWord::AllKnow => {
                if self.regions.settle_estate(by, region) {
                    self.spawn_fence(region);
                }
            }
        }
        Response::Done
    }

    /// Returns the number of a region that an earlier request has made this node's.
    fn adopted_before(&self, former: MemberId, key: u64) -> Option<u64> {
        let table = self.regions.table.lock();
        let mut mine = table.regions.iter();
        mine.find(|(_, r)| r.former == Some(former) && r.key == key).map(|(id, _)| *id)
    }

    async fn fetch_layout(&self, former: MemberId, theirs: u64, estate: &Estate) -> Result<Layout, Error> {
        let shape = &estate.shape;
        let mut pages = PiecePages::new(shape.first.clone(), shape.count, MOST_PIECES)?;
        while let Some(from) = pages.missing() {
            let deadline = self.platform.now() + ATTEMPT;
            let ask = Request::EstatePieces { region: theirs, from };
            match self.request_long(former, &ask, deadline).await? {
                Response::Pieces(more) => pages.add(more)?,
                _ => return Err(nonsense()),
            }
        }
        let layout = Layout::new(shape.len, shape.stripe, shape.columns as usize, pages.all());
        layout.filter(|layout| self.are_published(layout.pieces())).ok_or_else(nonsense)
    }

    async fn fetch_holders(&self, former: MemberId, theirs: u64, count: u32) -> Result<Vec<Holder>, Error> {
        let mut holders: Vec<Holder> = Vec::new();
        if count > MOST_HOLDERS {
            return Err(nonsense());
        }
        loop {
            let deadline = self.platform.now() + ATTEMPT;
            let ask = Request::EstateHolders { region: theirs, from: holders.len() as u32 };
            match self.request_long(former, &ask, deadline).await? {
                Response::Holders(more) if more.is_empty() => return Ok(holders),
                Response::Holders(more) if holders.len() + more.len() <= count as usize => {
                    holders.extend(more);
                }
                _ => return Err(nonsense()),
            }
        }
    }

    /// Enters a region that is being taken over, and the mappings of it.
    fn enter_estate(
        &self,
        former: MemberId,
        estate: &Estate,
        layout: Arc<Layout>,
        holders: &[Holder],
    ) -> Result<u64, Error> {
        let mut table = self.lock_for(&self.regions.table, former)?;
        // A mapping of an incarnation whose end this node has seen would stay for ever.
        let live = |member: MemberId| self.is_live(member);
        if !estate.outlives && !live(estate.master) || !holders.iter().all(|holder| live(holder.member)) {
            return Err(Error::Refused("a node that maps the region has left a moment ago".into()));
        }
        table.last += 1;
        let id = table.last;
        for holder in holders {
            let held = Held { region: id, lender: holder.lender, permissions: holder.permissions };
            table.mappings.insert((holder.member, holder.mapping), held);
        }
        let region = Region {
            key: estate.key,
            secret: estate.secret.clone(),
            rights: estate.rights.clone(),
            master: estate.master,
            outlives: estate.outlives,
            is_orphan: !live(estate.master),
            names: estate.names.clone(),
            state: RegionState::Forming,
            changing: true,
            moving: true,
            naming: 0,
            is_leaving: false,
            former: Some(former),
            generation: estate.shape.generation,
            layout,
            memory: Vec::new(),
            gate: Arc::default(),
            holders: holders.iter().map(|h| (h.member, h.mapping)).collect::<BTreeSet<_>>(),
        };
        table.regions.insert(id, region);
        Ok(id)
    }
}

fn nonsense() -> Error {
    Error::Refused("the record of a region that is handed over is malformed".into())
}
