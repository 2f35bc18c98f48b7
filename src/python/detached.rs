//! Running without the interpreter, and coming back to it.
//!
//! When the interpreter ends, a daemon thread that comes back to it is ended in the middle of whatever it does (see
//! `PyEval_RestoreThread`), which a Rust frame does not survive. So from then on such threads never come back: they park
//! here, and go when the process does. What they hold is found by recovery.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;

use crate::fork::PerProcess;

static EXITING: AtomicBool = AtomicBool::new(false);
static EXIT_THREAD: OnceLock<ThreadId> = OnceLock::new();

/// How many threads have passed the check below and are not yet back. Those of a parent process never are, in its child.
static RETURNING: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// Runs `f` while other Python threads run.
pub(super) fn detached<T: Send>(py: Python<'_>, f: impl FnOnce() -> T + Send) -> T {
    let (done, _returning) = py.detach(|| {
        let done = f();
        if let Some(returning) = Returning::start() {
            return (done, returning);
        }
        drop(done); // a claim among it goes back: nobody can begin with it any more
        park()
    });
    done
}

/// Runs `f` with the interpreter, from within [`detached`].
pub(super) fn attached<T>(f: impl FnOnce(Python<'_>) -> T) -> T {
    let _returning = Returning::start().unwrap_or_else(|| park());
    Python::attach(f)
}

/// Whether the interpreter ends, and this thread is not to come back to it.
pub(super) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst) && EXIT_THREAD.get() != Some(&thread::current().id())
}

/// Ends the waits of all threads, keeps them from coming back, and gives up the lock files; for `atexit`.
#[pyfunction]
pub(super) fn release_all(py: Python<'_>) {
    EXIT_THREAD.get_or_init(|| thread::current().id());
    EXITING.store(true, Ordering::SeqCst);
    py.detach(|| {
        crate::release_all();
        // Who was on the way back before is let through: it is a matter of moments.
        while RETURNING.get().load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// A thread on its way back, counted where it set out: a child forked meanwhile counts its own.
struct Returning(&'static AtomicUsize);

impl Returning {
    /// `None` if this thread is not to come back.
    fn start() -> Option<Self> {
        let count = RETURNING.get();
        count.fetch_add(1, Ordering::SeqCst);
        let returning = Self(count);
        (!is_exiting()).then_some(returning)
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn park() -> ! {
    loop {
        thread::park();
    }
}
