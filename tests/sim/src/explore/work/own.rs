//! Memory that belongs to one task: no other task changes it.

use super::stage::RW;
use super::worker::Worker;
use lite::{Lmr, Permissions};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

impl Worker {
    /// Uses a region of the task's own: fresh memory is zero, and keeps the written data until it is freed.
    pub(super) async fn own_region(&mut self) -> Option<()> {
        let timeout = self.timeout();
        if let Some((region, data)) = self.kept.take() {
            let mut got = vec![0; data.len()];
            let read = region.with_deadline(timeout);
            let result = self.run("read its own region again", timeout, read.read(0, &mut got)).await;
            if matches!(result, Some(Ok(()))) && got != data {
                self.violated("memory equals the model", "its own region has changed");
            }
            let reached = !matches!(result, Some(Err(_)));
            if self.random.one_in(2) && reached && !self.calm {
                self.kept = Some((region, data));
                return Some(());
            }
            let free = region.with_deadline(timeout).free();
            self.run("free it", timeout, free).await?.ok()?;
        }
        let home = self.anywhere();
        let on = format!("{home:?}");
        let lite = self.lite.with_deadline(timeout);
        let len = 1 + self.random.below(100_000) as usize;
        let alloc = lite.alloc(home, len as u64, RW);
        let region = self.run(format!("alloc {len} on {on}"), timeout, alloc).await?.ok()?;
        let mut got = vec![1; len];
        self.run("read fresh memory", timeout, region.read(0, &mut got)).await?.ok()?;
        if got.iter().any(|byte| *byte != 0) {
            self.violated("fresh memory is zero", format_args!("found bytes on {on}"));
        }
        let data = self.random.bytes(len);
        if self.random.one_in(2) {
            self.run("write to it", timeout, region.write(0, &data)).await?.ok()?;
            self.run("read it", timeout, region.read(0, &mut got)).await?.ok()?;
        } else {
            self.without_copies(&region, &data, &mut got).await?;
        }
        if got != data {
            self.violated("memory equals the model", format_args!("its own region on {on}"));
        }
        self.kept = Some((region, data));
        Some(())
    }

    /// Writes `data` to a region from memory of the task's own, and reads it into such memory and to `got`.
    async fn without_copies(&mut self, region: &Lmr, data: &[u8], got: &mut [u8]) -> Option<()> {
        let timeout = self.timeout();
        let (lite, len) = (self.lite.with_deadline(timeout), data.len() as u64);
        let region = region.with_deadline(timeout);
        let cut = self.random.below(len + 1);
        let halves = [0..cut, cut..len];
        let lists = self.random.one_in(2);
        let mut memory = if lists {
            let mut pages = self.lite.platform().memory().pages(data.len())?;
            pages.copy_from_slice(data);
            self.run("turn pages into memory to write from", timeout, lite.own_pages(pages)).await?.ok()?
        } else {
            let take = lite.local_memory(len);
            let mut memory = self.run("take memory to write from", timeout, take).await?.ok()?;
            memory.write(0, data).ok()?;
            memory
        };
        let wrote = if lists {
            self.run("write halves", timeout, region.write_gathered(0, &memory, &halves)).await?
        } else {
            self.run("write a range", timeout, region.write_from(0, &memory, 0..len)).await?
        };
        let settled = {
            let mut settled = pin!(memory.settled());
            poll_fn(|cx| Poll::Ready(settled.as_mut().poll(cx).is_ready())).await
        };
        let changed = memory.write(0, &vec![0; data.len()]);
        if settled != changed.is_ok() || (wrote.is_ok() && !settled) {
            let seen = format_args!("{wrote:?}, settled: {settled}, {changed:?}");
            self.violated("an operation that has ended uses no memory", seen);
        }
        wrote.ok()?;
        if lists {
            self.run("read halves", timeout, region.read_scattered(0, &mut memory, &halves)).await?.ok()?;
        } else {
            self.run("read a range", timeout, region.read_to(0, &mut memory, 0..len)).await?.ok()?;
        }
        memory.read(0, got).ok()
    }

    /// Checks that the private memory of the task has not changed.
    pub(super) fn look_at_private(&self) {
        let Some((memory, data)) = &self.private else { return };
        let mut got = vec![0; data.len()];
        if memory.read(0, &mut got).is_err() || got != *data {
            let at = got.iter().zip(data).position(|(got, data)| got != data);
            self.violated("private memory is private", format_args!("byte {at:?} has changed"));
        }
    }

    /// Uses memory of its node that no other node reaches, and may make it a region.
    pub(super) async fn private_memory(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        if let Some((memory, data)) = self.private.take() {
            if self.random.one_in(2) {
                return Some(());
            }
            let register = lite.register_memory(memory, Permissions::READ);
            let region = self.run("register its memory", timeout, register).await?.ok()?;
            let mut got = vec![0; data.len()];
            self.run("read what it registered", timeout, region.read(0, &mut got)).await?.ok()?;
            if got != data {
                self.violated("memory equals the model", "what it registered has changed");
            }
            return self.run("free what it registered", timeout, region.free()).await?.ok();
        }
        let len = 1 + self.random.below(50_000) as usize;
        let take = lite.local_memory(len as u64);
        let mut memory = self.run(format!("take {len} bytes"), timeout, take).await?.ok()?;
        let mut data = vec![1; len];
        let read = memory.read(0, &mut data);
        if read.is_err()
            || memory.len() != len as u64
            || memory.is_empty()
            || data.iter().any(|byte| *byte != 0)
        {
            self.violated("fresh memory is zero", format_args!("{len} bytes of its node: {read:?}"));
        }
        let beyond = memory.write(len as u64, &[1]);
        if beyond != Err(lite::Error::OutOfBounds) {
            self.violated("rights and bounds hold", format_args!("a write beyond local memory: {beyond:?}"));
        }
        data = self.random.bytes(len);
        memory.write(0, &data).ok()?;
        self.private = Some((memory, data));
        Some(())
    }
}
