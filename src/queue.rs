//! The queue as its users see it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use uuid::Uuid;

use crate::claim::{Claim, Terms};
use crate::error::{At, Error, Result};
use crate::job::{Due, Job, JobRef, Kinds, OwnerName};
use crate::layout::{self, Layout};
use crate::listing::{Listing, Order};
use crate::lookup::{find_listed, has_known, list_kept, visit_jobs};
use crate::notice::Notice;
use crate::owner::{CrashDetection, Owner};
use crate::policy::{KeepPolicy, State};
use crate::publish::{Publisher, Transfer};
use crate::recover;
use crate::shared::Shared;

/// How often who waits looks whether there is work, and whether a delay or a consumer's life has ended.
const POLL: Duration = Duration::from_millis(50);

/// How many looks in a row must find nothing before a job is said to be nowhere: it may move between two of them.
const LOOKS: usize = 3;

/// A queue of jobs in a directory.
///
/// Any number of queues, threads and processes may be opened on one directory; one queue may be shared by threads. After
/// a fork the child can go on using it: what the parent claimed stays the parent's.
pub struct Queue {
    base: Arc<Path>,
    keep: KeepPolicy,
    durable: AtomicBool,
    by_pid: AtomicBool,
    closed: AtomicBool,
    shared: ArcSwapOption<Shared>,
}

/// A job as a listing shows it.
#[derive(Debug, Clone)]
pub struct JobInfo {
    /// The job.
    pub job: Job,
    /// The state that was listed.
    pub state: State,
    /// Where its file is in that state.
    pub path: PathBuf,
    /// When it is due, in `scheduled/`.
    pub due: Option<Due>,
    /// Who holds it, in `processing/`.
    pub owner: Option<OwnerName>,
}

/// The jobs that were in a state when it was listed, oldest first.
pub struct Jobs {
    directory: PathBuf,
    state: State,
    rest: std::vec::IntoIter<(Job, Option<Due>, Option<OwnerName>)>,
}

impl Iterator for Jobs {
    type Item = JobInfo;

