//! The lock of LITE's tables: `spin`'s. In debug builds with the feature `testing` it calls a hook when it
//! is taken, so that a test which runs the work of several processors in one thread can switch between them
//! there, also while a lock is held. It also records the core that takes it.

#[cfg(not(all(feature = "testing", debug_assertions)))]
pub(crate) use spin::Mutex;

#[cfg(all(feature = "testing", debug_assertions))]
pub(crate) use told::Mutex;
#[cfg(all(feature = "testing", debug_assertions))]
pub use told::on_lock;

#[cfg(all(feature = "testing", debug_assertions))]
mod told {
    use crate::base::writers::Writer;
    use spin::{MutexGuard, Once};

    static HOOK: Once<fn()> = Once::new();

    /// Calls `hook` before each attempt of this process to take one of LITE's locks. Only the first call
    /// has an effect.
    pub fn on_lock(hook: fn()) {
        HOOK.call_once(|| hook);
    }

    fn tell() {
        if let Some(hook) = HOOK.get() {
            hook();
        }
    }

    /// The equivalent of `spin`'s lock.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(spin::Mutex<T>, Writer);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(spin::Mutex::new(value), Writer::new())
        }

        #[track_caller]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            loop {
                tell();
                if let Some(guard) = self.0.try_lock() {
                    self.1.wrote();
                    return guard;
                }
                core::hint::spin_loop();
            }
        }

        #[track_caller]
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            tell();
            let guard = self.0.try_lock()?;
            self.1.wrote();
            Some(guard)
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }
}
