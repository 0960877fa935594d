//! Tests of holes whose writers have died, have given up, or are slow.

use super::{LIMIT, SMALL};
use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions};
use litelog::{AppendError, Log, LogError, Position, ReadError, Writer};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use verbs::Gid;

const MILLI: Duration = Duration::from_millis(1);

fn gid(node: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, node])
}

/// Three nodes: the directory lies on node 1, the present segment on node 3, and node 2 writes.
fn stage(seed: u64) -> (Cluster, Log, Writer) {
    let mut c = Cluster::new(seed, 3, 64 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let (log, writer) = c.world.run(LIMIT, async move {
        let log = Log::create(&a, "t", &[NodeId(1), NodeId(3)], SMALL).await.unwrap();
        let writer = Log::open(&b, "t").await.unwrap().writer().await.unwrap();
        while log.tail().await.unwrap() < Position::from_u64(256) {
            writer.append(&[0; 1000]).await.unwrap();
        }
        (log, writer)
    });
    (c, log, writer)
}

/// Appends an entry in a task. The returned cell gets the result.
fn begin(
    lite: &Lite,
    writer: &Writer,
    entry: &'static [u8],
) -> Arc<Mutex<Option<Result<Position, AppendError>>>> {
    let (result, writer) = (Arc::new(Mutex::new(None)), writer.clone());
    let output = result.clone();
    let append = async move {
        let appended = writer.append(entry).await;
        *output.lock().unwrap() = Some(appended);
    };
    lite.platform().spawn("test", Box::pin(append));
    result
}

/// Returns the first entries of all records, or the error of the scan.
async fn all(log: &Log, from: Position) -> Result<Vec<Vec<u8>>, ReadError> {
    let (mut scan, mut found) = (log.scan(from), Vec::new());
    while let Some(record) = scan.next().await? {
        found.push(record.entries().next().unwrap().to_vec());
    }
    Ok(found)
}

#[test]
fn a_hole_of_a_fetch_add_without_a_writer_is_filled() {
    let (mut c, log, writer) = stage(1);
    let other = c.lite(3);
    c.world.run(LIMIT, async move {
        let from = log.tail().await.unwrap();
        let directory = other.map("log/t", Permissions::ATOMIC).await.unwrap();
        for slots in [1, 5, 30] {
            let hole = directory.fetch_add(0, slots).await.unwrap();
            assert_eq!(log.read(Position::from_u64(hole)).await, Err(ReadError::NotYet));
            writer.append(&[slots as u8]).await.unwrap();
        }
        // This hole ends in a segment that does not exist yet.
        directory.fetch_add(0, 600).await.unwrap();
        writer.append(&[4]).await.unwrap();
        assert_eq!(all(&log, from).await.unwrap(), [[1], [5], [30], [4]]);
        assert_eq!(log.read(from).await, Err(ReadError::NoRecord));
        assert_eq!(log.close_holes().await.unwrap(), log.tail().await.unwrap());
    });
}

#[test]
fn a_slow_live_writer_is_waited_for() {
    let (mut c, log, writer) = stage(2);
    c.fabric.hold_between(gid(2), gid(3), true);
    let slow = begin(&c.lite(2), &writer, b"slow");
    c.world.run_for(MILLI);
    let quick = c.lite(1);
    let reader = log.clone();
    let (from, at) = c.world.run(LIMIT, async move {
        let writer = Log::open(&quick, "t").await.unwrap().writer().await.unwrap();
        let at = writer.append(b"quick").await.unwrap();
        // The slow writer lives, so the keeper must not fill its place.
        let from = reader.close_holes().await.unwrap();
        assert!(from < at);
        (from, at)
    });
    let seen = Arc::new(Mutex::new(None));
    let (output, reader) = (seen.clone(), log.clone());
    let scan = async move {
        let found = all(&reader, from).await;
        *output.lock().unwrap() = Some(found);
    };
    c.lite(1).platform().spawn("test", Box::pin(scan));
    c.world.run_for(500 * MILLI);
    assert!(slow.lock().unwrap().is_none() && seen.lock().unwrap().is_none());
    c.fabric.hold_between(gid(2), gid(3), false);
    c.world.run_for(100 * MILLI);
    assert_eq!(slow.lock().unwrap().take(), Some(Ok(from)));
    assert_eq!(seen.lock().unwrap().take().unwrap().unwrap(), [&b"slow"[..], b"quick"]);
    assert!(at > from);
}

#[test]
fn the_hole_of_a_dead_writer_is_filled_once_its_death_is_settled() {
    let (mut c, log, writer) = stage(3);
    c.fabric.hold_between(gid(2), gid(3), true);
    let _slow = begin(&c.lite(2), &writer, b"lost");
    c.world.run_for(MILLI);
    let quick = c.lite(1);
    let reader = log.clone();
    let from = c.world.run(LIMIT, async move {
        let writer = Log::open(&quick, "t").await.unwrap().writer().await.unwrap();
        writer.append(b"quick").await.unwrap();
        reader.close_holes().await.unwrap()
    });
    // The writer's machine stops. The manager has not declared it dead yet.
    c.nodes[1].0.pause(true);
    let reader = log.clone();
    c.world.run(LIMIT, async move {
        let closed = reader.close_holes().await;
        assert!(matches!(closed, Err(LogError::Lite(lite::Error::Deadline))), "{closed:?}");
        assert_eq!(reader.read(from).await, Err(ReadError::NotYet));
    });
    // The manager declares the writer dead. The home of the segment does not get that message yet.
    c.nodes[2].0.hold("lite-control-in", true);
    c.hub.declare_dead(NodeId(2));
    let reader = log.clone();
    c.world.run(LIMIT, async move {
        let closed = reader.close_holes().await;
        assert!(matches!(closed, Err(LogError::Lite(lite::Error::Deadline))), "{closed:?}");
    });
    c.nodes[2].0.hold("lite-control-in", false);
    let reader = log.clone();
    c.world.run(LIMIT, async move {
        assert_eq!(all(&reader, from).await.unwrap(), [b"quick"]);
        assert_eq!(reader.read(from).await, Err(ReadError::NoRecord));
    });
    // The write that the dead writer had posted arrives only now. The home of the segment refuses it, so the
    // records stay as they are.
    c.nodes[1].0.pause(false);
    c.fabric.hold_between(gid(2), gid(3), false);
    c.world.run_for(100 * MILLI);
    c.world.run(LIMIT, async move {
        assert_eq!(all(&log, from).await.unwrap(), [b"quick"]);
    });
    drop(writer);
}

#[test]
fn a_write_of_unknown_outcome_is_repeated() {
    let (mut c, log, writer) = stage(4);
    c.fabric.delay_between(gid(2), gid(3), true);
    let slow = begin(&c.lite(2), &writer, b"late");
    c.world.run_for(MILLI);
    let reader = log.clone();
    let from = c.world.run(LIMIT, async move { reader.close_holes().await.unwrap() });
    c.world.run_for(30_000 * MILLI);
    let ended = slow.lock().unwrap().take();
    assert!(matches!(ended, Some(Err(AppendError::Unknown(at))) if at == from), "{ended:?}");
    let reader = log.clone();
    c.world.run(LIMIT, async move {
        // The background task of the writer may still write the frame, so the keeper does not fill its place.
        assert_eq!(reader.close_holes().await.unwrap(), from);
    });
    c.fabric.delay_between(gid(2), gid(3), false);
    c.fabric.arrive();
    c.world.run_for(10_000 * MILLI);
    c.world.run(LIMIT, async move {
        assert_eq!(all(&log, from).await.unwrap(), [b"late"]);
    });
    drop(writer);
}

#[test]
fn a_dropped_commit_is_whole_or_not_there() {
    for polls in 0..12 {
        let (mut c, log, writer) = stage(10 + polls);
        c.world.run(LIMIT, async move {
            let from = log.tail().await.unwrap();
            {
                let mut append = pin!(writer.commit(&[b"dropped", &[5; 900]]));
                for _ in 0..polls {
                    let ended = poll_fn(|cx| Poll::Ready(append.as_mut().poll(cx).is_ready())).await;
                    if ended {
                        break;
                    }
                    platform::yield_now().await;
                }
            }
            writer.append(b"next").await.unwrap();
            let found = all(&log, from).await.unwrap();
            assert!(
                found == [&b"dropped"[..], b"next"]
                    || found == [b"next"]
                    || found == [&b"next"[..], b"dropped"],
                "{polls}: {found:?}"
            );
            assert_eq!(log.close_holes().await.unwrap(), log.tail().await.unwrap());
        });
    }
}

#[test]
fn a_writers_death_loses_no_acknowledged_record() {
    let (mut c, log, writer) = stage(5);
    let from = c.world.run(LIMIT, {
        let log = log.clone();
        async move {
            let from = log.tail().await.unwrap();
            // The frames fill several segments. The writer makes these, and they must outlive it.
            for n in 0..40u8 {
                writer.append(&[n; 1200]).await.unwrap();
            }
            from
        }
    });
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(1000 * MILLI);
    let third = c.lite(3);
    c.world.run(LIMIT, async move {
        let found = all(&log, from).await.unwrap();
        assert_eq!(found, (0..40u8).map(|n| vec![n; 1200]).collect::<Vec<_>>());
        // The log has at most four writers. The entry of the dead one can be used again, so four more fit.
        let log = Log::open(&third, "t").await.unwrap();
        let mut writers = Vec::new();
        for _ in 0..4 {
            writers.push(log.writer().await.unwrap());
        }
    });
}

/// A record that is written and resolved between the two looks of a reader is found.
#[test]
fn a_record_that_is_resolved_during_a_read_is_found() {
    let (mut c, log, writer) = stage(7);
    let second = c.lite(2);
    let (reader, at) = c
        .world
        .run(LIMIT, async move {
            drop(writer);
            let reader = Log::open(&second, "t").await.unwrap();
            let at = log.writer().await.unwrap().append(b"before").await.unwrap();
            // The segment is mapped now, so the next read does not begin with the directory.
            Ok::<_, ReadError>((reader.clone(), reader.read(at).await?.next()))
        })
        .unwrap();
    c.fabric.hold_between(gid(2), gid(1), true);
    let found = Arc::new(Mutex::new(None));
    let output = found.clone();
    let read = async move {
        let record = reader.read(at).await;
        *output.lock().unwrap() = Some(record.map(|record| record.entries().next() == Some(b"here")));
    };
    c.lite(2).platform().spawn("test", Box::pin(read));
    c.world.run_for(MILLI);
    let first = c.lite(1);
    c.world.run(LIMIT, async move {
        let log = Log::open(&first, "t").await.unwrap();
        assert_eq!(log.writer().await.unwrap().append(b"here").await.unwrap(), at);
        assert!(log.close_holes().await.unwrap() > at);
    });
    assert_eq!(found.lock().unwrap().take(), None);
    c.fabric.hold_between(gid(2), gid(1), false);
    c.world.run_for(10 * MILLI);
    assert_eq!(found.lock().unwrap().take(), Some(Ok(true)));
}

/// Truncates the log on node 2, which loses its connection to the home of the second segment after `polls`
/// polls and then dies. Returns true if the truncation was complete. Nothing of the log may be left.
fn truncates_and_dies(polls: u32) -> bool {
    let mut c = Cluster::new(6, 3, 8 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2).with_deadline(10 * MILLI));
    let log = c.world.run(LIMIT, async move {
        let log = Log::create(&a, "t", &[NodeId(1), NodeId(3)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        while log.tail().await.unwrap() < Position::from_u64(600) {
            writer.append(&[0; 1000]).await.unwrap();
        }
        // The next use of this connection is the truncation's.
        drop(b.alloc(NodeId(3), 8, Permissions::all()).await.unwrap());
        log
    });
    let (b, fabric) = (c.lite(2).with_deadline(10 * MILLI), c.fabric.clone());
    let complete = c.world.run(LIMIT, async move {
        let log = Log::open(&b, "t").await.unwrap();
        let mut truncation = pin!(log.truncate(Position::from_u64(512)));
        for _ in 0..polls {
            let ended = poll_fn(|cx| Poll::Ready(truncation.as_mut().poll(cx))).await;
            if let Poll::Ready(ended) = ended {
                ended.unwrap();
                return true;
            }
            platform::yield_now().await;
        }
        fabric.delay_between(gid(2), gid(3), true);
        truncation.await.is_ok()
    });
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(100 * MILLI);
    c.world.run(LIMIT, async move { log.destroy().await.unwrap() });
    c.world.run_for(100 * MILLI);
    assert_eq!(c.lite(3).audit(), [], "after {polls} polls");
    complete
}

/// A truncation whose free is lost leaves the segment in the directory, so that another node frees it.
#[test]
fn a_segment_whose_free_is_lost_is_freed_by_another_node() {
    let complete: Vec<bool> = (0..60).map(truncates_and_dies).collect();
    assert!(complete.contains(&true) && complete.contains(&false), "{complete:?}");
}

/// Destroys the log on node 2, which loses its connection to the log's home after `polls` polls, makes a new
/// one, and dies at the end. Returns true if the destruction was complete before the loss. Nothing of the log
/// may be left.
fn destroys_and_dies(seed: u64, polls: u32) -> bool {
    let mut c = Cluster::new(seed, 3, 8 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2).with_deadline(20 * MILLI));
    c.world.run(LIMIT, async move {
        Log::create(&a, "t", &[NodeId(3)], SMALL).await.unwrap();
        // The next use of this connection is the destruction's.
        drop(b.alloc(NodeId(3), 8, Permissions::all()).await.unwrap());
    });
    let (b, fabric) = (c.lite(2).with_deadline(20 * MILLI), c.fabric.clone());
    let (complete, destroyed) = c.world.run(LIMIT, async move {
        let log = Log::open(&b, "t").await.unwrap();
        let mut destruction = pin!(log.destroy());
        for _ in 0..polls {
            if let Poll::Ready(ended) = poll_fn(|cx| Poll::Ready(destruction.as_mut().poll(cx))).await {
                ended.unwrap();
                return (true, true);
            }
            platform::yield_now().await;
        }
        fabric.delay_between(gid(2), gid(3), true);
        let lite = b.clone();
        let repair = async move {
            lite.sleep(MILLI / 100).await;
            fabric.delay_between(gid(2), gid(3), false);
        };
        b.platform().spawn("test", Box::pin(repair));
        (false, destruction.await.is_ok())
    });
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(100 * MILLI);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let log = match Log::open(&a, "t").await {
            Ok(log) => {
                assert!(
                    !destroyed,
                    "after {polls} polls of seed {seed} the log exists and counts as destroyed"
                );
                log
            }
            // The lock of segments may be left. The next log of the name uses it.
            Err(LogError::Lite(Error::NoSuchName)) => {
                Log::create(&a, "t", &[NodeId(3)], SMALL).await.unwrap()
            }
            Err(error) => panic!("after {polls} polls of seed {seed}: {error}"),
        };
        log.destroy().await.unwrap();
    });
    c.world.run_for(100 * MILLI);
    assert_eq!(c.lite(3).audit(), [], "after {polls} polls of seed {seed}");
    complete
}

/// A destruction that loses the free of the directory fails, or repeats the free.
#[test]
fn a_log_whose_destruction_is_lost_is_destroyed_by_another_node() {
    let all = |seed| (0..120).map(move |polls| destroys_and_dies(seed, polls));
    let complete: Vec<bool> = (0..8).flat_map(all).collect();
    assert!(complete.contains(&true) && complete.contains(&false), "{complete:?}");
}
