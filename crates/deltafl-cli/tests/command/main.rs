//! Tests of the command. They share one program and therefore the cores, because many of them wait
//! for processes, a browser or a moment to kill a process.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cluster;
mod compute;
mod data;
mod deploy;
mod experiments;
mod federation;
mod operations;
mod own_data;
mod privacy;
mod report;
mod run;
mod stacks;
mod support;
#[path = "../../../deltafl-server/tests/field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;
