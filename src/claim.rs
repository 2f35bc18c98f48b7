//! Claiming and settling: a job's file goes into a directory of its own in `processing/`, and from there to where the
//! verdict says.
//!
//! | call | a crash before the next one leaves |
//! | --- | --- |
//! | `mkdir processing/<job>.<owner>` | an empty directory, which recovery removes |
//! | open it | the same |
//! | rename `queued/<job>` into it: **the claim** | an orphan, which recovery moves to `interrupted/` |
//! | durable: `fsync` of it and of `processing/`, before anybody is told | the same |
//! | the handler | the same |
//! | of what is no success: the record of the attempt | the same, and a record: see `history.rs` |
//! | rename to the verdict's directory, or unlink: **the settle** | the job settled, and an empty directory |
//! | durable: `fsync` of that directory | the same |
//! | the record's mark | the same |
//! | `rmdir` | the job settled |
//!
//! Of a pass, the flush of a verdict comes after those of the next job's claim, which leave it little to do ([`Unflushed`]).
//!
//! The job is reached through the handle of the directory that was made here, never by the directory's name again: so
//! whoever removes or replaces that name can't lead the job astray.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::{At, Error, Result};
use crate::history::{self, Ended, Past, Record, Why};
use crate::job::{Due, Job, Token, unix_now};
use crate::layout::{self, Layout};
use crate::leftover;
use crate::notice::Notice;
use crate::owner::Owner;
use crate::policy::{Fate, Outcome, State};
use crate::shared::Shared;
use crate::sys::{self, Dir, FileKind};
use crate::wait::locked;

/// How a claim is made and settled.
pub(crate) struct Terms<'a> {
    pub(crate) base: &'a Arc<Path>,
    pub(crate) fate: Fate,
    pub(crate) pass: Option<&'a Arc<Unflushed>>,
}

/// A claimed job: this process's alone until it is settled.
///
/// Dropped without a verdict, the job is interrupted. In a forked child a claim is inert: it is the parent's.
pub struct Claim {
    held: Option<Held>,
}

impl Claim {
    /// Claims a waiting job under that name, unless somebody else has it.
    pub(crate) fn take(shared: &Arc<Shared>, job: Job, owner: Owner, terms: &Terms<'_>) -> Result<Attempt<Self>> {
        if !shared.enter(&job, owner.name()) {
            return Ok(Attempt::Blocked);
        }
        step!("claim: entered");
        let layout = shared.layout();
        let name = job.claim_entry(owner.name());
        // A file job's path is handed to its handler; a power cut may undo the rename of a directory and not that of a file.
        let reuse = owner.token().filter(|_| job.name().is_none() && !terms.fate.durable);
        let dir = match move_in(shared, &layout, &job, &name, reuse) {
            Ok(Attempt::Won(dir)) => dir,
            Ok(Attempt::Blocked) => {
                shared.leave_quietly(&job);
                return Ok(Attempt::Blocked);
            }
            lost => {
                shared.leave(&job);
                return lost.map(|_| Attempt::Lost);
            }
        };
        let held = Held {
            shared: Arc::clone(shared),
            location: Arc::new(Location {
                base: Arc::clone(terms.base),
                name,
                file: job.claimed_name().to_owned(),
                is_told: AtomicBool::new(false),
            }),
            job,
            dir,
            fate: terms.fate,
            is_put_back: false,
            moved: false,
            reuse,
            pass: terms.pass.map(Arc::clone),
            past: OnceLock::new(),
            why: None,
            recorded: None,
            owner,
        };
        let claim = Self { held: Some(held) };
        claim.confirm(&layout)
    }

    /// Says that the job is claimed, once it may be said; otherwise the job goes back.
    fn confirm(mut self, layout: &Layout) -> Result<Attempt<Self>> {
        let Some(held) = &self.held else { return Ok(Attempt::Lost) };
        let is_file = match held.job.name() {
            None => Ok(true), // opening it will tell
            Some(name) => held.dir.stat(name).at(|| held.path()).map(|stat| stat.kind == FileKind::Regular),
        };
        let confirmed = is_file.and_then(|is_file| {
            if is_file && held.fate.durable {
                held.dir.sync().at(|| held.dir.path().into())?;
                layout.flush(State::Processing)?;
            }
            Ok(is_file)
        });
        step!("claim: confirmed");
        match confirmed {
            Ok(true) => Ok(Attempt::Won(self)),
            not => {
                self.finish(Outcome::Retry(None), None)?;
                not.map(|_| Attempt::Blocked)
            }
        }
    }

