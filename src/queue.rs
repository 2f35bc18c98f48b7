//! The queue as its users see it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use uuid::Uuid;

use crate::cancel::cancel;
use crate::claim::{Attempt, Claim, Terms, Unflushed};
use crate::error::{At, Error, Result};
use crate::history::{self, Ended, Past, Record};
use crate::inspect::Inspection;
use crate::job::{self, Due, Job, JobRef, Kinds, OwnerName};
use crate::layout::{self, Layout};
use crate::limits::{Limits, on_disk};
use crate::listing::{Listing, Order};
use crate::lookup::{find_listed, has_known, list_kept, visit_jobs};
use crate::notice::Notice;
use crate::owner::{self, CrashDetection, Owner};
use crate::pause;
use crate::policy::{Fate, KeepPolicy, State};
use crate::publish::{Publisher, Transfer};
use crate::recover;
use crate::shared::Shared;
use crate::stats::{Stats, Survey, stats, survey};
use crate::sys;
use crate::wait::{Listener, locked, shortened};

/// How often who waits looks whether there is work, where the kernel does not tell.
const POLL: Duration = Duration::from_millis(50);

/// How often who waits looks all the same: for the jobs of the dead, and for what the kernel did not tell.
const SLOW_POLL: Duration = Duration::from_secs(1);

/// [`SLOW_POLL`], which a test can shorten.
fn slow_poll() -> Duration {
    shortened(SLOW_POLL)
}

/// The same for who is woken by the kernel, which a test can switch off.
fn slow_poll_beside_events() -> Duration {
    #[cfg(feature = "failpoints")]
    fail::fail_point!("wait: no slow poll", |_| Duration::MAX);
    slow_poll()
}

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
    stopped: AtomicBool,
    limits: Limits,
    /// How often a job whose consumer died is put back, and after how many attempts it is no more.
    put_back: AtomicU32,
    most_attempts: AtomicU32,
    shared: ArcSwapOption<Shared>,
}

/// A job as a listing shows it.
#[derive(Debug, Clone)]
pub struct JobInfo {
    /// The job.
    pub job: Job,
    /// The state that was listed.
    pub state: State,
    /// When it is due, in `scheduled/`.
    pub due: Option<Due>,
    /// Who holds it, in `processing/`.
    pub owner: Option<OwnerName>,
    /// The queue's directory.
    base: Arc<Path>,
}

impl JobInfo {
    /// Where its file is in that state. Made when it is asked for: of a million jobs listed, few paths are looked at.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let directory = layout::state_path(&self.base, self.state);
        sys::for_programs(match (self.owner, self.due) {
            (Some(owner), _) => directory.join(self.job.claim_entry(owner)).join(self.job.claimed_name()),
            (None, Some(due)) => directory.join(self.job.scheduled_entry(due)),
            (None, None) => directory.join(self.job.entry()),
        })
    }
}

/// The jobs that were in a state when it was listed, oldest first.
pub struct Jobs {
    base: Arc<Path>,
    state: State,
    rest: std::vec::IntoIter<(Job, Option<Due>, Option<OwnerName>)>,
}

impl Iterator for Jobs {
    type Item = JobInfo;