    fn next(&mut self) -> Option<JobInfo> {
        let (job, due, owner) = self.rest.next()?;
        let path = match owner {
            Some(owner) => self.directory.join(job.claim_entry(owner)).join(job.claimed_name()),
            None => self.directory.join(due.map_or_else(|| job.entry(), |due| job.scheduled_entry(due))),
        };
        Some(JobInfo { job, state: self.state, path, due, owner })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

/// The jobs that waited at one moment, each to be tried once.
pub struct Pass {
    listing: Listing,
    kinds: Kinds,
    order: Order,
}

/// What a look for a job came to.
enum Look {
    Claimed(Claim),
    /// With what is needed to sleep until there may be one.
    Nothing {
        shared: Arc<Shared>,
        seen: u64,
        next_due: Option<Due>,
    },
}

impl Queue {
    /// Opens the queue in the directory `base` and makes the directories that are missing.
    ///
    /// # Errors
    /// [`Error::Io`] where that is not possible: `ENOTDIR` if there is a file in its place.
    pub fn open(base: impl AsRef<Path>, keep: KeepPolicy, durable: bool, detection: CrashDetection) -> Result<Self> {
        let base: Arc<Path> = std::path::absolute(base.as_ref()).at(|| base.as_ref().into())?.into();
        layout::make_base(&base)?;
        let shared = Shared::of(&base)?;
        let queue = Self {
            base,
            keep,
            durable: AtomicBool::new(false),
            by_pid: AtomicBool::new(detection == CrashDetection::Pid),
            closed: AtomicBool::new(false),
            shared: ArcSwapOption::new(Some(shared)),
        };
        queue.set_durable(durable)?;
        Ok(queue)
    }

    /// The directory, absolute.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Which finished jobs are kept where this queue settles or recovers them.
    #[must_use]
    pub fn keep(&self) -> KeepPolicy {
        self.keep
    }

    /// Whether every change of state is on the disk before anybody is told of it.
    #[must_use]
    pub fn durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// Sets whether every change of state is flushed to the disk, from now on.
    ///
    /// # Errors
    /// [`Error::Io`] if the names of the queue's directories can't be flushed.
    pub fn set_durable(&self, durable: bool) -> Result<()> {
        if durable && !self.durable() {
            layout::sync_names(&self.base)?;
        }
        self.durable.store(durable, Ordering::Relaxed);
        Ok(())
    }

    /// How others notice that this process died.
    #[must_use]
    pub fn crash_detection(&self) -> CrashDetection {
        if self.by_pid.load(Ordering::Relaxed) { CrashDetection::Pid } else { CrashDetection::LockFile }
    }

    /// Sets how others notice that this process died, for the claims from now on.
    pub fn set_crash_detection(&self, detection: CrashDetection) {
        self.by_pid.store(detection == CrashDetection::Pid, Ordering::Relaxed);
    }

    /// Ends the waits on this queue and lets go of what it holds. Later calls fail with [`Error::Closed`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let shared = self.shared.swap(None);
        if let Some(shared) = keep_or_leak(shared) {
            shared.settle_again();
            shared.wait.raise();
        }
    }

    /// What a person should know of and was not told yet.
    pub fn take_notices(&self) -> Vec<Notice> {
        self.shared
            .load()
            .as_ref()
            .filter(|shared| shared.is_ours())
            .map(|shared| shared.take_notices())
            .unwrap_or_default()
    }

    /// Sends bytes; after the delay that ends at `due`, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing was sent and nothing is left. [`Error::Sent`]: the job exists, but a power cut may undo
    /// it.
    pub fn send(&self, data: &[u8], due: Option<Due>) -> Result<Uuid> {
        self.publishing(due, |publisher| publisher.data(data))
    }

    /// Sends many data jobs, in order; with a durable queue far cheaper than one by one.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Sent`] names the jobs that exist.
    pub fn send_many<T: AsRef<[u8]>>(&self, items: &[T], due: Option<Due>) -> Result<Vec<Uuid>> {
        self.publishing(due, |publisher| publisher.many(items))
    }

    /// Sends a file under its own base name or another one. `go_on` is asked now and then during a long copy.
    ///
    /// # Errors
    /// [`Error::NotRegular`], [`Error::Name`], [`Error::Io`], [`Error::Stopped`]: nothing was sent, the file is where it
    /// was. [`Error::Sent`]: the job exists, but the file could not be removed, or a power cut may undo it.
    pub fn send_file(
        &self,
        path: &Path,
        name: Option<&std::ffi::OsStr>,
        transfer: Transfer,
        due: Option<Due>,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Uuid> {
        let name = name.or_else(|| path.file_name()).unwrap_or_default();
        self.publishing(due, |publisher| publisher.file(path, name, transfer, &mut go_on))
    }

    /// Claims a waiting job, or waits for one: no longer than `timeout`, for ever if that is `None`.
    /// `go_on` is asked before each look, and at least every `slice`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Stopped`]; no job is taken then.
    pub fn claim(
        &self,
        kinds: Kinds,
        order: Order,
        timeout: Option<Duration>,
        slice: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Claim>> {
        // A deadline that the clock can't express is never reached.
        let deadline = timeout.map(|timeout| Instant::now().checked_add(timeout));
        let left = || match deadline {
            None | Some(None) => Duration::MAX,
            Some(Some(deadline)) => deadline.saturating_duration_since(Instant::now()),
        };
        loop {
            if !go_on() {
                return Err(Error::Stopped);
            }
            let look = self.healing(|shared| self.look(shared, kinds, order));
            let last = left().is_zero();
            let (shared, pause) = match look {
                Ok(Look::Claimed(claim)) => return Ok(Some(claim)),
                Ok(Look::Nothing { .. }) if last => return Ok(None),
                Ok(Look::Nothing { shared, seen, next_due }) => {
                    (Some((shared, seen)), next_due.map_or(Duration::MAX, Due::remaining))
                }
                Err(Error::Closed) if timeout != Some(Duration::ZERO) => return Ok(None),
                Err(error) if last || !error.is_passing() => return Err(error),
                Err(error) => {
                    self.tell_once(format!("{error}; waiting goes on"));
                    (None, Duration::MAX)
                }
            };
            let pause = pause.min(left()).min(slice).min(POLL);
            match shared {
                Some((shared, seen)) => shared.wait.sleep(seen, pause),
                None => std::thread::sleep(pause),
            }
        }
    }

    /// Looks once for a job.
    fn look(&self, shared: &Arc<Shared>, kinds: Kinds, order: Order) -> Result<Look> {
        let seen = shared.wait.generation();
        let next_due = self.look_after(shared)?;
        let mut listing = Listing::read(&shared.layout(), order)?;
        while let Some(job) = listing.next(kinds, order) {
            if let Some(claim) = Claim::take(shared, job, &self.terms())? {
                return Ok(Look::Claimed(claim));
            }
        }
        Ok(Look::Nothing { shared: Arc::clone(shared), seen, next_due })
    }

    fn tell_once(&self, text: String) {
        if let Some(shared) = self.shared.load().as_ref().filter(|shared| shared.is_ours()) {
            shared.tell_once(Notice::new(text));
        }
    }

    /// Lists the jobs that wait now, after those whose delay is over have joined them.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn pass(&self, kinds: Kinds, order: Order) -> Result<Pass> {
        self.healing(|shared| {
            self.look_after(shared)?;
            Ok(Pass { listing: Listing::read(&shared.layout(), order)?, kinds, order })
        })
    }

    /// Claims the next job of a pass that is still there.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn claim_next(&self, pass: &mut Pass) -> Result<Option<Claim>> {
        let shared = self.shared()?;
        while let Some(job) = pass.listing.next(pass.kinds, pass.order) {
            if let Some(claim) = Claim::take(&shared, job, &self.terms())? {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    /// Finds out where a job is. `None` only after several looks, since a job may move between two of them.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn status(&self, job: &JobRef) -> Result<Option<State>> {
        self.healing(|shared| {
            let layout = shared.layout();
            for _ in 0..LOOKS {
                // First as it is called if it is a data job, or as the whole name says: no large directory is read,
                // but for `scheduled/`, whose names begin with the due time.
                let known = job.known();
                for state in State::ALL {
                    step!("status: looks");
                    if has_known(&layout, state, job, &known)? {
                        return Ok(Some(state));
                    }
                }
                if let JobRef::Id(_) = job {
                    for state in State::ALL {
                        if find_listed(&layout, state, job)?.is_some() {
                            return Ok(Some(state));
                        }
                    }
                }
            }
            Ok(None)
        })
    }

    /// Looks whether a job is in that state at this moment.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn is_in(&self, state: State, job: &JobRef) -> Result<bool> {
        self.healing(|shared| {
            let layout = shared.layout();
            let known = job.known();
            Ok(has_known(&layout, state, job, &known)?
                || (matches!(job, JobRef::Id(_)) && find_listed(&layout, state, job)?.is_some()))
        })
    }

    /// Counts the jobs in a state. A claim counts once it holds its file.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn count(&self, state: State) -> Result<usize> {
        self.healing(|shared| {
            let mut count = 0;
            visit_jobs(&shared.layout(), state, |_| true, |_, _, _| count += 1)?;
            Ok(count)
        })
    }

    /// Lists the jobs in a state, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn jobs(&self, state: State) -> Result<Jobs> {
        self.healing(|shared| {
            let mut jobs = Vec::new();
            visit_jobs(&shared.layout(), state, |_| true, |job, due, owner| jobs.push((job, due, owner)))?;
            jobs.sort_unstable_by_key(|(job, ..)| job.id());
            Ok(Jobs { directory: layout::state_path(&self.base, state), state, rest: jobs.into_iter() })
        })
    }

