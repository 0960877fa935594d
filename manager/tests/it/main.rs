//! The manager: its core event by event, and the daemon as a process.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod access;
mod backup;
mod capture;
mod command_line;
mod configuration;
mod core_cancel;
mod core_credit;
mod core_datasets;
mod core_jobs;
mod core_limits;
mod core_machine;
mod core_members;
mod core_rollout;
mod core_service;
mod core_telemetry;
mod core_time;
mod core_versions;
mod cut;
mod daemon;
mod daemon_life;
mod disk;
mod herd;
mod http;
mod many;
mod queues;
mod resume;
mod roles;
mod scale;
mod shell;
mod strangers;
mod support;
mod syncs;
mod tls;
mod users;
mod web;
