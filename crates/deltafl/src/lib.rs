//! Federated learning for devices that differ (Δ-FL).

pub mod superquantile;
