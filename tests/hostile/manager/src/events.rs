//! The events that a byte selects.

use crate::end;
use crate::input::Input;
use crate::peers::{RUDE, Submission, join, submit};
use crate::world::{PIECE, World};
use manager::core::{ConnId, Event};
use proto::{
    BootImage, FromClient, Hello, Incarnation, JobId, JobReport, Join, NameError, NodeId, PROTOCOL_VERSION,
    PowerAction, RunningImage, Terms, ToManager, ToNode,
};
use std::time::Duration;

/// Performs one event.
pub(crate) fn happen(choice: u8, input: &mut Input, world: &mut World) {
    match choice % 8 {
        0 => connect(input, world),
        1 => time(input, world),
        2 | 3 => node_says(input, world),
        4 => part_says(input, world),
        5 => client_says(input, world),
        6 => rubbish(input, world),
        _ => (0..=input.below(6)).for_each(|_| end::behave(world)),
    }
}

fn connect(input: &mut Input, world: &mut World) {
    match input.below(11) {
        10 => {
            let conn = world.open();
            let version = PROTOCOL_VERSION - u16::from(input.byte() % 2);
            world.say(conn, &Hello::Unfit { version, name: RUDE.into(), reason: RUDE.into() });
            assert!(!world.has(conn), "the manager ends the connection");
        }
        0..=4 => {
            let letter = input.below(20) as u8;
            let version = PROTOCOL_VERSION - u16::from(letter % 4 == 3);
            world.join(Join { version, ..join(letter) });
        }
        5 => {
            let mut wish = join(input.below(20) as u8);
            invalidate(&mut wish, input.byte());
            world.join(wish);
        }
        6 => {
            world.open();
        }
        _ => {
            world.client();
        }
    }
}

/// Makes a join invalid.
fn invalidate(wish: &mut Join, how: u8) {
    match how % 6 {
        0 => wish.rnic.driver = RUDE.into(),
        1 => wish.name = RUDE.into(),
        2 => wish.version = 1,
        3 => wish.rnic.links.clear(),
        4 => wish.boot.stages = vec![("x".repeat(10_000), 1); 5],
        _ => wish.apps.resize(200, wish.apps[0].clone()),
    }
}

fn time(input: &mut Input, world: &mut World) {
    let ms = u64::from(input.byte());
    match input.below(6) {
        0 => world.pass(Duration::from_millis(ms)),
        1 => {
            world.pass(Duration::from_millis(ms));
            world.tick();
        }
        2 => {
            // The manager is suspended for up to a minute.
            world.pass(Duration::from_millis(ms * 250));
            world.tick();
        }
        // Ticks come in time and all peers are silent, for up to 8 s.
        3 => quiet(world, ms / 6),
        4 => {
            world.tick();
            world.tick();
        }
        // A restart ends all that other events have brought about, so it is rare.
        5 if ms < 32 => world.restart(),
        _ => {
            let conns: Vec<ConnId> = world.nodes().map(|(conn, _)| conn).collect();
            conns.into_iter().for_each(|conn| beat(world, conn));
        }
    }
}

fn quiet(world: &mut World, steps: u64) {
    for _ in 0..steps {
        world.pass(Duration::from_millis(200));
        world.tick();
    }
}

pub(crate) fn beat(world: &mut World, conn: ConnId) {
    let (now, hearing) = (world.now, world.hearing());
    if let Some(node) = world.node(conn) {
        node.beat = hearing;
        world.say(conn, &ToManager::Heartbeat { seq: now.as_nanos() });
        let answer = world.heard_by(conn);
        assert!(matches!(answer, Some(ToNode::HeartbeatAck { seq, .. }) if *seq == now.as_nanos()));
    }
}

/// Returns one of the given connections, as the input decides.
fn pick(input: &mut Input, of: impl Iterator<Item = ConnId>) -> Option<ConnId> {
    let all: Vec<ConnId> = of.collect();
    (!all.is_empty()).then(|| all[input.below(all.len())])
}