    /// The job.
    ///
    /// # Errors
    /// [`Error::Inherited`] in a forked child.
    pub fn job(&self) -> Result<&Job> {
        Ok(&self.held()?.job)
    }

    /// Where its file is until it is settled.
    ///
    /// # Errors
    /// [`Error::Inherited`] in a forked child.
    pub fn path(&self) -> Result<PathBuf> {
        self.location().map(|location| location.tell())
    }

    /// The same for later, whatever becomes of the claim.
    pub(crate) fn location(&self) -> Result<Arc<Location>> {
        Ok(Arc::clone(&self.held()?.location))
    }

    /// Opens its file. A link that somebody put in its place is an error.
    ///
    /// # Errors
    /// [`Error::Io`] if it can't be opened, [`Error::NotRegular`] if it is no regular file.
    pub fn open(&self) -> Result<File> {
        self.content().map(|content| content.file)
    }

    /// The lock file that says that its owner lives, or `None` for an owner that has none. Whoever gets a duplicate of its
    /// descriptor keeps the owner alive, for as long as that is open.
    ///
    /// # Errors
    /// [`Error::Inherited`] in a forked child.
    pub fn lock_file(&self) -> Result<Option<&File>> {
        Ok(match &self.held()?.owner {
            Owner::Token(lock) => lock.file(),
            Owner::Pid(_) => None,
        })
    }

    /// Reads its bytes, as many as there were when it was opened.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(&self) -> Result<Vec<u8>> {
        self.content()?.read()
    }

    /// Opens its file to be read.
    pub(crate) fn content(&self) -> Result<Content> {
        let held = self.held()?;
        let file = held.dir.open_file(held.job.claimed_name()).at(|| held.path())?;
        let metadata = file.metadata().at(|| held.path())?;
        if !metadata.is_file() {
            let kind = io::ErrorKind::InvalidInput;
            return Err(Error::NotRegular { what: "a job must be a regular file", kind, path: held.path() });
        }
        Ok(Content { file, length: metadata.len(), location: Arc::clone(&held.location) })
    }

    /// Gives the verdict. With a durable queue it is on the disk when this returns; if the job is one of a pass, when the
    /// next [`claim_next`](crate::Queue::claim_next) or [`Consumer::end`](crate::Consumer::end) does, and before any call
    /// shows it. Until then a power cut may leave the job interrupted.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if the disk does not take it now: the job stays claimed, and the verdict is tried again
    /// whenever this process looks for jobs; if the process ends before, the job is interrupted.
    /// [`Error::Inherited`] in a forked child, which changes nothing.
    pub fn settle(self, outcome: Outcome) -> Result<()> {
        self.settle_because(outcome, Why::default())
    }

    /// The same, with what is to be said of it in the job's history if it is no success. That the history can't be written
    /// is told, and keeps no job from its verdict.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn settle_because(mut self, outcome: Outcome, why: Why) -> Result<()> {
        self.held()?;
        self.finish(outcome, Some(why))
    }

    /// Has its settle leave nothing to the next claim, neither a flush nor the directory under this claim's name: something
    /// else comes first.
    pub fn settle_fully(&mut self) {
        if let Some(held) = self.held.as_mut().filter(|held| held.shared.is_ours()) {
            held.pass = None;
        }
    }

    /// Puts the job back as if nothing had been: that is no attempt.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn put_back(mut self) -> Result<()> {
        self.held()?;
        self.finish(Outcome::Retry(None), None)
    }

    /// Which attempt at the job this is, from 1: as often as it was claimed and begun since it was sent or requeued. Its
    /// history is read when this is first asked for.
    ///
    /// # Errors
    /// [`Error::Io`] if the history can't be read, [`Error::Inherited`] in a forked child.
    pub fn attempt(&self) -> Result<u32> {
        let held = self.held()?;
        Ok(held.past(&held.shared.layout())?.attempt())
    }

    /// Whether this process made the claim, and not the one that it was forked from.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.shared.is_ours())
    }

    fn held(&self) -> Result<&Held> {
        self.held.as_ref().filter(|held| held.shared.is_ours()).ok_or(Error::Inherited)
    }

    fn finish(&mut self, outcome: Outcome, why: Option<Why>) -> Result<()> {
        let Some(mut held) = self.held.take() else { return Ok(()) };
        if !held.shared.is_ours() {
            // Nothing of the parent's is touched, not even its memory.
            std::mem::forget(held);
            return Ok(());
        }
        held.why = why;
        match held.pass.take() {
            Some(pass) => pass.settle(held, outcome),
            None => held.settle(outcome, false).map(drop).map_err(|source| held.keep(outcome, source)),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.held.is_none() {
            return; // it has its verdict
        }
        let why = Why { reason: Some("dropped without a verdict".into()), traceback: None };
        if let Err(error) = self.finish(Outcome::Interrupted, Some(why))
            && let Error::Unsettled { source } = error
        {
            // The verdict is kept and tried again; nobody is there to be told.
            drop(source);
        }
    }
}

