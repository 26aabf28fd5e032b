//! Federated learning for devices that differ (Δ-FL).

// Our tests compare floats for the same bits: that is the promise.
#![cfg_attr(test, allow(clippy::float_cmp))]

pub mod algorithm;
pub mod cohort;
pub mod data;
pub mod device;
pub mod engine;
pub mod experiment;
pub mod illustration;
pub mod kernel;
pub mod metrics;
pub mod model;
pub mod params;
pub mod run_folder;
pub mod stream;
pub mod superquantile;
pub mod training;
