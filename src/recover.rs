//! What time does to jobs: claims of the dead become `interrupted`, jobs whose delay is over become `queued`.

use std::collections::{BinaryHeap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::{At, Error, Result};
use crate::history::{self, Ended, Past, Record};
use crate::job::{self, Due, Job, OwnerName, Temporary, Token};
use crate::layout::Layout;
use crate::leftover;
use crate::lookup::visit_jobs;
use crate::notice::Notice;
use crate::owner;
use crate::policy::{Fate, State};
use crate::shared::{Histories, Schedule, Shared};
use crate::sys::{self, Dir, FileKind, Reading};
use crate::wait::{rest_after, shortened};

/// How old an unfinished file of another program must be before a person is told.
const FORGOTTEN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long nothing must have been written to the unfinished file of a PID that nobody has.
const UNHEARD_OF: Duration = Duration::from_secs(60 * 60);

/// How old a lock file that never got its name must be before it is its dead maker's.
const UNBORN: Duration = Duration::from_secs(60);

/// Moves the jobs of dead consumers to `interrupted/`, or back to `queued/` if they are to be tried again, or deletes them
/// where the policy does not keep them. Of owners that are known to have been `killed` it is recorded why. Says whether a
/// claim's directory was removed, which may have been in somebody's way.
pub(crate) fn recover(shared: &Shared, fate: Fate, killed: &[(OwnerName, String)]) -> Result<bool> {
    let layout = shared.layout();
    let processing = layout.dir(State::Processing);
    let (mut claims, mut spares) = (Vec::new(), Vec::new());
    processing
        .list(Reading::AtOnce, |(name, kind)| {
            let is_dir = matches!(kind, None | Some(FileKind::Directory));
            match (job::parse_claim(name).filter(|_| is_dir), Token::parse_spare(name).filter(|_| is_dir)) {
                (Some((job, owner)), _) => claims.push(Found { name: name.to_owned(), job, owner }),
                (None, Some(token)) => spares.push((name.to_owned(), OwnerName::Token(token))),
                (None, None) if job::is_set_aside(name) => {}
                (None, None) => shared.tell_stranger(processing, name),
            }
        })
        .at(|| processing.path().into())?;
    let recovery = Recovery { shared, layout: &layout, fate, killed };
    let mut recovered = false;
    for claim in &claims {
        // One that can't be recovered (another user's, perhaps) keeps nobody from the others.
        recovered |= recovery.recover_if_dead(claim).unwrap_or_else(|error| shared.tell_failed(&error));
    }
    for (name, owner) in spares {
        if !is_alive(shared, owner, &layout)
            && let Err(error) = processing.remove_dir(&name)
            && error.kind() == io::ErrorKind::DirectoryNotEmpty
        {
            shared.tell_stranger(processing, &name);
        }
    }
    if recovered && fate.durable {
        layout.flush(State::Interrupted)?;
        if fate.put_back > 0 {
            layout.flush(State::Queued)?;
        }
        layout.flush(State::Processing)?;
    }
    Ok(recovered)
}

/// A claim's directory.
struct Found {
    name: OsString,
    job: Job,
    owner: OwnerName,
}

struct Recovery<'a> {
    shared: &'a Shared,
    layout: &'a Layout,
    fate: Fate,
    killed: &'a [(OwnerName, String)],
}