/// What came of an attempt to claim a job.
pub(crate) enum Attempt<T> {
    /// The job is this thread's.
    Won(T),
    /// Somebody else was faster: the job is gone from `queued/`.
    Lost,
    /// It can't be claimed now, though it may wait on: another thread of this process is at it, a leftover has the name
    /// of its directory (which is never adopted: recovery judges it), or it is no regular file.
    Blocked,
}

/// Moves a job's file into a directory of its own.
fn move_in(
    shared: &Shared,
    layout: &Layout,
    job: &Job,
    name: &OsStr,
    reuse: Option<Token>,
) -> Result<Attempt<Arc<Dir>>> {
    let (queued, processing) = (layout.dir(State::Queued), layout.dir(State::Processing));
    let dir = match make(shared, processing, name, reuse) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Attempt::Blocked),
        // Somebody took it for a dead owner's, and removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && processing.is_linked().unwrap_or(true) => {
            return Ok(Attempt::Blocked);
        }
        made => made.at(|| processing.path().join(name))?,
    };
    step!("claim: opened");
    let taken = queued.try_rename(&job.entry(), &dir, job.claimed_name());
    step!("claim: taken");
    if taken.is_err() && !reuse.is_some_and(|token| shared.spares.give_back(token, processing, name, &dir, None)) {
        _ = processing.remove_dir(name); // what stays is empty, and recovery's
    }
    match taken.map(|()| dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && queued.is_linked().unwrap_or(true) => {
            Ok(Attempt::Lost)
        }
        Err(error) if sys::is_busy(&error) => Ok(Attempt::Blocked),
        taken => taken.at(|| queued.path().join(job.entry())).map(Attempt::Won),
    }
}

/// Makes the directory of a claim, or takes one that waits for its next job.
fn make(shared: &Shared, processing: &Dir, name: &OsStr, reuse: Option<Token>) -> io::Result<Arc<Dir>> {
    let gone = |last: &Job, name: &OsStr, dir: &Dir, removed| shared.leave_spare(processing, last, name, dir, removed);
    if let Some(token) = reuse
        && let Some(dir) = shared.spares.take(token, processing, name, gone)?
    {
        return Ok(dir);
    }
    processing.make_dir(name)?;
    step!("claim: made");
    processing.open_dir(name).map(Arc::new).inspect_err(|_| _ = processing.remove_dir(name))
}

/// A claimed job's file, open: as many bytes as there were then.
pub(crate) struct Content {
    file: File,
    length: u64,
    location: Arc<Location>,
}

impl Content {
    pub(crate) fn length(&self) -> usize {
        self.length.try_into().unwrap_or(usize::MAX)
    }

    pub(crate) fn read(self) -> Result<Vec<u8>> {
        let path = || self.location.path();
        let mut data = Vec::new();
        data.try_reserve_exact(self.length()).map_err(io::Error::from).at(path)?;
        (&self.file).take(self.length).read_to_end(&mut data).at(path)?;
        Ok(data)
    }

