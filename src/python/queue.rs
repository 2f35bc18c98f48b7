//! The queue: arguments in, results out, the interpreter released in between.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments into owned values")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use super::detached::{attached, detached, is_exiting};
use super::inspect::Inspection;
use super::job::{Claim, Jobs, Record};
use super::name::FsName;
use crate::error::Error;
use crate::job::{self, Due, Job, JobRef, Kinds, OwnerName};
use crate::policy::{KeepPolicy, State};
use crate::wait::locked;
use crate::{CrashDetection, Glance, HeldJob, Limits, Notice, Order, Transfer, queue};

/// A queue in a directory.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Queue(queue::Queue);

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (base, keep, by_pid, max_queued, min_free))]
    fn new(base: PathBuf, keep: u8, by_pid: bool, max_queued: Option<u64>, min_free: u64) -> PyResult<Self> {
        let queue = queue::Queue::unopened(base, keep_policy(keep)?, detection(by_pid))?;
        Ok(Self(queue.limited(Limits { max_queued, min_free })))
    }

    fn ensure_open(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detached(py, || self.0.ensure_open())?)
    }

    #[getter]
    fn base(&self) -> FsName {
        self.0.base().into()
    }

    #[getter]
    fn get_durable(&self) -> bool {
        self.0.durable()
    }

    #[setter]
    fn set_durable(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        Ok(detached(py, || self.0.set_durable(durable))?)
    }

    #[getter]
    fn get_by_pid(&self) -> bool {
        self.0.crash_detection() == CrashDetection::Pid
    }

    #[setter]
    fn set_by_pid(&self, by_pid: bool) {
        self.0.set_crash_detection(detection(by_pid));
    }

    fn set_put_back(&self, times: u32, most_attempts: u32) {
        self.0.set_put_back(times, most_attempts);
    }

    fn close(&self, py: Python<'_>) {
        detached(py, || self.0.close());
    }

    fn stop(&self) {
        self.0.stop();
    }

    #[getter]
    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    fn wake(&self) {
        self.0.wake();
    }

    fn owner(&self, py: Python<'_>) -> PyResult<String> {
        Ok(detached(py, || self.0.owner())?.to_string())
    }

    /// Returns those that were killed and count as alive still.
    fn recover(&self, py: Python<'_>, killed: Vec<(String, String)>) -> PyResult<Vec<String>> {
        let named = |(owner, why): (String, String)| Some((OwnerName::parse(owner.as_bytes())?, why));
        let killed: Vec<_> = killed.into_iter().filter_map(named).collect();
        let living = detached(py, || self.0.recover(&killed))?;
        Ok(living.iter().map(ToString::to_string).collect())
    }

    #[getter]
    fn has_notices(&self) -> bool {
        self.0.has_notices()
    }

    /// The lines, and the ids of the jobs that they are about.
    fn take_notices(&self) -> Vec<(String, Option<String>)> {
        let tell = |notice: Notice| (notice.text, notice.job.map(|id| id.to_string()));
        self.0.take_notices().into_iter().map(tell).collect()
    }

    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, delay: f64) -> PyResult<String> {
        let data = Payload::new(data, "data")?;
        let bytes = data.as_bytes();
        let id = detached(py, || self.0.send(bytes, Due::after(seconds(delay))?))?;
        Ok(id.to_string())
    }

    fn send_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>, delay: f64) -> PyResult<Vec<String>> {
        let items = items.try_iter()?.map(|item| Payload::new(&item?, "each item")).collect::<PyResult<Vec<_>>>()?;
        let bytes: Vec<_> = items.iter().map(Payload::as_bytes).collect();
        let ids = detached(py, || self.0.send_many(&bytes, Due::after(seconds(delay))?))?;
        Ok(ids.into_iter().map(|id| id.to_string()).collect())
    }

    #[pyo3(signature = (path, copy, name, delay))]
    fn send_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        copy: bool,
        name: Option<OsString>,
        delay: f64,
    ) -> PyResult<String> {
        let transfer = if copy { Transfer::Copy } else { Transfer::Move };
        let due = due_after(delay)?;
        let id = interruptible(py, || false, |go_on| self.0.send_file(&path, name.as_deref(), transfer, due, go_on))?;
        Ok(id.map(|id| id.to_string()).unwrap_or_default()) // nothing pauses it
    }

    /// `timeout` in seconds; for ever if it is `None`. Signals are looked for at least every `slice` seconds. The second
    /// result is false if the wait was broken off, since there are notices to be taken; then it is to be begun again.
    #[pyo3(signature = (timeout, slice, fifo, data, file))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python's side has to say")]
    fn claim(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        slice: f64,
        fifo: bool,
        data: bool,
        file: bool,
    ) -> PyResult<(Option<Claim>, bool)> {
        let (kinds, order, slice, timeout) = (Kinds { data, file }, order(fifo), seconds(slice), timeout.map(seconds));
        self.wait(py, None, |go_on| self.0.claim(kinds, order, timeout, slice, go_on))
    }

    fn consumer(&self, py: Python<'_>, fifo: bool) -> PyResult<Consumer> {
        Ok(Consumer(Mutex::new(detached(py, || self.0.consumer(order(fifo)))?)))
    }

    /// The same as `claim` for a consumer. The wait is broken off when `stop` is set, too, and the queue woken.
    #[pyo3(signature = (consumer, timeout, slice, data, file, stop))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python's side has to say")]
    fn next(
        &self,
        py: Python<'_>,
        consumer: &Consumer,
        timeout: Option<f64>,
        slice: f64,
        data: bool,
        file: bool,
        stop: &Stop,
    ) -> PyResult<(Option<Claim>, bool)> {
        let (slice, timeout) = (seconds(slice), timeout.map(seconds));
        self.wait(py, Some(stop), |go_on| {
            let mut consumer = locked(&consumer.0);
            consumer.take_only(Kinds { data, file });
            self.0.next(&mut consumer, timeout, slice, go_on)
        })
    }

    /// Looks once, for who sleeps in an event loop. `(claim, None)`; or `(None, seconds)`: to look again when the listener
    /// has heard something, or after that time; or `(None, None)`: the wait is over.
    #[pyo3(signature = (listener, timeout, fifo, data, file))]
    fn glance(
        &self,
        py: Python<'_>,
        listener: &Listener,
        timeout: Option<f64>,
        fifo: bool,
        data: bool,
        file: bool,
    ) -> PyResult<(Option<Claim>, Option<f64>)> {
        let (kinds, timeout) = (Kinds { data, file }, timeout.map(seconds));
        let glance = detached(py, || match self.0.glance(kinds, order(fifo), timeout, &listener.0)? {
            Glance::Claimed(claim) => Ok((Some(Claim::new(claim)?), None)),
            Glance::Nothing(pause) => Ok((None, Some(pause.as_secs_f64()))),
            Glance::Over => Ok::<_, Error>((None, None)),
        })?;
        Ok(glance)
    }

    fn start_pass(&self, py: Python<'_>, fifo: bool, data: bool, file: bool) -> PyResult<Consumer> {
        let pass = detached(py, || self.0.pass(Kinds { data, file }, order(fifo)))?;
        Ok(Consumer(Mutex::new(pass)))
    }

    fn claim_next(&self, py: Python<'_>, pass: &Consumer) -> PyResult<Option<Claim>> {
        py.check_signals()?;
        Ok(detached(py, || self.0.claim_next(&mut locked(&pass.0))?.map(Claim::new).transpose())?)
    }

    fn status(&self, py: Python<'_>, job: &Bound<'_, PyString>) -> PyResult<Option<&'static str>> {
        let Some(job) = job_ref(job) else { return Ok(None) };
        Ok(detached(py, || self.0.status(&job))?.map(State::name))
    }

    fn is_in(&self, py: Python<'_>, state: &str, job: &Bound<'_, PyString>) -> PyResult<bool> {
        let state = named(state)?;
        let Some(job) = job_ref(job) else { return Ok(false) };
        Ok(detached(py, || self.0.is_in(state, &job))?)
    }

    fn count(&self, py: Python<'_>, state: &str) -> PyResult<usize> {
        let state = named(state)?;
        Ok(detached(py, || self.0.count(state))?)
    }

    fn jobs(&self, py: Python<'_>, state: &str) -> PyResult<Jobs> {
        let state = named(state)?;
        Ok(Jobs(Mutex::new(detached(py, || self.0.jobs(state))?)))
    }

    fn cancel(&self, py: Python<'_>, job: &Bound<'_, PyString>) -> PyResult<bool> {
        let Some(job) = job_ref(job) else { return Ok(false) };
        Ok(detached(py, || self.0.cancel(&job))?)
    }

    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detached(py, || self.0.pause())?)
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detached(py, || self.0.resume())?)
    }

    fn is_paused(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(detached(py, || self.0.is_paused())?)
    }

    /// The counts by the names of the states; when the oldest job that waits was sent, and when the next is due; and what
    /// consumers hold: owner, id, since when. Times in Unix milliseconds.
    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        let stats = detached(py, || self.0.stats())?;
        let counts = State::ALL.map(State::name).into_iter().zip(stats.counts).collect();
        let held = stats.held.iter().map(|held| (held.owner.to_string(), held.job.id().to_string(), unix(held.since)));
        Ok((counts, stats.oldest.map(milliseconds), stats.next_due.map(|due| due.0), held.collect()))
    }

    fn repair(&self, py: Python<'_>, found: &Inspection) -> PyResult<()> {
        Ok(detached(py, || self.0.repair(&locked(&found.0)))?)
    }

    /// The counts and the two times as `stats` has them; what consumers hold: owner, id, name, since when; how many jobs
    /// were sent since that time; and the last failures: when, state, id, name, entry.
    fn survey(&self, py: Python<'_>, since: u64, failures: usize) -> PyResult<Survey> {
        let survey = detached(py, || self.0.survey(Duration::from_millis(since), failures))?;
        let stats = survey.stats;
        let counts = State::ALL.map(State::name).into_iter().zip(stats.counts).collect();
        let id = |job: &Job| job.id().to_string();
        let name = |job: &Job| job.name().map(FsName::from);
        let held = stats.held.iter().map(|held| {
            let HeldJob { job, owner, since } = held;
            (owner.to_string(), id(job), name(job), unix(*since))
        });
        let failed = survey
            .failures
            .iter()
            .map(|(at, state, job)| (unix(*at), state.name(), id(job), name(job), job.entry().into()));
        let (oldest, next_due) = (stats.oldest.map(milliseconds), stats.next_due.map(|due| due.0));
        Ok((counts, oldest, next_due, held.collect(), survey.sent, failed.collect()))
    }

    fn history(&self, py: Python<'_>, job: &Bound<'_, PyString>) -> PyResult<Vec<Record>> {
        let Some(job) = job_ref(job) else { return Ok(Vec::new()) };
        Ok(detached(py, || self.0.history(&job))?.into_iter().map(Record).collect())
    }

    fn requeue(&self, py: Python<'_>, job: &Bound<'_, PyString>) -> PyResult<bool> {
        let Some(job) = job_ref(job) else { return Ok(false) };
        Ok(detached(py, || self.0.requeue(&job))?)
    }

    fn requeue_all(&self, py: Python<'_>, which: u8) -> PyResult<usize> {
        let which = keep_policy(which)?;
        Ok(detached(py, || self.0.requeue_all(which))?)
    }

    fn cleanup(&self, py: Python<'_>, which: u8, older_than: f64) -> PyResult<usize> {
        let which = keep_policy(which)?;
        Ok(detached(py, || self.0.cleanup(which, seconds(older_than)))?)
    }
}

