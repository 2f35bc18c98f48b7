//! A claimed job, and jobs as a listing shows them.

#[cfg(unix)]
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::detached::detached;
use super::name::FsName;
use super::queue::due_after;
use crate::claim::Location;
use crate::error::Error;
use crate::policy::Outcome;
use crate::wait::locked;
use crate::{Job, Why, history, job, queue};

/// A claim, until it gets its verdict. Dropped without one it interrupts the job, or puts it back if nobody has begun
/// with it; in a forked child it is inert.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Claim {
    job: Job,
    location: Arc<Location>,
    unsettled: Mutex<Option<crate::Claim>>,
    generation: u64,
    /// When somebody set about the job. Until then it can go back as if nothing had been.
    begun: OnceLock<Instant>,
    /// What came of it, and after how long.
    verdict: OnceLock<(&'static str, Duration)>,
    is_told: AtomicBool,
    /// Which attempt this is, once that was looked up.
    attempt: OnceLock<u32>,
}

/// From here on it is cheaper to let go of the interpreter once more than to copy the bytes.
const LARGE: usize = 64 << 10;

impl Claim {
    pub(super) fn new(claim: crate::Claim) -> Result<Self, Error> {
        Ok(Self {
            job: claim.job()?.clone(),
            location: claim.location()?,
            unsettled: Mutex::new(Some(claim)),
            generation: crate::fork::generation(),
            begun: OnceLock::new(),
            verdict: OnceLock::new(),
            is_told: AtomicBool::new(false),
            attempt: OnceLock::new(),
        })
    }

    /// Runs `f` with the claim if there is no verdict yet. Asks first whether this is the process that made it: in a
    /// forked child the lock may be held by a thread that the child does not have. To be called without the interpreter,
    /// which a thread that has the lock may wait for.
    fn with<T>(&self, f: impl FnOnce(&mut Option<crate::Claim>) -> Result<T, Error>) -> Result<T, Error> {
        if !self.is_ours() {
            return Err(Error::Inherited);
        }
        f(&mut locked(&self.unsettled))
    }

    fn take(&self, py: Python<'_>, end: impl FnOnce(crate::Claim) -> Result<(), Error> + Send) -> PyResult<()> {
        detached(py, || self.with(|claim| claim.take().map(end).transpose()))?
            .ok_or_else(|| PyRuntimeError::new_err("the job has its verdict already: there is one for each claim"))
    }

    fn settle(&self, py: Python<'_>, outcome: Outcome, why: Why) -> PyResult<()> {
        self.take(py, |claim| {
            // Nobody can look it up after the verdict. One that is recorded needs it anyhow.
            if outcome != Outcome::Success {
                _ = self.look_up_attempt(&claim); // that it can't be read, the record will tell
            }
            _ = self.verdict.set((name_of(outcome), self.duration())); // it is the first
            claim.settle_because(outcome, why)
        })
    }

    fn look_up_attempt(&self, claim: &crate::Claim) -> Result<u32, Error> {
        let attempt = claim.attempt()?;
        Ok(*self.attempt.get_or_init(|| attempt))
    }

    fn duration(&self) -> Duration {
        match self.verdict.get() {
            Some((_, duration)) => *duration,
            None => self.begun.get().map(Instant::elapsed).unwrap_or_default(),
        }
    }
}

fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failed => "failed",
        Outcome::Interrupted => "interrupted",
        Outcome::Retry(_) => "retry",
    }
}

#[pymethods]
impl Claim {
    #[getter]
    fn id(&self) -> String {
        self.job.id().to_string()
    }

    #[getter]
    fn entry(&self) -> FsName {
        self.job.entry().into()
    }

    #[getter]
    fn name(&self) -> Option<FsName> {
        self.job.name().map(FsName::from)
    }

    #[getter]
    fn path(&self) -> FsName {
        self.location.tell().into()
    }

    #[getter]
    fn is_ours(&self) -> bool {
        self.generation == crate::fork::generation()
    }

