//! Requests over HTTP: each is a connection of the core without a socket.

use super::connection::Incoming;
use super::driver::Driver;
use super::outbox::{Outbox, Queue};
use crate::core::{ConnId, Event, Message};
use crate::http::Ask;
use proto::{Hello, PROTOCOL_VERSION, ToClient};
use std::sync::Arc;
use tokio::sync::mpsc;

/// The number of the first connection without a socket. Those with sockets count from 1 on.
pub(super) const FIRST: u64 = 1 << 62;

/// The number of bytes of answers to take at once.
const BATCH: usize = 64 << 10;

impl Driver {
    /// Handles a request over HTTP, as client `conn`. `core` is the way back to this task.
    pub(super) fn ask(&mut self, conn: ConnId, ask: Ask, core: mpsc::Sender<Incoming>) {
        if !self.may_act() {
            // The asker hears that there is no answer.
            return;
        }
        let Ask { peer, user, request, mut answer } = ask;
        let (outbox, queue, _reading) = Outbox::new();
        self.outboxes.insert(conn, outbox);
        self.handle(Event::Opened { conn, peer: &peer });
        if let Some(user) = user {
            self.handle(Event::Identified { conn, user });
        }
        let hello = proto::encode(&Hello::Client { version: PROTOCOL_VERSION });
        for bytes in [hello, proto::encode(&request)] {
            self.handle(Event::Received { conn, bytes: &bytes });
        }
        tokio::spawn(async move {
            let answers = tokio::select! {
                answers = collect(&queue) => Some(answers),
                // Nobody waits any more.
                () = answer.closed() => None,
            };
            if let Some(answers) = answers {
                let _ = answer.send(answers);
            }
            let reason = "the request is over".into();
            let _ = core.send(Incoming::Closed { conn, reason }).await;
        });
    }
}

/// Collects the messages to a client until the last one of an answer.
async fn collect(queue: &Arc<Queue>) -> Vec<ToClient> {
    let mut answers = Vec::new();
    while let Some(messages) = queue.take(BATCH).await {
        for message in messages {
            match message {
                Message::ToClient(ToClient::Hello) | Message::ToNode(_) | Message::ToNodes(_) => {}
                Message::ToClient(answer) => {
                    let more = matches!(&answer, ToClient::Support { more: true, .. });
                    answers.push(answer.with_whole_details());
                    if !more {
                        return answers;
                    }
                }
            }
        }
    }
    answers
}