impl Recovery<'_> {
    fn recover_if_dead(&self, claim: &Found) -> Result<bool> {
        // First a handle, then the judgement: a directory made under this name later on is another one.
        let dir = match self.processing().open_dir(&claim.name) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            opened => opened.at(|| self.processing().path().join(&claim.name))?,
        };
        step!("recover: opened");
        let table = self.shared.table();
        if table.works_on(&claim.job, claim.owner) {
            return Ok(false);
        }
        if table.is_own(claim.owner) {
            // A leftover under this process's own name. The table stays locked, or a thread could claim the job in
            // between and lose it to its own process.
            let moved = self.move_orphan(claim, &dir);
            drop(table);
            return moved;
        }
        drop(table);
        if owner::is_alive(claim.owner, self.layout) {
            return Ok(false);
        }
        step!("recover: judged");
        self.move_orphan(claim, &dir)
    }

    fn move_orphan(&self, claim: &Found, dir: &Dir) -> Result<bool> {
        let path = || dir.path().to_owned();
        let again = self.processing().stat(&claim.name);
        if again.is_err() || again.at(path)?.identity != dir.identity().at(path)? {
            return Ok(false);
        }
        self.move_file(claim, dir)?;
        step!("recover: moved");
        match self.processing().remove_dir(&claim.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                let renamed = leftover::set_aside(self.processing(), &claim.job, &claim.name, dir, false);
                self.shared.tell_set_aside(renamed);
            }
            removed => removed.at(path)?,
        }
        Ok(true)
    }

    /// Moves the job's file and nothing else.
    fn move_file(&self, claim: &Found, dir: &Dir) -> Result<()> {
        let file = claim.job.claimed_name();
        let path = || dir.path().join(file);
        let (state, recorded) = loop {
            let past = Past::of(self.layout, &claim.job, Some(claim.owner));
            step!("recover: read");
            // After that, or what was read might be of a claim that is over.
            match dir.stat(file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Ok(stat) if stat.kind != FileKind::Regular => return Ok(()),
                stat => stat.at(path)?,
            };
            step!("recover: looked");
            if let Some(fate) = self.record(claim, past) {
                break fate;
            }
        };
        let entry = claim.job.entry();
        step!("recover: recorded");
        let target = state.map(|state| self.layout.dir(state));
        let done = match target {
            Some(target) => dir.rename(file, target, &entry),
            None => dir.remove_file(file),
        };
        match done {
            Ok(()) => {
                let Found { job, owner, .. } = claim;
                let id = job.id();
                let fate = match state {
                    Some(State::Queued) => "it is put back, to be tried again",
                    Some(_) => "it is kept in interrupted/",
                    None => "it is deleted, as the keep policy says",
                };
                let why = self.why(*owner).map_or_else(|| format!("its consumer ({owner}) died"), str::to_owned);
                let text = format!("job {id} was interrupted: {why}; {fate}");
                self.shared.tell(Notice::of(id, text));
                step!("recover: marks");
                let done = match (recorded, target) {
                    (Some(number), _) => history::mark(self.layout, job, number),
                    (None, None) => history::remove(self.layout, job),
                    (None, Some(_)) => Ok(()),
                };
                done.unwrap_or_else(|error| _ = self.shared.tell_failed(&error));
            }
            // The record stays, be it this one's own: whoever moved the job may have adopted it (rule 21).
            Err(error) if error.kind() == io::ErrorKind::NotFound || sys::is_busy(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let target = state.unwrap_or(State::Interrupted);
                self.shared.tell_once(already_there(&claim.job, &path(), target));
            }
            Err(error) => return Err(error).at(|| target.map_or_else(path, |target| target.path().join(&entry))),
        }
        Ok(())
    }

    /// Says where an orphan goes, if it is kept, and records that: under which number. `None` if somebody else recorded
    /// something meanwhile. A job is only put back if that is recorded, or one that kills whoever takes it would never come to
    /// rest.
    fn record(&self, claim: &Found, past: Result<Past>) -> Option<(Option<State>, Option<u64>)> {
        let Found { job, owner, .. } = claim;
        let kept = self.fate.keep.keeps(State::Interrupted).then_some(State::Interrupted);
        let recorded = past.and_then(|past| {
            let mut record = Record::new(past.attempt(), Ended::Interrupted);
            let again = past.is_put_back(&self.fate);
            if !again && kept.is_none() {
                return Ok(Some((None, None)));
            }
            record.due = if again { Due::at(record.at) } else { None };
            record.owner = Some(*owner);
            record.interruptions = past.interruptions + u32::from(again);
            record.why.reason = Some(self.why(*owner).unwrap_or("its consumer died").into());
            let state = if again { Some(State::Queued) } else { kept };
            match &past.pending {
                // Who looked before did not come to move it.
                Some((number, before)) if before.ended == Ended::Interrupted && before.due.is_some() == again => {
                    Ok(Some((state, Some(*number))))
                }
                _ => history::record_next(self.layout, job, &past, &record, self.fate.durable).map(|number| {
                    self.shared.knows_history_of(job);
                    number.map(|number| (state, Some(number)))
                }),
            }
        });
        recorded.unwrap_or_else(|error| {
            self.shared.tell_unrecorded(job, &error);
            Some((kept, None))
        })
    }

    /// Why an owner was killed, if that is known.
    fn why(&self, owner: OwnerName) -> Option<&str> {
        self.killed.iter().find(|(killed, _)| *killed == owner).map(|(_, why)| why.as_str())
    }

    fn processing(&self) -> &Dir {
        self.layout.dir(State::Processing)
    }
}