    /// Reads them to where the caller has room for them, and says how many there are: somebody may have cut the file.
    #[cfg(feature = "python")]
    pub(crate) fn read_into(&self, room: &mut [u8]) -> Result<usize> {
        let mut length = 0;
        while length < room.len() {
            match (&self.file).read(&mut room[length..]) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).at(|| self.location.path()),
            }
        }
        Ok(length)
    }
}

/// Where a claimed job's file is until it is settled.
pub(crate) struct Location {
    /// The queue's directory, as its user calls it.
    base: Arc<Path>,
    /// The claim's directory in `processing/`.
    name: OsString,
    file: OsString,
    is_told: AtomicBool,
}

impl Location {
    /// The path, which somebody knows from then on.
    pub(crate) fn tell(&self) -> PathBuf {
        self.is_told.store(true, Ordering::Relaxed);
        sys::for_programs(self.path())
    }

    fn path(&self) -> PathBuf {
        self.dir().join(&self.file)
    }

    fn dir(&self) -> PathBuf {
        layout::state_path(&self.base, State::Processing).join(&self.name)
    }
}

/// What is held of a claimed job.
pub(crate) struct Held {
    shared: Arc<Shared>,
    job: Job,
    location: Arc<Location>,
    dir: Arc<Dir>,
    fate: Fate,
    /// It is interrupted, and recorded as put back for that.
    is_put_back: bool,
    /// The job's file is where the verdict says; only the directory is left to be tidied up.
    moved: bool,
    /// Under which token the directory may be another claim's afterwards, if nothing happens that forbids it.
    reuse: Option<Token>,
    pass: Option<Arc<Unflushed>>,
    /// What is recorded of the job, once somebody asks.
    past: OnceLock<Box<Past>>,
    /// What is to be recorded of this attempt.
    why: Option<Why>,
    /// Under which number it was, if its record has no mark yet.
    recorded: Option<u64>,
    /// Held so that the lock file outlives the claim.
    owner: Owner,
}

impl Held {
    fn path(&self) -> PathBuf {
        self.location.path()
    }

    /// Keeps a verdict that the disk did not take.
    fn keep(mut self, outcome: Outcome, source: Error) -> Error {
        self.reuse = None;
        let is_taken = is_taken(&source);
        Arc::clone(&self.shared).keep_unsettled(Unsettled { held: self, outcome, is_taken });
        Error::Unsettled { source: source.into() }
    }

    /// Moves the job's file to where the verdict says and takes the claim away, and says whether that was all. Can be
    /// called again where it failed, or stopped before a flush that is put off.
    ///
    /// Where a pass goes on, its next claim follows: the flush waits for that, and the directory goes from this claim to it.
    fn settle(&mut self, outcome: Outcome, goes_on: bool) -> Result<bool> {
        let flush_later = goes_on && self.fate.durable;
        let layout = if self.dir.is_intact() { self.shared.layout() } else { self.reopen()? };
        if !self.moved {
            self.record(&layout, outcome);
        }
        let (state, entry) = self.destination(outcome);
        let target = self.fate.keep.keeps(state).then(|| layout.dir(state));
        let processing = layout.dir(State::Processing);
        if !self.moved {
            let file = self.job.claimed_name();
            let done = match target {
                Some(target) => self.dir.rename(file, target, &entry).at(|| target.path().join(&entry)),
                None => self.dir.remove_file(file).at(|| self.path()),
            };
            match done {
                Err(_) if self.has_lost_its_file() => {
                    self.reuse = None; // somebody knows it
                    self.recorded = None; // it did not come true
                    self.tell_gone();
                }
                done => done?,
            }
            self.moved = true;
        }
        step!("settle: moved");
        if self.fate.durable && target.is_some() {
            // The directory goes after that: were its removal flushed with something else, and the job's move not, the
            // job would be nowhere.
            if flush_later {
                return Ok(false);
            }
            layout.flush(state)?;
        }
        step!("settle: flushed");
        self.finish_record(&layout, target.is_some());
        let is_kept = self.give_back(processing, goes_on);
        if !is_kept {
            self.remove(&layout)?;
        }
        if self.fate.durable && target.is_none() {
            if flush_later {
                return Ok(false);
            }
            layout.flush(State::Processing)?;
        }
        step!("settle: removed");
        if !(is_kept && goes_on) {
            self.shared.leave(&self.job);
        }
        Ok(true)
    }