fn pick_node(input: &mut Input, world: &World) -> Option<ConnId> {
    pick(input, world.nodes().map(|(conn, _)| conn))
}

fn node_says(input: &mut Input, world: &mut World) {
    let Some(conn) = pick_node(input, world) else { return connect(input, world) };
    let request = 1;
    match input.below(14) {
        0 => beat(world, conn),
        12 => image(input, world, conn),
        13 => operation(input, world, conn),
        1 => name(input, world, conn),
        2 => {
            let (to, body) = (NodeId(input.below(8) as u16), input.take(9));
            let incarnation = Incarnation(input.below(40) as u64);
            world.say(conn, &ToManager::Relay { to, incarnation, body });
        }
        3 | 4 => end::see(world, conn),
        5 => {
            let (node, incarnation) = (NodeId(input.below(8) as u16), Incarnation(input.below(40) as u64));
            if let Some(known) = world.node(conn) {
                known.unseen.retain(|departed| *departed != (node, incarnation));
            }
            world.say(conn, &ToManager::LeftSeen { node, incarnation });
        }
        6 => world.say(conn, &ToManager::MemoryFree { bytes: u64::from(input.byte()) << 50 }),
        7 => {
            world.say(conn, &ToManager::FormerEnd { reason: RUDE.into() });
            world.say(conn, &ToManager::HardwareReport { lines: RUDE.into() });
            world.say(conn, &ToManager::AskMemoryFree { request });
        }
        8 => world.say(conn, &ToManager::Leave),
        9 => world.say(conn, &ToManager::LastWords { reason: RUDE.into() }),
        10 => world.drop(conn),
        _ => world.node(conn).into_iter().for_each(|node| node.mute = true),
    }
}

/// Sends a node's message about an image, which it may not have been sent.
fn image(input: &mut Input, world: &mut World, conn: ConnId) {
    let sent = world.node(conn).and_then(|node| node.image).unwrap_or(0);
    match input.below(6) {
        0..=2 => world.say(conn, &ToManager::ImageTaken { bytes: sent }),
        3 => world.say(conn, &ToManager::ImageTaken { bytes: u64::from(input.byte()) << 9 }),
        4 => world.say(conn, &ToManager::ImageReady),
        _ => {
            world.node(conn).into_iter().for_each(|node| node.image = None);
            world.say(conn, &ToManager::ImageRefused { reason: RUDE.into() });
        }
    }
}

/// Sends a node's answer to an order of an operator, which it may not have been given.
fn operation(input: &mut Input, world: &mut World, conn: ConnId) {
    let result = if input.byte() < 128 { Ok(()) } else { Err(RUDE.into()) };
    match input.below(3) {
        0 => world.say(conn, &ToManager::Vacated { result }),
        1 => world.say(conn, &ToManager::Checked { request: input.below(4) as u32, result }),
        _ => {
            let version = if result.is_ok() { "1" } else { RUDE }.into();
            let kernel = [input.byte(); 32];
            world.say(conn, &ToManager::Image(RunningImage { kernel, version }));
        }
    }
}

/// Orders something of the machine of a node, or sends a part of an image.
fn order(input: &mut Input, world: &mut World, conn: ConnId) {
    let named = world.nodes().nth(input.below(3)).map(|(_, node)| node.name.clone());
    let node = named.unwrap_or_else(|| RUDE.into());
    let len = u64::from(input.byte()) << 10;
    match input.below(8) {
        0 => {
            let action = if input.byte() < 128 { PowerAction::Reset } else { PowerAction::Off };
            world.say(conn, &FromClient::Power { node, action });
        }
        1 | 2 => world.say(conn, &FromClient::Boot { node, image: BootImage { len, sha256: [0; 32] } }),
        3 => {
            let deadline_ms = (input.byte() < 128).then_some(len / 8);
            let (reason, force) = (RUDE.into(), input.byte() < 128);
            world.say(conn, &FromClient::Drain { node, reason, deadline_ms, force });
        }
        4 => world.say(conn, &FromClient::Undrain { node }),
        5 => world.say(conn, &FromClient::NodeList { after: String::new() }),
        _ => {
            let bytes = vec![1; input.below(1 << 16)];
            world.say(conn, &FromClient::ImagePiece { bytes });
        }
    }
}