/// How many of the jobs that are due first are remembered of a `scheduled/` that takes long to read.
const REMEMBERED: usize = 10_000;

/// Moves the jobs whose time has come to `queued/`, and says whether there were any.
pub(crate) fn promote(shared: &Shared, schedule: &mut Schedule, durable: bool) -> Result<bool> {
    let layout = shared.layout();
    let scheduled = layout.dir(State::Scheduled);
    if schedule.is_current(scheduled) {
        return Ok(false);
    }
    let rest = schedule.rests_until.map(|end| end.saturating_duration_since(Instant::now()));
    if let Some(rest) = rest {
        // Those that are known to be due do not wait for a reading that takes long.
        let due_now = schedule.first.iter().rposition(|(due, _)| !due.remaining().is_zero()).map_or(0, |last| last + 1);
        let due_now = schedule.first.split_off(due_now);
        let moved = Promotion::new(shared, &layout).all(due_now.into_iter().rev(), durable)?.moved;
        if moved || !rest.is_zero() {
            let next = schedule.first.last().map(|(due, _)| *due);
            let again = Due::after(rest)?.unwrap_or(Due(0)); // at once, if it need not rest
            schedule.next_due = Some(next.map_or(again, |next| next.min(again)));
            return Ok(moved);
        }
    }
    let begun = Instant::now();
    let unchanged_since = scheduled.settled_time().at(|| scheduled.path().into())?;
    let mut due_now: Vec<(Due, Job)> = Vec::new();
    let mut first: BinaryHeap<(Due, Job)> = BinaryHeap::new();
    scheduled
        .list(Reading::InPieces, |(name, kind)| {
            let Some((due, job)) = job::parse_scheduled(name).filter(|_| scheduled.may_be_file((name, kind))) else {
                return shared.tell_stranger(scheduled, name);
            };
            if due.remaining().is_zero() {
                due_now.push((due, job));
            } else if first.len() < REMEMBERED {
                first.push((due, job));
            } else if let Some(mut last) = first.peek_mut()
                && due < last.0
            {
                *last = (due, job);
            }
        })
        .at(|| scheduled.path().into())?;
    let rest = rest_after(begun.elapsed());
    due_now.sort_unstable();
    let promoted = Promotion::new(shared, &layout).all(due_now.into_iter(), durable)?;
    let mut first = first.into_sorted_vec();
    let next_due = first.first().map(|(due, _)| *due);
    first.reverse();
    if rest.is_zero() {
        first = Vec::new();
    }
    *schedule = Schedule {
        next_due,
        first,
        rests_until: (!rest.is_zero()).then(|| Instant::now() + rest),
        // What could not be moved is tried again, though nothing will change here when it can be.
        unchanged_since: unchanged_since.filter(|_| !promoted.left_one),
    };
    Ok(promoted.moved)
}

/// Jobs of `scheduled/` on their way to `queued/`.
struct Promotion<'a> {
    shared: &'a Shared,
    layout: &'a Layout,
    moved: bool,
    /// Whether one could not be moved.
    left_one: bool,
}

impl<'a> Promotion<'a> {
    fn new(shared: &'a Shared, layout: &'a Layout) -> Self {
        Self { shared, layout, moved: false, left_one: false }
    }

    fn all(mut self, due: impl Iterator<Item = (Due, Job)>, durable: bool) -> Result<Self> {
        for (due, job) in due {
            step!("promote: listed");
            self.one(&job.scheduled_entry(due), &job);
        }
        if self.moved && durable {
            self.layout.flush(State::Queued)?;
        }
        Ok(self)
    }

