//! Tests of sweeps, tuning, the paper's experiments and the dashboard.

mod dashboard;
mod evaluate;
mod field;
mod interrupts;
mod paper;
mod reference;
mod sweep;
mod tune;
mod workdir;
