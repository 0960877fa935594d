//! The thread that keeps the spool's files. A file has the ending `.part` until it is whole, so a crash
//! leaves no part of a file under its final name. A slow or full disk delays nothing else.

use crate::core::{FoundFile, SpoolFile, SpoolOrder, SpoolPart, SpoolReport};
use proto::{JobId, Reason};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The ending of the name of a file that is not whole.
const PART: &str = ".part";

/// The handle of the thread, which starts with the first order.
#[derive(Debug)]
pub(super) struct Spooler {
    directory: PathBuf,
    orders: Option<Sender<SpoolOrder>>,
    tell: UnboundedSender<SpoolReport>,
}

impl Spooler {
    /// Makes the handle of a spool in a directory, and the queue of its reports.
    pub(super) fn new(directory: PathBuf) -> (Self, UnboundedReceiver<SpoolReport>) {
        let (tell, told) = unbounded_channel();
        (Self { directory, orders: None, tell }, told)
    }

    /// Queues an order. Never waits.
    pub(super) fn obey(&mut self, order: SpoolOrder) {
        if self.orders.is_none() {
            let (orders, queue) = mpsc::channel();
            let (directory, tell) = (self.directory.clone(), self.tell.clone());
            let spool = thread::Builder::new().name("spool".into());
            let started = spool.spawn(move || obey_all(&Directory(directory), &queue, &tell));
            if let Err(error) = started {
                let _ = refusal(&order, &error).map(|report| self.tell.send(report));
                return;
            }
            self.orders = Some(orders);
        }
        // The thread lives for as long as this handle.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }
}

/// Returns the report about an order that is not obeyed, if there is one.
fn refusal(order: &SpoolOrder, error: &io::Error) -> Option<SpoolReport> {
    let reason = error.to_string();
    match *order {
        SpoolOrder::Append { file, run, .. } | SpoolOrder::Complete { file, run } => {
            Some(SpoolReport::Failed { file, run, reason })
        }
        SpoolOrder::Read { reader, offset, .. } => {
            Some(SpoolReport::Read { reader, offset, bytes: Err(reason) })
        }
        SpoolOrder::Remove { .. } => None,
    }
}

/// Returns the files of a spool; none if there is no such directory.
pub(super) fn found(directory: &Path) -> io::Result<Vec<FoundFile>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some((file, whole)) = entry.file_name().to_str().and_then(parsed) {
            found.push(FoundFile { file, len: entry.metadata()?.len(), whole });
        }
    }
    Ok(found)
}

/// Returns the name of a file that is whole.
fn name(file: SpoolFile) -> String {
    let ending = match file.part {
        SpoolPart::Input => "input",
        SpoolPart::Output => "output",
        SpoolPart::Log => "log",
    };
    format!("{:020}.{ending}", file.job.0)
}

/// Returns the file of a name, and true if it is whole.
fn parsed(text: &str) -> Option<(SpoolFile, bool)> {
    let whole = text.strip_suffix(PART);
    let (job, ending) = whole.unwrap_or(text).split_once('.')?;
    let job = JobId(job.parse().ok()?);
    let part = match ending {
        "input" => SpoolPart::Input,
        "output" => SpoolPart::Output,
        "log" if whole.is_none() => SpoolPart::Log,
        _ => return None,
    };
    Some((SpoolFile { job, part }, whole.is_none()))
}

fn obey_all(directory: &Directory, orders: &Receiver<SpoolOrder>, tell: &UnboundedSender<SpoolReport>) {
    let mut batch = Batch::default();
    while let Ok(order) = orders.recv() {
        let mut next = Some(order);
        while let Some(order) = next {
            match order {
                SpoolOrder::Append { file, run, offset, bytes } => {
                    batch.append(directory, (file, run), offset, &bytes);
                }
                other => {
                    batch.end(tell);
                    let _ = directory.obey(other).map(|report| tell.send(report));
                }
            }
            next = orders.try_recv().ok();
        }
        batch.end(tell);
    }
}

/// Bytes that were written and are not reported yet.
#[derive(Default)]
struct Batch {
    files: BTreeMap<SpoolFile, Result<File, Reason>>,
    /// The appended files, each with its job's number and the position behind the bytes.
    written: Vec<(SpoolFile, JobId, u64)>,
}

impl Batch {
    fn append(&mut self, directory: &Directory, (file, run): (SpoolFile, JobId), offset: u64, bytes: &[u8]) {
        let open = self.files.entry(file);
        let open =
            open.or_insert_with(|| directory.open_part(file, offset).map_err(|error| error.to_string()));
        if let Ok(writable) = open
            && let Err(error) = writable.write_all_at(bytes, offset)
        {
            *open = Err(error.to_string());
        }
        self.written.push((file, run, offset + bytes.len() as u64));
    }

    /// Reports all that was written, output once it is on the disk.
    fn end(&mut self, tell: &UnboundedSender<SpoolReport>) {
        for (file, open) in &mut self.files {
            if file.part == SpoolPart::Output
                && let Ok(writable) = open
                && let Err(error) = writable.sync_data()
            {
                *open = Err(error.to_string());
            }
        }
        for (file, run, end) in self.written.drain(..) {
            let report = match self.files.get(&file) {
                Some(Err(reason)) => SpoolReport::Failed { file, run, reason: reason.clone() },
                _ => SpoolReport::Written { file, run, end },
            };
            let _ = tell.send(report);
        }
        self.files.clear();
    }
}

/// The directory of the spool, which only its owner can read.
struct Directory(PathBuf);

