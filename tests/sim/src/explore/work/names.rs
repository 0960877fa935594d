//! Names: each is bound to one region at a time, until it is unbound or its region ends.

use super::stage::EACH;
use super::worker::{Ended, Named, Worker, is_unsure};
use crate::explore::check::{Act, Cell, End};
use lite::{Error, Permissions};

/// Returns the end of a request to bind or unbind. A name that is taken belongs to another task.
fn bound(result: &Ended<()>, before: u64) -> End {
    match result {
        Some(Ok(())) => End::Saw(before),
        None | Some(Err(Error::Deadline)) => End::Asked,
        Some(Err(error)) if is_unsure(error) => End::Asked,
        Some(Err(_)) => End::Never,
    }
}

impl Worker {
    /// Binds a name that other tasks want too, finds out its owner, or unbinds it.
    pub(super) async fn name(&mut self) -> Option<()> {
        match self.named.take() {
            Some(named) => self.unbind(named).await,
            None if self.calm => {
                for n in 0..EACH {
                    self.find(n).await;
                }
                self.bind().await
            }
            None if self.random.one_in(2) => self.bind().await,
            None => {
                let n = self.random.below(EACH as u64) as usize;
                self.find(n).await
            }
        }
    }

    async fn bind(&mut self) -> Option<()> {
        let n = self.random.below(EACH as u64) as usize;
        let (id, timeout) = (self.fresh(), self.timeout());
        let lite = self.lite.with_deadline(timeout);
        let home = self.anyone();
        let rights = Permissions::READ | Permissions::SHARE;
        let region = self.run("alloc for a name", timeout, lite.alloc(home, 8, rights)).await?.ok()?;
        self.run("write its number", timeout, region.write(0, &id.to_le_bytes())).await?.ok()?;
        self.keep(&region);
        let op = self.check.word(self.member(), Cell::Name(n), Act::Swap(0, id));
        // The task may die before it learns the result.
        self.check.bound(n, self.member(), home, id);
        let name = format!("name-{n}");
        let result = self.run(format!("bind {name} to {id:#x}"), timeout, region.publish(&name)).await;
        if let Some(Err(Error::NameTaken)) = result {
            self.check.word_ended(op, End::Taken);
            self.check.sometimes("a name was taken");
            return None;
        }
        self.check.word_ended(op, bound(&result, 0));
        self.named = Some(Named { name: n, id, region });
        result?.ok()
    }

    async fn unbind(&mut self, Named { name: n, id, region }: Named) -> Option<()> {
        let timeout = self.timeout();
        let (name, lite) = (format!("name-{n}"), self.lite.with_deadline(timeout));
        // By name, this unbinds whatever the node has bound to the name by now. With the region, it unbinds
        // only that region's binding, if it still exists.
        let by_name = self.random.one_in(2);
        let act = if by_name { Act::Write(0) } else { Act::Swap(id, 0) };
        let op = self.check.word(self.member(), Cell::Name(n), act);
        let result = if by_name {
            self.attempt(format!("unbind {name} of {id:#x}"), timeout, lite.unpublish(&name)).await
        } else {
            let free = region.with_deadline(timeout).free();
            self.run(format!("free {id:#x}, which is {name}"), timeout, free).await
        };
        let end = match bound(&result, id) {
            End::Saw(_) => End::Done,
            // A free that has begun continues, even if its result is lost.
            End::Never if !by_name => End::Asked,
            other => other,
        };
        self.check.word_ended(op, end);
        result?.ok()
    }

    async fn find(&mut self, n: usize) -> Option<()> {
        let timeout = self.timeout();
        let (name, lite) = (format!("name-{n}"), self.lite.with_deadline(timeout));
        let op = self.check.word(self.member(), Cell::Name(n), Act::Read);
        let map = async { lite.map(&name, Permissions::READ).await };
        let mapped = self.attempt(format!("map {name}"), timeout, map).await;
        let mut id = [0; 8];
        let end = match &mapped {
            Some(Err(Error::NoSuchName)) => End::Saw(0),
            Some(Ok(region)) => match self.run("read whose it is", timeout, region.read(0, &mut id)).await {
                Some(Ok(())) => End::Saw(u64::from_le_bytes(id)),
                _ => End::Never,
            },
            _ => End::Never,
        };
        self.check.word_ended(op, end);
        if let (Some(Err(Error::NodeDown(home))), true) = (&mapped, self.calm) {
            self.violated("a name ends with its owner", format_args!("{name} of {home}"));
        }
        (end != End::Never).then_some(())
    }
}
