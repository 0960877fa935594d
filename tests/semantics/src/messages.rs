//! Messages: one way, exactly once, in order, to mailboxes and functions.

use crate::context::{BRIEF, Context, RW, SHARED, pattern};
use crate::failure::{Outcome, ensure, fails, same_bytes};
use alloc::vec;
use core::time::Duration;
use futures_util::future::join;
use lite::{Error, Mailbox, Message, RpcOptions};

fn options() -> RpcOptions {
    RpcOptions { max_request: 1 << 20, queue: 64 }
}

/// Returns the next message. Each is expected soon.
async fn next(mailbox: &Mailbox) -> Result<Message, Error> {
    mailbox.receive_within(Duration::from_secs(20)).await
}

/// Messages of a sender arrive once and in order, whatever others send in the meantime, and identify their
/// sender.
pub(crate) async fn once_and_in_order(cx: &Context) -> Outcome {
    const MESSAGES: u32 = 60;
    let mailbox = cx.lite.open_mailbox(cx.function(0), options())?;
    cx.meet().await?;
    let send = async {
        for i in 0..MESSAGES {
            for to in cx.nodes() {
                cx.lite.send(*to, cx.function(0), &i.to_le_bytes()).await?;
            }
        }
        Ok(())
    };
    let receive = async {
        let mut expected = vec![0; cx.count()];
        for _ in 0..MESSAGES as usize * cx.count() {
            let message = next(&mailbox).await?;
            let from = cx.nodes().iter().position(|node| *node == message.from());
            let Some(next) = from.and_then(|rank| expected.get_mut(rank)) else {
                return Err(crate::Failure::new("a message of an unknown sender"));
            };
            same_bytes(message.data(), &u32::to_le_bytes(*next))?;
            *next += 1;
        }
        Ok(())
    };
    let (sent, received): (Outcome, Outcome) = join(send, receive).await;
    sent.and(received)?;
    cx.meet().await?;
    fails(mailbox.receive_within(BRIEF).await, Error::Deadline)
}

/// A message has any length up to the mailbox's maximum; longer ones are refused.
pub(crate) async fn of_any_length(cx: &Context) -> Outcome {
    let mailbox = cx.lite.open_mailbox(cx.function(0), options())?;
    cx.meet().await?;
    for to in [cx.next(), cx.me()] {
        for len in [0, 1, 4000, 4096, 32_000, 33_000, 300_000, 1 << 20] {
            let data = pattern(len, cx.rank());
            let (sent, message) = join(cx.lite.send(to, cx.function(0), &data), next(&mailbox)).await;
            sent?;
            let message = message?;
            let from = cx.nodes().iter().position(|node| *node == message.from()).unwrap_or(0);
            same_bytes(&message.into_data(), &pattern(len, from))?;
        }
        let long = cx.lite.send(to, cx.function(0), &vec![0; (1 << 20) + 1]).await;
        fails(long, Error::TooLarge { max: 1 << 20 })?;
        cx.meet().await?;
    }
    Ok(())
}

/// A message has been delivered when the call returns, whether a task has received it yet or not.
pub(crate) async fn sent_is_in_the_queue(cx: &Context) -> Outcome {
    let mailbox = cx.lite.open_mailbox(cx.function(0), options())?;
    cx.meet().await?;
    for i in 0..10u8 {
        cx.lite.send(cx.next(), cx.function(0), &[i]).await?;
    }
    cx.meet().await?;
    for i in 0..10u8 {
        same_bytes(mailbox.receive_within(BRIEF).await?.data(), &[i])?;
    }
    Ok(())
}

/// A mailbox accepts no calls; a function accepts messages, and their replies are discarded.
pub(crate) async fn a_mailbox_takes_no_calls(cx: &Context) -> Outcome {
    let mailbox = cx.lite.open_mailbox(cx.function(0), options())?;
    let server = cx.lite.register(cx.function(1), options())?;
    cx.meet().await?;
    for to in [cx.next(), cx.me()] {
        fails(cx.lite.call(to, cx.function(0), b"call", 10).await, Error::NoSuchFunction)?;
        cx.lite.send(to, cx.function(1), b"message").await?;
        let call = server.receive().await?;
        ensure(call.is_one_way(), "a message expects no reply")?;
        same_bytes(call.request(), b"message")?;
        call.reply(b"to nobody").await?;
        cx.meet().await?;
    }
    fails(mailbox.receive_within(BRIEF).await, Error::Deadline)
}

