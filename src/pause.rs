//! Whether the queue is paused: a file beside its directories says so, to every process, and also after a restart.
//!
//! To look for it with each job would be a call more for each. So who saw that it was not there does not look again for a
//! moment, [`LAG`]. That is asked before a claim and once more after it (rule 20), however long the claim took: so nobody
//! is handed a job later than that after a pause. Who saw that it was there looks each time.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{At, Result};
use crate::layout::{self, Layout};
use crate::sys;
use crate::wait::{locked, shortened};

/// For how long a queue that was not paused is taken for one that is not.
const LAG: Duration = Duration::from_secs(1);

/// [`LAG`], which a test can shorten or switch off.
fn lag() -> Duration {
    #[cfg(feature = "failpoints")]
    fail::fail_point!("pause: no lag", |_| Duration::ZERO);
    shortened(LAG)
}

/// What this process knows of it.
#[derive(Default)]
pub(crate) struct Pause {
    /// When the queue was last seen not to be paused, if it was not seen paused since.
    runs: Mutex<Option<Instant>>,
}

impl Pause {
    /// Whether the queue is paused, or was [`LAG`] ago.
    pub(crate) fn is_set(&self, base: &Path) -> Result<bool> {
        let mut runs = locked(&self.runs);
        if runs.is_some_and(|then| then.elapsed() < lag()) {
            return Ok(false);
        }
        let now = Instant::now();
        let is_set = is_there(base)?;
        *runs = (!is_set).then_some(now);
        Ok(is_set)
    }

    /// Has the next who asks look.
    pub(crate) fn forget(&self) {
        *locked(&self.runs) = None;
    }
}

pub(crate) fn set(layout: &Layout, durable: bool) -> Result<()> {
    let home = layout.home()?;
    let path = || layout::paused_path(home.path());
    match home.create_file(layout::paused()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => sys::close(made.at(path)?).at(path)?,
    }
    if durable { layout.flush_home() } else { Ok(()) }
}

pub(crate) fn unset(layout: &Layout, durable: bool) -> Result<()> {
    let home = layout.home()?;
    match home.remove_file(layout::paused()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.at(|| layout::paused_path(home.path()))?,
    }
    if durable { layout.flush_home() } else { Ok(()) }
}

/// Whether the file is there at this moment, whatever it is.
pub(crate) fn is_there(base: &Path) -> Result<bool> {
    let path = layout::paused_path(base);
    match sys::stat(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.at(|| path).map(|_| true),
    }
}
