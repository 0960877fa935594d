//! Control messages and the Noise channel, byte for byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod channel;
mod enrolment;
mod messages;
mod user_channel;
mod version9;
