//! Regions that one task lends to all tasks, and frees while they use it. Nobody judges their content: a
//! write that comes after the end shows in free memory, or in memory that must be zero.

use super::stage::RW;
use super::worker::Worker;
use crate::explore::subject::Subject;
use lite::{Error, Permissions, Placement};

/// The length of a region that is lent, in bytes.
const LENGTH: usize = 20_000;
/// The bytes on the first node before the first on the second one, in a region on two nodes.
const STRIPE: u64 = 8000;

impl Worker {
    /// Lends a region, ends one, or uses that of another task.
    pub(super) async fn pool(&mut self) -> Option<()> {
        match self.pooled.take() {
            Some((n, region)) if self.calm || self.random.one_in(2) => {
                let timeout = self.timeout();
                let free = region.with_deadline(timeout).free();
                self.run(format!("end loan {n}"), timeout, free).await?.ok()
            }
            None if self.calm || self.random.one_in(4) => self.lend().await,
            lent => {
                self.pooled = lent;
                self.borrow().await
            }
        }
    }

    async fn lend(&mut self) -> Option<()> {
        let (n, timeout, mut home) = (self.shared(), self.timeout(), self.anywhere());
        let (a, b) = (self.anyone(), self.anyone());
        if a != b && (self.subject == Subject::Orphans || self.random.one_in(2)) {
            home = Placement::Striped { nodes: vec![a, b], stripe: STRIPE };
        }
        let lite = self.lite.with_deadline(timeout);
        let rights = RW | Permissions::SHARE;
        let what = format!("alloc loan {n} on {home:?}");
        let region = self.run(what, timeout, lite.alloc(home, LENGTH as u64, rights)).await?.ok()?;
        let mut got = vec![1; LENGTH];
        self.run("read fresh memory", timeout, region.read(0, &mut got)).await?.ok()?;
        if got.iter().any(|byte| *byte != 0) {
            self.violated("fresh memory is zero", format_args!("found bytes in loan {n}"));
        }
        self.keep(&region);
        let name = format!("loan-{n}");
        self.run(format!("publish {name}"), timeout, region.publish(&name)).await?.ok()?;
        self.pooled = Some((n, region));
        Some(())
    }

    async fn borrow(&mut self) -> Option<()> {
        let (n, timeout) = (self.shared(), self.timeout());
        if self.borrowed[n].is_none() {
            let (name, lite) = (format!("loan-{n}"), self.lite.with_deadline(timeout));
            let map = async { lite.map(&name, RW).await };
            self.borrowed[n] = Some(self.run(format!("map {name}"), timeout, map).await?.ok()?);
        }
        let region = self.borrowed[n].clone()?;
        let (mut at, mut most) = (self.random.below(LENGTH as u64 / 2), LENGTH as u64 / 2);
        if self.subject == Subject::Orphans {
            // The bytes are not on the node of the owner.
            (at, most) = (STRIPE + self.random.below(STRIPE / 2), STRIPE / 2);
        }
        let len = 1 + self.random.below(most);
        let data = self.random.bytes(len as usize);
        let timeout = self.timeout();
        let write = region.with_deadline(timeout);
        let what = format!("write {} at {at} of loan {n}", data.len());
        let result = self.run(what, timeout, write.write(at, &data)).await;
        if let Some(Err(Error::Freed | Error::NodeDown(_))) = result {
            self.borrowed[n] = None;
        }
        result?.ok()
    }
}
