//! Names belong to one object of a node, and end with it alone.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const HOME: NodeId = NodeId(2);
const SHARED: Permissions = Permissions::READ.union(Permissions::SHARE);
/// The task that sends a node's requests to the manager.
const TO_MANAGER: &str = "lite-control-out";

/// Runs `wish` while the requests of node 2 to the manager wait, and then until all of them are answered.
fn while_the_manager_waits(c: &mut Cluster, wish: impl Future<Output = ()> + Send + 'static) {
    c.nodes[1].0.hold(TO_MANAGER, true);
    let ended = Arc::new(AtomicBool::new(false));
    let tell = ended.clone();
    platform::Platform::spawn(
        &*c.nodes[0].0,
        "test",
        Box::pin(async move {
            wish.await;
            tell.store(true, Ordering::SeqCst);
        }),
    );
    c.world.run_for(Duration::from_millis(200));
    c.nodes[1].0.hold(TO_MANAGER, false);
    let limit = c.world.now() + LIMIT;
    assert!(c.world.run_until(limit, || ended.load(Ordering::SeqCst)), "the task hangs");
    c.world.run_for(Duration::from_secs(1));
}

/// Returns two regions of node 2 for node 1. The first one has the name `name`.
fn named_and_unnamed(c: &mut Cluster) -> [Lmr; 2] {
    let lite = c.lite(1);
    c.world.run(LIMIT, async move {
        let regions =
            [lite.alloc(HOME, 8, SHARED).await.unwrap(), lite.alloc(HOME, 8, SHARED).await.unwrap()];
        regions[0].publish("name").await.unwrap();
        regions
    })
}

/// A region that was refused a name, because another region of the same node has it, ends before the refusal
/// has come. The name stays bound to the other region.
#[test]
fn a_region_that_ends_while_it_is_refused_a_name_leaves_the_name_to_its_owner() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let (lite, first) = (c.lite(1), c.lite(1));
    let kept = c.world.run(LIMIT, async move {
        let region = first.alloc(HOME, 8, SHARED).await.unwrap();
        region.publish("name").await.unwrap();
        region
    });
    while_the_manager_waits(&mut c, async move {
        let second = lite.alloc(HOME, 8, SHARED).await.unwrap();
        let impatient = second.with_deadline(Duration::from_millis(50));
        assert!(matches!(impatient.publish("name").await, Err(Error::NameTaken | Error::Unknown)));
        second.free().await.unwrap();
    });
    let find = |lite: Lite| async move { lite.map("name", Permissions::READ).await.map(drop) };
    assert_eq!(c.world.run(LIMIT, find(c.lite(3))), Ok(()), "the first region has lost its name");
    c.world.run(LIMIT, async move { kept.free().await.unwrap() });
    assert_eq!(c.world.run(LIMIT, find(c.lite(3))), Err(Error::NoSuchName));
}

/// A lock that was refused its name is undone, because its maker does not wait any more. The name stays bound
/// to the other lock.
#[test]
fn a_lock_that_is_undone_while_it_is_refused_a_name_leaves_the_name_to_its_owner() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let (lite, first) = (c.lite(1), c.lite(1));
    let kept = c.world.run(LIMIT, async move { first.create_lock(HOME, "name").await.unwrap() });
    while_the_manager_waits(&mut c, async move {
        let impatient = lite.with_deadline(Duration::from_millis(50));
        let made = impatient.create_lock(HOME, "name").await.map(drop);
        assert!(matches!(made, Err(Error::NameTaken | Error::Unknown | Error::Deadline)), "{made:?}");
    });
    let find = |lite: Lite| async move { lite.open_lock("name").await.map(drop) };
    assert_eq!(c.world.run(LIMIT, find(c.lite(3))), Ok(()), "the first lock has lost its name");
    c.world.run(LIMIT, async move { kept.destroy().await.unwrap() });
    assert_eq!(c.world.run(LIMIT, find(c.lite(3))), Err(Error::NoSuchName));
}

