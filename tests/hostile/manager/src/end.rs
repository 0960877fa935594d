//! The behaviour of honest peers, and its required result.

use crate::events::beat;
use crate::peers::{Part, Peer, Submission, join, submit};
use crate::world::{ANSWER_TIMEOUT, LEASE, PIECE, World};
use manager::core::{ConnId, Event, SpoolPart};
use proto::{FromClient, JobId, JobReport, ToManager, ToNode};
use std::time::Duration;

/// The time of one step of honest behaviour.
const STEP: Duration = Duration::from_millis(200);

/// Every live peer that is not mute takes its next step; then time passes, and a tick comes.
pub(crate) fn behave(world: &mut World) {
    let nodes: Vec<ConnId> = world.nodes().filter(|(_, node)| !node.mute).map(|(conn, _)| conn).collect();
    for conn in nodes {
        beat(world, conn);
        see(world, conn);
        part(world, conn);
        if world.node(conn).is_some_and(|node| node.leaves) {
            world.say(conn, &ToManager::Leave);
        }
    }
    let clients: Vec<ConnId> = world.clients().map(|(conn, _)| conn).collect();
    for conn in clients {
        send_input(world, conn, PIECE);
        take_output(world, conn);
    }
    world.pass(STEP);
    world.tick();
}

/// Acknowledges all departures of which the node was told.
pub(crate) fn see(world: &mut World, conn: ConnId) {
    while let Some((node, incarnation)) = world.node(conn).and_then(|node| node.unseen.pop()) {
        world.say(conn, &ToManager::LeftSeen { node, incarnation });
    }
}

/// Takes the node's next step for its job.
fn part(world: &mut World, conn: ConnId) {
    let Some(part) = world.node(conn).and_then(|node| node.job.as_ref()) else { return };
    let (job, window) = (part.job, part.got + ToNode::INPUT_WINDOW / 4);
    match part {
        Part { over: true, .. } => {}
        Part { cancelled: true, .. } => over(world, conn, job, &ToManager::JobOver { job }),
        Part { accepted: false, .. } => accept(world, conn, job),
        Part { input_ended: false, .. } => credit(world, conn, job, window),
        Part { unacknowledged: 1.., .. } => {}
        Part { first: true, output: 0, .. } => output(world, conn, job, 100),
        Part { .. } => over(world, conn, job, &ToManager::JobDone { job, report: JobReport::default() }),
    }
}

/// Returns the node's part of a job, if it has one.
fn part_of(world: &mut World, conn: ConnId, job: JobId) -> Option<&mut Part> {
    world.node(conn)?.job.as_mut().filter(|part| part.job == job)
}

pub(crate) fn accept(world: &mut World, conn: ConnId, job: JobId) {
    part_of(world, conn, job).into_iter().for_each(|part| part.accepted = true);
    world.say(conn, &ToManager::JobAccepted { job });
}

pub(crate) fn credit(world: &mut World, conn: ConnId, job: JobId, bytes: u64) {
    part_of(world, conn, job).into_iter().for_each(|part| part.credit = part.credit.max(bytes));
    world.say(conn, &ToManager::JobInputCredit { job, bytes });
}

pub(crate) fn output(world: &mut World, conn: ConnId, job: JobId, len: usize) {
    let mut offset = 0;
    if let Some(part) = part_of(world, conn, job) {
        offset = part.output as u64;
        (part.output, part.unacknowledged) = (part.output + len, part.unacknowledged + len);
    }
    world.say(conn, &ToManager::JobOutput { job, offset, bytes: vec![7; len] });
}

/// Reports the end of the node's part of a job, with any result.
pub(crate) fn over(world: &mut World, conn: ConnId, job: JobId, message: &ToManager) {
    part_of(world, conn, job).into_iter().for_each(|part| part.over = true);
    world.say(conn, message);
}

/// Sends up to `most` bytes of the client's input, if the manager accepts and expects some. Input beyond the
/// announced length is the client's own fault.
pub(crate) fn send_input(world: &mut World, conn: ConnId, most: u64) {
    let Some(client) = world.client_of(conn) else { return };
    let paused = client.paused;
    let Some(submission) = client.submission.as_mut().filter(|s| s.job.is_some() && !paused) else { return };
    let Some(job) = submission.job else { return };
    let len = most.min(submission.left.max(u64::from(most % 64 == 63)));
    submission.left = submission.left.saturating_sub(len);
    submission.sent += len;
    if len > 0 || most % 2 == 1 {
        let bytes = vec![b'\n'; usize::try_from(len).expect("a small number")];
        world.say(conn, &FromClient::Input { job, bytes });
    }
}

/// Acknowledges the output that the client has.
pub(crate) fn take_output(world: &mut World, conn: ConnId) {
    let Some(bytes) = world.client_of(conn).map(|client| client.taken).filter(|bytes| *bytes > 0) else {
        return;
    };
    world.say(conn, &FromClient::OutputTaken { bytes });
}

fn behave_for(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        behave(world);
    }
}

/// Makes all peers behave honestly: everything must end, and a new job must succeed.
pub(crate) fn settle(world: &mut World) {
    behave_for(world, LEASE * 2);
    let silent = world.nodes().any(|(_, node)| node.mute) || !world.silent.is_empty();
    assert!(!silent, "the silent nodes were declared dead");
    assert!(!world.peers.values().any(|peer| matches!(peer, Peer::New)), "new connections have timed out");
    // Endless input has no end, so its client gives up.
    let endless = |s: &Submission| s.left > 10_000_000;
    let endless: Vec<ConnId> = world
        .clients()
        .filter(|(_, client)| client.submission.as_ref().is_some_and(endless))
        .map(|(conn, _)| conn)
        .collect();
    endless.into_iter().for_each(|conn| world.drop(conn));
    behave_for(world, ANSWER_TIMEOUT * 3);
    for (conn, client) in world.clients() {
        assert!(
            client.submission.is_none() && !client.waits && !client.paused,
            "{conn:?} never stops waiting"
        );
    }
    for job in world.detached() {
        let client = world.client();
        world.say(client, &FromClient::Cancel { job });
    }
    behave_for(world, ANSWER_TIMEOUT);
    for node in world.withdrawn() {
        let client = world.client();
        world.say(client, &FromClient::Undrain { node });
    }
    world.join(join(24));
    world.join(join(25));
    let (client, done) = (world.client(), world.report.done);
    world.client_of(client).expect("a client").submission = Some(Submission::new(300_000));
    world.say(client, &submit(0, vec![], &[300_000], None));
    behave_for(world, ANSWER_TIMEOUT);
    assert_eq!(world.report.done, done + 1, "a job on all nodes is done");
    let is_kept = |part| part != SpoolPart::Input;
    assert!(world.spooled_files().all(is_kept), "input of jobs that have ended");
    // A job in progress when the manager stops goes on with the next process.
    let client = world.client();
    world.client_of(client).expect("a client").submission = Some(Submission::new(1));
    world.say(client, &submit(0, vec![], &[1], None));
    world.event(Event::Stop);
    let submission = world.client_of(client).and_then(|client| client.submission.as_ref());
    assert!(submission.is_some_and(|submission| submission.queued), "the client knows of its job");
}