impl Queue {
    /// Runs a wait for a job. The second result is false if the wait was broken off, since the core has notices to be
    /// logged, or `stop` is set.
    fn wait(
        &self,
        py: Python<'_>,
        stop: Option<&Stop>,
        wait: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<Option<crate::Claim>, Error> + Send,
    ) -> PyResult<(Option<Claim>, bool)> {
        let claim = interruptible(
            py,
            || self.0.has_notices() || stop.is_some_and(Stop::is_set),
            |go_on| wait(go_on)?.map(Claim::new).transpose(),
        )?;
        Ok(claim.map_or((None, false), |claim| (claim, true)))
    }
}

type Stats = (HashMap<&'static str, usize>, Option<u64>, Option<u64>, Vec<(String, String, u64)>);
type Survey = (
    HashMap<&'static str, usize>,
    Option<u64>,
    Option<u64>,
    Vec<(String, String, Option<FsName>, u64)>,
    usize,
    Vec<(u64, &'static str, String, Option<FsName>, FsName)>,
);

/// Who waits in an event loop.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Listener(Arc<crate::Listener>);

#[pymethods]
impl Listener {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// What the loop is to watch until it is readable, if there is something.
    #[getter]
    fn descriptor(&self) -> Option<i32> {
        self.0.descriptor()
    }

    /// Takes what made it readable, and says whether to look for a job.
    fn heard(&self) -> bool {
        self.0.heard()
    }
}

/// Hands out one job after another.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Consumer(Mutex<crate::Consumer>);

#[pymethods]
impl Consumer {
    /// Flushes what its last job left to be flushed, and removes the directory that it keeps for the next one.
    fn end(&self, py: Python<'_>) {
        detached(py, || locked(&self.0).end());
    }
}

/// Ends the claims that are given it, once they are woken.
#[pyclass(frozen, module = "pacchettino._core")]
pub(super) struct Stop(AtomicBool);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Says whether it was not set before.
    fn set(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    #[getter]
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// For tests.
#[pyfunction]
pub(super) fn shorten_waits(times: NonZeroU32) {
    crate::shorten_waits(times);
}

/// When the job with this id was sent, in Unix milliseconds; `None` for what is no id.
#[pyfunction]
pub(super) fn sent_at(job: &Bound<'_, PyString>) -> Option<u64> {
    Some(milliseconds(job::sent_at(job_ref(job)?.id())))
}

fn unix(time: SystemTime) -> u64 {
    milliseconds(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn due_after(delay: f64) -> Result<Option<Due>, Error> {
    Due::after(seconds(delay))
}

/// Runs `f` without the interpreter, and lets Python's signal handlers run whenever `f` asks whether to go on. `None` if
/// it was stopped since there was a reason to `pause`.
fn interruptible<T: Send>(
    py: Python<'_>,
    pause: impl Fn() -> bool + Sync,
    f: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, Error> + Send,
) -> PyResult<Option<T>> {
    py.check_signals()?;
    let mut raised = None;
    let mut checked = true;
    let done = detached(py, || {
        f(&mut || {
            // The first time that was just done.
            if !std::mem::take(&mut checked) {
                raised = attached(|py| py.check_signals().err());
            }
            raised.is_none() && !is_exiting() && !pause()
        })
    });
    match (raised, done) {
        (Some(raised), _) => Err(raised),
        (None, Err(Error::Stopped)) => Ok(None),
        (None, done) => Ok(Some(done?)),
    }
}

/// The bytes of an argument. Only `bytes` and `str` can be borrowed while other threads run: they never change.
enum Payload<'py> {
    Text(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl<'py> Payload<'py> {
    fn new(data: &Bound<'py, PyAny>, what: &str) -> PyResult<Self> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        if let Ok(text) = data.cast::<PyString>() {
            text.to_str()?; // it can't fail any more after that
            return Ok(Self::Text(text.clone()));
        }
        let Ok(view) = PyMemoryView::from(data) else {
            let class = data.get_type();
            let class = class.name()?;
            let text =
                format!("{what} must be str or bytes-like, not {class}; encode it first (json.dumps), or send a file");
            return Err(PyTypeError::new_err(text));
        };
        Ok(Self::Bytes(view.call_method0("tobytes")?.cast_into()?))
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            Self::Text(text) => text.to_str().unwrap_or_default().as_bytes(),
        }
    }
}

/// Seconds as a duration: none if they are negative, the longest if they are too many.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn order(fifo: bool) -> Order {
    if fifo { Order::Fifo } else { Order::Random }
}

fn detection(by_pid: bool) -> CrashDetection {
    if by_pid { CrashDetection::Pid } else { CrashDetection::LockFile }
}

fn keep_policy(bits: u8) -> PyResult<KeepPolicy> {
    KeepPolicy::from_bits(bits).ok_or_else(|| PyValueError::new_err(format!("{bits} is no KeepPolicy")))
}

fn named(state: &str) -> PyResult<State> {
    let found = State::ALL.into_iter().find(|known| known.name() == state);
    found.ok_or_else(|| PyValueError::new_err(format!("no job can be listed as {state}")))
}

fn job_ref(job: &Bound<'_, PyString>) -> Option<JobRef> {
    JobRef::parse(&job.extract::<OsString>().ok()?)
}