/// Nothing can be sent to a mailbox that is not open or is closed; a new one with the same id is empty.
pub(crate) async fn a_closed_mailbox_is_none(cx: &Context) -> Outcome {
    let port = cx.function(0);
    for to in [cx.next(), cx.me()] {
        fails(cx.lite.send(to, port, b"early").await, Error::NoSuchFunction)?;
    }
    cx.meet().await?;
    let mailbox = cx.lite.open_mailbox(port, options())?;
    fails(cx.lite.open_mailbox(port, options()), Error::NameTaken)?;
    cx.meet().await?;
    cx.lite.send(cx.next(), port, b"lost").await?;
    cx.meet().await?;
    mailbox.close();
    cx.meet().await?;
    for to in [cx.next(), cx.me()] {
        fails(cx.lite.send(to, port, b"late").await, Error::NoSuchFunction)?;
    }
    cx.meet().await?;
    let again = cx.lite.open_mailbox(port, options())?;
    fails(again.receive_within(BRIEF).await, Error::Deadline)?;
    cx.meet().await
}

/// Senders wait while a mailbox is full; a sender that gives up has sent nothing.
pub(crate) async fn a_full_mailbox_makes_senders_wait(cx: &Context) -> Outcome {
    let mailbox = cx.lite.open_mailbox(cx.function(0), RpcOptions { queue: 4, ..options() })?;
    cx.meet().await?;
    for to in [cx.next(), cx.me()] {
        for i in 0..4u8 {
            cx.lite.send(to, cx.function(0), &[i]).await?;
        }
        cx.meet().await?;
        let hasty = cx.lite.with_deadline(BRIEF).send(to, cx.function(0), b"hasty").await;
        ensure(matches!(hasty, Err(Error::Deadline | Error::Unknown)), "the mailbox has no room for it")?;
        cx.meet().await?;
        let send = cx.lite.send(to, cx.function(0), &[4]);
        let receive = async {
            for i in 0..5u8 {
                same_bytes(next(&mailbox).await?.data(), &[i])?;
            }
            Ok(())
        };
        let (sent, received): (Result<(), Error>, Outcome) = join(send, receive).await;
        received?;
        sent?;
        cx.meet().await?;
    }
    fails(mailbox.receive_within(BRIEF).await, Error::Deadline)
}

/// The receiver of a message finds the data that was written before it, of any length.
pub(crate) async fn a_message_follows_its_data(cx: &Context) -> Outcome {
    const LEN: usize = 300_000;
    let mailbox = cx.lite.open_mailbox(cx.function(0), options())?;
    let own = cx.lite.alloc(cx.me(), 2 * LEN as u64, SHARED).await?;
    own.publish(&cx.name_of("inbox", cx.rank())).await?;
    let rank = |node| cx.nodes().iter().position(|other| *other == node).unwrap_or(0);
    for to in [cx.next(), cx.me()] {
        let inbox = cx.lite.map_wait(&cx.name_of("inbox", rank(to)), RW).await?;
        for (round, len) in [0usize, 1, 100, 5000, 65_536, 65_537, LEN].into_iter().enumerate() {
            let half = round % 2 * LEN;
            let data = pattern(len, cx.rank() + round);
            let text = [(half as u64).to_le_bytes(), (len as u64).to_le_bytes()].concat();
            let sent = inbox.write_notify(half as u64, &data, cx.function(0), &text);
            let (sent, message) = join(sent, next(&mailbox)).await;
            sent?;
            let message = message?;
            same_bytes(message.data(), &text)?;
            let mut got = vec![0; len];
            own.read(half as u64, &mut got).await?;
            same_bytes(&got, &pattern(len, rank(message.from()) + round))?;
            cx.meet().await?;
        }
    }
    own.free().await?;
    Ok(())
}
