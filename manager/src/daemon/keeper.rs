//! The thread that saves records. All waiting records are saved together, and a slow or full disk delays
//! nothing else.

use crate::core::Record;
use std::error::Error;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// The pause after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(1);

/// The reason why records cannot be saved. It is one line for people.
pub type SaveError = Box<dyn Error + Send + Sync>;

/// A store of the manager's state.
pub trait Keep: Send + 'static {
    /// Saves records, in order, all or none. They are on the disk when this returns.
    ///
    /// # Errors
    /// Fails if the records cannot be saved. The same records come again later, followed by more.
    fn keep(&mut self, records: &[Record]) -> Result<(), SaveError>;
}

/// A report of the thread that saves records.
#[derive(Debug)]
pub(super) enum Kept {
    /// The given records are on the disk.
    Saved(Vec<Record>),
    /// Nothing can be saved at present, for this reason.
    Failed(String),
}

/// The handle of the thread that saves records.
#[derive(Debug)]
pub(super) struct Keeper {
    records: Sender<Record>,
    /// The result of the thread, once it has ended.
    ended: oneshot::Receiver<Result<(), SaveError>>,
}

impl Keeper {
    /// Starts the thread. It reports the records that it has saved to `tell`.
    pub(super) fn start(store: impl Keep, tell: UnboundedSender<Kept>) -> io::Result<Self> {
        let (records, queue) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("store".into()).spawn(move || {
            let _ = end.send(save_all(store, &queue, &tell));
        })?;
        Ok(Self { records, ended })
    }

    /// Queues a record to be saved. Never waits.
    pub(super) fn save(&self, record: Record) {
        // The thread lives for as long as this handle.
        let _ = self.records.send(record);
    }

    /// Waits until all records are saved or cannot be, for at most `timeout`.
    pub(super) async fn finish(self, timeout: Duration) -> Result<(), SaveError> {
        drop(self.records);
        match tokio::time::timeout(timeout, self.ended).await {
            Ok(Ok(saved)) => saved,
            Ok(Err(_)) => Err("the thread that saves has ended".into()),
            Err(_) => Err(format!("the state is not saved within {} s", timeout.as_secs()).into()),
        }
    }
}

fn save_all(
    mut store: impl Keep,
    queue: &Receiver<Record>,
    tell: &UnboundedSender<Kept>,
) -> Result<(), SaveError> {
    let mut unsaved = Vec::new();
    while let Ok(record) = queue.recv() {
        unsaved.push(record);
        unsaved.extend(queue.try_iter());
        while let Err(error) = store.keep(&unsaved) {
            let _ = tell.send(Kept::Failed(error.to_string()));
            if !gather(queue, &mut unsaved, Instant::now() + RETRY) {
                // This is the last attempt.
                store.keep(&unsaved)?;
                break;
            }
        }
        let _ = tell.send(Kept::Saved(std::mem::take(&mut unsaved)));
    }
    Ok(())
}

/// Collects records until `until`. Returns false if no more will ever come.
fn gather(queue: &Receiver<Record>, unsaved: &mut Vec<Record>, until: Instant) -> bool {
    loop {
        match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(record) => unsaved.push(record),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A store in memory that fails a given number of times.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<(usize, Vec<Vec<Record>>)>>);

    impl Keep for Memory {
        fn keep(&mut self, records: &[Record]) -> Result<(), SaveError> {
            let (failures, batches) = &mut *self.0.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err("no room".into());
            }
            batches.push(records.to_vec());
            Ok(())
        }
    }

    fn saved(kept: Option<Kept>) -> Vec<Record> {
        match kept {
            Some(Kept::Saved(records)) => records,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_could_not_be_saved_is_saved_later_in_order() {
        let memory = Memory::default();
        memory.0.lock().unwrap().0 = 1;
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let keeper = Keeper::start(memory.clone(), tell).unwrap();
        keeper.save(Record::NextJob(1));
        assert!(matches!(told.recv().await, Some(Kept::Failed(reason)) if reason == "no room"));
        keeper.save(Record::NextJob(2));
        assert_eq!(saved(told.recv().await), [Record::NextJob(1), Record::NextJob(2)]);
        keeper.save(Record::NextJob(3));
        keeper.finish(Duration::from_secs(60)).await.unwrap();
        assert_eq!(memory.0.lock().unwrap().1.concat(), [1, 2, 3].map(Record::NextJob));
    }

    #[tokio::test]
    async fn the_end_says_what_is_lost() {
        let memory = Memory::default();
        memory.0.lock().unwrap().0 = usize::MAX;
        let (tell, _told) = tokio::sync::mpsc::unbounded_channel();
        let keeper = Keeper::start(memory, tell).unwrap();
        keeper.save(Record::NextJob(1));
        let lost = keeper.finish(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(lost.to_string(), "no room");
    }
}
