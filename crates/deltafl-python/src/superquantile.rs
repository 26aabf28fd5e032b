//! The superquantile as a function of losses.

use deltafl::superquantile::mixture::Mixture;
use deltafl::superquantile::smooth::Smoothing;
use deltafl::superquantile::{Conformity, DeviceLoss};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::failure::invalid;

/// Losses with their weights, and θ.
struct Losses {
    theta: Conformity,
    losses: Vec<DeviceLoss>,
}

impl Losses {
    fn new(
        py: Python<'_>,
        losses: &PyReadonlyArray1<'_, f64>,
        theta: f64,
        weights: Option<&PyReadonlyArray1<'_, f64>>,
    ) -> PyResult<Self> {
        let losses = losses.as_array();
        let weights = weights.map(|weights| weights.as_array());
        if weights.as_ref().is_some_and(|weights| weights.len() != losses.len()) {
            let got = weights.map_or(0, |weights| weights.len());
            return Err(invalid(py, format!("{} losses and {got} weights", losses.len())));
        }
        if losses.is_empty() {
            return Err(invalid(py, "there are no losses"));
        }
        let weight = |i: usize| weights.as_ref().map_or(1.0, |weights| weights[i]);
        let devices = losses.iter().enumerate().map(|(i, &loss)| {
            DeviceLoss::new(loss, weight(i)).map_err(|e| invalid(py, format!("entry {i}: {e}")))
        });
        Ok(Self {
            theta: Conformity::try_from(theta).map_err(|e| invalid(py, e))?,
            losses: devices.collect::<PyResult<_>>()?,
        })
    }
}

fn smoothing(py: Python<'_>, nu: f64) -> PyResult<Smoothing> {
    Smoothing::try_from(nu).map_err(|e| invalid(py, e))
}

/// Returns Q(θ).
#[pyfunction]
pub(crate) fn quantile(
    py: Python<'_>,
    losses: PyReadonlyArray1<'_, f64>,
    theta: f64,
    weights: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<f64> {
    let Losses { theta, losses } = Losses::new(py, &losses, theta, weights.as_ref())?;
    Ok(deltafl::superquantile::quantile(theta, &losses).unwrap_or(f64::NAN))
}

/// Returns S(θ).
#[pyfunction]
pub(crate) fn superquantile(
    py: Python<'_>,
    losses: PyReadonlyArray1<'_, f64>,
    theta: f64,
    weights: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<f64> {
    let Losses { theta, losses } = Losses::new(py, &losses, theta, weights.as_ref())?;
    Ok(deltafl::superquantile::superquantile(theta, &losses).unwrap_or(f64::NAN))
}

/// Returns S_ν(θ).
#[pyfunction]
pub(crate) fn smoothed(
    py: Python<'_>,
    losses: PyReadonlyArray1<'_, f64>,
    theta: f64,
    nu: f64,
    weights: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<f64> {
    let Losses { theta, losses } = Losses::new(py, &losses, theta, weights.as_ref())?;
    Ok(smoothing(py, nu)?.superquantile(theta, &losses).unwrap_or(f64::NAN))
}

/// Returns the mixture of P_θ with the greatest loss.
#[pyfunction]
pub(crate) fn worst_case<'py>(
    py: Python<'py>,
    losses: PyReadonlyArray1<'py, f64>,
    theta: f64,
    weights: Option<PyReadonlyArray1<'py, f64>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let Losses { theta, losses } = Losses::new(py, &losses, theta, weights.as_ref())?;
    shares(py, Mixture::worst_case(theta, &losses))
}

/// Returns the gradient of S_ν(θ) with respect to the losses, which is a mixture.
#[pyfunction]
pub(crate) fn smoothed_mixture<'py>(
    py: Python<'py>,
    losses: PyReadonlyArray1<'py, f64>,
    theta: f64,
    nu: f64,
    weights: Option<PyReadonlyArray1<'py, f64>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let Losses { theta, losses } = Losses::new(py, &losses, theta, weights.as_ref())?;
    shares(py, smoothing(py, nu)?.mixture(theta, &losses))
}

fn shares(py: Python<'_>, mixture: Option<Mixture>) -> PyResult<Bound<'_, PyArray1<f64>>> {
    let mixture = mixture.ok_or_else(|| invalid(py, "there is no such mixture: is ν lost in the losses?"))?;
    Ok(PyArray1::from_slice(py, mixture.shares()))
}
