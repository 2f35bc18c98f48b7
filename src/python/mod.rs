//! The Python module `pacchettino._core`: thin classes over the core. It holds no logic of the queue, and never calls a
//! handler: Python claims, calls, settles.

mod detached;
mod errors;
mod job;
mod queue;

use pyo3::prelude::*;

#[pymodule(name = "_core", gil_used = false)]
mod core {
    #[pymodule_export]
    use super::detached::release_all;
    #[pymodule_export]
    use super::job::{Claim, Jobs};
    #[pymodule_export]
    use super::queue::{Pass, Queue, sent_at};
}