    fn next(&mut self) -> Option<JobInfo> {
        let (job, due, owner) = self.rest.next()?;
        Some(JobInfo { job, state: self.state, due, owner, base: Arc::clone(&self.base) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

/// Hands out one job after another ([`Queue::next`]). Between two jobs it keeps what makes the next one cheap: the directory
/// of the last claim, and the flush of its result, which a `durable` queue's next claim shares.
pub struct Consumer {
    kinds: Kinds,
    order: Order,
    source: Source,
    faults: Faults,
    /// What it keeps between two jobs; a consumer of a single job keeps nothing.
    kept: Option<(Arc<Shared>, Arc<Unflushed>)>,
    /// Whether its last call handed out a job: then the next call need not notice at once that the queue's directory
    /// was replaced.
    is_busy: bool,
}

/// Where a consumer's jobs come from.
enum Source {
    /// Those that waited when it was made, each tried once.
    Pass(Listing),
    /// All that wait, as the threads of this process have listed them.
    Shared,
}

impl Consumer {
    fn new(kinds: Kinds, order: Order, source: Source, shared: Option<&Arc<Shared>>) -> Self {
        let kept = shared.map(|shared| (Arc::clone(shared), shared.start_pass()));
        Self { kinds, order, source, faults: Faults::default(), kept, is_busy: false }
    }

    fn of_one(kinds: Kinds, order: Order) -> Self {
        Self::new(kinds, order, Source::Shared, None)
    }

    /// Chooses the kinds of its jobs from now on.
    pub fn take_only(&mut self, kinds: Kinds) {
        self.kinds = kinds;
    }

    /// Ends it before there is no job left. The results of its jobs are on the disk then, if the queue is durable.
    pub fn end(&mut self) {
        match self.kept.take() {
            Some((shared, unflushed)) if shared.is_ours() => {
                unflushed.end();
                shared.remove_spares();
            }
            inherited => std::mem::forget(inherited), // in a forked child all of that is the parent's
        }
    }

    /// Where the settle of a claim leaves its flush, if this consumer has a next claim that shares it.
    fn unflushed(&mut self, shared: &Arc<Shared>) -> Option<&Arc<Unflushed>> {
        let (known, _) = self.kept.as_ref().filter(|(known, _)| known.is_ours())?;
        if !Arc::ptr_eq(known, shared) {
            self.end(); // the queue's directory was replaced
            self.kept = Some((Arc::clone(shared), shared.start_pass()));
        }
        self.kept.as_ref().map(|(_, unflushed)| unflushed)
    }

    /// Finishes the last settle, after the flushes of the next claim and before anybody begins with that.
    fn flush(&self) {
        if let Some((shared, unflushed)) = &self.kept
            && shared.is_ours()
        {
            unflushed.flush();
        }
    }

    fn with_listing<T>(&mut self, shared: &Shared, f: impl FnOnce(&mut Listing) -> T) -> T {
        match &mut self.source {
            Source::Pass(listing) => f(listing),
            Source::Shared => f(&mut shared.listing(self.order)),
        }
    }

    /// Takes the next job out of the listing, and says whether others want the same jobs. Of a pass, what is stale is read
    /// again; the shared listing is read again by who waits (`list_afresh`).
    fn next_job(&mut self, shared: &Shared) -> Result<Option<(Job, bool)>> {
        let (kinds, order) = (self.kinds, self.order);
        if let Source::Pass(listing) = &mut self.source
            && listing.is_stale(order)
        {
            shared.remove_spares(); // this may take its time
            let mut later = Listing::default();
            shared.list(&mut later, order)?;
            listing.keep_only(later);
        }
        Ok(self.with_listing(shared, |listing| {
            let job = (!listing.is_stale(order)).then(|| listing.next(kinds, order)).flatten()?;
            Some((job, listing.is_crowded()))
        }))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Jobs that could not be claimed on the way to one that can. They keep nobody from the others; but where nothing can be
/// claimed, that is said.
#[derive(Default)]
struct Faults(Vec<Error>);

impl Faults {
    /// Notes one, unless there are so many that the fault is not the jobs'.
    fn add(&mut self, error: Error) -> Result<()> {
        const MOST: usize = 16;
        if self.0.len() == MOST {
            return Err(error);
        }
        self.0.push(error);
        Ok(())
    }

    /// There was another job.
    fn forgive(&mut self, shared: &Shared) {
        for fault in self.0.drain(..) {
            shared.tell_failed(&fault);
        }
    }

    /// There was none. What all of them met alike is told by the last.
    fn end<T>(mut self, shared: &Shared) -> Result<Option<T>> {
        let Some(last) = self.0.pop() else { return Ok(None) };
        self.0.retain(|fault| fault.cause() != last.cause());
        self.forgive(shared);
        Err(last)
    }
}

/// The room of jobs on their way into the queue.
struct Taken {
    jobs: u64,
    shared: Arc<Shared>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shared.room.have_come(self.jobs);
    }
}

/// What a look for a job came to.
enum Look {
    Claimed(Claim),
    Nothing(Nothing),
}

/// What a look of who waits came to.
enum Turn {
    Claimed(Claim),
    /// It waits no more.
    Over,
    /// To be slept until then, if nothing happens; after an error whatever happens.
    Sleep(Option<Nothing>, Deadline),
}

/// What a look of who sleeps in an event loop came to.
pub enum Glance {
    /// A job.
    Claimed(Claim),
    /// Nothing yet. Look again when the listener has heard something, and at the latest after that time.
    Nothing(Duration),
    /// The wait is over.
    Over,
}

/// What is needed to sleep until there may be a job.
struct Nothing {
    shared: Arc<Shared>,
    /// The generation before the look.
    seen: u64,
    /// Whether the kernel wakes who sleeps.
    watched: bool,
    next_due: Option<Due>,
}

/// A time on the monotonic clock; `None` is one that it can't express.
#[derive(Clone, Copy)]
struct Deadline(Option<Instant>);

impl Deadline {
    const NEVER: Self = Self(None);

    fn after(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }

    fn remaining(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    fn is_over(self) -> bool {
        self.remaining().is_zero()
    }

    fn or_earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(two)) => Self(Some(one.min(two))),
            (one, two) => Self(one.or(two)),
        }
    }
}

impl Queue {
    /// Opens the queue in the directory `base` and makes the directories that are missing.
    ///
    /// # Errors
    /// [`Error::Io`] where that is not possible: `ENOTDIR` if there is a file in its place.
    pub fn open(base: impl AsRef<Path>, keep: KeepPolicy, durable: bool, detection: CrashDetection) -> Result<Self> {
        let queue = Self::unopened(base, keep, detection)?;
        queue.ensure_open()?;
        queue.set_durable(durable)?;
        Ok(queue)
    }

    /// Makes a queue that leaves the disk alone until the first call that needs it. That call opens the queue, and fails
    /// as [`open`](Self::open) does.
    ///
    /// # Errors
    /// [`Error::Io`] if `base` cannot be made absolute.
    pub fn unopened(base: impl AsRef<Path>, keep: KeepPolicy, detection: CrashDetection) -> Result<Self> {
        let base: Arc<Path> = match base.as_ref() {
            empty if empty.as_os_str().is_empty() => {
                return Err(std::io::Error::from(std::io::ErrorKind::NotFound)).at(|| empty.into());
            }
            base => std::path::absolute(base).at(|| base.into())?.into(),
        };
        Ok(Self {
            base,
            keep,
            durable: AtomicBool::new(false),
            by_pid: AtomicBool::new(detection == CrashDetection::Pid),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            limits: Limits::default(),
            put_back: AtomicU32::new(0),
            most_attempts: AtomicU32::new(u32::MAX),
            shared: ArcSwapOption::empty(),
        })
    }

    /// Opens the queue, unless it is open.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn ensure_open(&self) -> Result<()> {
        self.shared(|_, _| true).map(drop)
    }

    /// Refuses from now on to send what these limits have no room for, with [`Error::Full`].
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
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
            self.ensure_open()?;
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

    /// Sets how often a job that is interrupted, since its consumer died or left it, is put back by itself, unless that was its `most_attempts`th attempt. The
    /// default is never: it stays interrupted.
    pub fn set_put_back(&self, times: u32, most_attempts: u32) {
        self.put_back.store(times, Ordering::Relaxed);
        self.most_attempts.store(most_attempts, Ordering::Relaxed);
    }

    /// Has this queue take no more jobs, for good: its waits end at once, its passes with the job in hand.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether it takes no more jobs.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Has all who wait for a job ask whether to go on, and look again.
    pub fn wake(&self) {
        if let Some(shared) = self.shared.load().as_ref().filter(|shared| shared.is_ours()) {
            shared.wait.raise();
        }
    }

    /// Ends the waits on this queue and lets go of what it holds. Later calls fail with [`Error::Closed`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let shared = self.shared.swap(None);
        if let Some(shared) = keep_or_leak(shared) {
            _ = shared.settle_again();
            shared.wait.raise();
        }
    }

    /// Whether there is something that a person should know of and was not told yet.
    #[must_use]
    pub fn has_notices(&self) -> bool {
        self.shared.load().as_ref().is_some_and(|shared| shared.is_ours() && shared.has_notices())
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
        let _room = self.take_room(1, || on_disk(data.len()))?;
        self.publishing(due, |publisher| publisher.data(data))
    }

    /// Sends many data jobs, in order; with a durable queue far cheaper than one by one.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Sent`] names the jobs that exist.
    pub fn send_many<T: AsRef<[u8]>>(&self, items: &[T], due: Option<Due>) -> Result<Vec<Uuid>> {
        let _room = self.take_room(items.len(), || items.iter().map(|item| on_disk(item.as_ref().len())).sum())?;
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
        let _room = self.take_room(1, || self.room_of(path, transfer))?;
        self.publishing(due, |publisher| publisher.file(path, name, transfer, &mut go_on))
    }

    /// Claims a waiting job, or waits for one: no longer than `timeout`, for ever if that is `None`, or until the queue is
    /// stopped or closed.
    /// `go_on` is asked before each look and each sleep, of which none is longer than `slice` or goes on after a signal.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Stopped`]; no job is taken then.
    pub fn claim(
        &self,
        kinds: Kinds,
        order: Order,
        timeout: Option<Duration>,
        slice: Duration,
        go_on: impl FnMut() -> bool,
    ) -> Result<Option<Claim>> {
        self.next(&mut Consumer::of_one(kinds, order), timeout, slice, go_on)
    }

    /// A consumer of all that waits, jobs that are sent later included.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn consumer(&self, order: Order) -> Result<Consumer> {
        self.healing(Shared::is_open_at, |shared| Ok(Consumer::new(Kinds::ANY, order, Source::Shared, Some(shared))))
    }

