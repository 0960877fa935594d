//! Calls: functions with 32-bit ids, requests and replies of any length, any number in parallel.

use crate::context::{BRIEF, Context, RW, pattern};
use crate::failure::{Failure, Outcome, ensure, fails, refused, same, same_bytes};
use alloc::vec;
use alloc::vec::Vec;
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, join, join_all, select};
use lite::{Error, FunctionId, Lite, NodeId, RpcOptions, RpcServer};

/// The maximum length of a request of the functions here, in bytes.
const LONGEST: usize = 2 << 20;

/// Lengths around each size at which requests or replies are transferred in another way.
const LENGTHS: [usize; 14] =
    [0, 1, 100, 255, 256, 4000, 4071, 4073, 4096, 30_000, 32_768, 33_000, 300_000, LONGEST];

fn options() -> RpcOptions {
    RpcOptions { max_request: LONGEST, ..RpcOptions::default() }
}

/// Replies with the request and one more byte, until the function ends.
async fn serve(server: &RpcServer) {
    while let Ok(mut call) = server.receive().await {
        let mut reply = call.take_request();
        reply.push(0x77);
        // The caller may have gone.
        let _ = call.reply(&reply).await;
    }
}

/// Runs `work` while `tasks` tasks serve. Serving ends with the work.
pub(crate) async fn served<T>(server: &RpcServer, tasks: usize, work: impl Future<Output = T>) -> T {
    let serving = pin!(join_all((0..tasks).map(|_| serve(server))));
    let work = pin!(work);
    match select(work, serving).await {
        Either::Left((done, _)) => done,
        // The function has ended before the work.
        Either::Right((_, work)) => work.await,
    }
}

async fn asks(lite: &Lite, node: NodeId, function: FunctionId, request: &[u8]) -> Outcome {
    let mut reply = lite.call(node, function, request, request.len() + 1).await?;
    same(reply.pop(), Some(0x77))?;
    same_bytes(&reply, request)
}

/// A request of any length up to the function's maximum arrives unchanged, and so does a reply of any length;
/// from every node to every node, including itself.
pub(crate) async fn requests_and_replies_of_any_length(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    cx.meet().await?;
    let work = async {
        for to in cx.nodes() {
            for (i, len) in LENGTHS.into_iter().enumerate() {
                asks(&cx.lite, *to, cx.function(0), &pattern(len, i + cx.rank())).await?;
            }
        }
        cx.meet().await
    };
    served(&server, 1, work).await
}

/// Any number of calls run in parallel, from all nodes to all, served by several tasks. Each gets its own
/// reply and is served once.
pub(crate) async fn any_number_at_once(cx: &Context) -> Outcome {
    const CALLS: usize = 300;
    let server = cx.lite.register(cx.function(0), RpcOptions { queue: 1000, ..options() })?;
    cx.meet().await?;
    let work = async {
        let calls = (0..CALLS).map(|i| {
            let request = pattern(i * 61 % 5000, i + cx.rank() * CALLS);
            async move { asks(&cx.lite, cx.node(i), cx.function(0), &request).await }
        });
        for done in join_all(calls).await {
            done?;
        }
        cx.meet().await
    };
    served(&server, 4, work).await
}

/// Ids have 32 bits; those from `0xffff_0000` on are reserved for LITE. An id names one function of a node.
pub(crate) async fn ids_have_32_bits(cx: &Context) -> Outcome {
    let ids = [0, 1, 0x8000_0000, 0xfffe_ffff];
    let mut servers = Vec::new();
    for id in ids {
        servers.push(cx.lite.register(id, options())?);
        fails(cx.lite.register(id, options()), Error::NameTaken)?;
        fails(cx.lite.open_mailbox(id, options()), Error::NameTaken)?;
    }
    for id in [0xffff_0000, 0xffff_0001, u32::MAX] {
        fails(cx.lite.register(id, options()), Error::Permission)?;
        fails(cx.lite.open_mailbox(id, options()), Error::Permission)?;
        fails(cx.lite.call(cx.next(), id, b"", 10).await, Error::Permission)?;
        fails(cx.lite.send(cx.me(), id, b"").await, Error::Permission)?;
    }
    cx.meet().await?;
    let work = async {
        for id in ids {
            asks(&cx.lite, cx.next(), id, &id.to_le_bytes()).await?;
            asks(&cx.lite, cx.me(), id, b"own").await?;
        }
        cx.meet().await
    };
    let serving = pin!(join_all(servers.iter().map(serve)));
    match select(pin!(work), serving).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(Failure::new("a function has ended")),
    }
}