    fn past(&self, layout: &Layout) -> Result<&Past> {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = Past::of(layout, &self.job, None)?;
        if past.is_known {
            self.shared.knows_history_of(&self.job);
        }
        Ok(self.past.get_or_init(|| Box::new(past)))
    }

    /// Where a verdict leads, and under which name.
    fn destination(&self, outcome: Outcome) -> (State, OsString) {
        match outcome {
            Outcome::Success => (State::Success, self.job.entry()),
            Outcome::Failed => (State::Failed, self.job.entry()),
            Outcome::Interrupted if self.is_put_back => (State::Queued, self.job.entry()),
            Outcome::Interrupted => (State::Interrupted, self.job.entry()),
            Outcome::Retry(None) => (State::Queued, self.job.entry()),
            Outcome::Retry(Some(due)) => (State::Scheduled, self.job.scheduled_entry(due)),
        }
    }

    /// Records the attempt, unless that was done, or it succeeds, or the job is deleted. An interrupted job is put back as
    /// often as recovery would do that had this process died; only if that is recorded, or one that interrupts whoever
    /// takes it would never come to rest.
    fn record(&mut self, layout: &Layout, outcome: Outcome) {
        let Some(why) = &self.why else { return };
        let (ended, due) = match outcome {
            Outcome::Success => return,
            Outcome::Failed => (Ended::Failed, None),
            Outcome::Interrupted => (Ended::Interrupted, None),
            Outcome::Retry(due) => (Ended::Retry, due.or_else(|| Due::at(unix_now()))),
        };
        let is_interrupted = outcome == Outcome::Interrupted;
        let is_kept = self.fate.keep.keeps(self.destination(outcome).0);
        let may_be_put_back = is_interrupted && self.fate.put_back > 0;
        if !(is_kept || may_be_put_back) {
            return;
        }
        let recorded = self.past(layout).and_then(|past| {
            let mut record = Record::new(past.attempt(), ended);
            let again = is_interrupted && past.is_put_back(&self.fate);
            if !is_kept && !again {
                return Ok(None);
            }
            record.due = if again { Due::at(record.at) } else { due };
            record.owner = Some(self.owner.name());
            record.interruptions = past.interruptions + u32::from(again);
            record.why = why.clone();
            history::record(layout, &self.job, past, &record, self.fate.durable).map(|number| Some((number, again)))
        });
        match recorded {
            Ok(Some((number, again))) => {
                self.shared.knows_history_of(&self.job);
                (self.recorded, self.why, self.is_put_back) = (Some(number), None, again);
            }
            Ok(None) => {}
            Err(error) => self.shared.tell_unrecorded(&self.job, &error),
        }
        step!("settle: recorded");
    }

    /// Marks the record of the attempt; of a job that is deleted, all its records go.
    fn finish_record(&mut self, layout: &Layout, is_kept: bool) {
        let done = match self.recorded.take() {
            Some(number) => history::mark(layout, &self.job, number),
            None if !is_kept && self.shared.forgets_history_of(&self.job) => history::remove(layout, &self.job),
            None => Ok(()),
        };
        if let Err(error) = done {
            self.shared.tell_failed(&error);
        }
    }

    /// Leaves the directory to the next claim, where rule 11 lets it; under its name, if that follows at once.
    fn give_back(&self, processing: &Dir, goes_on: bool) -> bool {
        match self.reuse {
            Some(token) if !self.location.is_told.load(Ordering::Relaxed) => {
                let last = goes_on.then_some(&self.job);
                self.shared.spares.give_back(token, processing, &self.location.name, &self.dir, last)
            }
            _ => false,
        }
    }

