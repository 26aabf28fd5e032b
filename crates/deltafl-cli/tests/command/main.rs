//! The command, as a person and a script meet it. One program holds all of its tests, so that they share the cores: many of
//! them wait for processes, for a browser or for a moment to kill something.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cluster;
mod compute;
mod data;
mod deploy;
mod experiments;
mod federation;
mod operations;
mod report;
mod run;
mod support;
#[path = "../../../deltafl-server/tests/field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;
