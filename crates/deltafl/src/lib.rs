//! Federated learning for devices that differ (Δ-FL).

pub mod algorithm;
pub mod data;
pub mod kernel;
pub mod model;
pub mod stream;
pub mod superquantile;
