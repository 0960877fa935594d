//! The thread that saves records. All waiting records are saved together, and a slow or full disk delays
//! nothing else.

use crate::core::{ConnId, Entries, Record};
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

    /// Returns the whole state, as all records that were kept so far have made it.
    ///
    /// # Errors
    /// Fails if the state cannot be read.
    fn entries(&mut self) -> Result<Entries, SaveError>;
}

/// A report of the thread that saves records.
#[derive(Debug)]
pub(super) enum Kept {
    /// The given records are on the disk.
    Saved(Vec<Record>),
    /// Nothing can be saved at present, for this reason.
    Failed(String),
    /// The state for the client of a connection, or the reason why it cannot be read.
    State(ConnId, Result<Entries, String>),
}

/// An order to the thread that saves records.
#[derive(Debug)]
enum Order {
    Save(Record),
    /// Read the state for the client of a connection, once all records before are saved.
    Read(ConnId),
}

/// The handle of the thread that saves records.
#[derive(Debug)]
pub(super) struct Keeper {
    orders: Sender<Order>,
    /// The result of the thread, once it has ended.
    ended: oneshot::Receiver<Result<(), SaveError>>,
}

impl Keeper {
    /// Starts the thread. It reports the records that it has saved to `tell`.
    pub(super) fn start(store: impl Keep, tell: UnboundedSender<Kept>) -> io::Result<Self> {
        let (orders, queue) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("store".into()).spawn(move || {
            let _ = end.send(save_all(store, &queue, &tell));
        })?;
        Ok(Self { orders, ended })
    }

    /// Queues a record to be saved. Never waits.
    pub(super) fn save(&self, record: Record) {
        // The thread lives for as long as this handle.
        let _ = self.orders.send(Order::Save(record));
    }

    /// Queues the order to report the state that all records before make, for the client of a connection.
    /// Never waits.
    pub(super) fn read(&self, conn: ConnId) {
        let _ = self.orders.send(Order::Read(conn));
    }

    /// Waits until all records are saved or cannot be, for at most `timeout`.
    pub(super) async fn finish(self, timeout: Duration) -> Result<(), SaveError> {
        drop(self.orders);
        match tokio::time::timeout(timeout, self.ended).await {
            Ok(Ok(saved)) => saved,
            Ok(Err(_)) => Err("the thread that saves has ended".into()),
            Err(_) => Err(format!("the state is not saved within {} s", timeout.as_secs()).into()),
        }
    }
}

fn save_all(
    mut store: impl Keep,
    queue: &Receiver<Order>,
    tell: &UnboundedSender<Kept>,
) -> Result<(), SaveError> {
    let mut waiting = Waiting::default();
    while let Ok(order) = queue.recv() {
        waiting.add(order);
        queue.try_iter().for_each(|order| waiting.add(order));
        while let Err(error) = store.keep(&waiting.records) {
            let _ = tell.send(Kept::Failed(error.to_string()));
            if !gather(queue, &mut waiting, Instant::now() + RETRY) {
                // This is the last attempt.
                store.keep(&waiting.records)?;
                break;
            }
        }
        let Waiting { records, readers } = std::mem::take(&mut waiting);
        if !records.is_empty() {
            let _ = tell.send(Kept::Saved(records));
        }
        for conn in readers {
            let _ = tell.send(Kept::State(conn, store.entries().map_err(|error| error.to_string())));
        }
    }
    Ok(())
}

/// The orders that wait.
#[derive(Debug, Default)]
struct Waiting {
    records: Vec<Record>,
    readers: Vec<ConnId>,
}

impl Waiting {
    fn add(&mut self, order: Order) {
        match order {
            Order::Save(record) => self.records.push(record),
            Order::Read(conn) => self.readers.push(conn),
        }
    }
}

/// Collects orders until `until`. Returns false if no more will ever come.
fn gather(queue: &Receiver<Order>, waiting: &mut Waiting, until: Instant) -> bool {
    loop {
        match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(order) => waiting.add(order),
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

        fn entries(&mut self) -> Result<Entries, SaveError> {
            let changes = self.0.lock().unwrap().1.concat();
            let changes = changes.iter().flat_map(Record::changes);
            Ok(changes.filter_map(|change| Some((change.key, change.value?))).collect())
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
    async fn a_reader_sees_all_records_before_its_order() {
        let memory = Memory::default();
        memory.0.lock().unwrap().0 = 1;
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let keeper = Keeper::start(memory, tell).unwrap();
        keeper.save(Record::NextJob(1));
        keeper.read(ConnId(7));
        keeper.finish(Duration::from_secs(60)).await.unwrap();
        while let Some(kept) = told.recv().await {
            if let Kept::State(conn, entries) = kept {
                assert_eq!((conn, entries.unwrap().len()), (ConnId(7), 1));
                return;
            }
        }
        panic!("no state");
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
