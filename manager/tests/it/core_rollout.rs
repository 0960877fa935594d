//! Rollouts of images: good ones, four kinds of bad ones, and a manager that is killed meanwhile.
use crate::support::*;
use manager::core::{Config, ConnId};
use proto::channel::enrolment::KernelDigest;
use proto::*;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

#[allow(dead_code, reason = "the tests of another crate use all of it")]
#[path = "../../../image/handover/tests/it/support.rs"]
mod elf;

/// The time that a node has for each step, in seconds.
const WITHIN: u64 = 20;

/// Returns the file of a small kernel, and the digest that it computes of itself.
fn image(version: u8) -> (Vec<u8>, [u8; 32]) {
    let (text, data) = ([version; 64], [2; 32]);
    let mut note = Vec::new();
    for word in [4_u32, 4, 18, u32::from_le_bytes(*b"Xen\0"), 0x20_0010] {
        note.extend(word.to_le_bytes());
    }
    let file = elf::Elf::default()
        .part(1, 0x20_0000, &text, 64)
        .part(1, 0x20_1000, &data, 0x2000)
        .part(4, 0x20_0000, &note, note.len() as u64)
        .bytes();
    (file, KernelDigest::of([&text[..], &data]).to_bytes())
}

fn sha256(version: u8) -> [u8; 32] {
    Sha256::digest(image(version).0).into()
}

/// The behaviour of machines that boot the new image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Good,
    /// The image does not boot: the machine is reset after a while, and boots its former image.
    DoesNotBoot,
    /// The machine ends once it has joined.
    Panics,
    /// The machine has booted another image.
    OtherImage,
    /// The machine cannot reach a peer's memory.
    Deaf,
}

/// A machine under the manager.
struct Machine {
    conn: ConnId,
    /// The version that runs.
    version: u8,
    /// The bytes of an image that have come, and its length.
    image: Option<(Vec<u8>, u64)>,
    /// The time after which the machine joins, and the version that it then runs.
    boots: Option<(u64, u8)>,
    beat: u64,
}

/// A cluster of machines, second by second.
struct Cluster {
    h: Harness,
    machines: BTreeMap<String, Machine>,
    kind: Kind,
    /// The most nodes that were out of service at a time.
    most_away: usize,
}

impl Cluster {
    fn new(count: usize, kind: Kind) -> Self {
        let mut cluster = Self { h: Harness::new(), machines: BTreeMap::new(), kind, most_away: 0 };
        for i in 0..count {
            cluster.joins(&format!("n{i}"), 1);
        }
        for version in [1, 2] {
            cluster.add(version);
        }
        cluster
    }

    /// Makes the manager keep an image.
    fn add(&mut self, version: u8) {
        let (file, kernel) = image(version);
        let client = self.h.client();
        let description = BootImage { len: file.len() as u64, sha256: sha256(version) };
        let (number, commit) = (format!("0.{version}.0"), "abc".to_string());
        self.h.say(client, &FromClient::ImageAdd { image: description, version: number, commit });
        self.h.say(client, &FromClient::ImagePiece { bytes: file });
        match self.h.client_heard(client).pop() {
            Some(ToClient::ImageAdded(info)) => assert_eq!(info.kernel, kernel),
            other => panic!("{other:?}"),
        }
    }

    fn joins(&mut self, name: &str, version: u8) {
        let (conn, _) = self.h.join(name);
        let machine = Machine { conn, version, image: None, boots: None, beat: 0 };
        self.machines.insert(name.into(), machine);
        self.tells_image(name);
    }

    fn tells_image(&mut self, name: &str) {
        let Machine { conn, version, .. } = self.machines[name];
        let image = RunningImage { kernel: image(version).1, version: "0".into() };
        self.h.say(conn, &ToManager::Image(image));
    }

    fn start(&mut self, canary: u16, max_unavailable: u16) -> ToClient {
        let plan = RolloutPlan {
            image: sha256(2),
            nodes: Vec::new(),
            canary,
            max_unavailable,
            within_ms: WITHIN * 1000,
        };
        self.h.ask(&FromClient::RolloutStart(plan))
    }

