//! Tests of each operation without faults.

use super::{LIMIT, SMALL, run};
use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions};
use litelog::{AppendError, Log, LogError, LogOptions, Position, ReadError};
use std::time::Duration;

#[test]
fn records_come_back_on_every_node() {
    run(3, |c: Vec<Lite>| async move {
        let homes = [NodeId(3), NodeId(1)];
        let made = Log::create(&c[0], "t", &homes, LogOptions::default()).await.unwrap();
        let opened = Log::open(&c[1], "t").await.unwrap();
        assert_eq!(opened.options(), made.options());
        let (here, there) = (made.writer().await.unwrap(), opened.writer().await.unwrap());
        let first = here.append(b"first").await.unwrap();
        let second = there.commit(&[b"a", b"", &[7; 5000]]).await.unwrap();
        assert_eq!(first, Position::START);
        assert!(second > first);
        let reader = Log::open(&c[2], "t").await.unwrap();
        for log in [&made, &opened, &reader] {
            let record = log.read(first).await.unwrap();
            assert_eq!(record.entries().collect::<Vec<_>>(), [b"first"]);
            assert_eq!(record.next(), second);
            let record = log.read(second).await.unwrap();
            assert_eq!(record.entries().collect::<Vec<_>>(), [&b"a"[..], b"", &[7; 5000]]);
            assert_eq!(log.tail().await.unwrap(), record.next());
            assert_eq!(log.read(record.next()).await, Err(ReadError::NotYet));
            let mut scan = log.scan(Position::START);
            assert_eq!(scan.next().await.unwrap().unwrap().position(), first);
            assert_eq!(scan.next().await.unwrap().unwrap().position(), second);
            assert_eq!(scan.next().await, Ok(None));
        }
    });
}

#[test]
fn a_log_has_a_name_options_and_limited_writers() {
    run(2, |c: Vec<Lite>| async move {
        let homes = [NodeId(1)];
        assert_eq!(Log::open(&c[0], "t").await.err(), Some(LogError::Lite(Error::NoSuchName)));
        let wrong = LogOptions { segment: 5, ..SMALL };
        assert!(matches!(Log::create(&c[0], "t", &homes, wrong).await, Err(LogError::Options(_))));
        assert!(matches!(Log::create(&c[0], "t", &[], SMALL).await, Err(LogError::Options(_))));
        let log = Log::create(&c[0], "t", &homes, SMALL).await.unwrap();
        let again = Log::create(&c[1], "t", &homes, SMALL).await;
        assert_eq!(again.err(), Some(LogError::Lite(Error::NameTaken)));
        let mut writers = Vec::new();
        for _ in 0..4 {
            writers.push(log.writer().await.unwrap());
        }
        assert_eq!(log.writer().await.err(), Some(LogError::TooManyWriters { max: 4 }));
        writers.pop();
        c[0].sleep(Duration::from_millis(10)).await;
        log.writer().await.unwrap().append(b"x").await.unwrap();
        let other = lite_region(&c[0]).await;
        assert_eq!(Log::open(&c[1], "other").await.err(), Some(LogError::NotALog));
        other.free().await.unwrap();
    });
}

/// Publishes a region under the name of a log. The region is not a log.
async fn lite_region(lite: &Lite) -> lite::Lmr {
    let region = lite.alloc(NodeId(2), 1536, Permissions::all()).await.unwrap();
    region.publish("log/other").await.unwrap();
    region
}

