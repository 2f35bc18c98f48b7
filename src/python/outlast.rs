//! Waiting to the end, whatever signals come.

use pyo3::prelude::*;

/// Calls `begin`, then `wait` until that returns true. To be called in the main thread.
///
/// What a signal's handler raises does not end this wait, as it would end one in Python, anywhere, also in a `finally`. It
/// is handed to `raised`; so is what is raised in the middle of that call.
#[pyfunction]
pub(super) fn outlast(
    py: Python<'_>,
    begin: &Bound<'_, PyAny>,
    wait: &Bound<'_, PyAny>,
    raised: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let generation = crate::fork::generation();
    begin.call0()?;
    loop {
        let mut error = match wait.call0().and_then(|is_over| is_over.is_truthy()) {
            Ok(true) => return Ok(()),
            // A signal that came elsewhere than in the call. Its handler may fork: the child has nothing to wait for.
            Ok(false) => py.check_signals().err(),
            Err(error) => Some(error),
        };
        if generation != crate::fork::generation() {
            return error.map_or(Ok(()), Err);
        }
        while let Some(lost) = error {
            error = raised.call1((lost.into_value(py),)).err();
        }
    }
}
