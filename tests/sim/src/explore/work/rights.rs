//! Rights that are granted and revoked, and all other operations of a region's master.

use super::stage::{SECRET, Thing};
use super::worker::{Ended, Worker, is_unsure};
use crate::explore::check::{Act, Cell, End};
use lite::{Error, Grantee, Lmr, NodeId, Permissions};

const WRITE: Permissions = Permissions::WRITE;

impl Worker {
    /// Uses a region whose master grants and revokes the right to write, or grants and revokes it as its
    /// master.
    pub(super) async fn rights(&mut self) -> Option<()> {
        if !self.owned_gates.is_empty() && self.random.one_in(2) {
            let pick = self.random.below(self.owned_gates.len() as u64) as usize;
            let (n, gate) = self.owned_gates[pick].clone();
            return self.change_right(n, &gate).await;
        }
        // A master has all rights, and a replacement is another incarnation with rights of its own.
        let n = self.shared();
        if self.node > self.initial || self.owned_gates.iter().any(|(own, _)| *own == n) {
            return None;
        }
        self.use_right(n).await
    }

    async fn change_right(&mut self, n: usize, gate: &Lmr) -> Option<()> {
        let timeout = self.timeout();
        let gate = gate.with_deadline(timeout);
        let whom = NodeId(1 + self.random.below(self.initial as u64) as u16);
        if whom == self.lite.node_id() {
            return None;
        }
        let grants = self.random.one_in(2);
        let changes = [Cell::Right(n, whom), Cell::Use(n, whom)];
        let changes = changes.map(|cell| self.check.word(self.member(), cell, Act::Write(u64::from(grants))));
        let result = if grants {
            self.run(format!("grant {whom} writes to gate {n}"), timeout, gate.grant(whom, WRITE)).await
        } else {
            self.run(format!("revoke them of {whom}"), timeout, gate.revoke(Grantee::Node(whom), WRITE)).await
        };
        // An operation of unknown outcome continues.
        let end = match &result {
            Some(Ok(())) => End::Done,
            None | Some(Err(Error::Deadline)) => End::Asked,
            Some(Err(error)) if is_unsure(error) => End::Asked,
            Some(Err(_)) => End::Never,
        };
        for change in changes {
            self.check.word_ended(change, end);
        }
        result?.ok()
    }

    async fn use_right(&mut self, n: usize) -> Option<()> {
        let timeout = self.timeout();
        let (me, member) = (self.lite.node_id(), self.member());
        if let Some(gate) = self.gates[n].clone() {
            // A mapping that was made with the right has it until it is revoked.
            let op = self.check.word(member, Cell::Use(n, me), Act::Read);
            let write = gate.with_deadline(timeout);
            let result = self.attempt(format!("write to gate {n}"), timeout, write.write(0, &[1; 8])).await;
            self.check.word_ended(op, if matches!(result, Some(Ok(()))) { End::Saw(1) } else { End::Never });
            if !matches!(result, Some(Ok(()))) {
                self.gates[n] = None;
            }
            return result?.ok();
        }
        let (name, lite) = (format!("gate-{n}"), self.lite.with_deadline(timeout));
        let op = self.check.word(member, Cell::Right(n, me), Act::Read);
        let map = async { lite.map(&name, WRITE).await };
        let mapped = self.attempt(format!("map {name} to write"), timeout, map).await;
        let end = match &mapped {
            Some(Ok(_)) => End::Saw(1),
            Some(Err(Error::Permission)) => End::Saw(0),
            _ => End::Never,
        };
        self.check.word_ended(op, end);
        match mapped? {
            Ok(gate) => self.gates[n] = Some(gate),
            Err(Error::Permission) => self.check.sometimes("a right was refused"),
            Err(_) => return None,
        }
        Some(())
    }

    /// Takes a region of the task's own through all operations of a master, to the end of the region.
    pub(super) async fn admin(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        let (home, id) = (self.anyone(), self.fresh());
        let len = 8 * (1 + self.random.below(1000));
        let rights = Permissions::READ | Permissions::SHARE;
        let region = self.run("alloc to administer", timeout, lite.alloc(home, len, rights)).await?.ok()?;
        self.keep(&region);
        let shares: u64 = region.shares().iter().map(|(_, bytes)| bytes).sum();
        // Its owner and node may have passed it on already.
        let is_as_made = (region.len(), region.is_empty(), shares) == (len, false, len)
            && region.permissions().contains(Permissions::ADMIN);
        if !is_as_made {
            self.violated("memory equals the model", format_args!("a region of {len} on {home}: {region:?}"));
        }
        let name = format!("own-{id:x}");
        self.run(format!("publish {name}"), timeout, region.publish(&name)).await?.ok()?;
        let wait = async { lite.map_wait(&name, Permissions::READ).await };
        self.run(format!("wait for {name}"), timeout, wait).await?.ok()?;
        self.run("set a secret", timeout, region.set_secret(SECRET)).await?.ok()?;
        let guess = async { lite.map_secret(&name, Permissions::READ, b"guess").await };
        let guessed = self.attempt("map by a wrong secret", timeout, guess).await;
        self.must_fail("a wrong secret", guessed);
        let know = async { lite.map_secret(&name, Permissions::READ, SECRET).await };
        self.run("map by the secret", timeout, know).await?.ok()?;
        let other = self.anyone();
        self.outlives(Thing::Handed(name.clone()));
        self.run(format!("hand it over to {other}"), timeout, region.hand_over(other)).await?.ok()?;
        let unpublished = self.run(format!("unpublish {name}"), timeout, lite.unpublish(&name)).await;
        if matches!(unpublished, Some(Ok(()))) {
            let map = async { lite.map_secret(&name, Permissions::READ, SECRET).await };
            let mapped = self.attempt(format!("map {name}, which is no more"), timeout, map).await;
            self.must_fail("a name that is no more", mapped);
        }
        let free = region.with_deadline(timeout).free();
        self.run(format!("free {name}"), timeout, free).await?.ok()?;
        let read = region.read(0, &mut [0; 8]).await;
        if read.is_ok() {
            self.violated("rights and bounds hold", "a read of a freed region");
        }
        Some(())
    }

    fn must_fail<T>(&self, what: &str, result: Ended<T>) {
        if matches!(result, Some(Ok(_))) {
            self.violated("rights and bounds hold", format_args!("{what} was accepted"));
        }
    }
}
