//! The spool: files in the state directory with the input and the output of jobs without a client, and the
//! logs of jobs. The core knows their lengths and orders each change; the driver obeys and reports.

use proto::{JobId, Reason};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bounds of the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// The maximum length of the input of a job, and of its output, in bytes.
    pub job_bytes: u64,
    /// The maximum length of all files, in bytes.
    pub bytes: u64,
    /// The time for which the files of a job are kept after its end.
    pub keep: Duration,
    /// The maximum length of the files of all jobs that have ended, in bytes. Those of the oldest go first.
    pub keep_bytes: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        let keep = Duration::from_secs(7 * 24 * 3600);
        Self { job_bytes: 16 << 30, bytes: 64 << 30, keep, keep_bytes: 32 << 30 }
    }
}

/// The contents of a file of the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpoolPart {
    /// All input files of a job, one after the other.
    Input,
    /// The output of a job.
    Output,
    /// The lines that the nodes of a job have logged. The file has its final name from the beginning.
    Log,
}

/// A file of the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpoolFile {
    /// The first number of the job.
    pub job: JobId,
    /// The contents.
    pub part: SpoolPart,
}

impl SpoolFile {
    /// Returns the file with the input of a job.
    #[must_use]
    pub const fn input(job: JobId) -> Self {
        Self { job, part: SpoolPart::Input }
    }

    /// Returns the file with the output of a job.
    #[must_use]
    pub const fn output(job: JobId) -> Self {
        Self { job, part: SpoolPart::Output }
    }

    /// Returns the file with the log of a job.
    #[must_use]
    pub const fn log(job: JobId) -> Self {
        Self { job, part: SpoolPart::Log }
    }
}

/// A file that a manager finds when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// The file.
    pub file: SpoolFile,
    /// The length, in bytes.
    pub len: u64,
    /// True if the file has its final name.
    pub whole: bool,
}

/// The party that reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpoolReader {
    /// A job, named by its present number, which gets its input.
    Job(JobId),
    /// The client of a connection.
    Client(super::ConnId),
}

/// An order to the driver, which obeys all orders one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolOrder {
    /// Write bytes to a file that is not whole. Bytes at offset 0 begin the file. The report is
    /// [`Written`](SpoolReport::Written), for output once it is on the disk, or
    /// [`Failed`](SpoolReport::Failed).
    Append {
        /// The file.
        file: SpoolFile,
        /// The present number of the job, for the report.
        run: JobId,
        /// The position of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Give a file its final name once its bytes are on the disk; an empty one if there is none. The report
    /// is [`Whole`](SpoolReport::Whole) or [`Failed`](SpoolReport::Failed).
    Complete {
        /// The file.
        file: SpoolFile,
        /// The present number of the job, for the report.
        run: JobId,
    },
    /// Remove a file, whole or not. There is no report.
    Remove {
        /// The file.
        file: SpoolFile,
    },
    /// Read bytes of a file, whole or not. The report is [`Read`](SpoolReport::Read).
    Read {
        /// The file.
        file: SpoolFile,
        /// The reader.
        reader: SpoolReader,
        /// The position of the first byte.
        offset: u64,
        /// The number of bytes, all of which were written.
        len: usize,
    },
}

/// A report of the driver about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolReport {
    /// Bytes were written.
    Written {
        /// The file.
        file: SpoolFile,
        /// The number of the job in the order.
        run: JobId,
        /// The position behind the last byte.
        end: u64,
    },
    /// The file has its final name.
    Whole {
        /// The file.
        file: SpoolFile,
        /// The number of the job in the order.
        run: JobId,
    },
    /// The file could not be written.
    Failed {
        /// The file.
        file: SpoolFile,
        /// The number of the job in the order.
        run: JobId,
        /// The reason, for people.
        reason: Reason,
    },
    /// Bytes were read.
    Read {
        /// The reader.
        reader: SpoolReader,
        /// The position of the first byte.
        offset: u64,
        /// The bytes, as many as were ordered, or the reason why they cannot be read.
        bytes: Result<Vec<u8>, Reason>,
    },
}

/// The lengths of all files.
#[derive(Debug, Default)]
pub(super) struct SpoolFiles {
    lens: BTreeMap<SpoolFile, u64>,
    /// The sum of the lengths, in bytes.
    bytes: u64,
}

impl SpoolFiles {
    pub(super) fn new(found: &[FoundFile]) -> Self {
        let mut files = Self::default();
        found.iter().for_each(|found| files.set(found.file, found.len));
        files
    }

    pub(super) fn len(&self, file: SpoolFile) -> Option<u64> {
        self.lens.get(&file).copied()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn set(&mut self, file: SpoolFile, len: u64) {
        self.remove(file);
        self.lens.insert(file, len);
        self.bytes += len;
    }

    /// Returns true if there was the file.
    pub(super) fn remove(&mut self, file: SpoolFile) -> bool {
        let len = self.lens.remove(&file);
        self.bytes -= len.unwrap_or(0);
        len.is_some()
    }

    /// Returns all files.
    pub(super) fn all(&self) -> impl Iterator<Item = (SpoolFile, u64)> {
        self.lens.iter().map(|(file, len)| (*file, *len))
    }

    /// Returns the length of the files of a job, in bytes.
    pub(super) fn of_job(&self, job: JobId) -> u64 {
        let files = self.lens.range(SpoolFile::input(job)..).take_while(|(file, _)| file.job == job);
        files.map(|(_, len)| len).sum()
    }
}

/// A spool in memory, for tests and simulations.
#[derive(Clone, Debug, Default)]
pub struct MemorySpool {
    /// The files, each with its bytes, and true once it is whole.
    pub files: BTreeMap<SpoolFile, (Vec<u8>, bool)>,
    /// The reason for which nothing can be written at present.
    pub broken: Option<Reason>,
}

impl MemorySpool {
    /// Returns the files that a manager finds when it starts.
    #[must_use]
    pub fn found(&self) -> Vec<FoundFile> {
        let found = |(&file, (bytes, whole)): (&SpoolFile, &(Vec<u8>, bool))| FoundFile {
            file,
            len: bytes.len() as u64,
            whole: *whole,
        };
        self.files.iter().map(found).collect()
    }

    /// Obeys an order, and returns the report.
    pub fn obey(&mut self, order: SpoolOrder) -> Option<SpoolReport> {
        match order {
            SpoolOrder::Append { file, run, .. } | SpoolOrder::Complete { file, run }
                if self.broken.is_some() =>
            {
                let reason = self.broken.clone().unwrap_or_default();
                Some(SpoolReport::Failed { file, run, reason })
            }
            SpoolOrder::Append { file, run, offset, bytes } => {
                let kept = &mut self.files.entry(file).or_default().0;
                kept.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
                kept.extend(bytes);
                Some(SpoolReport::Written { file, run, end: kept.len() as u64 })
            }
            SpoolOrder::Complete { file, run } => {
                self.files.entry(file).or_default().1 = true;
                Some(SpoolReport::Whole { file, run })
            }
            SpoolOrder::Remove { file } => {
                self.files.remove(&file);
                None
            }
            SpoolOrder::Read { file, reader, offset, len } => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = self.files.get(&file).and_then(|(bytes, _)| bytes.get(from..)?.get(..len));
                let bytes = found.map(<[u8]>::to_vec).ok_or_else(|| "there are no such bytes".into());
                Some(SpoolReport::Read { reader, offset, bytes })
            }
        }
    }
}