    /// Claims a job for a consumer, or waits for one, as [`claim`](Self::claim) does.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn next(
        &self,
        consumer: &mut Consumer,
        timeout: Option<Duration>,
        slice: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Claim>> {
        let waits = timeout != Some(Duration::ZERO);
        let deadline = timeout.map_or(Deadline::NEVER, Deadline::after);
        let mut rest = POLL;
        loop {
            if !go_on() {
                return Err(Error::Stopped);
            }
            let (nothing, until) = match self.turn(consumer, waits, deadline, &mut rest, None)? {
                Turn::Claimed(claim) => return Ok(Some(claim)),
                Turn::Over => return Ok(None),
                Turn::Sleep(nothing, until) => (nothing, until),
            };
            while !until.is_over() {
                if !go_on() {
                    return Err(Error::Stopped);
                }
                // A signal's handler may have forked, and this be the child: what it would sleep on is its parent's.
                if nothing.as_ref().is_some_and(|nothing| !nothing.shared.is_ours()) {
                    keep_or_leak(nothing.map(|nothing| nothing.shared));
                    break;
                }
                let pause = until.remaining().min(slice);
                match &nothing {
                    Some(nothing) => nothing.shared.wait.sleep(nothing.seen, pause),
                    None => std::thread::sleep(pause.min(POLL)), // nothing would end it
                }
                if self.is_stopped()
                    || nothing.as_ref().is_some_and(|nothing| nothing.shared.wait.generation() != nothing.seen)
                {
                    break;
                }
            }
        }
    }