/// A region is freed while its own name is being bound. The name is free afterwards, for the same node too.
#[test]
fn a_region_that_ends_while_its_name_is_bound_leaves_no_name() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let (lite, later, first) = (c.lite(1), c.lite(3), c.lite(1));
    // A connection is set up through the manager.
    c.world.run(LIMIT, async move { drop(first.alloc(HOME, 8, SHARED).await.unwrap()) });
    while_the_manager_waits(&mut c, async move {
        let region = lite.alloc(HOME, 8, SHARED).await.unwrap();
        let impatient = region.with_deadline(Duration::from_millis(50));
        assert_eq!(impatient.publish("name").await, Err(Error::Unknown));
        region.free().await.unwrap();
    });
    c.world.run(LIMIT, async move {
        assert_eq!(later.map("name", Permissions::READ).await.map(drop), Err(Error::NoSuchName));
        let region = later.alloc(HOME, 8, SHARED).await.unwrap();
        assert_eq!(region.publish("name").await, Ok(()));
    });
}

/// A region is to get the name of another one that is just giving it up: it waits for the directory's answer
/// and has the name then.
#[test]
fn a_name_that_is_being_unbound_is_free_for_the_same_node() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let lite = c.lite(1);
    let [kept, next] = named_and_unnamed(&mut c);
    let unbinding = c.lite(1);
    while_the_manager_waits(&mut c, async move {
        let task = async move { unbinding.unpublish("name").await.unwrap() };
        platform::Platform::spawn(&**lite.platform(), "unbind", Box::pin(task));
        // The request to unbind the name is sent first.
        lite.sleep(Duration::from_millis(10)).await;
        next.publish("name").await.unwrap();
        drop(next);
    });
    let find = c.lite(3);
    c.world.run(LIMIT, async move { drop(find.map("name", Permissions::READ).await.unwrap()) });
    drop(kept);
}

/// A region waits for the name of another one that is just giving it up, and is freed meanwhile. The name
/// leads to no region then, and is free.
#[test]
fn a_region_that_is_freed_while_it_waits_for_a_name_leaves_the_name_free() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let lite = c.lite(1);
    let [kept, next] = named_and_unnamed(&mut c);
    let unbinding = c.lite(1);
    while_the_manager_waits(&mut c, async move {
        let spawn = |name, task| platform::Platform::spawn(&**lite.platform(), name, task);
        spawn("unbind", Box::pin(async move { unbinding.unpublish("name").await.unwrap() }));
        lite.sleep(Duration::from_millis(10)).await;
        let ending = next.clone();
        spawn("free", Box::pin(async move { ending.free().await.unwrap() }));
        assert_eq!(next.publish("name").await, Err(Error::Freed));
    });
    let find = c.lite(3);
    let found = c.world.run(LIMIT, async move { find.map("name", Permissions::READ).await.map(drop) });
    assert_eq!(found, Err(Error::NoSuchName));
    let again = c.lite(1);
    c.world.run(LIMIT, async move {
        again.alloc(HOME, 8, SHARED).await.unwrap().publish("name").await.unwrap();
    });
    drop(kept);
}

/// The maker of a counter does not wait any more when the counter's name is bound. Nobody holds the counter,
/// so it ends, and so does its name.
#[test]
fn a_counter_whose_maker_is_gone_before_its_name_is_bound_leaves_nothing() {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let (lite, first) = (c.lite(1).with_deadline(Duration::from_millis(50)), c.lite(1));
    // The nodes are connected before the manager waits.
    c.world.run(LIMIT, async move { first.alloc(HOME, 8, SHARED).await.unwrap().free().await.unwrap() });
    while_the_manager_waits(&mut c, async move {
        let made = lite.create_counter(HOME, "name").await.map(drop);
        assert!(matches!(made, Err(Error::Unknown | Error::Deadline)), "{made:?}");
    });
    let open = |lite: Lite| async move { lite.open_counter("name").await.map(drop) };
    assert_eq!(c.world.run(LIMIT, open(c.lite(3))), Err(Error::NoSuchName));
    assert_eq!(c.lite(2).audit(), [], "the region of the counter is left");
}
