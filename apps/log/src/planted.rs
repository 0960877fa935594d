//! Bugs that can be put into the log to see that the simulation finds them. They exist in debug builds with
//! the feature `testing` only.
//!
//! Each breaks one safety argument of `docs/design/log.md`.

platform::bugs! {
    /// Holes of a writer that has died are filled although its late writes are not refused everywhere yet.
    FillUnsettled = "fill-unsettled",
    /// The check of a frame does not cover its position.
    CheckWithoutPosition = "check-without-position",
    /// The low mark of a writer forgets reservations whose fetch-add has not been answered.
    MarkForgetsReservations = "mark-forgets-reservations",
    /// The memory of a truncated segment becomes the next segment.
    SegmentReused = "segment-reused",
}
