//! ALLOC_RES and FREE_RES: a slave's allocation of object numbers.

use super::numbers;
use super::tracker::{BUSY, INVALID, Mpt, MttRange, NO_SUCH, NOT_PERMITTED, QpState, Queue, Result, Tracker};

/// Kinds of resources (Linux `mlx4/mlx4.h`), in the low byte of the input modifier.
pub(super) mod kind {
    #![allow(missing_docs, reason = "the names are the protocol's")]
    pub(crate) const QP: u8 = 0;
    pub(crate) const CQ: u8 = 1;
    pub(crate) const SRQ: u8 = 2;
    pub(crate) const XRCD: u8 = 3;
    pub(crate) const MPT: u8 = 4;
    pub(crate) const MTT: u8 = 5;
    pub(crate) const MAC: u8 = 6;
    pub(crate) const VLAN: u8 = 7;
    pub(crate) const COUNTER: u8 = 9;
}

/// Steps of an allocation, in the opcode's modifier.
mod step {
    pub(super) const RESERVE: u8 = 0;
    pub(super) const RESERVE_AND_MAP: u8 = 1;
    pub(super) const MAP: u8 = 2;
}

const fn low(parameter: u64) -> u32 {
    parameter as u32
}

const fn high(parameter: u64) -> u32 {
    (parameter >> 32) as u32
}

/// The valid bits of a queue pair number.
pub(super) const QPN_MASK: u32 = 0x7f_ffff;
/// The index bits of a memory region's key; the bits above count its reuses.
pub(super) const MPT_MASK: u32 = (1 << numbers::LOG_MPTS) - 1;

impl Tracker {
    /// ALLOC_RES for resources without a port. Returns the number.
    pub(super) fn allocate(&mut self, kind: u8, step: u8, parameter: u64) -> Result<u32> {
        match (kind, step) {
            (kind::QP, step::RESERVE) => self.reserve_qps(low(parameter) & 0xff_ffff, high(parameter)),
            (kind::QP, step::MAP) => self.map_qp(low(parameter) & QPN_MASK).map(|()| 0),
            (kind::CQ, step::RESERVE_AND_MAP) => self.cqs.add(1, 1, Queue::default),
            (kind::SRQ, step::RESERVE_AND_MAP) => self.srqs.add(1, 1, Queue::default),
            (kind::XRCD, step::RESERVE) => self.xrcds.add(1, 1, || ()),
            (kind::COUNTER, step::RESERVE) => self.counters.add(1, 1, || ()),
            (kind::MPT, step::RESERVE) => self.mpts.add(1, 1, || Mpt::Reserved),
            (kind::MPT, step::MAP) => {
                let mpt = self.mpts.get_mut(low(parameter) & MPT_MASK)?;
                if !matches!(mpt, Mpt::Reserved) {
                    return Err(INVALID);
                }
                *mpt = Mpt::Mapped;
                Ok(0)
            }
            (kind::MTT, step::RESERVE_AND_MAP) => self.add_mtts(low(parameter)),
            _ => Err(INVALID),
        }
    }

    /// FREE_RES for resources without a port.
    pub(super) fn free(&mut self, kind: u8, step: u8, parameter: u64) -> Result {
        let number = low(parameter);
        match (kind, step) {
            (kind::QP, step::RESERVE) => self.qps.remove(number & QPN_MASK, high(parameter), |qp| {
                if qp.groups > 0 {
                    return Err(BUSY);
                }
                if matches!(qp.state, QpState::Reserved) { Ok(()) } else { Err(NOT_PERMITTED) }
            }),
            (kind::QP, step::MAP) => self.unmap_qp(number & QPN_MASK),
            (kind::CQ, step::RESERVE_AND_MAP) => self.cqs.remove(number, 1, software_owned),
            (kind::SRQ, step::RESERVE_AND_MAP) => self.srqs.remove(number, 1, software_owned),
            (kind::XRCD, step::RESERVE) => self.xrcds.remove(number, 1, |()| Ok(())),
            (kind::COUNTER, step::RESERVE) if number == numbers::SINK_COUNTER => Ok(()),
            (kind::COUNTER, step::RESERVE) => self.counters.remove(number, 1, |()| Ok(())),
            (kind::MPT, step::RESERVE) => self.mpts.remove(number & MPT_MASK, 1, |mpt| {
                if matches!(mpt, Mpt::Reserved) { Ok(()) } else { Err(NOT_PERMITTED) }
            }),
            (kind::MPT, step::MAP) => {
                let mpt = self.mpts.get_mut(number & MPT_MASK)?;
                if !matches!(mpt, Mpt::Mapped) {
                    return Err(INVALID);
                }
                *mpt = Mpt::Reserved;
                Ok(())
            }
            (kind::MTT, step::RESERVE_AND_MAP) => self.remove_mtts(number, high(parameter)),
            _ => Err(INVALID),
        }
    }

    fn map_qp(&mut self, qpn: u32) -> Result {
        if numbers::is_proxy(qpn) {
            return self.map_proxy(qpn);
        }
        let qp = self.qps.get_mut(qpn)?;
        if !matches!(qp.state, QpState::Reserved) {
            return Err(INVALID);
        }
        qp.state = QpState::Mapped;
        Ok(())
    }

    fn unmap_qp(&mut self, qpn: u32) -> Result {
        let qp = self.qps.get_mut(qpn)?;
        if !matches!(qp.state, QpState::Mapped) {
            return Err(INVALID);
        }
        qp.state = QpState::Reserved;
        if numbers::is_proxy(qpn) {
            self.unmap_proxy(qpn);
        }
        Ok(())
    }

    fn add_mtts(&mut self, order: u32) -> Result<u32> {
        let order = u8::try_from(order).ok().filter(|&order| order < numbers::LOG_MTTS).ok_or(NO_SUCH)?;
        self.mtts.add_range(order)
    }

    fn remove_mtts(&mut self, first: u32, order: u32) -> Result {
        let range: &MttRange = self.mtts.get(first)?;
        if range.users > 0 {
            return Err(BUSY);
        }
        if u32::from(range.order) != order {
            return Err(INVALID);
        }
        self.mtts.remove_range(first);
        Ok(())
    }
}

const fn software_owned(queue: &Queue) -> Result {
    if queue.mtt.is_none() { Ok(()) } else { Err(NOT_PERMITTED) }
}
