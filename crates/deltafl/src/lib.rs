//! Federated learning for devices that differ (Δ-FL).

pub mod algorithm;
pub mod illustration;
pub mod superquantile;
