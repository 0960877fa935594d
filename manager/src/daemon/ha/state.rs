//! The manager's state in the store that the managers share.
//!
//! Each change is a transaction with two conditions: the leader's key is that of this term, and the number of
//! the last change is the one that this manager knows. The first keeps a former leader from writing, the
//! second a request that was delayed on its way from having its effect behind a later one. A list of records
//! that is longer than one transaction becomes several, each of whole records, in order: a successor reads
//! the records up to some point, as it does after a kill. A long value is stored in pieces under a number of
//! their own first; the transaction that sets the entry to that number is the change.

use super::election::{Elector, Term};
use super::kv::{Answer, Keys, Kv, Op, Pair, Request, Txn, When, end_of};
use super::tenure::Tenure;
use crate::core::{Change, Entries, Record, Saved};
use crate::daemon::{Keep, SaveError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The longest value in an entry, and the length of a piece, in bytes. etcd accepts 1.5 MiB in a request.
const PIECE: usize = 256 << 10;
/// The maximum length of the values in a transaction, in bytes.
const MAX_BYTES: usize = 768 << 10;
/// The maximum number of operations in a transaction, without that on the sequence. The limit of etcd is 128.
const MAX_OPS: usize = 100;
/// The number of keys that are read at once: at most 50 MiB of values.
const PAGE: u32 = 200;
/// The longest time to wait for an answer.
const WITHIN: Duration = Duration::from_secs(2);
/// The lease of a restoration, in seconds. It is not renewed.
const RESTORE_TTL: u64 = 60;
/// The number of attempts of a transaction behind one of this manager that had no answer.
const ATTEMPTS: usize = 4;

/// The first byte of an entry's value: the value follows.
const WHOLE: u8 = 0;
/// The first byte of an entry's value: the number of pieces and the beginning of their keys follow.
const IN_PIECES: u8 = 1;

/// The state of the leader in the shared store.
#[derive(Debug)]
pub struct State {
    kv: Box<dyn Kv>,
    keys: Keys,
    term: Term,
    tenure: Tenure,
    /// The value of the sequence, as far as this manager knows it.
    sequence: Option<Vec<u8>>,
    /// The beginning of the numbers of this writer's changes, which no other writer has.
    own: String,
    /// The number of attempts to write.
    attempts: u64,
    /// The beginning of the keys of the pieces of each value that is in pieces, by the key of its entry.
    in_pieces: BTreeMap<String, String>,
}

/// The changes of one transaction, by key: the last one of a key counts.
#[derive(Debug, Default)]
struct Batch {
    ops: BTreeMap<String, Op>,
    bytes: usize,
    in_pieces: Vec<(String, Option<String>)>,
}

impl State {
    /// Takes over the state in a new term, reads it, and reserves the numbers that [`Saved`] allows. The
    /// epoch of the manager is the revision of the term, or larger.
    ///
    /// # Errors
    /// Fails if the store does not answer, or another manager leads.
    pub fn take_over(
        kv: Box<dyn Kv>,
        prefix: &str,
        term: Term,
        tenure: Tenure,
    ) -> Result<(Self, Saved), SaveError> {
        let mut state = Self::open(kv, prefix, term, tenure)?;
        let unfinished = state.keys.unfinished.clone();
        if !state.range(&unfinished, &format!("{unfinished}\0"))?.is_empty() {
            return Err("a backup was not restored to its end: restore it again".into());
        }
        let entries = state.read()?;
        let mut saved = Saved::of(&entries);
        let revision = u64::try_from(term.revision).unwrap_or_default();
        // A process has the number behind that of the last one.
        saved.epoch = saved.epoch.max(revision.saturating_sub(1));
        state.keep(&saved.reservation())?;
        state.remove_loose_pieces()?;
        Ok((state, saved))
    }

    /// Returns a writer of this term that has read nothing yet.
    fn open(kv: Box<dyn Kv>, prefix: &str, term: Term, tenure: Tenure) -> Result<Self, SaveError> {
        let (keys, in_pieces, mut writer) = (Keys::of(prefix), BTreeMap::new(), [0; 8]);
        // A leader may take over in its own term, while a former thread of its process still writes.
        getrandom::fill(&mut writer)?;
        let own = format!("{}-{:016x}/", term.revision, u64::from_le_bytes(writer));
        let mut state = Self { kv, keys, term, tenure, sequence: None, own, attempts: 0, in_pieces };
        let sequence = state.keys.sequence.clone();
        let found = state.range(&sequence, &format!("{sequence}\0"))?;
        state.sequence = found.into_iter().next().map(|pair| pair.value);
        Ok(state)
    }

    /// Replaces the whole state, while no manager leads. No manager takes over before it is complete. Returns
    /// false if there is a state and `force` is not set.
    ///
    /// # Errors
    /// Fails if the store does not answer, or a manager leads.
    pub fn replace(
        mut kv: Box<dyn Kv>,
        prefix: &str,
        entries: &Entries,
        force: bool,
    ) -> Result<bool, SaveError> {
        let mut process = [0; 8];
        getrandom::fill(&mut process)?;
        let mut elector = Elector::new(prefix, RESTORE_TTL, "a-restoration", u64::from_le_bytes(process));
        let own = kv.another();
        let term = elector.lead_alone(&mut *kv)?;
        let replaced = Self::open(own, prefix, term, Tenure::detached())
            .and_then(|mut state| state.replace_all(entries, force));
        elector.resign(&mut *kv);
        replaced
    }

    fn replace_all(&mut self, entries: &Entries, force: bool) -> Result<bool, SaveError> {
        let Keys { unfinished, entries: all, pieces, .. } = self.keys.clone();
        if !force && !self.read()?.is_empty() {
            return Ok(false);
        }
        self.write(vec![Op::Put { key: unfinished.clone(), value: Vec::new(), lease: None }])?;
        self.write(vec![Op::DeleteAll(all), Op::DeleteAll(pieces)])?;
        self.in_pieces.clear();
        let mut batch = Batch::default();
        for (key, value) in entries {
            self.make_room(&mut batch, 1, value.len())?;
            self.add(&mut batch, Change { key: key.clone(), value: Some(value.clone()) })?;
        }
        self.commit(batch)?;
        self.write(vec![Op::Delete(unfinished)])?;
        Ok(true)
    }

    fn range(&mut self, from: &str, end: &str) -> Result<Vec<Pair>, SaveError> {
        let (mut all, mut from) = (Vec::new(), from.to_owned());
        loop {
            let request = Request::Range { from, end: end.into(), limit: PAGE };
            let Answer::Range { pairs, more } = self.kv.ask(&request, WITHIN)? else {
                return Err("the store answers another question".into());
            };
            all.extend(pairs);
            match all.last().filter(|_| more) {
                Some(last) => from = format!("{}\0", last.key),
                None => return Ok(all),
            }
        }
    }

    /// Reads all entries.
    fn read(&mut self) -> Result<Entries, SaveError> {
        let prefix = self.keys.entries.clone();
        let mut entries = Entries::new();
        self.in_pieces.clear();
        for Pair { key, value, .. } in self.range(&prefix, &end_of(&prefix))? {
            let name = key.strip_prefix(&prefix).unwrap_or(&key).to_owned();
            let value = match value.split_first() {
                Some((&WHOLE, value)) => value.to_vec(),
                Some((&IN_PIECES, stamp)) => self.join(&name, stamp)?,
                _ => return Err(format!("the entry {name} has an unknown form").into()),
            };
            entries.insert(name, value);
        }
        Ok(entries)
    }

    /// Reads a value that is in pieces.
    fn join(&mut self, name: &str, stamp: &[u8]) -> Result<Vec<u8>, SaveError> {
        let lost = || SaveError::from(format!("pieces of the entry {name} are missing"));
        let (count, stamp): (usize, String) = proto::decode(stamp).map_err(|_| lost())?;
        let pieces = self.range(&stamp, &end_of(&stamp))?;
        if pieces.len() != count {
            return Err(lost());
        }
        self.in_pieces.insert(name.into(), stamp);
        Ok(pieces.into_iter().flat_map(|pair| pair.value).collect())
    }

    /// Removes pieces that belong to no entry: their writer has ended before it could set the entry.
    fn remove_loose_pieces(&mut self) -> Result<(), SaveError> {
        let all = self.keys.pieces.clone();
        let mut known: BTreeSet<String> = self.in_pieces.values().cloned().collect();
        let mut from = all.clone();
        loop {
            // One key at a time: pieces are long, and loose ones are rare.
            let request = Request::Range { from: from.clone(), end: end_of(&all), limit: 1 };
            let Answer::Range { pairs, .. } = self.kv.ask(&request, WITHIN)? else { return Ok(()) };
            let Some(pair) = pairs.into_iter().next() else { return Ok(()) };
            let Some((stamp, _)) = pair.key.rsplit_once('/') else { return Ok(()) };
            let stamp = format!("{stamp}/");
            if known.insert(stamp.clone()) {
                self.write(vec![Op::DeleteAll(stamp.clone())])?;
            }
            from = end_of(&stamp);
        }
    }

    /// Does operations in one transaction, once all former ones of this manager are decided.
    fn write(&mut self, ops: Vec<Op>) -> Result<(), SaveError> {
        let Keys { leader, sequence, .. } = self.keys.clone();
        for _ in 0..ATTEMPTS {
            self.attempts += 1;
            // Each attempt has another number: the answer to the next one shows which of them had an effect.
            let number = format!("{}{}", self.own, self.attempts).into_bytes();
            let known = match &self.sequence {
                Some(number) => When::Is(sequence.clone(), number.clone()),
                None => When::Absent(sequence.clone()),
            };
            let mut then = ops.clone();
            then.push(Op::Put { key: sequence.clone(), value: number.clone(), lease: None });
            let when = vec![When::Created(leader.clone(), self.term.revision), known];
            let txn = Txn { when, then, otherwise: vec![leader.clone(), sequence.clone()] };
            let Answer::Txn { held, pairs, .. } = self.kv.ask(&Request::Txn(txn), WITHIN)? else {
                return Err("the store answers another question".into());
            };
            if held {
                self.sequence = Some(number);
                return Ok(());
            }
            let found = |key: &String| pairs.iter().find(|pair| pair.key == *key);
            if found(&leader).is_none_or(|pair| pair.created != self.term.revision) {
                self.tenure.end(self.term);
                return Err("this manager does not lead any more".into());
            }
            // An attempt of this manager whose answer was lost. The same records come again.
            match found(&sequence).map(|pair| pair.value.clone()) {
                Some(number) if number.starts_with(self.own.as_bytes()) => self.sequence = Some(number),
                _ => return Err("another program writes to the state of the managers".into()),
            }
        }
        Err("the store has not done the change".into())
    }

    /// Adds the change of an entry to a batch. The pieces of a long value are written at once.
    fn add(&mut self, batch: &mut Batch, Change { key, value }: Change) -> Result<(), SaveError> {
        let former = self.in_pieces.get(&key).cloned();
        let planned = batch.in_pieces.iter().rev().find(|(entry, _)| *entry == key);
        if let Some(stamp) = planned.map_or(former, |(_, stamp)| stamp.clone()) {
            batch.ops.insert(stamp.clone(), Op::DeleteAll(stamp));
            batch.in_pieces.push((key.clone(), None));
        }
        let full = format!("{}{key}", self.keys.entries);
        let op = match value {
            None => Op::Delete(full.clone()),
            Some(value) => {
                let value = match value.len() > PIECE {
                    true => {
                        let (count, stamp) = self.store_pieces(&value)?;
                        batch.in_pieces.push((key, Some(stamp.clone())));
                        [vec![IN_PIECES], proto::encode(&(count, stamp))].concat()
                    }
                    false => [&[WHOLE], &*value].concat(),
                };
                batch.bytes += value.len();
                Op::Put { key: full.clone(), value, lease: None }
            }
        };
        batch.ops.insert(full, op);
        Ok(())
    }

    /// Writes the pieces of a value, which nobody reads before an entry names them. Returns their number and
    /// the beginning of their keys.
    fn store_pieces(&mut self, value: &[u8]) -> Result<(usize, String), SaveError> {
        let stamp = format!("{}{}{:020}/", self.keys.pieces, self.own.replace('/', "-"), self.attempts);
        for (index, piece) in value.chunks(PIECE).enumerate() {
            let key = format!("{stamp}{index:08}");
            self.write(vec![Op::Put { key, value: piece.into(), lease: None }])?;
        }
        Ok((value.chunks(PIECE).len(), stamp))
    }

    /// Commits a batch that has no room for some more changes.
    fn make_room(&mut self, batch: &mut Batch, changes: usize, bytes: usize) -> Result<(), SaveError> {
        // A change may remove pieces and set an entry.
        if batch.ops.len() + 2 * changes > MAX_OPS || batch.bytes + bytes > MAX_BYTES {
            self.commit(std::mem::take(batch))?;
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> Result<(), SaveError> {
        if !batch.ops.is_empty() {
            self.write(batch.ops.into_values().collect())?;
        }
        for (key, stamp) in batch.in_pieces {
            match stamp {
                Some(stamp) => self.in_pieces.insert(key, stamp),
                None => self.in_pieces.remove(&key),
            };
        }
        Ok(())
    }
}

impl Keep for State {
    fn keep(&mut self, records: &[Record]) -> Result<(), SaveError> {
        let mut batch = Batch::default();
        for record in records {
            let changes = record.changes();
            let bytes: usize = changes.iter().map(|change| change.value.as_ref().map_or(0, Vec::len)).sum();
            self.make_room(&mut batch, changes.len(), bytes)?;
            for change in changes {
                self.add(&mut batch, change)?;
            }
        }
        self.commit(batch)
    }

    fn entries(&mut self) -> Result<Entries, SaveError> {
        self.read()
    }
}