/// Binds, frees or looks up a name, and checks the answer against the model.
fn name(input: &mut Input, world: &mut World, conn: ConnId) {
    let Some(id) = world.node(conn).map(|node| node.id) else { return };
    let (what, name) = (input.below(4), input.below(6).to_string());
    let owner = world.names.get(&name).copied();
    world.last_request += 1;
    let number = world.last_request;
    let (request, expected) = match what {
        0 | 1 => {
            world.names.entry(name.clone()).or_insert(id);
            let bound = owner.map_or(Ok((id, vec![])), |_| Err(NameError::Taken));
            (ToManager::NameBind { request: number, name, value: vec![1] }, bound)
        }
        2 => {
            let freed = match owner {
                None => Err(NameError::NotFound),
                Some(owner) if owner != id => Err(NameError::NotOwner),
                Some(_) => {
                    world.names.remove(&name);
                    Ok((id, vec![]))
                }
            };
            (ToManager::NameUnbind { request: number, name }, freed)
        }
        _ => {
            let found = owner.map(|owner| (owner, vec![1])).ok_or(NameError::NotFound);
            (ToManager::NameLookup { request: number, name }, found)
        }
    };
    world.say(conn, &request);
    let answer = world.heard_by(conn);
    let Some(ToNode::Name { result, .. }) = answer.filter(|answer| answers(answer, number)) else {
        panic!("no answer to {request:?}");
    };
    let mut result = result.clone();
    if let (ToManager::NameBind { .. }, Ok((_, value))) = (&request, &mut result) {
        let number = u64::from_le_bytes(value[..].try_into().expect("the number of the binding"));
        assert!(number > world.last_binding, "numbers of bindings grow");
        world.last_binding = number;
        value.clear();
    }
    assert_eq!(result, expected);
}

/// Returns true for the answer to a request about names.
fn answers(answer: &ToNode, number: u32) -> bool {
    matches!(answer, ToNode::Name { request, .. } if *request == number)
}

/// Sends a node's message about its own job or about another one.
fn part_says(input: &mut Input, world: &mut World) {
    let Some(conn) = pick_node(input, world) else { return };
    let own = world.node(conn).and_then(|node| node.job.as_ref()).map(|part| part.job);
    let job = own.filter(|_| input.byte() < 200).unwrap_or(JobId(input.below(20) as u64));
    match input.below(9) {
        0 => end::accept(world, conn, job),
        1 => end::credit(world, conn, job, input.below(1 << 16) as u64),
        2 => end::credit(world, conn, job, u64::from(input.byte()) << 56),
        3 => world.say(conn, &ToManager::JobProgress { job, phase: RUDE.into(), done: 9, total: 1 }),
        4 => end::output(world, conn, job, input.below(1 << 16) + input.below(2)),
        5 => {
            let report = JobReport { kept: vec![9; input.below(3)], ..JobReport::default() };
            end::over(world, conn, job, &ToManager::JobDone { job, report });
        }
        6 => {
            let report = JobReport { counts: vec![(RUDE.into(), 1)], ..JobReport::default() };
            end::over(world, conn, job, &ToManager::JobDone { job, report });
        }
        7 => end::over(world, conn, job, &ToManager::JobFailed { job, reason: RUDE.into() }),
        _ => end::over(world, conn, job, &ToManager::JobOver { job }),
    }
}