/// A function does not exist before it is registered and after it has been unregistered. Its id is free
/// immediately.
pub(crate) async fn a_function_ends_when_it_is_unregistered(cx: &Context) -> Outcome {
    let function = cx.function(0);
    for to in [cx.me(), cx.next()] {
        fails(cx.lite.call(to, function, b"early", 10).await, Error::NoSuchFunction)?;
    }
    cx.meet().await?;
    for dropped in [false, true] {
        let server = cx.lite.register(function, options())?;
        cx.meet().await?;
        served(&server, 1, async {
            asks(&cx.lite, cx.next(), function, b"there").await?;
            cx.meet().await
        })
        .await?;
        if dropped {
            drop(server);
        } else {
            server.unregister().await?;
            fails(server.receive().await, Error::NoSuchFunction)?;
        }
        cx.meet().await?;
        for to in [cx.me(), cx.next()] {
            fails(cx.lite.call(to, function, b"late", 10).await, Error::NoSuchFunction)?;
        }
        cx.meet().await?;
    }
    Ok(())
}

/// A call that waits in the queue of an ending function fails with an error, and the function waits for the
/// calls that are being served.
pub(crate) async fn unregister_waits_for_calls_under_way(cx: &Context) -> Outcome {
    let (function, begun) = (cx.function(0), cx.name("begun"));
    if cx.rank() == 0 {
        let server = cx.lite.register(function, options())?;
        let event = cx.lite.create_event(cx.me(), &begun).await?;
        cx.meet().await?;
        let call = server.receive().await?;
        // The second call is in the queue when its message has arrived.
        let second = server.receive().await?;
        event.signal().await?;
        let brief = Duration::from_millis(20);
        let end = async {
            let ended = server.unregister().await;
            (cx.lite.platform().now(), ended)
        };
        let answer = async {
            cx.lite.sleep(brief).await;
            let now = cx.lite.platform().now();
            (now, call.reply(b"in time").await.and(second.reply(b"in time").await))
        };
        let ((ended_at, ended), (answered_at, answered)) = join(end, answer).await;
        ended?;
        answered?;
        ensure(ended_at >= answered_at, "unregister has not waited")?;
        cx.meet().await?;
        event.destroy().await?;
        return Ok(());
    }
    cx.meet().await?;
    if cx.rank() < 3 {
        same_bytes(&cx.lite.call(cx.node(0), function, b"", 10).await?, b"in time")?;
    }
    cx.meet().await
}

/// A request longer than the function accepts, or a reply longer than the caller accepts, is refused, and
/// both sides get an error.
pub(crate) async fn too_long_is_refused_to_both(cx: &Context) -> Outcome {
    let function = cx.function(0);
    let server = cx.lite.register(function, RpcOptions { max_request: 1000, ..options() })?;
    cx.meet().await?;
    for to in [cx.next(), cx.me()] {
        for len in [1001, 100_000] {
            fails(cx.lite.call(to, function, &vec![0; len], 0).await, Error::TooLarge { max: 1000 })?;
        }
    }
    cx.meet().await?;
    // Each node's reply is too long for its caller.
    for (max, len) in [(0, 1), (100, 101), (100, 5_000), (10_000, 10_001)] {
        for to in [cx.next(), cx.me()] {
            let ask = cx.lite.call(to, function, b"", max);
            let answer = async {
                let call = server.receive_within(Duration::from_secs(20)).await?;
                fails(call.reply(&vec![1; len]).await, Error::TooLarge { max: max as u64 })
            };
            let (asked, answered) = join(ask, answer).await;
            answered?;
            fails(asked, Error::TooLarge { max: max as u64 })?;
            cx.meet().await?;
        }
    }
    Ok(())
}

/// `call_into` writes the reply to the start of a buffer and returns its length.
pub(crate) async fn a_reply_into_a_buffer(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    cx.meet().await?;
    let work = async {
        for to in [cx.next(), cx.me()] {
            let mut reply = [9; 8];
            same(cx.lite.call_into(to, cx.function(0), b"abc", &mut reply).await?, 4)?;
            same_bytes(&reply, &[b'a', b'b', b'c', 0x77, 9, 9, 9, 9])?;
            same(cx.lite.call_into(to, cx.function(0), b"1234567", &mut reply).await?, 8)?;
            fails(
                cx.lite.call_into(to, cx.function(0), b"12345678", &mut reply).await,
                Error::TooLarge { max: 8 },
            )?;
        }
        cx.meet().await
    };
    served(&server, 1, work).await
}

