//! Sweeps, tuning, the paper's experiments and the dashboard, as a person and a script meet them.

mod dashboard;
mod evaluate;
mod interrupts;
mod paper;
mod reference;
mod sweep;
mod tune;
mod workdir;
