//! Copies between regions: from a region of the task's own, whose bytes it knows, to its part of a shared
//! one.

use super::memory::asked;
use super::worker::Worker;
use crate::explore::check::WriteEnd;
use lite::Error;

impl Worker {
    pub(super) async fn copy(&mut self) -> Option<()> {
        let n = self.shared();
        let target = self.region(n).await?;
        let (kept, bytes) = self.kept.clone()?;
        let timeout = self.timeout();
        let kept = kept.with_deadline(timeout);
        let (at, len) = self.range();
        let len = len.min(bytes.len());
        let from = self.random.below((bytes.len() - len) as u64 + 1) as usize;
        let offset = self.offset(at);
        let id = self.check.writes(self.member(), n, self.number, at, &bytes[from..from + len]);
        let what = format!("copy {len} to {offset} of region {n}");
        let (from, len) = (from as u64, len as u64);
        let result = if self.random.one_in(2) {
            self.run(what, timeout, kept.memcpy(from, &target, offset, len)).await
        } else {
            self.run(what, timeout, kept.memmove(from, &target, offset, len)).await
        };
        // After any error some of the bytes may have been copied.
        let end = match asked(&result) {
            WriteEnd::Never => WriteEnd::Asked,
            other => other,
        };
        self.check.wrote(n, self.number, id, end);
        if let Some(Err(Error::NodeDown(_) | Error::Freed)) = result {
            self.kept = None;
        }
        result?.ok()
    }
}
