//! The Python module `pacchettino._core`: thin classes over the core. It holds no logic of the queue, and never calls a
//! handler: Python claims, calls, settles.

mod detached;
mod errors;
mod inspect;
mod job;
mod name;
mod outlast;
mod queue;

use pyo3::prelude::*;

#[pymodule(name = "_core", gil_used = false)]
mod core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::detached::release_all;
    #[pymodule_export]
    use super::inspect::Inspection;
    #[pymodule_export]
    use super::job::{Claim, Jobs, Record, Row};
    #[pymodule_export]
    use super::outlast::outlast;
    #[pymodule_export]
    use super::queue::{Consumer, Listener, Queue, Stop, sent_at, shorten_waits};

    #[pymodule_init]
    #[allow(clippy::unnecessary_wraps, reason = "PyO3 asks for a result")]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::fork::watch();
        Ok(())
    }
}