    #[getter]
    fn has_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    #[getter]
    fn is_settled(&self) -> bool {
        self.verdict.get().is_some()
    }

    /// What came of it, once it is settled.
    #[getter]
    fn outcome(&self) -> Option<&'static str> {
        self.verdict.get().map(|(outcome, _)| *outcome)
    }

    /// How long somebody was at it, until its verdict or until now.
    #[getter]
    fn seconds(&self) -> f64 {
        self.duration().as_secs_f64()
    }

    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let content = detached(py, || {
            let content = self.with(|claim| claim.as_ref().map(crate::Claim::content).transpose())?;
            Ok::<_, Error>(match content {
                Some(content) if content.length() < LARGE => Some(Ok(content.read()?)),
                content => content.map(Err),
            })
        })?;
        let large = match content {
            Some(Ok(data)) => return Ok(PyBytes::new(py, &data)),
            Some(Err(large)) => large,
            None => return Err(PyRuntimeError::new_err("the job has its verdict: read its data before that")),
        };
        let mut length = 0;
        let data = PyBytes::new_with(py, large.length(), |room| {
            length = detached(py, || large.read_into(room))?;
            Ok(())
        })?;
        Ok(if length < large.length() { PyBytes::new(py, &data.as_bytes()[..length]) } else { data })
    }

    /// Opens its file, and returns the descriptor.
    #[cfg(unix)]
    fn open(&self, py: Python<'_>) -> PyResult<RawFd> {
        let file = detached(py, || self.with(|claim| claim.as_ref().map(crate::Claim::open).transpose()))?
            .ok_or_else(|| PyRuntimeError::new_err("the job has its verdict: open its file before that"))?;
        Ok(file.into_raw_fd())
    }

    /// The descriptor of its owner's lock file, if it has one. It stays the claim's.
    #[cfg(unix)]
    fn lock_descriptor(&self, py: Python<'_>) -> PyResult<Option<RawFd>> {
        let lock = |claim: &mut Option<crate::Claim>| {
            Ok::<_, Error>(claim.as_ref().map(crate::Claim::lock_file).transpose()?.flatten().map(AsRawFd::as_raw_fd))
        };
        Ok(detached(py, || self.with(lock))?)
    }

    /// What came of it, and after how many seconds: for who asks first, so that it is told once.
    fn take_verdict(&self) -> Option<(&'static str, f64)> {
        let (outcome, duration) = self.verdict.get().filter(|_| self.is_ours())?;
        (!self.is_told.swap(true, Ordering::Relaxed)).then_some((*outcome, duration.as_secs_f64()))
    }

    /// Says whether this may go on: not in a forked child, nor if another thread has put the job back.
    fn begin(&self) -> bool {
        if !self.is_ours() {
            return false;
        }
        // Not waited for: who has the lock settles it, or puts it back.
        let Ok(unsettled) = self.unsettled.try_lock() else { return false };
        self.begun.get_or_init(Instant::now);
        unsettled.is_some()
    }

    fn attempt(&self, py: Python<'_>) -> PyResult<u32> {
        if let Some(attempt) = self.attempt.get() {
            return Ok(*attempt);
        }
        detached(py, || self.with(|claim| claim.as_ref().map(|claim| self.look_up_attempt(claim)).transpose()))?
            .ok_or_else(|| PyRuntimeError::new_err("the job has its verdict already: ask for its attempt before that"))
    }

    fn put_back(&self, py: Python<'_>) -> PyResult<()> {
        self.take(py, crate::Claim::put_back)
    }

    /// Puts it back unless somebody has begun with it, or it is settled. For another thread than the one that has it.
    fn put_back_unless_begun(&self, py: Python<'_>) -> PyResult<()> {
        let put_back = |claim: &mut Option<_>| match self.begun.get() {
            None => claim.take().map_or(Ok(()), crate::Claim::put_back),
            Some(_) => Ok(()),
        };
        Ok(detached(py, || self.with(put_back))?)
    }

    /// Has its settle leave nothing to the next claim.
    fn settle_fully(&self, py: Python<'_>) {
        let settle_fully = |claim: &mut Option<crate::Claim>| {
            if let Some(claim) = claim {
                claim.settle_fully();
            }
            Ok(())
        };
        _ = detached(py, || self.with(settle_fully)); // if it is another process's claim, the settle raises
    }

    fn succeed(&self, py: Python<'_>) -> PyResult<()> {
        self.settle(py, Outcome::Success, Why::default())
    }

    #[pyo3(signature = (reason=None, traceback=None))]
    fn fail(&self, py: Python<'_>, reason: Option<String>, traceback: Option<String>) -> PyResult<()> {
        self.settle(py, Outcome::Failed, Why { reason, traceback })
    }

    #[pyo3(signature = (reason=None, traceback=None))]
    fn interrupt(&self, py: Python<'_>, reason: Option<String>, traceback: Option<String>) -> PyResult<()> {
        self.settle(py, Outcome::Interrupted, Why { reason, traceback })
    }

    #[pyo3(signature = (delay, reason=None, traceback=None))]
    fn retry(&self, py: Python<'_>, delay: f64, reason: Option<String>, traceback: Option<String>) -> PyResult<()> {
        self.settle(py, Outcome::Retry(due_after(delay)?), Why { reason, traceback })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let is_ours = self.is_ours();
        let Ok(claim) = self.unsettled.get_mut() else { return };
        if !is_ours {
            // The core would leave the parent's claim alone as well, but not before it looked at it.
            std::mem::forget(claim.take());
        } else if let Some(claim) = claim.take()
            && self.begun.get().is_none()
        {
            // A signal, most likely, came between the claim and its being handed over.
            _ = claim.put_back(); // what fails is tried again
        }
    }
}

