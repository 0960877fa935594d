//! The work requests for libibverbs, and the interpretation of its completions, without a device.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use super::*;
use platform::IoAddr;
use verbs::{RemoteAddr, RemoteKey};

const REMOTE: RemoteAddr = RemoteAddr { addr: IoAddr(0x1_0000_0040), key: RemoteKey(0x1234) };

fn limits(arena: &Arena) -> Limits<'_> {
    Limits { arena, lkey: 77, max_sge: 3, max_inline: 16, max_message: 8000 }
}

fn wr(op: SendOp<'_>) -> SendWr<'_> {
    SendWr { id: WrId(u64::MAX), op, signaled: false, solicited: false, fence: false }
}

/// Returns the `n`th work request of a chain, and its list.
fn sent(chain: &mut SendChain, n: usize) -> (&ibv::ibv_send_wr, Vec<(u64, u32, u32)>) {
    assert!(n < chain.len);
    // SAFETY: one of the first `len`, which have been written.
    let wr = unsafe { chain.work[n].assume_init_ref() };
    let from = chain.lists_at[n];
    let list = &chain.lists.elements[from..from + wr.num_sge as usize];
    // SAFETY: all elements of the list have been written.
    let list = list.iter().map(|e| unsafe { e.assume_init() }).map(|e| (e.addr, e.length, e.lkey)).collect();
    (wr, list)
}

#[test]
fn each_operation_has_its_fields() {
    use ibv::ibv_wr_opcode as op;
    let arena = Arena::map(8192, false).unwrap();
    let limits = limits(&arena);
    let at = |offset| IoAddr(arena.range().0.0 + offset);
    let list = [Sge { addr: at(0), len: 5 }, Sge { addr: at(9), len: 0 }, Sge { addr: at(100), len: 7 }];
    let pieces = vec![(at(0).0, 5, 77), (at(100).0, 7, 77)];
    let gather = Payload::Gather(&list);
    let bytes = *b"inline";
    let mut chain = SendChain::new();
    let mut add =
        |work: SendWr<'_>, n| chain.add(&work, RingIndex(n), &limits).map(|s| (s.id.0, s.kind, s.len));
    let id = u64::MAX;
    assert_eq!(add(wr(SendOp::Send { data: gather, imm: None }), 5), Ok((id, WorkKind::Send, 12)));
    let write = SendOp::Write { data: Payload::Inline(&bytes), remote: REMOTE, imm: Some(0x0102_0304) };
    let work = SendWr { signaled: true, solicited: true, fence: true, ..wr(write) };
    assert_eq!(add(work, 6), Ok((id, WorkKind::Write, 6)));
    assert_eq!(add(wr(SendOp::Read { into: &list, remote: REMOTE }), 7), Ok((id, WorkKind::Read, 12)));
    let fetch_add = SendOp::FetchAdd { result: at(8), remote: REMOTE, add: 3 };
    assert_eq!(add(wr(fetch_add), 8), Ok((id, WorkKind::FetchAdd, 8)));
    let swap = SendOp::CompareSwap { result: at(16), remote: REMOTE, compare: 4, swap: 5 };
    assert_eq!(add(wr(swap), 9), Ok((id, WorkKind::CompareSwap, 8)));
    let empty = SendOp::Send { data: Payload::Inline(&[]), imm: Some(1) };
    assert_eq!(add(wr(empty), 10), Ok((id, WorkKind::Send, 0)));

    let (send, list) = sent(&mut chain, 0);
    assert_eq!((send.wr_id, send.opcode, send.send_flags, list), (5, op::IBV_WR_SEND, 0, pieces.clone()));
    let (write, list) = sent(&mut chain, 1);
    assert_eq!(
        (write.wr_id, write.opcode, write.send_flags),
        (6, op::IBV_WR_RDMA_WRITE_WITH_IMM, 1 | 2 | 4 | 8)
    );
    assert_eq!(list, [(bytes.as_ptr() as u64, 6, 0)]);
    // SAFETY: numbers.
    let (imm, rdma) = unsafe { (write.imm_data_invalidated_rkey_union.imm_data, write.wr.rdma) };
    assert_eq!(imm.to_ne_bytes(), [1, 2, 3, 4], "network byte order");
    assert_eq!((rdma.remote_addr, rdma.rkey), (0x1_0000_0040, 0x1234));
    let (read, list) = sent(&mut chain, 2);
    assert_eq!((read.opcode, list), (op::IBV_WR_RDMA_READ, pieces));
    let (add, list) = sent(&mut chain, 3);
    // SAFETY: numbers.
    let atomic = unsafe { add.wr.atomic };
    assert_eq!(
        (add.opcode, atomic.compare_add, list),
        (op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, vec![(at(8).0, 8, 77)])
    );
    let (swap, _) = sent(&mut chain, 4);
    // SAFETY: numbers.
    let atomic = unsafe { swap.wr.atomic };
    assert_eq!((swap.opcode, atomic.compare_add, atomic.swap), (op::IBV_WR_ATOMIC_CMP_AND_SWP, 4, 5));
    assert_eq!((atomic.remote_addr, atomic.rkey), (0x1_0000_0040, 0x1234));
    let (empty, list) = sent(&mut chain, 5);
    assert_eq!((empty.opcode, empty.send_flags, list), (op::IBV_WR_SEND_WITH_IMM, 0, vec![]));
}

#[test]
fn invalid_work_is_refused() {
    let arena = Arena::map(8192, false).unwrap();
    let limits = limits(&arena);
    let (base, len) = arena.range();
    let sge = |addr, len| Sge { addr: IoAddr(addr), len };
    let good = sge(base.0, 8);
    let mut chain = SendChain::new();
    for (list, error) in [
        (vec![good; 4], VerbsError::InvalidArgument),
        (vec![good, sge(base.0 + len - 7, 8)], VerbsError::LocalProtection),
        (vec![sge(base.0 - 1, 8)], VerbsError::LocalProtection),
        (vec![sge(base.0, 8001)], VerbsError::InvalidArgument),
        (vec![sge(base.0, 4001); 2], VerbsError::InvalidArgument),
        (vec![sge(u64::MAX - 3, 8)], VerbsError::LocalProtection),
    ] {
        let data = Payload::Gather(&list);
        let added = chain.add(&wr(SendOp::Send { data, imm: None }), RingIndex(0), &limits);
        assert_eq!(added.map(|_| ()), Err(error), "{list:?}");
        let work = RecvWr { id: WrId(1), scatter: &list };
        assert_eq!(RecvChain::new().add(&work, RingIndex(0), &limits), Err(error));
    }
    let inline = SendOp::Send { data: Payload::Inline(&[0; 17]), imm: None };
    assert_eq!(chain.add(&wr(inline), RingIndex(0), &limits).map(|_| ()), Err(VerbsError::InvalidArgument));
    let atomic = SendOp::FetchAdd { result: IoAddr(base.0 + len), remote: REMOTE, add: 1 };
    assert_eq!(chain.add(&wr(atomic), RingIndex(0), &limits).map(|_| ()), Err(VerbsError::LocalProtection));
    assert_eq!((chain.len, chain.lists.used), (0, 0), "nothing is left of what was refused");
}

#[test]
fn a_full_chain_holds_the_longest_lists() {
    let arena = Arena::map(8192, false).unwrap();
    let limits = Limits { max_sge: MAX_SGE, ..limits(&arena) };
    let list = [Sge { addr: arena.range().0, len: 1 }; MAX_SGE];
    let (mut sends, mut recvs) = (SendChain::new(), RecvChain::new());
    for n in 0..BATCH as u64 {
        let data = Payload::Gather(&list);
        assert!(sends.add(&wr(SendOp::Send { data, imm: None }), RingIndex(n), &limits).is_ok());
        assert!(recvs.add(&RecvWr { id: WrId(n), scatter: &list }, RingIndex(n), &limits).is_ok());
    }
    let one_more = SendOp::Send { data: Payload::Gather(&[]), imm: None };
    assert_eq!(sends.add(&wr(one_more), RingIndex(16), &limits).map(|_| ()), Err(VerbsError::NoResources));
    let one_more = RecvWr { id: WrId(16), scatter: &[] };
    assert_eq!(recvs.add(&one_more, RingIndex(16), &limits), Err(VerbsError::NoResources));
}

#[test]
fn identifiers_contain_the_queue_and_the_index() {
    for index in [RingIndex(0), RingIndex(1), RingIndex((1 << 63) - 1)] {
        assert_eq!(index_of(send_number(index)), (false, index));
        assert_eq!(index_of(recv_number(index)), (true, index));
    }
}

#[test]
fn every_status_of_libibverbs_has_a_name_here() {
    use Status::*;
    let by_number: Vec<_> = (0..24).map(status_of).collect();
    let other = LocalQpOperationError;
    assert_eq!(
        by_number,
        [
            Success,
            LocalLengthError,
            LocalQpOperationError,
            other,
            LocalProtectionError,
            WorkRequestFlushed,
            other,
            BadResponse,
            LocalProtectionError,
            RemoteInvalidRequest,
            RemoteAccessError,
            RemoteOperationError,
            RetryExceeded,
            RnrRetryExceeded,
            other,
            RemoteInvalidRequest,
            RemoteOperationError,
            other,
            other,
            other,
            RetryExceeded,
            other,
            other,
            other,
        ]
    );
}
