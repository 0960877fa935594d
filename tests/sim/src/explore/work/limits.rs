//! Applications with limits, and priorities.

use super::stage::RW;
use super::worker::Worker;
use lite::{App, Error, Limits, Priority, Scheme};

impl Worker {
    /// Checks that an application can allocate up to its limit and no more, and that its account is right.
    pub(super) async fn limits(&mut self) -> Option<()> {
        const MOST: u64 = 10_000;
        let timeout = self.timeout();
        let scheme = self.random.pick(&[Scheme::None, Scheme::HwSep, Scheme::SW_PRI]);
        self.lite.configure_qos(scheme);
        let priority = self.random.pick(&[Priority::Low, Priority::Normal, Priority::High]);
        let app = App::new("limited", Limits { outstanding: Some(2), ..Limits::default() });
        app.set_limits(Limits { memory: Some(MOST), outstanding: Some(2), ..Limits::default() });
        let lite = self.lite.with_deadline(timeout).with_priority(priority).for_app(&app);
        let home = self.anyone();
        let beyond = lite.alloc(home, MOST + 1, RW).await.map(drop);
        if beyond != (Err(Error::NoMemory { asked: MOST + 1, free: MOST })) {
            self.violated("limits hold", format_args!("{} had too much: {beyond:?}", app.name()));
        }
        let region = self.run("alloc within limits", timeout, lite.alloc(home, MOST, RW)).await?.ok()?;
        if app.usage().memory != MOST {
            self.violated("limits hold", format_args!("{:?} with {MOST} bytes", app.usage()));
        }
        let data = self.random.bytes(100);
        let write = region.with_priority(Priority::High);
        let written = self.run("write within limits", timeout, write.write(8, &data)).await;
        drop(write);
        drop(region);
        let usage = app.usage();
        if (usage.memory, usage.outstanding) != (0, 0) {
            self.violated("limits hold", format_args!("{usage:?} with nothing"));
        }
        written?.ok()
    }
}