    fn one(&mut self, name: &OsStr, job: &Job) {
        let (scheduled, queued) = (self.layout.dir(State::Scheduled), self.layout.dir(State::Queued));
        match scheduled.rename(name, queued, &job.entry()) {
            Ok(()) => self.moved = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if sys::is_busy(&error) => self.left_one = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.left_one = true;
                let path = scheduled.path().join(name);
                self.shared.tell_once(already_there(job, &path, State::Queued));
            }
            Err(error) => {
                self.left_one = true;
                self.shared.tell_failed(&failed(error, scheduled, name));
            }
        }
    }
}

/// Deletes what the dead left in `tmp/` and `owners/`.
///
/// A temporary file bears its writer's name and goes when that is dead. One without may be another program's only copy,
/// and stays; once it is old, a person is told.
pub(crate) fn sweep(shared: &Shared) -> Result<()> {
    let layout = shared.layout();
    let (tmp, owners) = (&layout.tmp, &layout.owners);
    let mut temporaries = Vec::new();
    tmp.list(Reading::InPieces, |(name, kind)| {
        match job::parse_temporary(name).filter(|_| tmp.may_be_file((name, kind))) {
            Some(temporary) => temporaries.push((name.to_owned(), temporary)),
            None => shared.tell_stranger(tmp, name),
        }
    })
    .at(|| tmp.path().into())?;
    let mut judged = HashMap::new();
    let mut lives = |owner| *judged.entry(owner).or_insert_with(|| is_alive(shared, owner, &layout));
    for (name, temporary) in temporaries {
        let judged = judge_unfinished(tmp, &name, temporary, &mut lives);
        step!("sweep: judged");
        match judged {
            Unfinished::Awaited => {}
            Unfinished::Abandoned => match tmp.remove_file(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    shared.tell_failed(&failed(error, tmp, &name));
                }
                _ => {}
            },
            Unfinished::Unborn => owner::remove_unborn(&name, &layout),
            Unfinished::Forgotten => shared.tell_once(Notice::new(format!(
                "{}: not written to for a day, and perhaps never finished; it is kept, as it may be the only copy",
                tmp.path().join(&name).display()
            ))),
        }
    }
    let mut tokens = Vec::new();
    owners
        .list(Reading::InPieces, |(name, kind)| {
            let token = Token::parse(name.as_encoded_bytes()).filter(|_| owners.may_be_file((name, kind)));
            token.map_or_else(|| shared.tell_stranger(owners, name), |token| tokens.push(token));
        })
        .at(|| owners.path().into())?;
    for token in tokens {
        lives(OwnerName::Token(token)); // which removes a dead one's
    }
    Ok(())
}

/// What is to be thought of a file in `tmp/`.
pub(crate) enum Unfinished {
    /// Somebody may be writing it.
    Awaited,
    /// Its writer is dead.
    Abandoned,
    /// A lock file that should have had its name long ago; if nobody holds its lock, it will never get it.
    Unborn,
    /// Another program's, old.
    Forgotten,
}

pub(crate) fn judge_unfinished(
    tmp: &Dir,
    name: &OsStr,
    temporary: Temporary,
    mut lives: impl FnMut(OwnerName) -> bool,
) -> Unfinished {
    match temporary {
        Temporary::Ours(owner @ OwnerName::Token(_)) if !lives(owner) => Unfinished::Abandoned,
        // Its writer may live in another container, where its PID is another.
        Temporary::Ours(owner @ OwnerName::Pid(_)) if is_older(tmp, name, UNHEARD_OF) && !lives(owner) => {
            Unfinished::Abandoned
        }
        // Not before its maker had the time to lock it, which for a program that does not look again must be enough.
        Temporary::Unborn if is_older(tmp, name, UNBORN) => Unfinished::Unborn,
        Temporary::Foreign if is_older(tmp, name, FORGOTTEN) => Unfinished::Forgotten,
        _ => Unfinished::Awaited,
    }
}