    /// Removes the directory; one in which something was left, it sets aside.
    fn remove(&self, layout: &Layout) -> Result<()> {
        let (processing, name) = (layout.dir(State::Processing), &self.location.name);
        match processing.remove_dir(name) {
            // Gone, or something else in its place, which is none of the queue's.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                // What goes wrong is no matter of this job's any more, and recovery tries it again.
                let renamed = leftover::set_aside(processing, &self.job, name, &self.dir, true);
                if self.shared.tell_set_aside(renamed) && self.fate.durable {
                    layout.flush(State::Processing)?;
                }
            }
            removed => removed.at(|| processing.path().join(name))?,
        }
        Ok(())
    }

    /// Opens again what somebody closed in this process. The claim's directory is the same or none: others may have taken
    /// the job meanwhile, since who closes all closes the lock file too.
    fn reopen(&mut self) -> Result<Arc<Layout>> {
        let layout = self.shared.intact_layout(&self.location.base)?;
        if self.moved {
            return Ok(layout);
        }
        let path = || self.dir.path().to_owned();
        match layout.dir(State::Processing).open_dir(&self.location.name) {
            Ok(again) if again.identity().at(path)? == self.dir.identity().at(path)? => self.dir = Arc::new(again),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at(path),
            _ => {
                self.tell_gone();
                (self.moved, self.recorded) = (true, None);
            }
        }
        Ok(layout)
    }

    fn has_lost_its_file(&self) -> bool {
        self.dir.is_file(self.job.claimed_name()).is_ok_and(|is_file| !is_file)
    }

    fn tell_gone(&self) {
        let (id, path) = (self.job.id(), self.path());
        let text = format!(
            "job {id}: its file was moved or deleted while it was being handled ({}); a handler must leave it where it is",
            path.display(),
        );
        self.shared.tell(Notice::of(id, text));
    }
}

/// The verdict of a pass that waits for its flush. One is enough: none waits longer than until the pass's next claim.
#[derive(Default)]
pub(crate) struct Unflushed(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    verdict: Option<(Held, Outcome)>,
    /// Whether the pass is over, and nobody would flush any more.
    is_over: bool,
}

impl Unflushed {
    /// Settles a claim, but for the flush. What is to be done again is not put off: others may be waiting for the job.
    ///
    /// Locked meanwhile, so that who sees the verdict can have it flushed.
    fn settle(&self, mut held: Held, outcome: Outcome) -> Result<()> {
        let mut waiting = locked(&self.0);
        waiting.flush();
        let is_put_back = outcome == Outcome::Interrupted && held.fate.put_back > 0;
        let goes_on = !waiting.is_over && !is_put_back && !matches!(outcome, Outcome::Retry(_));
        match held.settle(outcome, goes_on) {
            Ok(true) => Ok(()),
            Ok(false) => {
                waiting.verdict = Some((held, outcome));
                Ok(())
            }
            Err(source) => Err(held.keep(outcome, source)),
        }
    }

    /// Has the verdict on the disk, if one waits for that. What goes wrong is told, and tried again as with any verdict.
    pub(crate) fn flush(&self) {
        locked(&self.0).flush();
    }

    /// The same, and puts none off any more.
    pub(crate) fn end(&self) {
        let mut waiting = locked(&self.0);
        waiting.is_over = true;
        waiting.flush();
    }
}

impl Waiting {
    fn flush(&mut self) {
        if let Some((mut held, outcome)) = self.verdict.take()
            && let Err(source) = held.settle(outcome, false)
        {
            let (shared, id) = (Arc::clone(&held.shared), held.job.id());
            let error = held.keep(outcome, source);
            shared.tell(Notice::of(id, format!("job {id} could not be settled: {error}")));
        }
    }
}

/// A claim whose verdict the disk did not take: it keeps its place in the table and its directory.
pub(crate) struct Unsettled {
    held: Held,
    outcome: Outcome,
    /// Whether there is something where the verdict leads. That is this job's trouble, and not the disk's.
    pub(crate) is_taken: bool,
}

impl Unsettled {
    pub(crate) fn try_again(&mut self) -> Result<()> {
        let settled = self.held.settle(self.outcome, false).map(drop);
        self.is_taken = settled.as_ref().is_err_and(is_taken);
        settled
    }
}

fn is_taken(error: &Error) -> bool {
    error.kind() == Some(io::ErrorKind::AlreadyExists)
}