    /// Claims a waiting job, or has the listener told when there may be one: who waits in an event loop calls this again
    /// until `timeout` is over, which is that of all its looks together.
    ///
    /// # Errors
    /// [`Error::Io`]; no job is taken then.
    pub fn glance(
        &self,
        kinds: Kinds,
        order: Order,
        timeout: Option<Duration>,
        listener: &Arc<Listener>,
    ) -> Result<Glance> {
        let waits = timeout != Some(Duration::ZERO);
        let deadline = timeout.map_or(Deadline::NEVER, Deadline::after);
        let mut rest = listener.rest().max(POLL);
        let mut consumer = Consumer::of_one(kinds, order);
        let turn = self.turn(&mut consumer, waits, deadline, &mut rest, Some(listener).filter(|_| waits))?;
        listener.set_rest(rest);
        Ok(match turn {
            Turn::Claimed(claim) => Glance::Claimed(claim),
            Turn::Over => Glance::Over,
            Turn::Sleep(_, until) => Glance::Nothing(until.remaining()),
        })
    }

    /// Looks once, and says what comes next. `rest` is how long to sleep after an error.
    fn turn(
        &self,
        consumer: &mut Consumer,
        waits: bool,
        deadline: Deadline,
        rest: &mut Duration,
        listener: Option<&Arc<Listener>>,
    ) -> Result<Turn> {
        if self.is_stopped() {
            return Ok(Turn::Over);
        }
        let is_there = if std::mem::take(&mut consumer.is_busy) { Shared::was_at } else { Shared::is_at };
        let look = self.healing(is_there, |shared| {
            let look = self.look(shared, consumer, waits, listener);
            consumer.flush();
            consumer.is_busy = matches!(look, Ok(Look::Claimed(_)));
            if !consumer.is_busy {
                shared.remove_spares();
            }
            look
        });
        let is_last = deadline.is_over();
        let (nothing, until) = match look {
            Ok(Look::Claimed(claim)) => return Ok(Turn::Claimed(claim)),
            Ok(Look::Nothing(_)) if is_last => return Ok(Turn::Over),
            // Who stopped or closed it when this look had just begun may have raised the generation before that was noted.
            Ok(Look::Nothing(_)) if self.is_stopped() || self.closed.load(Ordering::Acquire) => return Ok(Turn::Over),
            Ok(Look::Nothing(nothing)) => {
                *rest = POLL;
                let poll = if nothing.watched { slow_poll_beside_events() } else { POLL };
                let due = nothing.next_due.map_or(Duration::MAX, Due::remaining);
                (Some(nothing), Deadline::after(poll.min(due)))
            }
            Err(Error::Closed) if waits => return Ok(Turn::Over),
            Err(error) if is_last || !error.is_passing() => return Err(error),
            Err(error) => {
                self.tell_waiting(&error);
                let until = Deadline::after(*rest);
                *rest = slow_poll().min(*rest * 2); // each look may cost more than one that finds nothing
                (None, until)
            }
        };
        Ok(Turn::Sleep(nothing, until.or_earlier(deadline)))
    }

    /// Looks once for a job. Who waits afterwards looks less often after the dead.
    fn look(
        &self,
        shared: &Arc<Shared>,
        consumer: &mut Consumer,
        waits: bool,
        listener: Option<&Arc<Listener>>,
    ) -> Result<Look> {
        let (kinds, order) = (consumer.kinds, consumer.order);
        let is_armed = waits
            && shared.wait.arm(&shared.layout(), &self.base).unwrap_or_else(|error| {
                let is_limit = error.kind() != std::io::ErrorKind::PermissionDenied;
                let hint = if is_limit { " (see /proc/sys/fs/inotify/ for the limits)" } else { "" };
                shared.tell_once(Notice::new(format!("inotify: {error}{hint}; looking every {POLL:?} instead")));
                false
            });
        let watched = listener.is_none_or(|listener| shared.wait.enlist(listener)) && is_armed;
        step!("look: armed");
        let seen = shared.wait.generation();
        step!("look: noted");
        self.care_in_passing(shared);
        let mut cared = false;
        let mut readings = shared.listing(order).readings;
        loop {
            let is_paused = shared.pause.is_set(&self.base)?;
            if !is_paused && let Some(claim) = self.claim_listed(shared, consumer)? {
                return Ok(Look::Claimed(claim));
            }
            step!("look: used up");
            if !is_paused && Self::list_afresh(shared, kinds, order, readings)? {
                continue;
            }
            if !cared {
                cared = true;
                let longest_ago = if waits { slow_poll() } else { Duration::ZERO };
                if self.care(shared, longest_ago)? {
                    readings = shared.listing(order).readings;
                    continue;
                }
            }
            let next_due = locked(&shared.care).schedule.next_due;
            step!("look: found nothing");
            return Ok(Look::Nothing(Nothing { shared: Arc::clone(shared), seen, watched, next_due }));
        }
    }

