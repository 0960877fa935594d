//! Quality of service, limits and accounts of applications, counts and traces.

use crate::calls::served;
use crate::context::{BRIEF, Context, USE, all_of, pattern};
use crate::failure::{Outcome, ensure, fails, same, same_bytes};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use futures_util::future::join_all;
use lite::{App, Error, Limits, Priority, RpcOptions, Scheme, TraceEvent, Work};

/// An application allocates as much memory as its limit allows, in all its regions together; freed memory can
/// be allocated again.
pub(crate) async fn memory_is_limited(cx: &Context) -> Outcome {
    let app = App::new("memory", Limits { memory: Some(10_000), ..Limits::default() });
    let lite = cx.lite.for_app(&app);
    let one = lite.alloc(cx.next(), 6_000, USE).await?;
    fails(lite.alloc(cx.me(), 4_001, USE).await, Error::NoMemory { asked: 4_001, free: 4_000 })?;
    let two = lite.alloc(cx.me(), 4_000, USE).await?;
    fails(lite.alloc(cx.me(), 1, USE).await, Error::NoMemory { asked: 1, free: 0 })?;
    same((app.usage().memory, app.usage().refused), (10_000, 2))?;
    // Allocations of others do not count.
    cx.lite.alloc(cx.me(), 20_000, USE).await?.free().await?;
    one.free().await?;
    same(app.usage().memory, 4_000)?;
    let memory = lite.local_memory(6_000).await?;
    let three = lite.register_memory(memory, USE).await?;
    same(app.usage().memory, 10_000)?;
    app.set_limits(Limits::default());
    let four = lite.alloc(cx.next(), 50_000, USE).await?;
    drop((two, three, four));
    same(app.usage().memory, 0)
}

/// An application's work is counted: operations, calls and their bytes.
pub(crate) async fn what_an_application_does_is_counted(cx: &Context) -> Outcome {
    let app = App::new("counted", Limits::default());
    same(app.name(), "counted")?;
    let lite = cx.lite.for_app(&app);
    let server = cx.lite.register(cx.function(0), RpcOptions::default())?;
    cx.meet().await?;
    let work = async {
        let lmr = lite.alloc(cx.next(), 10_000, USE).await?;
        let before = app.usage();
        lmr.write(0, &[1; 300]).await?;
        lmr.read(0, &mut [0; 40]).await?;
        lmr.fetch_add(8, 1).await?;
        lmr.write_vectored(&[(0, &[1; 10]), (100, &[2; 20])]).await?;
        lite.call(cx.next(), cx.function(0), &[1; 500], 501).await?;
        let after = app.usage();
        same(after.operations - before.operations, 5)?;
        same(after.bytes - before.bytes, 300 + 40 + 8 + 30 + 500)?;
        same((after.outstanding, after.delayed, after.refused), (0, 0, 0))?;
        // Work through another handle of the region, or without an application, is not counted.
        let plain = cx.lite.alloc(cx.next(), 8, USE).await?;
        plain.write(0, &[1]).await?;
        same(app.usage().operations, after.operations)?;
        plain.free().await?;
        lmr.free().await?;
        cx.meet().await
    };
    served(&server, 1, work).await
}

/// Operations beyond the limit of operations in flight wait for their turn; none is lost.
pub(crate) async fn operations_under_way_are_limited(cx: &Context) -> Outcome {
    let app = App::new("narrow", Limits { outstanding: Some(2), ..Limits::default() });
    let lmr = cx.lite.for_app(&app).alloc(cx.next(), 30_000, USE).await?;
    let data: Vec<_> = (0..20).map(|i| pattern(1_500, i)).collect();
    let begun = app.usage().operations;
    let writes = data.iter().enumerate().map(|(i, data)| lmr.write(i as u64 * 1_500, data));
    for done in join_all(writes).await {
        done?;
    }
    let usage = app.usage();
    same((usage.operations - begun, usage.outstanding), (20, 0))?;
    ensure(usage.delayed > 0, "none of the 20 operations has waited")?;
    same_bytes(&all_of(&lmr).await?, &data.concat())?;
    lmr.free().await?;
    Ok(())
}

