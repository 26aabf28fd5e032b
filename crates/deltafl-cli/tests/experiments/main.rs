//! Sweeps, tuning, the paper's experiments and the dashboard, as a person and a script meet them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod dashboard;
mod evaluate;
mod interrupts;
mod paper;
mod reference;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
mod tune;
mod workdir;