fn client_says(input: &mut Input, world: &mut World) {
    let Some(conn) = pick(input, world.clients().map(|(conn, _)| conn)) else {
        world.client();
        return;
    };
    match input.below(17) {
        16 => order(input, world, conn),
        0..=4 => submission(input, world, conn),
        5 | 6 => end::send_input(world, conn, input.below(1 << 16) as u64 % (PIECE + 2)),
        7 => world.say(conn, &FromClient::Nodes { after: NodeId(input.below(5) as u16) }),
        8 => {
            if let Some(client) = world.client_of(conn) {
                client.waits = true;
            }
            let (count, timeout_ms) = (input.below(8) as u16, u64::from(input.byte()) * 40);
            world.say(conn, &FromClient::WaitNodes { count, timeout_ms });
        }
        9 => world.say(conn, &FromClient::Jobs),
        10 => world.say(conn, &FromClient::Cancel { job: JobId(input.below(20) as u64) }),
        11 => world.drop(conn),
        12 => end::take_output(world, conn),
        13 => world.say(conn, &FromClient::Datasets),
        14 => world.say(conn, &FromClient::DropDataset { name: dataset(input) }),
        _ if input.byte() < 16 => world.say(conn, &FromClient::Shutdown),
        _ => {}
    }
}

fn submission(input: &mut Input, world: &mut World, conn: ConnId) {
    let nodes = input.below(4) as u16;
    let on: Vec<String> = match input.below(8) {
        0 => world.nodes().take(1 + input.below(3)).map(|(_, node)| node.name.clone()).collect(),
        1 => vec![RUDE.into()],
        _ => vec![],
    };
    let lens: Vec<u64> = match input.below(6) {
        0 => vec![],
        1 => vec![u64::MAX, u64::from(input.byte())],
        2 => vec![u64::MAX - 1],
        _ => vec![0, input.below(1 << 16) as u64 * 8, 3],
    };
    let limit = (input.below(4) == 0).then(|| u64::from(input.byte()) * 100);
    let left = lens.iter().fold(0u64, |sum, len| sum.saturating_add(*len));
    let Some(client) = world.client_of(conn) else { return };
    if client.submission.is_none() {
        client.submission = Some(Submission::new(left));
    }
    let mut wish = submit(nodes, on, &lens, limit);
    if let FromClient::Submit(request) = &mut wish
        && input.below(3) == 0
    {
        request.keep = Some(dataset(input));
        request.datasets.extend((0..input.below(3)).map(|_| dataset(input)));
    }
    if let FromClient::Submit(request) = wish.clone()
        && input.below(4) == 0
    {
        let (detach, requeue) = (true, input.below(2) == 0);
        wish = FromClient::SubmitOn { request, terms: Terms { detach, requeue, ..Terms::default() } };
    }
    world.say(conn, &wish);
}

/// Returns one of few names of datasets, or one that is none.
fn dataset(input: &mut Input) -> String {
    ["d", "e", "f", RUDE].map(String::from)[input.below(4)].clone()
}

/// Delivers bytes that are no message on any connection, and events of connections that do not exist.
fn rubbish(input: &mut Input, world: &mut World) {
    let any = pick(input, world.peers.keys().copied());
    match (input.below(8), any) {
        (0, Some(conn)) => {
            let bytes = input.take(20);
            // The model would have to know bytes that parse as a message.
            if proto::decode::<ToManager>(&bytes).is_err() && proto::decode::<FromClient>(&bytes).is_err() {
                let joins = proto::decode::<proto::Hello>(&bytes).is_ok();
                if !joins {
                    world.event(Event::Received { conn, bytes: &bytes });
                }
            }
        }
        (1, _) => world.event(Event::Received { conn: ConnId(u64::MAX), bytes: &[0, 5] }),
        (2, _) => world.event(Event::Closed { conn: ConnId(u64::MAX), reason: RUDE }),
        (3, _) => world.event(Event::Sent { conn: ConnId(u64::MAX), bulk: usize::MAX }),
        (4, Some(conn)) if world.node(conn).is_some() => {
            world.event(Event::Sent { conn, bulk: usize::from(input.byte()) });
        }
        _ => {}
    }
}