/// The jobs of a listing, one by one.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Jobs(pub(super) Mutex<queue::Jobs>);

#[pymethods]
impl Jobs {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<Row> {
        locked(&self.0).next().map(Row)
    }
}

/// A job of a listing. What it tells becomes Python's when it is asked for.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Row(queue::JobInfo);

#[pymethods]
impl Row {
    #[getter]
    fn id(&self) -> String {
        self.0.job.id().to_string()
    }

    #[getter]
    fn entry(&self) -> FsName {
        self.0.job.entry().into()
    }

    #[getter]
    fn name(&self) -> Option<FsName> {
        self.0.job.name().map(FsName::from)
    }

    #[getter]
    fn state(&self) -> &'static str {
        self.0.state.name()
    }

    #[getter]
    fn path(&self) -> FsName {
        self.0.path().into()
    }

    /// In Unix milliseconds.
    #[getter]
    fn sent_at(&self) -> u64 {
        job::sent_at(self.0.job.id()).as_millis().try_into().unwrap_or(u64::MAX)
    }

    /// In Unix milliseconds.
    #[getter]
    fn due(&self) -> Option<u64> {
        self.0.due.map(|due| due.0)
    }

    #[getter]
    fn owner(&self) -> Option<String> {
        self.0.owner.map(|owner| owner.to_string())
    }
}

/// A record of a job's history.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Record(pub(super) history::Record);

#[pymethods]
impl Record {
    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt
    }

    #[getter]
    fn ended(&self) -> &'static str {
        self.0.ended.name()
    }

    /// In Unix milliseconds.
    #[getter]
    fn at(&self) -> u64 {
        self.0.at.as_millis().try_into().unwrap_or(u64::MAX)
    }

    /// In Unix milliseconds.
    #[getter]
    fn due(&self) -> Option<u64> {
        self.0.due.map(|due| due.0)
    }

    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid
    }

    #[getter]
    fn owner(&self) -> Option<String> {
        self.0.owner.map(|owner| owner.to_string())
    }

    #[getter]
    fn reason(&self) -> Option<&str> {
        self.0.why.reason.as_deref()
    }

    #[getter]
    fn traceback(&self) -> Option<&str> {
        self.0.why.traceback.as_deref()
    }

    #[getter]
    fn is_settled(&self) -> bool {
        self.0.is_settled
    }
}
