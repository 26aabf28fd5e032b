//! Parquet files without Arrow: [`columns`] reads the values of any file, [`table`] writes and
//! reads flat tables.

pub(crate) mod batch;
pub(crate) mod columns;
mod pages;
pub mod table;