#[test]
fn commits_pass_the_ends_of_segments() {
    run(3, |c: Vec<Lite>| async move {
        let homes = [NodeId(1), NodeId(2), NodeId(3)];
        let log = Log::create(&c[0], "t", &homes, SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        let mut made = Vec::new();
        for n in 0..60usize {
            let entry = vec![n as u8; 37 * n % 2000];
            made.push((writer.append(&entry).await.unwrap(), entry));
        }
        let reader = Log::open(&c[1], "t").await.unwrap();
        let mut scan = reader.scan(Position::START);
        for (at, entry) in &made {
            let record = scan.next().await.unwrap().unwrap();
            assert_eq!((record.position(), record.entries().next()), (*at, Some(&entry[..])));
            assert_eq!(reader.read(*at).await.unwrap(), record);
        }
        assert_eq!(scan.next().await, Ok(None));
    });
}

#[test]
fn what_is_too_large_or_too_much_is_refused() {
    run(2, |c: Vec<Lite>| async move {
        let log = Log::create(&c[0], "t", &[NodeId(2)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        let too_large = writer.append(&[0; 4096]).await;
        assert_eq!(too_large, Err(AppendError::TooLarge { max: 4096 }));
        let entry = [9; 4000];
        let mut count = 0;
        let refused = loop {
            match writer.append(&entry).await {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        // The log may have eight segments of 16 KiB, each with room for four frames of such an entry.
        assert_eq!((refused, count), (AppendError::Full, 32));
        let tail = log.tail().await.unwrap();
        assert_eq!(writer.append(&entry).await, Err(AppendError::Full));
        assert_eq!(log.tail().await.unwrap(), tail, "a full log reserves nothing");
        log.truncate(Position::from_u64(3 * 256)).await.unwrap();
        for _ in 0..12 {
            writer.append(&entry).await.unwrap();
        }
        assert_eq!(writer.append(&entry).await, Err(AppendError::Full));
    });
}

#[test]
fn truncation_frees_memory() {
    let mut c = Cluster::new(1, 2, 64 << 20, &Config::default());
    let free = |c: &Cluster| platform::Memory::stats(&*c.nodes[1].0.arena()).free;
    let a = c.lite(1);
    // The first use opens the connection, which keeps memory that is not the log's.
    c.world.run(LIMIT, async move {
        a.alloc(NodeId(2), 8, Permissions::all()).await.unwrap().free().await.unwrap();
    });
    let (a, before) = (c.lite(1), free(&c));
    let log = c.world.run(LIMIT, async move {
        let log = Log::create(&a, "t", &[NodeId(2)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        let mut all = Vec::new();
        for n in 0..30u8 {
            all.push(writer.append(&[n; 3000]).await.unwrap());
        }
        assert_eq!(log.head().await.unwrap(), Position::START);
        assert_eq!(log.truncate(Position::from_u64(1 << 20)).await, Err(LogError::BeyondTail));
        log.truncate(all[25]).await.unwrap();
        log.truncate(all[3]).await.unwrap();
        assert_eq!(log.head().await.unwrap(), all[25]);
        assert_eq!(log.read(all[0]).await, Err(ReadError::Truncated));
        assert_eq!(log.scan(Position::START).next().await, Err(ReadError::Truncated));
        let mut scan = log.scan(all[25]);
        for at in &all[25..] {
            assert_eq!(scan.next().await.unwrap().unwrap().position(), *at);
        }
        assert_eq!(scan.next().await, Ok(None));
        log
    });
    let used = before - free(&c);
    assert!(used < 5 * (16 << 10), "{used} bytes are used");
    c.world.run(LIMIT, async move { log.destroy().await.unwrap() });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(before - free(&c), 0);
    for i in [1, 2] {
        assert_eq!(c.lite(i).audit(), [], "node {i}");
    }
}

#[test]
fn a_log_ends() {
    run(2, |c: Vec<Lite>| async move {
        let log = Log::create(&c[0], "t", &[NodeId(2)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        writer.append(b"x").await.unwrap();
        Log::open(&c[1], "t").await.unwrap().destroy().await.unwrap();
        assert!(matches!(writer.append(b"x").await, Err(AppendError::NotAppended(_))));
        drop(writer);
        c[0].sleep(Duration::from_millis(10)).await;
        // The name of the destroyed log can be used again.
        let log = Log::create(&c[1], "t", &[NodeId(1)], SMALL).await.unwrap();
        assert_eq!(log.tail().await.unwrap(), Position::START);
    });
}

#[test]
fn a_reader_follows() {
    run(2, |c: Vec<Lite>| async move {
        let log = Log::create(&c[0], "t", &[NodeId(1)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        let reader = Log::open(&c[1], "t").await.unwrap();
        let lite = c[0].clone();
        let write = async move {
            for n in 0..20u8 {
                lite.sleep(Duration::from_millis(u64::from(n))).await;
                writer.append(&[n]).await.unwrap();
            }
        };
        let read = async {
            let mut scan = reader.scan(Position::START);
            for n in 0..20u8 {
                let record = scan.follow().await.unwrap();
                assert_eq!(record.entries().next(), Some(&[n][..]));
            }
        };
        futures_util::future::join(write, read).await;
    });
}

#[test]
fn a_position_within_a_record_is_no_record() {
    run(1, |c: Vec<Lite>| async move {
        let log = Log::create(&c[0], "t", &[NodeId(1)], SMALL).await.unwrap();
        let writer = log.writer().await.unwrap();
        // The entry contains the image of a frame at each slot of the record.
        let mut entry = vec![0; 28];
        for slot in 1..20 {
            let image = litelog::frame_at(log.key(), Position::from_u64(1000 + slot), &[b"forged"]);
            entry.extend_from_slice(&image);
            entry.resize(28 + 64 * slot as usize, 0);
        }
        let at = writer.append(&entry).await.unwrap();
        writer.append(b"next").await.unwrap();
        for slot in 1..20 {
            let within = Position::from_u64(at.to_u64() + slot);
            // The first position is unresolved because no keeper has run; the scan of the first turn runs
            // one.
            let first = if slot == 1 { ReadError::NotYet } else { ReadError::NoRecord };
            assert_eq!(log.read(within).await, Err(first));
            assert_eq!(log.scan(within).next().await, Err(ReadError::NoRecord));
            assert_eq!(log.read(within).await, Err(ReadError::NoRecord));
        }
        assert_eq!(log.read(at).await.unwrap().entries().next(), Some(&entry[..]));
    });
}

#[test]
fn a_commit_is_one_atomic_and_one_write() {
    let mut c = Cluster::new(1, 2, 64 << 20, &Config::default());
    let (a, fabric) = (c.lite(1), c.fabric.clone());
    c.world.run(LIMIT, async move {
        let log = Log::create(&a, "t", &[NodeId(2)], LogOptions::default()).await.unwrap();
        let writer = log.writer().await.unwrap();
        writer.append(b"the connection is made").await.unwrap();
        for len in [0usize, 16, 300, 5000, 15000] {
            fabric.record_writes();
            let posts = fabric.posts();
            let entry = vec![1; len];
            for _ in 0..10 {
                writer.commit(&[&entry[..]; 4]).await.unwrap();
            }
            assert_eq!(fabric.posts() - posts, 20, "posts of ten commits of 4 * {len} bytes");
            let data: Vec<u32> = fabric.writes().into_iter().map(|(_, len)| len).collect();
            assert_eq!(data, [48 + 4 * len as u32; 10]);
        }
    });
}
