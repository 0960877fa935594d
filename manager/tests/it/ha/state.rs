//! The state in the shared store: what is saved is read, in whole records and in order, and only the present
//! leader saves.

use super::model::{Fate, Shared, Wire};
use manager::core::{Entries, KeptImage, Record, Saved};
use manager::daemon::Keep;
use manager::daemon::ha::{Elector, Kv, Pair, Standing, State, Tenure, Term};
use proto::{ImageInfo, JobId, NodeId, VouchingSecret};
use std::time::Duration;

const PREFIX: &str = "/test";

/// Elects a manager, which must succeed at once.
fn elect(wire: &mut Wire, process: u64) -> Term {
    let mut elector = Elector::new(PREFIX, 2, "host:1", process);
    for _ in 0..10 {
        let now = wire.model.lock().time;
        elector.step(now, wire);
        if let Standing::Leads(term) = elector.standing() {
            return *term;
        }
    }
    panic!("{:?}", elector.standing());
}

fn take_over(wire: &Wire, term: Term) -> (State, Saved) {
    State::take_over(wire.another(), PREFIX, term, Tenure::detached()).unwrap()
}

/// Lets the leader's lease end.
fn pass(model: &Shared) {
    model.lock().time += Duration::from_secs(3);
}

fn name(number: u16) -> Record {
    Record::Node(format!("node-{number}"), NodeId(number))
}

#[test]
fn a_successor_reads_what_was_saved() {
    let model = Shared::default();
    let mut wire = Wire::to(&model);
    let first = elect(&mut wire, 1);
    let (mut state, saved) = take_over(&wire, first);
    assert_eq!(saved.epoch, u64::try_from(first.revision).unwrap() - 1, "a process has the next number");
    // More than a transaction holds, and a value that is longer than a request.
    let secret = VouchingSecret::from_bytes([7; 32]);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    let info = ImageInfo { sha256: [9; 32], ..image() };
    let image = KeptImage { info, bytes: bytes.into() };
    let mut records: Vec<Record> = (1..500).map(name).collect();
    records.push(Record::Secret(secret.clone()));
    records.push(Record::Image(image.clone()));
    records.push(Record::Forget("node-7".into()));
    state.keep(&records).unwrap();
    let entries = state.entries().unwrap();
    pass(&model);
    let second = elect(&mut wire, 2);
    assert!(second.revision > first.revision);
    let (mut state, saved) = take_over(&wire, second);
    assert_eq!((saved.nodes.len(), &saved.images), (498, &vec![image]));
    assert_eq!((saved.secret, saved.next_job), (Some(secret), 1 + Saved::RESERVED));
    assert!(saved.epoch >= u64::try_from(second.revision).unwrap() - 1);
    assert_eq!(entries.len(), state.entries().unwrap().len());
    // The pieces go with their entry.
    assert!(model.lock().keys.keys().any(|key| key.contains("/pieces/")));
    state.keep(&[Record::ImageGone([9; 32])]).unwrap();
    assert!(!model.lock().keys.keys().any(|key| key.contains("/pieces/")));
}

fn image() -> ImageInfo {
    let (version, commit) = ("v".into(), "c".into());
    ImageInfo { sha256: [0; 32], len: 3_000_000, kernel: [1; 32], version, commit }
}

#[test]
fn a_former_leader_saves_nothing() {
    let model = Shared::default();
    let mut wire = Wire::to(&model);
    let first = elect(&mut wire, 1);
    let (mut former, _) = take_over(&wire, first);
    former.keep(&[name(1)]).unwrap();
    pass(&model);
    // Also while nobody leads.
    let error = former.keep(&[name(2)]).unwrap_err().to_string();
    assert_eq!(error, "this manager does not lead any more");
    let second = elect(&mut wire, 2);
    let (mut state, saved) = take_over(&wire, second);
    assert_eq!(saved.nodes, [("node-1".into(), NodeId(1))]);
    assert!(former.keep(&[name(3)]).is_err());
    state.keep(&[name(4)]).unwrap();
    assert!(former.keep(&[name(5)]).is_err());
    assert_eq!(Saved::of(&state.entries().unwrap()).nodes.len(), 2);
}

#[test]
fn a_save_whose_answer_is_lost_is_repeated_and_a_late_one_has_no_effect() {
    let model = Shared::default();
    let mut wire = Wire::to(&model);
    let term = elect(&mut wire, 1);
    let (mut state, _) = take_over(&wire, term);
    let jobs = |state: &mut State| Saved::of(&state.entries().unwrap()).next_job;
    for fate in [Fate::AnswerLost, Fate::Lost, Fate::AnswerLost] {
        wire.fate(fate);
        assert!(state.keep(&[Record::NextJob(5000)]).is_err());
        wire.fate(Fate::Answered);
        state.keep(&[Record::NextJob(5000), Record::NextJob(6000)]).unwrap();
        assert_eq!(jobs(&mut state), 6000);
    }
    // The request arrives after a later one has had its effect.
    wire.fate(Fate::Late);
    assert!(state.keep(&[Record::NextJob(7000)]).is_err());
    let late = wire.clone();
    let mut other = Wire::to(&model);
    std::mem::swap(&mut wire, &mut other);
    let (mut state, _) = take_over(&wire, term);
    state.keep(&[Record::NextJob(8000)]).unwrap();
    late.fate(Fate::Answered);
    assert_eq!(jobs(&mut state), 8000, "a late request undid a later one");
    state.keep(&[Record::JobGone(JobId(1))]).unwrap();
}

#[test]
fn a_stranger_in_the_sequence_is_an_error() {
    let model = Shared::default();
    let mut wire = Wire::to(&model);
    let term = elect(&mut wire, 1);
    let (mut state, _) = take_over(&wire, term);
    model.lock().keys.get_mut("/test/sequence").unwrap().value = b"0/1".to_vec();
    let error = state.keep(&[name(1)]).unwrap_err().to_string();
    assert_eq!(error, "another program writes to the state of the managers");
}

#[test]
fn a_backup_replaces_a_state_only_by_force_and_only_as_a_whole() {
    let model = Shared::default();
    let mut wire = Wire::to(&model);
    let term = elect(&mut wire, 1);
    let (mut state, _) = take_over(&wire, term);
    state.keep(&[name(1), name(2)]).unwrap();
    let replace = |entries: &Entries, force| State::replace(wire.another(), PREFIX, entries, force);
    let mut entries = state.entries().unwrap();
    entries.retain(|key, _| !key.ends_with("node-2"));
    entries.insert("long/entry".into(), vec![3; 1 << 20]);
    let error = replace(&entries, true).unwrap_err().to_string();
    assert_eq!(error, "the manager at host:1 leads: stop all managers first");
    pass(&model);
    assert!(!replace(&entries, false).unwrap());
    assert!(replace(&entries, true).unwrap());
    let mut wire = Wire::to(&model);
    let term = elect(&mut wire, 2);
    let (mut state, saved) = take_over(&wire, term);
    assert_eq!(saved.nodes, [("node-1".into(), NodeId(1))]);
    assert_eq!(state.entries().unwrap()["long/entry"], vec![3; 1 << 20]);
    // A restoration that has not ended keeps managers from taking over.
    model.lock().keys.insert("/test/unfinished".into(), model_pair());
    let error = State::take_over(wire.another(), PREFIX, term, Tenure::detached()).unwrap_err();
    assert_eq!(error.to_string(), "a backup was not restored to its end: restore it again");
}

fn model_pair() -> Pair {
    Pair { key: "/test/unfinished".into(), value: Vec::new(), created: 1, lease: 0 }
}