    /// Claims one of the jobs that are listed for the consumer.
    fn claim_listed(&self, shared: &Arc<Shared>, consumer: &mut Consumer) -> Result<Option<Claim>> {
        Self::settle_first(shared)?;
        let mut shared = Arc::clone(shared);
        loop {
            let Some((job, is_crowded)) = consumer.next_job(&shared)? else {
                return std::mem::take(&mut consumer.faults).end(&shared);
            };
            if is_crowded && is_gone(&shared, &job) {
                consumer.with_listing(&shared, Listing::met);
                continue;
            }
            let owner = shared.owner(self.crash_detection()).or_else(|_| {
                // Somebody closed what was open.
                consumer.with_listing(&shared, Listing::left_one);
                shared = self.reopen()?;
                shared.owner(self.crash_detection())
            })?;
            let terms = Terms { pass: consumer.unflushed(&shared), ..self.terms() };
            match Claim::take(&shared, job, owner, &terms) {
                Ok(Attempt::Won(claim)) => {
                    consumer.faults.forgive(&shared);
                    return self.unless_paused(&shared, claim);
                }
                Ok(Attempt::Lost) => consumer.with_listing(&shared, Listing::missed),
                Ok(Attempt::Blocked) => consumer.with_listing(&shared, Listing::left_one),
                Err(error) => {
                    consumer.with_listing(&shared, Listing::left_one);
                    consumer.faults.add(error)?;
                }
            }
        }
    }

    /// Hands a claim over, unless the queue was paused (rule 20) or stopped meanwhile: then the job goes back.
    fn unless_paused(&self, shared: &Shared, claim: Claim) -> Result<Option<Claim>> {
        let is_paused = shared.pause.is_set(&self.base);
        if matches!(is_paused, Ok(false)) && !self.is_stopped() {
            return Ok(Some(claim));
        }
        claim.put_back()?;
        is_paused.map(|_| None)
    }

    /// Who has many verdicts that the disk does not take is given no more jobs: each would be done, and end interrupted if
    /// this process died.
    fn settle_first(shared: &Shared) -> Result<()> {
        if !shared.has_many_unsettled() {
            return Ok(());
        }
        match shared.settle_again() {
            (_, Some(source)) => Err(Error::Unsettled { source: source.into() }),
            (_, None) => Ok(()),
        }
    }

    /// Lists what waits, unless that was done since there were so many readings, or nothing can have changed. Says whether
    /// there may be something to claim.
    fn list_afresh(shared: &Shared, kinds: Kinds, order: Order, readings: u64) -> Result<bool> {
        let mut listing = shared.listing(order);
        if !listing.is_stale(order) && listing.has(kinds) {
            return Ok(true); // another thread was here
        }
        let is_current = |listing: &Listing| listing.is_current(shared.layout().dir(State::Queued));
        if !listing.is_stale(order) && (listing.readings > readings || is_current(&listing)) {
            return Ok(false);
        }
        step!("look: lists");
        shared.list(&mut listing, order)?;
        Ok(true)
    }

    /// Nothing can be claimed: that is told once, whatever job it was noticed by.
    fn tell_waiting(&self, error: &Error) {
        if let Some(shared) = self.shared.load().as_ref().filter(|shared| shared.is_ours()) {
            shared.tell_trouble(error, Notice::new(format!("{error}; waiting goes on")));
        }
    }

