//! The meaning of LITE's calls, as cases that use only its public API.
//!
//! Each case runs on all nodes of a cluster in parallel: each calls the same function, which acts according
//! to its [rank](Context::rank). The same code tests the simulated cluster (this crate's tests) and
//! appliances in QEMU, where [`Suite`] is an application of the image (`cargo xtask test semantics::`). No
//! case injects faults; that is the subject of `tests/sim`. In the order of [`each_case`], the files are the
//! specification of the API.
//!
//! A case that fails on one node does not delay the others for long: every wait has a deadline, and a
//! [`Session`] informs the others.
//!
//! # Neighbours
//! [`lite`] is under test, [`runtime`] starts the suite on appliances, and `tests/sim` is the simulated
//! cluster.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod app;
mod context;
mod failure;
mod run;

mod atomics;
mod calls;
mod limits;
mod membership;
mod messages;
mod names;
mod one_sided;
mod queues;
mod regions;
mod rights;
mod sync;
mod vectors;

pub use app::Suite;
pub use context::Context;
pub use failure::{Failure, Outcome};
pub use run::{Case, LIMIT, Running, Session, Verdict};

/// Passes the list of all cases, by subject, to a macro.
#[macro_export]
macro_rules! each_case {
    ($do:ident) => {
        $do! {
            membership: every_node_lists_the_same_members, a_watcher_waits_for_changes, handles_are_of_one_node;
            regions:
                new_memory_is_zero, a_region_is_a_flat_array, shares_say_where_the_bytes_lie, bounds_are_exact,
                a_region_may_be_empty, a_region_may_be_larger_than_128_mb, what_cannot_be_placed_is_refused,
                memory_of_ones_own_becomes_a_region, a_region_moves_while_it_is_in_use, freed_is_freed_for_all,
                dropped_means_unmapped, regions_are_apart;
            names:
                a_published_region_is_mapped_everywhere, a_name_is_taken_once, an_unknown_name_is_not_found,
                a_name_can_be_waited_for, a_name_of_something_else_is_refused, a_name_is_any_text;
            rights:
                each_operation_needs_its_right, what_changes_a_region_needs_admin, a_map_gets_no_more_than_is_granted,
                the_master_has_all_rights, mapping_by_name_needs_share, what_is_granted_counts_from_then_on,
                what_is_revoked_is_refused_at_once, revoking_concerns_whom_it_names, a_secret_must_be_given,
                admin_is_granted_like_other_rights, the_master_hands_over;
            one_sided:
                any_length_at_any_offset, here_means_the_same_as_there, what_is_written_is_there_for_all,
                who_looks_sees_what_is_written,
                memset_takes_any_byte_and_range, copies_go_between_any_two_regions,
                a_copy_does_not_pass_through_who_asks, memmove_overlaps_as_in_c,
                overlap_is_of_regions_not_of_handles, many_operations_at_once, a_handle_has_a_deadline,
                a_node_that_is_not_there_is_named;
            atomics:
                at_every_aligned_offset, other_offsets_are_refused, counts_of_all_nodes_add_up, one_is_the_first,
                atomics_and_writes_see_each_other;
            vectors: pieces_of_any_number_and_length, nothing_is_nothing, nothing_is_done_if_one_is_wrong;
            queues:
                each_ends_once_with_its_number, atomics_bring_the_value_before, a_full_queue_takes_no_more,
                nothing_is_posted_if_one_is_wrong, a_buffer_may_be_too_short, to_one_node_in_order,
                a_fence_comes_between, a_queue_may_be_dropped;
            calls:
                requests_and_replies_of_any_length, any_number_at_once, ids_have_32_bits,
                a_function_ends_when_it_is_unregistered, unregister_waits_for_calls_under_way,
                too_long_is_refused_to_both, a_reply_into_a_buffer, a_call_that_is_dropped_is_refused,
                a_handler_knows_its_caller, reply_and_receive, handlers_call_on, a_call_ends_by_its_deadline,
                a_full_queue_makes_callers_wait, one_call_to_many_has_a_result_of_each, handlers_use_memory;
            messages:
                once_and_in_order, of_any_length, sent_is_in_the_queue, a_mailbox_takes_no_calls,
                a_closed_mailbox_is_none, a_full_mailbox_makes_senders_wait, a_message_follows_its_data;
            sync:
                a_lock_has_one_holder, shared_holders_hold_it_together, a_lock_is_fair, a_destroyed_lock_is_gone,
                nobody_leaves_a_barrier_before_all_have_come, barriers_are_of_any_group, a_barrier_is_for_its_group,
                a_barrier_fails_for_all, counters_count_from_everywhere, events_wake_all_who_wait;
            limits:
                memory_is_limited, what_an_application_does_is_counted, operations_under_way_are_limited,
                bandwidth_is_limited, priorities_change_no_result, counters_count_each_kind,
                a_trace_tells_what_is_done;
        }
    };
}

macro_rules! table {
    ($($subject:ident: $($case:ident),* $(,)?;)*) => {
        &[$($(
            Case {
                name: concat!(stringify!($subject), "::", stringify!($case)),
                run: |context| alloc::boxed::Box::pin($subject::$case(context)),
            },
        )*)*]
    };
}

/// All cases.
pub static CASES: &[Case] = each_case!(table);