impl Directory {
    /// Opens a file that is not whole. Makes it new if its bytes begin at offset 0.
    fn open_part(&self, file: SpoolFile, offset: u64) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true);
        if offset == 0 {
            self.make()?;
            options.create(true).truncate(true).mode(0o600);
        }
        options.open(self.part(file))
    }

    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    fn whole(&self, file: SpoolFile) -> PathBuf {
        self.0.join(name(file))
    }

    /// Returns the path of a file that is not whole. A log has no other name then: its lines are no results.
    fn part(&self, file: SpoolFile) -> PathBuf {
        if file.part == SpoolPart::Log {
            return self.whole(file);
        }
        self.0.join(name(file) + PART)
    }

    fn obey(&self, order: SpoolOrder) -> Option<SpoolReport> {
        match order {
            SpoolOrder::Complete { file, run } => Some(match self.complete(file) {
                Ok(()) => SpoolReport::Whole { file, run },
                Err(error) => SpoolReport::Failed { file, run, reason: error.to_string() },
            }),
            SpoolOrder::Read { file, reader, offset, len } => {
                let bytes = self.read(file, offset, len).map_err(|error| error.to_string());
                Some(SpoolReport::Read { reader, offset, bytes })
            }
            SpoolOrder::Remove { file } => {
                // A file that stays is removed at the next start.
                let _ = fs::remove_file(self.whole(file));
                let _ = fs::remove_file(self.part(file));
                None
            }
            SpoolOrder::Append { .. } => None,
        }
    }

    fn complete(&self, file: SpoolFile) -> io::Result<()> {
        let (part, whole) = (self.part(file), self.whole(file));
        match File::open(&part) {
            Ok(open) => open.sync_all()?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // It was whole before the manager started again.
            Err(_) if whole.exists() => return Ok(()),
            Err(_) => self.open_part(file, 0)?.sync_all()?,
        }
        fs::rename(&part, &whole)?;
        File::open(&self.0)?.sync_all()
    }

    fn read(&self, file: SpoolFile, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let open = match File::open(self.whole(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(self.part(file))?,
            open => open?,
        };
        let mut bytes = vec![0; len];
        open.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SpoolReader;

    const RUN: JobId = JobId(9);

    struct Spool {
        spooler: Spooler,
        told: UnboundedReceiver<SpoolReport>,
        directory: PathBuf,
    }

    impl Spool {
        fn new(test: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("ferrolite-{test}-{}", std::process::id()));
            let (spooler, told) = Spooler::new(directory.clone());
            Self { spooler, told, directory }
        }

        fn ask(&mut self, order: SpoolOrder) -> SpoolReport {
            self.spooler.obey(order);
            self.told.blocking_recv().unwrap()
        }

        fn append(&mut self, file: SpoolFile, offset: u64, bytes: &[u8]) -> SpoolReport {
            self.ask(SpoolOrder::Append { file, run: RUN, offset, bytes: bytes.to_vec() })
        }

        fn read(&mut self, file: SpoolFile, offset: u64, len: usize) -> Result<Vec<u8>, Reason> {
            let reader = SpoolReader::Job(RUN);
            match self.ask(SpoolOrder::Read { file, reader, offset, len }) {
                SpoolReport::Read { bytes, .. } => bytes,
                other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for Spool {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
            let _ = fs::remove_file(&self.directory);
        }
    }

    #[test]
    fn a_file_has_its_final_name_once_it_is_whole() {
        let mut spool = Spool::new("spool");
        assert_eq!(found(&spool.directory).unwrap(), []);
        let file = SpoolFile::output(JobId(7));
        assert_eq!(spool.append(file, 0, b"old"), SpoolReport::Written { file, run: RUN, end: 3 });
        // A job that starts again begins its file again.
        assert_eq!(spool.append(file, 0, b"ab"), SpoolReport::Written { file, run: RUN, end: 2 });
        assert_eq!(spool.append(file, 2, b"cd"), SpoolReport::Written { file, run: RUN, end: 4 });
        assert_eq!(spool.read(file, 1, 2).unwrap(), b"bc");
        assert!(spool.read(file, 1, 9).is_err());
        assert_eq!(found(&spool.directory).unwrap(), [FoundFile { file, len: 4, whole: false }]);
        for _ in 0..2 {
            let order = SpoolOrder::Complete { file, run: RUN };
            assert_eq!(spool.ask(order), SpoolReport::Whole { file, run: RUN });
            assert_eq!(found(&spool.directory).unwrap(), [FoundFile { file, len: 4, whole: true }]);
        }
        assert_eq!(spool.read(file, 0, 4).unwrap(), b"abcd");
        spool.spooler.obey(SpoolOrder::Remove { file });
        assert!(spool.read(file, 0, 1).is_err());
        // No bytes make an empty file.
        spool.ask(SpoolOrder::Complete { file, run: RUN });
        assert_eq!(found(&spool.directory).unwrap(), [FoundFile { file, len: 0, whole: true }]);
    }

    #[test]
    fn a_disk_that_fails_is_reported() {
        let mut spool = Spool::new("spool-fails");
        fs::write(&spool.directory, b"no directory").unwrap();
        let file = SpoolFile::input(JobId(7));
        assert!(matches!(spool.append(file, 0, b"x"), SpoolReport::Failed { run: RUN, .. }));
        assert!(matches!(
            spool.ask(SpoolOrder::Complete { file, run: RUN }),
            SpoolReport::Failed { run: RUN, .. }
        ));
    }
}