    /// A consumer of the jobs that wait now, after those whose delay is over have joined them: each is tried once.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn pass(&self, kinds: Kinds, order: Order) -> Result<Consumer> {
        self.healing(Shared::is_open_at, |shared| {
            self.care(shared, Duration::ZERO)?;
            let mut listing = Listing::default();
            shared.list(&mut listing, order)?;
            Ok(Consumer::new(kinds, order, Source::Pass(listing), Some(shared)))
        })
    }

    /// Claims the next job of a pass that is still there. A pass ends when the queue is closed, stopped or paused.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn claim_next(&self, pass: &mut Consumer) -> Result<Option<Claim>> {
        let shared = match self.shared(Shared::was_at) {
            Err(Error::Closed) => return Ok(None),
            shared => shared?,
        };
        self.care_in_passing(&shared);
        let claimed = match shared.pause.is_set(&self.base) {
            Ok(is_paused) if is_paused || self.is_stopped() => Ok(None),
            Ok(_) => self.claim_listed(&shared, pass),
            Err(error) => Err(error),
        };
        pass.flush();
        if !matches!(claimed, Ok(Some(_))) {
            shared.remove_spares();
        }
        claimed
    }

    /// What this process's claims are called after, as [`stats`](Self::stats) tells it.
    ///
    /// # Errors
    /// [`Error::Io`] if its lock file can't be made.
    pub fn owner(&self) -> Result<OwnerName> {
        self.healing(Shared::is_open_at, |shared| Ok(shared.owner(self.crash_detection())?.name()))
    }

    /// Looks now whether consumers have died, whose jobs are then interrupted. Of those that were `killed` it is recorded
    /// why, unless another one that looks comes first. Returns those of them that count as alive still: somebody else has
    /// their lock file open.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn recover(&self, killed: &[(OwnerName, String)]) -> Result<Vec<OwnerName>> {
        self.showing(|shared| {
            let layout = shared.layout();
            let lives = |owner: &OwnerName| owner::seems_alive(*owner, &layout.owners);
            // Before: one that dies meanwhile may have been passed over.
            let living = killed.iter().map(|(owner, _)| *owner).filter(lives).collect();
            recover::recover(shared, self.fate(), killed)?;
            Ok(living)
        })
    }

    /// Finds out where a job is. `None` only after several looks, since a job may move between two of them.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn status(&self, job: &JobRef) -> Result<Option<State>> {
        self.showing(|shared| {
            for _ in 0..LOOKS {
                // First as it is called if it is a data job, or as the whole name says: no large directory is read,
                // but for `scheduled/`, whose names begin with the due time.
                let known = job.known();
                for state in State::ALL {
                    step!("status: looks");
                    if has_known(shared, state, job, &known)? {
                        return Ok(Some(state));
                    }
                }
                if !job.is_known() {
                    for state in State::ALL {
                        if find_listed(shared, state, job)?.is_some() {
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
        self.showing(|shared| {
            let known = job.known();
            Ok(has_known(shared, state, job, &known)?
                || (!job.is_known() && find_listed(shared, state, job)?.is_some()))
        })
    }

    /// Counts the jobs in a state. A claim counts once it holds its file.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn count(&self, state: State) -> Result<usize> {
        self.showing(|shared| {
            let mut count = 0;
            visit_jobs(shared, state, |_| true, |_, _, _| count += 1)?;
            Ok(count)
        })
    }

    /// Lists the jobs in a state, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn jobs(&self, state: State) -> Result<Jobs> {
        self.showing(|shared| {
            let mut jobs = Vec::new();
            visit_jobs(shared, state, |_| true, |job, due, owner| jobs.push((job, due, owner)))?;
            jobs.sort_unstable_by_key(|(job, ..)| job.id());
            Ok(Jobs { base: Arc::clone(&self.base), state, rest: jobs.into_iter() })
        })
    }

    /// What is recorded of a job: its attempts that did not simply succeed, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn history(&self, job: &JobRef) -> Result<Vec<Record>> {
        self.showing(|shared| history::records(&shared.layout(), job))
    }

    /// Puts a finished job back into the queue, whatever its end was; that of a consumer that died as well. Says whether
    /// there was one.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn requeue(&self, job: &JobRef) -> Result<bool> {
        self.showing(|shared| {
            self.care(shared, Duration::ZERO)?;
            let layout = shared.layout();
            for state in KeepPolicy::ALL.states() {
                let known = job.known();
                if self.move_back(shared, &layout, state, &known)? {
                    return Ok(true);
                }
            }
            if !job.is_known() {
                for state in KeepPolicy::ALL.states() {
                    if let Some(found) = find_listed(shared, state, job)?
                        && self.move_back(shared, &layout, state, &found)?
                    {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        })
    }

    /// Puts all jobs that are in these states now back into the queue, those of consumers that died included, and says how
    /// many there were.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn requeue_all(&self, which: KeepPolicy) -> Result<usize> {
        self.showing(|shared| {
            self.care(shared, Duration::ZERO)?;
            let layout = shared.layout();
            let recorded = with_history(shared);
            // That they are files the listing told.
            let (moved, fault) = to_each(shared, list_kept(shared, which)?, |state, job| {
                self.requeue_from(shared, &layout, state, job, recorded.contains(&job.id()))
            });
            if moved > 0 {
                self.sync(&layout, State::Queued)?;
                shared.wait.raise();
            }
            fault.map_or(Ok(moved), Err)
        })
    }

    /// Deletes the jobs that are in these states now and were settled at least that long ago, and says how many.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn cleanup(&self, which: KeepPolicy, older_than: Duration) -> Result<usize> {
        self.showing(|shared| {
            let layout = shared.layout();
            let now = SystemTime::now();
            let recorded = with_history(shared);
            let (deleted, fault) = to_each(shared, list_kept(shared, which)?, |state, job| {
                let (dir, entry) = (layout.dir(state), job.entry());
                let path = || dir.path().join(&entry);
                if !older_than.is_zero() {
                    match dir.stat(&entry) {
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
                        Err(error) => return Err(error).at(path),
                        Ok(stat) if is_older(job, stat.changed, now, older_than) => {}
                        Ok(_) => return Ok(false),
                    }
                }
                match dir.remove_file(&entry) {
                    // gone, or something that is no job under a job's name
                    Err(_) if dir.is_file(&entry).is_ok_and(|is_file| !is_file) => return Ok(false),
                    removed => removed.at(path)?,
                }
                if recorded.contains(&job.id())
                    && let Err(error) = history::remove(&layout, job)
                {
                    shared.tell_failed(&error);
                }
                Ok(true)
            });
            for state in which.states().filter(|_| deleted > 0) {
                self.sync(&layout, state)?;
            }
            fault.map_or(Ok(deleted), Err)
        })
    }

    /// Deletes a job that waits or is scheduled, and says whether there was one. Once somebody has claimed it, there is
    /// none.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn cancel(&self, job: &JobRef) -> Result<bool> {
        self.showing(|shared| match cancel(shared, job)? {
            Some(state) => self.sync(&shared.layout(), state).map(|()| true),
            None => Ok(false),
        })
    }

    /// Pauses the queue, for all processes, until [`resume`](Self::resume): what is held is finished, and nobody takes
    /// a job later than a second after this returns, in this process not any more.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn pause(&self) -> Result<()> {
        self.healing(Shared::is_at, |shared| {
            let set = pause::set(&shared.layout(), self.durable());
            shared.pause.forget();
            set
        })
    }

    /// Ends a pause. Who waits is woken, or looks from time to time.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn resume(&self) -> Result<()> {
        self.healing(Shared::is_at, |shared| {
            pause::unset(&shared.layout(), self.durable())?;
            shared.wait.raise();
            Ok(())
        })
    }

    /// Whether the queue is paused at this moment.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn is_paused(&self) -> Result<bool> {
        self.healing(Shared::is_at, |_| pause::is_there(&self.base))
    }

    /// Repairs what an inspection found, where it is certain what is to be done: makes directories that are missing, does what
    /// a consumer does that looks after the dead, and removes the records of jobs that are gone, if the inspection looked twice
    /// and as far apart as [`Inspection::rest`] says.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn repair(&self, found: &Inspection) -> Result<()> {
        self.showing(|shared| {
            self.care(shared, Duration::ZERO)?;
            let layout = shared.layout();
            for job in found.gone() {
                history::remove(&layout, &job).unwrap_or_else(|error| _ = shared.tell_failed(&error));
            }
            Ok(())
        })
    }

    /// The queue in a few figures.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn stats(&self) -> Result<Stats> {
        self.showing(|shared| stats(shared, |_| {}))
    }

    /// The same for who watches it: with how many jobs were sent since that time, and so many of those that failed last.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn survey(&self, since: Duration, failures: usize) -> Result<Survey> {
        self.showing(|shared| survey(shared, since, failures))
    }

    fn terms(&self) -> Terms<'_> {
        Terms { base: &self.base, fate: self.fate(), pass: None }
    }

    fn fate(&self) -> Fate {
        Fate {
            keep: self.keep,
            put_back: self.put_back.load(Ordering::Relaxed),
            attempts: self.most_attempts.load(Ordering::Relaxed),
            durable: self.durable(),
        }
    }

    /// Looks after what time does to the queue: promotes what is due, and, unless that was done so recently, settles what
    /// could not be settled before, recovers the jobs of the dead and sweeps up behind them. Says whether there may be
    /// more to claim now.
    fn care(&self, shared: &Shared, recently: Duration) -> Result<bool> {
        let mut care = locked(&shared.care);
        let mut changed = false;
        if care.is_due(recently) {
            let begun = Instant::now();
            let layout = shared.layout();
            if !layout.is_intact() || !layout.is_at(&self.base) {
                self.reopen()?;
            }
            shared.table().take_again(&shared.layout());
            changed = shared.settle_again().0;
            changed |= recover::recover(shared, self.fate(), &[])?;
            recover::sweep(shared)?;
            if let Err(error) = recover::sweep_histories(shared, &mut care.histories) {
                shared.tell_failed(&error);
            }
            (care.last, care.took) = (Some(Instant::now()), begun.elapsed());
        }
        Ok(changed | recover::promote(shared, &mut care.schedule, self.durable())?)
    }

    /// The same for who always finds a job: now and then, and when one is due. What fails here keeps nobody from the jobs
    /// that can be claimed.
    fn care_in_passing(&self, shared: &Shared) {
        if locked(&shared.care).is_wanted(slow_poll()) {
            shared.remove_spares(); // this may take its time
            if let Err(error) = self.care(shared, slow_poll()) {
                shared.tell_failed(&error);
            }
        }
    }

    /// What this process shares of the queue, opened anew where it is not there any more, or after a fork.
    fn shared(&self, is_there: impl Fn(&Shared, &Path) -> bool) -> Result<Arc<Shared>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        match &*self.shared.load() {
            Some(shared) if shared.is_ours() && is_there(shared, &self.base) => Ok(Arc::clone(shared)),
            _ => self.reopen(),
        }
    }

    fn reopen(&self) -> Result<Arc<Shared>> {
        if self.shared.load().is_none() {
            layout::make_base(&self.base)?; // only the first time: a directory that was deleted later stays deleted
        }
        let shared = Shared::of(&self.base)?;
        if let Some(old) = keep_or_leak(self.shared.swap(Some(Arc::clone(&shared)))) {
            old.take_notices().into_iter().for_each(|notice| shared.tell(notice));
        }
        Ok(shared)
    }

    /// Runs `f`, and once more if it failed because a directory of the queue was replaced.
    fn healing<T>(
        &self,
        is_there: impl Fn(&Shared, &Path) -> bool,
        mut f: impl FnMut(&Arc<Shared>) -> Result<T>,
    ) -> Result<T> {
        let shared = self.shared(is_there)?;
        match f(&shared) {
            Err(error) if error.is_harmless() && !shared.layout().is_whole_at(&self.base) => f(&self.reopen()?),
            done => done,
        }
    }

    /// The same, of what shows where jobs are, or acts on it: a verdict that is seen is on the disk.
    fn showing<T>(&self, mut f: impl FnMut(&Arc<Shared>) -> Result<T>) -> Result<T> {
        self.healing(Shared::is_open_at, |shared| {
            let shown = f(shared);
            shared.flush_verdicts();
            shown
        })
    }

    /// Takes the room for jobs to be sent, so many bytes in all, where there are limits.
    fn take_room(&self, jobs: usize, bytes: impl Fn() -> u64) -> Result<Option<Taken>> {
        let Limits { max_queued, min_free } = self.limits;
        if jobs == 0 || (max_queued.is_none() && min_free == 0) {
            return Ok(None);
        }
        self.healing(Shared::was_at, |shared| {
            if min_free > 0 {
                let free = || fs2::available_space(&self.base).at(|| self.base.to_path_buf());
                shared.room.take_bytes(bytes(), min_free, free)?;
            }
            let Some(most) = max_queued else { return Ok(None) };
            let jobs = jobs as u64;
            shared.room.take_jobs(jobs, most, || count_waiting(shared))?;
            Ok(Some(Taken { jobs, shared: Arc::clone(shared) }))
        })
    }

    /// What a file to be sent takes on the queue's filesystem. If it can't be told, sending it tells why.
    fn room_of(&self, path: &Path, transfer: Transfer) -> u64 {
        let (Ok(file), Ok(home)) = (sys::stat_target(path), sys::stat_target(&self.base)) else { return 0 };
        let is_renamed = transfer == Transfer::Move && file.identity.0 == home.identity.0;
        if is_renamed { 0 } else { on_disk(file.length.try_into().unwrap_or(usize::MAX)) }
    }

    fn publishing<T>(&self, due: Option<Due>, mut publish: impl FnMut(Publisher<'_>) -> Result<T>) -> Result<T> {
        self.healing(Shared::is_at, |shared| {
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

    fn move_back(&self, shared: &Shared, layout: &Layout, state: State, job: &Job) -> Result<bool> {
        let (dir, entry) = (layout.dir(state), job.entry());
        // It may be gone, or something that is no job under a job's name.
        let moved = dir.is_file(&entry).at(|| dir.path().join(&entry))?
            && self.requeue_from(shared, layout, state, job, true)?;
        if moved {
            shared.wait.raise();
            self.sync(layout, State::Queued)?;
        }
        Ok(moved)
    }

    /// Puts a job back, and has its attempts counted anew if there may be a history of it.
    fn requeue_from(
        &self,
        shared: &Shared,
        layout: &Layout,
        state: State,
        job: &Job,
        is_recorded: bool,
    ) -> Result<bool> {
        let number = if is_recorded { self.record_requeue(shared, layout, state, job) } else { None };
        let moved = rename_back(layout, state, job);
        if let Some(number) = number {
            match moved {
                Ok(true) => history::mark(layout, job, number),
                _ => history::retract(layout, job, number),
            }
            .unwrap_or_else(|error| _ = shared.tell_failed(&error));
        }
        moved
    }

    /// Records that a job of that state is put back, if there is a history of it.
    fn record_requeue(&self, shared: &Shared, layout: &Layout, state: State, job: &Job) -> Option<u64> {
        let (dir, entry) = (layout.dir(state), job.entry());
        let record = || loop {
            let past = Past::of(layout, job, None)?;
            step!("requeue: read");
            // After that, or what was read might be of before another requeue.
            if !past.is_known || !dir.is_file(&entry).at(|| dir.path().join(&entry))? {
                return Ok(None);
            }
            let mut record = Record::new(0, Ended::Requeued);
            record.due = Due::at(record.at);
            let recorded = history::record_next(layout, job, &past, &record, self.durable())?;
            if recorded.is_some() {
                return Ok(recorded);
            }
        };
        record().unwrap_or_else(|error| {
            shared.tell_unrecorded(job, &error);
            None
        })
    }

    fn sync(&self, layout: &Layout, state: State) -> Result<()> {
        if self.durable() { layout.flush(state) } else { Ok(()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        keep_or_leak(self.shared.swap(None));
    }
}

/// Does something to each of these jobs, and says to how many, and what went wrong first: a job to which it can't be done
/// keeps nobody from the others.
fn to_each(
    shared: &Shared,
    jobs: Vec<(State, Job)>,
    mut act: impl FnMut(State, &Job) -> Result<bool>,
) -> (usize, Option<Error>) {
    let (mut done, mut first) = (0, None);
    for (state, job) in jobs {
        match act(state, &job) {
            Ok(acted) => done += usize::from(acted),
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => _ = shared.tell_failed(&error),
        }
    }
    (done, first)
}

/// How many jobs wait, those included whose delay is not over. A job that becomes due meanwhile is counted once or twice.
fn count_waiting(shared: &Shared) -> Result<u64> {
    let mut count = 0;
    for state in [State::Scheduled, State::Queued] {
        visit_jobs(shared, state, |_| true, |_, _, _| count += 1)?;
    }
    Ok(count)
}

/// The jobs of which there are records. That they can't be listed keeps nobody from the jobs.
fn with_history(shared: &Shared) -> HashSet<Uuid> {
    let mut jobs = HashSet::new();
    if let Err(error) = history::visit(&shared.layout(), |job| _ = jobs.insert(job.id())) {
        shared.tell_failed(&error);
    }
    jobs
}

/// Whether a listed job waits no more. To look is far cheaper than to try.
fn is_gone(shared: &Shared, job: &Job) -> bool {
    let seen = shared.layout().dir(State::Queued).stat(&job.entry());
    seen.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether a job was settled that long ago, as far as clocks that were wrong let it be known: one from the future is not
/// old, and none was settled before it was sent.
fn is_older(job: &Job, changed: SystemTime, now: SystemTime, than: Duration) -> bool {
    let sent = UNIX_EPOCH + job::sent_at(job.id());
    let settled = if sent <= now { changed.max(sent) } else { changed };
    now.duration_since(settled).is_ok_and(|age| age >= than)
}

fn rename_back(layout: &Layout, state: State, job: &Job) -> Result<bool> {
    let (dir, entry) = (layout.dir(state), job.entry());
    let path = || dir.path().join(&entry);
    match dir.rename(&entry, layout.dir(State::Queued), &entry) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        moved => moved.at(path).map(|()| true),
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
