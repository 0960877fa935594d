//! Bugs that can be planted, so that a test sees whether it would find them.

/// Defines the bugs that can be planted in a crate: the enumeration `Bug`, the function `plant`, and the
/// function `planted`, which the crate asks where a bug would change what it does.
///
/// A module of its own invokes it with the comment, the identifier and the name of each bug. Only debug
/// builds with the invoking crate's feature `testing` contain the bugs; in others `planted` is a constant. A
/// process has at most one bug of a crate. The crate exports `Bug` and `plant` in such debug builds only.
///
/// ```ignore
/// platform::bugs! {
///     /// An acknowledgement gets lost.
///     LostAck = "lost-ack",
/// }
/// ```
#[macro_export]
macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal,)+) => {
        /// A defect that can be planted.
        #[cfg_attr(
            not(all(feature = "testing", debug_assertions)),
            expect(unreachable_pub, reason = "only `testing` re-exports it")
        )]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        #[cfg(all(feature = "testing", debug_assertions))]
        impl Bug {
            /// All bugs.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// Returns the name, as an operator types it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }

        /// The planted bug as a number, or `u8::MAX` if there is none.
        #[cfg(all(feature = "testing", debug_assertions))]
        static PLANTED: ::core::sync::atomic::AtomicU8 = ::core::sync::atomic::AtomicU8::new(u8::MAX);

        /// Plants the bug in the whole process.
        #[cfg(all(feature = "testing", debug_assertions))]
        pub fn plant(bug: Bug) {
            PLANTED.store(bug as u8, ::core::sync::atomic::Ordering::Relaxed);
        }

        /// Returns true if the bug has been planted.
        #[cfg(all(feature = "testing", debug_assertions))]
        pub(crate) fn planted(bug: Bug) -> bool {
            PLANTED.load(::core::sync::atomic::Ordering::Relaxed) == bug as u8
        }

        /// Returns false: this build contains no bugs.
        #[cfg(not(all(feature = "testing", debug_assertions)))]
        pub(crate) const fn planted(_: Bug) -> bool {
            false
        }
    };
}