/// Bytes beyond an application's rate wait; those that would exceed their deadline are refused and not
/// transferred.
pub(crate) async fn bandwidth_is_limited(cx: &Context) -> Outcome {
    let limits = Limits { bytes_per_second: Some(1_000_000), burst: 10_000, ..Limits::default() };
    let app = App::new("slow", limits);
    let lmr = cx.lite.for_app(&app).alloc(cx.next(), 10_000, USE).await?;
    let begun = cx.lite.platform().now();
    for i in 0..6u8 {
        lmr.write(0, &[i; 10_000]).await?;
    }
    // The first operations are the burst.
    let took = cx.lite.platform().now() - begun;
    ensure(took >= Duration::from_millis(40), "60,000 bytes at 1 MB/s took less than 40 ms")?;
    // At one byte per millisecond, the next operation cannot start before its deadline.
    app.set_limits(Limits { bytes_per_second: Some(1000), ..limits });
    lmr.write(0, &[5; 10_000]).await?;
    let late = lmr.with_deadline(Duration::from_millis(1)).write(0, &[9; 10_000]).await;
    fails(late, Error::Deadline)?;
    same((app.usage().refused, all_of(&lmr).await?), (1, vec![5; 10_000]))?;
    lmr.free().await?;
    Ok(())
}

/// A priority scheme can be set at run time. It changes the order and time of operations, and none of their
/// results.
pub(crate) async fn priorities_change_no_result(cx: &Context) -> Outcome {
    for scheme in [Scheme::HwSep, Scheme::SW_PRI, Scheme::None] {
        cx.lite.configure_qos(scheme);
        let lmr = cx.lite.alloc(cx.next(), 90_000, USE).await?;
        let data: Vec<_> = (0..9).map(|i| pattern(10_000, i)).collect();
        let write = |i: usize| {
            let priority = [Priority::Low, Priority::Normal, Priority::High][i % 3];
            let lmr = lmr.with_priority(priority);
            let data = &data[i];
            async move {
                lmr.write(i as u64 * 10_000, data).await?;
                lmr.fetch_add(i as u64 * 10_000, 0).await
            }
        };
        for done in join_all((0..9).map(write)).await {
            done?;
        }
        same_bytes(&all_of(&lmr).await?, &data.concat())?;
        lmr.free().await?;
    }
    Ok(())
}

/// A node's counters count each kind of operation that the node begins.
pub(crate) async fn counters_count_each_kind(cx: &Context) -> Outcome {
    let count = |wanted: &str| {
        let mut value = 0;
        cx.lite.counters(&mut |(name, count)| value += if name == wanted { count } else { 0 });
        value
    };
    let lmr = cx.lite.alloc(cx.next(), 1000, USE).await?;
    let names = [
        "lite_reads",
        "lite_writes",
        "lite_atomics",
        "lite_memsets",
        "lite_bytes_read",
        "lite_bytes_written",
    ];
    let before = names.map(count);
    lmr.read(0, &mut [0; 100]).await?;
    lmr.read(0, &mut [0; 11]).await?;
    lmr.write(0, &[1; 300]).await?;
    lmr.fetch_add(0, 1).await?;
    lmr.compare_swap(0, 0, 1).await?;
    lmr.test_and_set(8).await?;
    lmr.memset(0, 1000, 1).await?;
    // No other work runs here.
    let after = names.map(count);
    for ((after, before), more) in after.iter().zip(before).zip([2, 1, 3, 1, 111, 300]) {
        ensure(*after >= before + more, "an operation is not counted")?;
    }
    lmr.free().await?;
    Ok(())
}

/// While tracing is on, there is an event for the start and for the end of each work request, in order of
/// time; while it is off, there is none.
pub(crate) async fn a_trace_tells_what_is_done(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 10_000, USE).await?;
    cx.lite.set_tracing(true);
    lmr.write(0, &[1; 777]).await?;
    lmr.read(0, &mut [0; 888]).await?;
    lmr.fetch_add(0, 1).await?;
    cx.lite.set_tracing(false);
    lmr.write(0, &[1; 555]).await?;
    let traced = cx.lite.traced();
    ensure(traced.is_sorted_by_key(|event| event.at), "events are not in order of time")?;
    let posted = |work, bytes| {
        let to = cx.next();
        let of_it = traced.iter().filter_map(move |stamped| match stamped.event {
            TraceEvent::Posted { id, work: w, peer, bytes: b, .. } if (w, b, peer) == (work, bytes, to) => {
                Some(id)
            }
            _ => None,
        });
        of_it.collect::<Vec<_>>()
    };
    for (work, bytes) in [(Work::Write, 777), (Work::Read, 888), (Work::Atomic, 8)] {
        let ids = posted(work, bytes);
        ensure(!ids.is_empty(), "an operation is not in the trace")?;
        let ended = traced
            .iter()
            .any(|stamped| matches!(stamped.event, TraceEvent::Ended { id, ok: true } if ids.contains(&id)));
        ensure(ended, "the operation's end is not in the trace")?;
    }
    ensure(posted(Work::Write, 555).is_empty(), "an event was recorded while tracing was off")?;
    cx.lite.sleep(BRIEF).await;
    lmr.free().await?;
    Ok(())
}
