//! An [`Error`] becomes a Python exception here and nowhere else. Where it has an `errno`, or Windows's number, Python
//! picks the subclass of `OSError` by it.

use std::io;

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::name::FsName;
use crate::error::Error;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| exception(py, &error).unwrap_or_else(|failed| failed))
    }
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let text = error.to_string();
    Ok(match error {
        // Of this process. That the kernel has none for a call (`ENOMEM`) is an `OSError` like any other.
        Error::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory && error.errno().is_none() => {
            PyMemoryError::new_err(text)
        }
        Error::Io { .. } => PyOSError::new_err(arguments(py, error, None)?),
        Error::NoLocks { .. } => {
            let hint = "this filesystem refuses file locks; use crash_detection=CrashDetection.PID";
            PyOSError::new_err(arguments(py, error, Some(hint))?)
        }
        Error::Unsettled { .. } => {
            let hint = "the verdict is kept, and tried again whenever this process looks for jobs";
            PyOSError::new_err(arguments(py, error, Some(hint))?)
        }
        Error::Changed { path } => {
            let text = "it changed while it was copied, and is left where it is".to_owned();
            PyOSError::new_err((errno_of(py, io::ErrorKind::ResourceBusy)?, text, FsName::from(path.as_path())))
        }
        Error::NotRegular { what, kind, path } => {
            PyOSError::new_err((errno_of(py, *kind)?, (*what).to_owned(), FsName::from(path.as_path())))
        }
        Error::Sent { sent, .. } => {
            let class = py.import("pacchettino._types")?.getattr("SendError")?.cast_into::<PyType>()?;
            let hint = format!("{} job(s) had been sent before; `sent` names them", sent.len());
            let failed = class.call1(arguments(py, error, Some(&hint))?)?;
            failed.setattr("sent", sent.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            PyErr::from_value(failed)
        }
        Error::Full { .. } => {
            let class = py.import("pacchettino._types")?.getattr("QueueFull")?;
            PyErr::from_value(class.call1((format!("{text}; block=SECONDS waits for room"),))?)
        }
        Error::Name { .. } | Error::TooLate | Error::TooMany { .. } | Error::Closed => PyValueError::new_err(text),
        Error::Inherited | Error::Stopped => PyRuntimeError::new_err(text),
    })
}

type Arguments = (i32, String, Option<FsName>, Option<i32>);

/// The arguments that make `OSError` the exception that Python itself would have raised.
fn arguments(py: Python<'_>, error: &Error, hint: Option<&str>) -> PyResult<Arguments> {
    let (errno, reason, winerror) = match error.errno() {
        // Of the last argument Python makes the `errno`, and so the subclass.
        Some(code) if cfg!(windows) => (0, reason_of(code), Some(code)),
        errno => {
            let errno = errno.map_or_else(|| errno_of(py, error.kind().unwrap_or(io::ErrorKind::Other)), Ok)?;
            (errno, py.import("os")?.call_method1("strerror", (errno,))?.extract()?, None)
        }
    };
    let text = hint.map_or_else(|| reason.clone(), |hint| format!("{reason}; {hint}"));
    Ok((errno, text, error.path().map(FsName::from), winerror))
}

/// The system's own words for an error, as Python quotes them.
fn reason_of(code: i32) -> String {
    let text = io::Error::from_raw_os_error(code).to_string();
    text.trim_end_matches(&format!(" (os error {code})")).trim_end_matches('.').to_owned()
}

/// The `errno` of an error that this crate found before the system did.
fn errno_of(py: Python<'_>, kind: io::ErrorKind) -> PyResult<i32> {
    let name = match kind {
        io::ErrorKind::IsADirectory => "EISDIR",
        io::ErrorKind::InvalidInput => "EINVAL",
        io::ErrorKind::NotFound => "ENOENT",
        io::ErrorKind::ResourceBusy => "EBUSY",
        _ => "EIO",
    };
    py.import("errno")?.getattr(name)?.extract()
}
