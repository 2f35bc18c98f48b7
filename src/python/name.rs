//! Names and paths on their way to Python.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyString;

/// A name or a path, which becomes what `os.fsdecode` makes of it.
///
/// `PyO3` takes whatever is valid UTF-8 for UTF-8. Where a locale has another encoding, Python would then encode the text to
/// other bytes, and the file would not be there.
pub(super) struct FsName(OsString);

impl<T: Into<OsString>> From<T> for FsName {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

impl<'py> IntoPyObject<'py> for FsName {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = PyErr;

    #[cfg(unix)]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        use std::os::unix::ffi::OsStrExt;

        use pyo3::ffi;

        let bytes = self.0.as_bytes();
        let length = bytes.len().try_into()?;
        // SAFETY: a pointer and a length that go together; a new reference comes back, to a string, or an error is set.
        unsafe {
            let decoded = ffi::PyUnicode_DecodeFSDefaultAndSize(bytes.as_ptr().cast(), length);
            Ok(Bound::from_owned_ptr_or_err(py, decoded)?.cast_into_unchecked())
        }
    }

    #[cfg(windows)]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        self.0.into_pyobject(py).map_err(|never| match never {})
    }
}