    fn status(&mut self) -> RolloutStatus {
        match self.h.ask(&FromClient::Rollout) {
            ToClient::Rollout(Some(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Lets a second pass, in which all machines do what is due.
    fn second(&mut self) {
        self.h.pass(Duration::from_secs(1));
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            self.machine(&name);
        }
        let away = |node: &&NodeView| node.standing.word() != "ready";
        let away = self.h.node_list().iter().filter(away).count();
        self.most_away = self.most_away.max(away);
    }

    fn machine(&mut self, name: &str) {
        let machine = self.machines.get_mut(name).unwrap();
        if let Some((after, version)) = &mut machine.boots {
            *after -= 1;
            if *after == 0 {
                let version = *version;
                self.joins(name, version);
                if version == 2 && self.kind == Kind::Panics {
                    self.ends_and_boots_former(name);
                }
            }
            return;
        }
        machine.beat += 1;
        let (conn, seq, version) = (machine.conn, machine.beat, machine.version);
        self.h.say(conn, &ToManager::Heartbeat { seq });
        for message in self.h.node_heard(conn) {
            self.hears(name, conn, version, message);
        }
    }

    fn ends_and_boots_former(&mut self, name: &str) {
        let machine = self.machines.get_mut(name).unwrap();
        machine.boots = Some((4, 1));
        let words = ToManager::LastWords { reason: "panic: a bug".into() };
        self.h.say(machine.conn, &words);
    }

    fn hears(&mut self, name: &str, conn: ConnId, version: u8, message: ToNode) {
        let machine = self.machines.get_mut(name).unwrap();
        match message {
            ToNode::Image(image) => machine.image = Some((Vec::new(), image.len)),
            ToNode::ImageDrop => machine.image = None,
            ToNode::ImagePiece { bytes } => {
                let (image, len) = machine.image.as_mut().expect("an image");
                image.extend(bytes);
                let got = image.len() as u64;
                if got < *len {
                    return self.h.say(conn, &ToManager::ImageTaken { bytes: got });
                }
                let version = if *image == crate::core_rollout::image(1).0 { 1 } else { 2 };
                let boots = match (version, self.kind) {
                    (1, _) => (2, 1),
                    (_, Kind::DoesNotBoot) => (WITHIN + 5, 1),
                    (_, Kind::OtherImage) => (2, 3),
                    _ => (2, 2),
                };
                machine.boots = Some(boots);
                self.h.say(conn, &ToManager::ImageReady);
                self.h.say(conn, &ToManager::Leave);
            }
            ToNode::Vacate { begin: true } => self.h.say(conn, &ToManager::Vacated { result: Ok(()) }),
            ToNode::Check { request } => {
                let deaf = version == 2 && self.kind == Kind::Deaf;
                let result = if deaf { Err("memory of node 2 (n1): timed out".into()) } else { Ok(()) };
                self.h.say(conn, &ToManager::Checked { request, result });
            }
            _ => {}
        }
    }

    /// Lets time pass until the rollout has nothing left to do.
    fn until_it_ends(&mut self) -> RolloutStatus {
        for _ in 0..600 {
            self.second();
            let status = self.status();
            let active = status.nodes.iter().any(|(_, _, step)| step.is_active());
            if status.state != RolloutState::Running && !active {
                return status;
            }
        }
        panic!("it never ends: {:?}", self.status());
    }

    fn versions(&self) -> Vec<u8> {
        self.machines.values().map(|machine| machine.version).collect()
    }

    /// Restarts the manager; the machines resume.
    fn manager_restarts(&mut self) {
        let members: Vec<_> = self.h.restart().members;
        let epoch = self.h.restart().epoch;
        let secrets: BTreeMap<_, _> =
            members.iter().map(|m| (m.join.name.clone(), (m.node, m.incarnation))).collect();
        self.h = Harness::with(Config::default(), self.h.restart());
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            let machine = self.machines.get_mut(&name).unwrap();
            let Some(&(node, incarnation)) = secrets.get(&name) else { continue };
            if machine.boots.is_some() {
                continue;
            }
            let conn = self.h.open();
            machine.conn = conn;
            machine.image = None;
            let key = VouchingSecret::from_bytes([7; 32]);
            let secret = key.resume((node, incarnation));
            let resume = Resume { version: PROTOCOL_VERSION, node, incarnation, secret, epoch };
            self.h.say(conn, &Hello::Resume(resume));
            self.h.say(conn, &ToManager::Jobs { jobs: Vec::new(), kept: Vec::new() });
            self.tells_image(&name);
        }
    }
}

#[test]
fn a_good_image_reaches_all_nodes_a_few_at_a_time() {
    let mut cluster = Cluster::new(8, Kind::Good);
    assert!(matches!(cluster.start(1, 3), ToClient::Rollout(Some(_))));
    cluster.second();
    assert_eq!(cluster.most_away, 1, "the canary goes first");
    let status = cluster.until_it_ends();
    assert_eq!(status.state, RolloutState::Done);
    assert_eq!(cluster.versions(), [2; 8]);
    assert_eq!(cluster.most_away, 3);
    assert!(cluster.h.node_list().iter().all(|node| node.standing == NodeStanding::Ready));
    assert!(matches!(cluster.h.ask(&FromClient::RolloutUndo), ToClient::Rollout(Some(_))));
    assert_eq!(cluster.until_it_ends().state, RolloutState::Done);
    assert_eq!(cluster.versions(), [1; 8]);
}

#[test]
fn bad_images_stop_at_the_canary_which_returns() {
    for (kind, says) in [
        (Kind::DoesNotBoot, "n0: it has not joined with the image within 20 s"),
        (Kind::Panics, "n0: it has ended: died: panic: a bug"),
        (Kind::OtherImage, "n0: it has joined with another image than the wanted one"),
        (Kind::Deaf, "n0: memory of node 2 (n1): timed out"),
    ] {
        let mut cluster = Cluster::new(8, kind);
        cluster.start(1, 4);
        let status = cluster.until_it_ends();
        assert_eq!(status.state, RolloutState::Failed(says.into()), "{kind:?}");
        assert_eq!(cluster.versions(), [1; 8], "{kind:?}");
        assert_eq!(cluster.most_away, 1, "{kind:?}");
        assert!(matches!(status.nodes[0].2, NodeStep::Returned(_)), "{kind:?}: {:?}", status.nodes[0]);
        assert!(status.nodes[1..].iter().all(|(_, _, step)| *step == NodeStep::Waiting));
        let ready = cluster.h.node_list().iter().all(|node| node.standing == NodeStanding::Ready);
        assert!(ready, "{kind:?}: the canary takes jobs again");
    }
}

#[test]
fn a_rollout_goes_on_when_the_manager_is_killed_at_any_second() {
    for kind in [Kind::Good, Kind::Deaf, Kind::DoesNotBoot] {
        for second in 0..12 {
            let mut cluster = Cluster::new(3, kind);
            cluster.start(1, 1);
            for _ in 0..second {
                cluster.second();
            }
            cluster.manager_restarts();
            let status = cluster.until_it_ends();
            let (good, version) = (kind == Kind::Good, if kind == Kind::Good { 2 } else { 1 });
            assert_eq!(status.state == RolloutState::Done, good, "{kind:?} {second}: {status:?}");
            assert_eq!(cluster.versions(), [version; 3], "{kind:?} {second}");
            assert!(cluster.most_away <= 3, "{kind:?}");
        }
    }
}

#[test]
fn a_rollout_waits_for_jobs_and_takes_no_other() {
    let mut cluster = Cluster::new(2, Kind::Good);
    let worker = cluster.h.client();
    cluster.h.say(worker, &submit(2, &[]));
    cluster.start(1, 1);
    (0..10).for_each(|_| cluster.second());
    assert_eq!(cluster.status().nodes[0].2, NodeStep::Draining);
    let want = "2 nodes wanted, but only 1 with lines take jobs: node 1 (n0) is upgraded by a rollout: image";
    let refusal = cluster.h.refusal(&submit(2, &[]));
    assert!(refusal.starts_with(want), "{refusal}");
    let refusal = cluster.h.refusal(&FromClient::Undrain { node: "n0".into() });
    assert_eq!(refusal, "a rollout upgrades n0: stop the rollout first");
    let conns: Vec<ConnId> = cluster.machines.values().map(|machine| machine.conn).collect();
    for &conn in &conns {
        cluster.h.say(conn, &ToManager::JobAccepted { job: JobId(1) });
    }
    for &conn in &conns {
        cluster.h.say(conn, &ToManager::JobDone { job: JobId(1), report: JobReport::default() });
    }
    assert_eq!(cluster.until_it_ends().state, RolloutState::Done);
    assert!(matches!(cluster.h.client_heard(worker).last(), Some(ToClient::Done { .. })));
}

#[test]
fn a_stopped_rollout_ends_what_it_has_begun() {
    let mut cluster = Cluster::new(4, Kind::Good);
    cluster.start(1, 1);
    (0..2).for_each(|_| cluster.second());
    cluster.h.ask(&FromClient::RolloutStop);
    let status = cluster.until_it_ends();
    assert_eq!(status.state, RolloutState::Stopped("stopped by test".into()));
    assert_eq!(cluster.versions(), [2, 1, 1, 1]);
}

#[test]
fn rollouts_that_could_not_be_undone_are_refused() {
    let mut cluster = Cluster::new(2, Kind::Good);
    assert_eq!(cluster.h.refusal(&FromClient::RolloutUndo), "there was no rollout");
    cluster.h.ask(&FromClient::ImageRemove { image: sha256(1) });
    let refusal = match cluster.start(1, 1) {
        ToClient::Failed { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refusal,
        "node 1 (n0) runs an image that is not kept, so it could not return to it: add it first"
    );
    cluster.add(1);
    cluster.start(1, 1);
    for version in [1, 2] {
        let refusal = cluster.h.refusal(&FromClient::ImageRemove { image: sha256(version) });
        assert_eq!(refusal, "a rollout needs this image");
    }
}

#[test]
fn files_that_are_no_kernels_are_not_kept() {
    let mut h = Harness::new();
    let client = h.client();
    let bytes = vec![5; 100];
    let image = BootImage { len: 100, sha256: Sha256::digest(&bytes).into() };
    let add = FromClient::ImageAdd { image, version: String::new(), commit: String::new() };
    h.say(client, &add);
    h.say(client, &FromClient::ImagePiece { bytes });
    assert_eq!(h.failure(client), "the image has no kernel");
    let client = h.client();
    h.say(client, &add);
    h.say(client, &FromClient::ImagePiece { bytes: vec![6; 100] });
    assert_eq!(h.failure(client), "the image has another SHA-256 than announced");
}
