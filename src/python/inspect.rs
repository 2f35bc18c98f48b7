//! What is not as it should be, for Python.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;

use super::detached::detached;
use super::name::FsName;
use crate::inspect;
use crate::wait::locked;

/// What was found in a queue's directory.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Inspection(pub(super) Mutex<inspect::Inspection>);

#[pymethods]
impl Inspection {
    /// `apart`: how many seconds there must be between the looks that show that a job is gone.
    #[new]
    #[pyo3(signature = (base, apart = 10.0))]
    fn new(py: Python<'_>, base: PathBuf, apart: f64) -> PyResult<Self> {
        let found = detached(py, || inspect::Inspection::begin(base))?;
        Ok(Self(Mutex::new(found.looks_apart(Duration::from_secs_f64(apart)))))
    }

    fn look_again(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detached(py, || locked(&self.0).look_again())?)
    }

    /// What kind of thing each is, where it is, what was seen; whether that is a mere note, and whether it can be repaired.
    fn findings(&self) -> Vec<(&'static str, FsName, String, bool, bool)> {
        let found = locked(&self.0);
        let rows = found.findings().iter().map(|finding| {
            let (fault, path) = (finding.fault, finding.path.as_path().into());
            (fault.name(), path, finding.what.clone(), fault.is_note(), fault.is_repairable())
        });
        rows.collect()
    }

    #[getter]
    fn more(&self) -> usize {
        locked(&self.0).more()
    }

    #[getter]
    fn jobs(&self) -> usize {
        locked(&self.0).jobs()
    }

    /// In seconds.
    #[getter]
    fn rest(&self) -> f64 {
        locked(&self.0).rest().as_secs_f64()
    }
}
