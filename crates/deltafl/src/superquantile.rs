//! The superquantile of the device losses.