/// A handler that drops a call refuses it.
pub(crate) async fn a_call_that_is_dropped_is_refused(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    cx.meet().await?;
    let caller = cx.node(cx.rank() + cx.count() - 1);
    for (to, from) in [(cx.next(), caller), (cx.me(), cx.me())] {
        let (asked, received) = join(cx.lite.call(to, cx.function(0), b"x", 10), async {
            let call = server.receive().await?;
            Ok::<_, Error>(call.from())
        })
        .await;
        refused(asked)?;
        same(received?, from)?;
        cx.meet().await?;
    }
    Ok(())
}

/// A handler knows the caller, the caller's incarnation, and whether the caller waits for a reply.
pub(crate) async fn a_handler_knows_its_caller(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    cx.meet().await?;
    let work = async {
        for to in cx.nodes() {
            let mut request = cx.me().0.to_le_bytes().to_vec();
            request.extend(cx.lite.incarnation().0.to_le_bytes());
            same_bytes(&cx.lite.call(*to, cx.function(0), &request, 10).await?, b"known")?;
        }
        Ok(())
    };
    let know = async {
        for _ in cx.nodes() {
            let call = server.receive().await?;
            let mut expected = call.from().0.to_le_bytes().to_vec();
            expected.extend(call.incarnation().0.to_le_bytes());
            same_bytes(call.request(), &expected)?;
            ensure(!call.is_one_way(), "a call expects a reply")?;
            call.reply(b"known").await?;
        }
        Ok::<_, Failure>(())
    };
    let (asked, known): (Outcome, Outcome) = join(work, know).await;
    asked.and(known)?;
    cx.meet().await
}

/// A server replies and receives the next call in one step.
pub(crate) async fn reply_and_receive(cx: &Context) -> Outcome {
    const CALLS: u32 = 20;
    let server = cx.lite.register(cx.function(0), options())?;
    cx.meet().await?;
    let serve = async {
        let mut call = server.receive().await?;
        for _ in 1..CALLS {
            let mut reply = call.request().to_vec();
            reply.push(0x77);
            call = server.reply_and_receive(call, &reply).await?;
        }
        let mut reply = call.take_request();
        reply.push(0x77);
        call.reply(&reply).await?;
        Ok::<_, Failure>(())
    };
    let work = async {
        for i in 0..CALLS {
            asks(&cx.lite, cx.next(), cx.function(0), &i.to_le_bytes()).await?;
        }
        Ok(())
    };
    let (served, asked): (Outcome, Outcome) = join(serve, work).await;
    served.and(asked)?;
    cx.meet().await
}

/// A handler may make calls before it replies, also to its caller.
pub(crate) async fn handlers_call_on(cx: &Context) -> Outcome {
    const HOPS: u8 = 7;
    let function = cx.function(0);
    let server = cx.lite.register(function, options())?;
    cx.meet().await?;
    // Each hop calls the next node and adds its rank to the result.
    let hop = async || -> Outcome {
        loop {
            let Ok(call) = server.receive().await else { return Ok(()) };
            let left = call.request().first().copied().unwrap_or(0);
            let mut reply = match left {
                0 => Vec::new(),
                left => cx.lite.call(cx.next(), function, &[left - 1], 20).await?,
            };
            reply.push(cx.rank() as u8);
            call.reply(&reply).await?;
        }
    };
    let work = async {
        let mut path = cx.lite.call(cx.me(), function, &[HOPS], 20).await?;
        path.reverse();
        let expected: Vec<_> =
            (0..=usize::from(HOPS)).map(|hop| ((cx.rank() + hop) % cx.count()) as u8).collect();
        same_bytes(&path, &expected)?;
        cx.meet().await
    };
    let serving = pin!(join_all((0..10).map(|_| hop())));
    match select(pin!(work), serving).await {
        Either::Left((done, _)) => done,
        Either::Right((ended, _)) => ended.into_iter().collect(),
    }
}