    /// Puts a finished job back into the queue, whatever its end was. Says whether there was one.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn requeue(&self, job: &JobRef) -> Result<bool> {
        self.healing(|shared| {
            let layout = shared.layout();
            for state in KeepPolicy::ALL.states() {
                let known = job.known();
                if self.move_back(&layout, state, &known)? {
                    return Ok(true);
                }
            }
            if let JobRef::Id(_) = job {
                for state in KeepPolicy::ALL.states() {
                    if let Some(found) = find_listed(&layout, state, job)?
                        && self.move_back(&layout, state, &found)?
                    {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        })
    }

    /// Puts all jobs that are in these states now back into the queue and says how many there were.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn requeue_all(&self, which: KeepPolicy) -> Result<usize> {
        self.healing(|shared| {
            let layout = shared.layout();
            let mut moved = 0;
            for (state, job) in list_kept(&layout, which)? {
                moved += usize::from(rename_back(&layout, state, &job)?);
            }
            if moved > 0 {
                self.sync(&layout, State::Queued)?;
                shared.wait.raise();
            }
            Ok(moved)
        })
    }

    /// Deletes the jobs that are in these states now and were settled at least that long ago, and says how many.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn cleanup(&self, which: KeepPolicy, older_than: Duration) -> Result<usize> {
        self.healing(|shared| {
            let layout = shared.layout();
            let now = SystemTime::now();
            let mut deleted = 0;
            for (state, job) in list_kept(&layout, which)? {
                let (dir, entry) = (layout.dir(state), job.entry());
                let path = || dir.path().join(&entry);
                if !older_than.is_zero() {
                    match dir.stat(&entry) {
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(error).at(path),
                        // A clock that went back makes ages negative: nothing is old then.
                        Ok(stat) if now.duration_since(stat.changed).is_ok_and(|age| age >= older_than) => {}
                        Ok(_) => continue,
                    }
                }
                match dir.remove_file(&entry) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    removed => {
                        removed.at(path)?;
                        deleted += 1;
                    }
                }
            }
            for state in which.states().filter(|_| deleted > 0) {
                self.sync(&layout, state)?;
            }
            Ok(deleted)
        })
    }

    fn terms(&self) -> Terms<'_> {
        Terms { base: &self.base, keep: self.keep, durable: self.durable(), detection: self.crash_detection() }
    }

    /// Settles what could not be settled before, recovers the jobs of the dead, promotes what is due; tells when the
    /// next job will be.
    fn look_after(&self, shared: &Shared) -> Result<Option<Due>> {
        if !shared.settle_again() && !shared.layout().is_whole() {
            self.reopen()?;
            shared.settle_again();
        }
        recover::recover(shared, self.keep, self.durable())?;
        recover::promote(shared, self.durable())
    }

    /// What this process shares of the queue, opened anew where the path leads elsewhere by now, or after a fork.
    fn shared(&self) -> Result<Arc<Shared>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        match &*self.shared.load() {
            Some(shared) if shared.is_ours() && shared.is_at(&layout::state_path(&self.base, State::Processing)) => {
                Ok(Arc::clone(shared))
            }
            _ => self.reopen(),
        }
    }

    fn reopen(&self) -> Result<Arc<Shared>> {
        let shared = Shared::of(&self.base)?;
        keep_or_leak(self.shared.swap(Some(Arc::clone(&shared))));
        Ok(shared)
    }

    /// Runs `f`, and once more if it failed because a directory of the queue was replaced.
    fn healing<T>(&self, mut f: impl FnMut(&Arc<Shared>) -> Result<T>) -> Result<T> {
        let shared = self.shared()?;
        match f(&shared) {
            Err(error) if error.is_harmless() && !shared.layout().is_whole() => f(&self.reopen()?),
            done => done,
        }
    }

    fn publishing<T>(&self, due: Option<Due>, mut publish: impl FnMut(Publisher<'_>) -> Result<T>) -> Result<T> {
        self.healing(|shared| {
            let layout = shared.layout();
            let mut publish =
                |owner: &Owner| publish(Publisher { layout: &layout, owner, durable: self.durable(), due });
            let owner = shared.owner(self.crash_detection())?;
            let sent = match publish(&owner) {
                // Somebody deleted the lock file, and some consumer then the temporary file as a dead sender's.
                Err(error) if error.is_harmless() && !owner.is_good() => {
                    publish(&shared.owner(self.crash_detection())?)
                }
                sent => sent,
            };
            if sent.is_ok() {
                shared.wait.raise();
            }
            sent
        })
    }

    fn move_back(&self, layout: &Layout, state: State, job: &Job) -> Result<bool> {
        let moved = rename_back(layout, state, job)?;
        if moved {
            self.sync(layout, State::Queued)?;
        }
        Ok(moved)
    }

    fn sync(&self, layout: &Layout, state: State) -> Result<()> {
        if !self.durable() {
            return Ok(());
        }
        let dir = layout.dir(state);
        dir.sync().at(|| dir.path().into())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        keep_or_leak(self.shared.swap(None));
    }
}

fn rename_back(layout: &Layout, state: State, job: &Job) -> Result<bool> {
    let (dir, entry) = (layout.dir(state), job.entry());
    match dir.rename(&entry, layout.dir(State::Queued), &entry) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        moved => moved.at(|| dir.path().join(&entry)).map(|()| true),
    }
}

/// In a forked child what the parent shared is leaked: another thread may have been in the middle of changing it.
fn keep_or_leak(shared: Option<Arc<Shared>>) -> Option<Arc<Shared>> {
    match shared {
        Some(shared) if !shared.is_ours() => {
            std::mem::forget(shared);
            None
        }
        shared => shared,
    }
}