/// For how long `history/` is left alone after a look that took so long.
fn history_rest(look: Duration) -> Duration {
    #[cfg(feature = "failpoints")]
    fail::fail_point!("sweep: histories at once", |_| Duration::ZERO);
    rest_after(look).max(shortened(Duration::from_secs(10)))
}

/// How many jobs are looked for at a time.
const MOST_LOOKED_FOR: usize = 100;

/// Deletes the records of jobs that are gone, by another program or by a process that died before it came to that.
///
/// A job may move between two looks, and so be seen nowhere. Its records go when it was nowhere twice, apart in time, and
/// nothing was recorded of it in between.
pub(crate) fn sweep_histories(shared: &Shared, histories: &mut Histories) -> Result<()> {
    if histories.rests_until.is_some_and(|end| Instant::now() < end) {
        return Ok(());
    }
    let (begun, layout) = (Instant::now(), shared.layout());
    histories.rests_until = begun.checked_add(history_rest(Duration::ZERO));
    let mut next: BinaryHeap<Job> = BinaryHeap::new();
    let listed = shared.list_histories(|job| {
        if histories.last.as_ref().is_none_or(|last| job > *last) {
            next.push(job);
            if next.len() > MOST_LOOKED_FOR {
                next.pop();
            }
        }
    });
    match listed {
        // Those who may can sweep up.
        Err(error) if error.kind() == Some(io::ErrorKind::PermissionDenied) => return Ok(()),
        listed => listed?,
    }
    let next = next.into_sorted_vec();
    histories.last = next.last().filter(|_| next.len() == MOST_LOOKED_FOR).cloned();
    let mut absent: HashMap<Uuid, Job> = HashMap::new();
    for job in next {
        if !is_in_its_place(&layout, &job)? {
            absent.insert(job.id(), job);
        }
    }
    for state in [State::Processing, State::Scheduled] {
        if !absent.is_empty() {
            let mut found = Vec::new();
            visit_jobs(shared, state, |job| absent.contains_key(&job.id()), |job, _, _| found.push(job.id()))?;
            absent.retain(|id, _| !found.contains(id));
        }
    }
    for (id, job) in absent {
        let before = histories.absent_before.get(&id);
        let forgotten = history::changed(&layout, &job).and_then(|changed| match changed {
            changed if changed.is_some() && changed.as_ref() == before => history::remove(&layout, &job),
            changed => {
                histories.absent.extend(changed.map(|changed| (id, changed)));
                Ok(())
            }
        });
        // One that can't be removed (another user's, perhaps) keeps nobody from the others.
        forgotten.unwrap_or_else(|error| _ = shared.tell_failed(&error));
    }
    if histories.last.is_none() {
        histories.absent_before = std::mem::take(&mut histories.absent);
    }
    histories.rests_until = Instant::now().checked_add(history_rest(begun.elapsed()));
    Ok(())
}

/// Whether a job is in one of the directories in which its name is known.
fn is_in_its_place(layout: &Layout, job: &Job) -> Result<bool> {
    let entry = job.entry();
    for state in [State::Queued, State::Success, State::Failed, State::Interrupted] {
        let dir = layout.dir(state);
        if dir.is_file(&entry).at(|| dir.path().join(&entry))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an owner is this process or lives. The table is asked at this moment, and not kept locked for the rest: a token
/// of this process's that is no more its own is judged by its lock.
fn is_alive(shared: &Shared, owner: OwnerName, layout: &Layout) -> bool {
    let own = shared.table().is_own(owner);
    own || owner::is_alive(owner, layout)
}

fn failed(source: io::Error, dir: &Dir, name: &OsStr) -> Error {
    Error::Io { source, path: dir.path().join(name) }
}

fn is_older(dir: &Dir, name: &OsStr, age: Duration) -> bool {
    dir.stat(name).is_ok_and(|stat| stat.modified.elapsed().is_ok_and(|old| old > age))
}

fn already_there(job: &Job, path: &Path, state: State) -> Notice {
    let (path, state) = (path.display(), state.name());
    let text = format!("{path}: can't be moved to {state}/, where a file of that job is already; both are kept");
    Notice::of(job.id(), text)
}
