//! [`Pages`]: large memory of a program's own, as a slice.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// A run of bytes that nobody but its owner accesses.
pub trait OwnRun: AsRef<[u8]> + AsMut<[u8]> + Any + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Any + Send + Sync> OwnRun for T {}

/// Memory of a program's own, as a slice, which the platform gets back when this is dropped.
///
/// An appliance's heap never becomes smaller: a large array that is allocated there takes memory from all
/// later jobs. Pages come from the allocator of frames and return to it.
///
/// [`Lent`](crate::Lent) memory is the opposite: devices and peers may change it at any time, so there is no
/// slice of it. Pages become lent memory, in place, only when their owner gives them up:
/// [`Memory::lend_pages`](crate::Memory::lend_pages).
///
/// ```
/// use platform::{Arena, IoAddr, Memory};
///
/// let memory = Arena::new(IoAddr(0), 1 << 20);
/// let mut table = memory.pages(100_000).expect("enough memory");
/// assert!(table.iter().all(|byte| *byte == 0));
/// table[99_999] = 7;
/// assert_eq!(table.len(), 100_000);
/// ```
pub struct Pages(Box<dyn OwnRun>);

impl Pages {
    /// Returns pages over a run of a platform.
    #[must_use]
    pub fn new(run: impl OwnRun + 'static) -> Self {
        Self(Box::new(run))
    }

    /// Returns the run of the platform, if it is a `T`.
    ///
    /// # Errors
    /// The pages themselves, if their run is another one.
    pub fn into_run<T: OwnRun + 'static>(self) -> Result<Box<T>, Self> {
        let run: &dyn Any = &*self.0;
        if !run.is::<T>() {
            return Err(self);
        }
        let run: Box<dyn Any> = self.0;
        run.downcast().map_err(|_| unreachable!("the run is a `T`"))
    }

    /// Returns `len` zeroed bytes of the heap, or `None` if there are too few. This suits platforms whose
    /// heap gives memory back.
    #[must_use]
    pub fn on_heap(len: usize) -> Option<Self> {
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        Some(Self::new(bytes))
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        (*self.0).as_mut()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of pages", self.len())
    }
}
