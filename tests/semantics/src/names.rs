//! Names, by which regions, locks and events are found.

use crate::context::{BRIEF, Context, RW, SHARED};
use crate::failure::{Outcome, ensure, fails, refused, same, same_bytes};
use alloc::string::String;
use core::time::Duration;
use lite::{Error, Permissions};

/// Every node can map a region that another has published, and sees its bytes.
pub(crate) async fn a_published_region_is_mapped_everywhere(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 100, SHARED).await?;
    lmr.write(92, &(cx.rank() as u64).to_ne_bytes()).await?;
    lmr.publish(&cx.name_of("of", cx.rank())).await?;
    cx.meet().await?;
    for rank in 0..cx.count() {
        let theirs = cx.lite.map(&cx.name_of("of", rank), Permissions::READ).await?;
        same(
            (theirs.len(), theirs.permissions(), theirs.owner()),
            (100, Permissions::READ, cx.node(rank + 1)),
        )?;
        let mut got = [0; 8];
        theirs.read(92, &mut got).await?;
        same_bytes(&got, &(rank as u64).to_ne_bytes())?;
    }
    cx.meet().await?;
    lmr.free().await?;
    Ok(())
}

/// A name stands for one object at a time, of any kind; when it is released, it can be used again.
pub(crate) async fn a_name_is_taken_once(cx: &Context) -> Outcome {
    let name = cx.name("name");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.me(), 8, SHARED).await?;
        lmr.publish(&name).await?;
        fails(lmr.publish(&name).await, Error::NameTaken)?;
        cx.meet().await?;
        cx.meet().await?;
        // A region may have several names, and keeps the others when it loses one.
        let second = cx.name("second");
        lmr.publish(&second).await?;
        cx.lite.unpublish(&name).await?;
        fails(cx.lite.map(&name, RW).await, Error::NoSuchName)?;
        cx.lite.map(&second, RW).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    cx.meet().await?;
    let other = cx.lite.alloc(cx.me(), 8, SHARED).await?;
    fails(other.publish(&name).await, Error::NameTaken)?;
    fails(cx.lite.create_lock(cx.me(), &name).await, Error::NameTaken)?;
    fails(cx.lite.create_event(cx.next(), &name).await, Error::NameTaken)?;
    fails(cx.lite.create_counter(cx.next(), &name).await, Error::NameTaken)?;
    cx.meet().await?;
    other.free().await?;
    cx.meet().await
}

/// An unknown name is not found by any call.
pub(crate) async fn an_unknown_name_is_not_found(cx: &Context) -> Outcome {
    let name = cx.name_of("unknown", cx.rank());
    fails(cx.lite.map(&name, RW).await, Error::NoSuchName)?;
    fails(cx.lite.map_secret(&name, RW, b"x").await, Error::NoSuchName)?;
    fails(cx.lite.open_lock(&name).await, Error::NoSuchName)?;
    fails(cx.lite.open_event(&name).await, Error::NoSuchName)?;
    fails(cx.lite.open_counter(&name).await, Error::NoSuchName)?;
    fails(cx.lite.unpublish(&name).await, Error::NoSuchName)
}

/// `map_wait` waits until the name exists, up to its deadline.
pub(crate) async fn a_name_can_be_waited_for(cx: &Context) -> Outcome {
    let name = cx.name("late");
    let early = cx.lite.with_deadline(BRIEF).map_wait(&name, RW).await;
    ensure(matches!(early, Err(Error::NoSuchName | Error::Deadline)), "the name does not exist yet")?;
    cx.meet().await?;
    if cx.rank() == 2 {
        cx.lite.sleep(Duration::from_millis(30)).await;
        let lmr = cx.lite.alloc(cx.me(), 8, SHARED).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    same(cx.lite.map_wait(&name, RW).await?.owner(), cx.node(2))?;
    cx.meet().await
}

/// A name can be opened only as the kind of object for which it stands.
pub(crate) async fn a_name_of_something_else_is_refused(cx: &Context) -> Outcome {
    let name = |what| cx.name_of(what, cx.rank());
    let lmr = cx.lite.alloc(cx.next(), 9, SHARED).await?;
    lmr.publish(&name("region")).await?;
    let lock = cx.lite.create_lock(cx.next(), &name("lock")).await?;
    let event = cx.lite.create_event(cx.me(), &name("event")).await?;
    refused(cx.lite.map(&name("lock"), RW).await)?;
    refused(cx.lite.map(&name("event"), RW).await)?;
    refused(cx.lite.open_lock(&name("region")).await)?;
    refused(cx.lite.open_lock(&name("event")).await)?;
    refused(cx.lite.open_event(&name("region")).await)?;
    refused(cx.lite.open_event(&name("lock")).await)?;
    refused(cx.lite.open_counter(&name("event")).await)?;
    // Nine bytes are not a counter.
    refused(cx.lite.open_counter(&name("region")).await)?;
    lock.destroy().await?;
    event.destroy().await?;
    lmr.free().await?;
    Ok(())
}

/// A name is any text that is neither empty nor too long.
pub(crate) async fn a_name_is_any_text(cx: &Context) -> Outcome {
    let lmr = cx.lite.alloc(cx.next(), 8, SHARED).await?;
    let long = cx.name_of("", cx.rank()) + &String::from_iter(core::iter::repeat_n('x', 180));
    let texts =
        [cx.name_of("with spaces and / and \0", cx.rank()), cx.name_of("größer, 名前", cx.rank()), long];
    for text in &texts {
        lmr.publish(text).await?;
        cx.lite.map(text, RW).await?;
        let lock = cx.lite.create_lock(cx.next(), &(text.clone() + "'")).await?;
        cx.lite.open_lock(&(text.clone() + "'")).await?;
        lock.destroy().await?;
    }
    let too_long = String::from_iter(core::iter::repeat_n('x', 257));
    for text in ["", &too_long] {
        refused(lmr.publish(text).await)?;
        refused(cx.lite.create_lock(cx.next(), text).await)?;
        refused(cx.lite.create_event(cx.next(), text).await)?;
    }
    lmr.free().await?;
    Ok(())
}