/// A call ends by its deadline, whether its handler replies or not. A reply that comes too late is no error.
pub(crate) async fn a_call_ends_by_its_deadline(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    fails(server.receive_within(BRIEF).await, Error::Deadline)?;
    cx.meet().await?;
    // The connection exists from here on.
    let warm = served(&server, 1, async {
        asks(&cx.lite, cx.next(), cx.function(0), b"before").await?;
        cx.meet().await
    });
    warm.await?;
    // No task serves any more.
    cx.meet().await?;
    let hasty = cx.lite.with_deadline(BRIEF);
    for to in [cx.next(), cx.me()] {
        let begun = cx.lite.platform().now();
        let (asked, call) = join(hasty.call(to, cx.function(0), b"", 10), server.receive()).await;
        ensure(matches!(asked, Err(Error::Deadline | Error::Unknown)), "the call got no answer")?;
        ensure(cx.lite.platform().now() - begun >= BRIEF, "the call ended before its deadline")?;
        let call = call?;
        cx.meet().await?;
        call.reply(b"late").await?;
    }
    cx.meet().await?;
    served(&server, 1, async {
        asks(&cx.lite, cx.next(), cx.function(0), b"after").await?;
        cx.meet().await
    })
    .await
}

/// Callers of a function whose queue is full wait for room until their deadlines. A call that found no room
/// was not served.
pub(crate) async fn a_full_queue_makes_callers_wait(cx: &Context) -> Outcome {
    const CALLS: u8 = 6;
    let function = cx.function(0);
    if cx.rank() > 0 {
        cx.meet().await?;
        let calls = (0..CALLS).map(|_| cx.lite.call(cx.node(0), function, b"", 10));
        for reply in join_all(calls).await {
            same_bytes(&reply?, b"served")?;
        }
        return cx.meet().await;
    }
    let server = cx.lite.register(function, RpcOptions { queue: 2, ..options() })?;
    cx.meet().await?;
    cx.lite.sleep(BRIEF).await;
    for _ in 0..usize::from(CALLS) * (cx.count() - 1) {
        server.receive().await?.reply(b"served").await?;
    }
    cx.meet().await?;
    fails(server.receive_within(BRIEF).await, Error::Deadline)
}

/// A call to many nodes has a result for each of them: the reply, or the node's own error.
pub(crate) async fn one_call_to_many_has_a_result_of_each(cx: &Context) -> Outcome {
    let (everywhere, here) = (cx.function(0), cx.function(1));
    let server = cx.lite.register(everywhere, options())?;
    let only = if cx.rank() == 1 { Some(cx.lite.register(here, options())?) } else { None };
    cx.meet().await?;
    let work = async {
        let mut targets = cx.nodes().to_vec();
        targets.extend([NodeId(4000), cx.me()]);
        for len in [0, 500, 50_000] {
            let request = pattern(len, cx.rank());
            let results = cx.lite.call_each(&targets, everywhere, &request, len + 1).await;
            same(results.len(), targets.len())?;
            for (to, result) in targets.iter().zip(results) {
                if *to == NodeId(4000) {
                    fails(result, Error::NoSuchNode)?;
                } else {
                    same_bytes(result?.get(..len).unwrap_or_default(), &request)?;
                }
            }
        }
        let results = cx.lite.call_each(cx.nodes(), here, b"", 10).await;
        for (rank, result) in results.into_iter().enumerate() {
            match rank {
                1 => same_bytes(&result?, &[0x77])?,
                _ => fails(result, Error::NoSuchFunction)?,
            }
        }
        ensure(
            cx.lite.call_each(&[], everywhere, b"", 10).await.is_empty(),
            "a call to no nodes has no result",
        )?;
        cx.meet().await
    };
    match &only {
        Some(only) => served(only, 1, served(&server, 1, work)).await,
        None => served(&server, 1, work).await,
    }
}

/// Calls and one-sided operations work in parallel, also inside handlers.
pub(crate) async fn handlers_use_memory(cx: &Context) -> Outcome {
    let server = cx.lite.register(cx.function(0), options())?;
    let lmr = cx.lite.alloc(cx.next(), 50_000, RW).await?;
    cx.meet().await?;
    let handle = async {
        let call = server.receive().await?;
        lmr.write(0, call.request()).await?;
        let mut got = vec![0; call.request().len()];
        lmr.read(0, &mut got).await?;
        call.reply(&got).await?;
        Ok::<_, Failure>(())
    };
    let ask = async {
        let request = pattern(50_000, cx.rank());
        same_bytes(&cx.lite.call(cx.next(), cx.function(0), &request, 50_000).await?, &request)
    };
    let (handled, asked): (Outcome, Outcome) = join(handle, ask).await;
    handled.and(asked)?;
    cx.meet().await?;
    lmr.free().await?;
    Ok(())
}
