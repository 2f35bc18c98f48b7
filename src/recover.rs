//! What time does to jobs: claims of the dead become `interrupted`, jobs whose delay is over become `queued`.

use std::collections::{BinaryHeap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{At, Error, Result};
use crate::job::{self, Due, Job, OwnerName, Temporary, Token};
use crate::layout::Layout;
use crate::notice::Notice;
use crate::owner;
use crate::policy::{KeepPolicy, State};
use crate::shared::{Schedule, Shared};
use crate::sys::{self, Dir, FileKind, Reading};
use crate::wait::rest_after;

/// How old an unfinished file of another program must be before a person is told.
const FORGOTTEN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long nothing must have been written to the unfinished file of a PID that nobody has.
const UNHEARD_OF: Duration = Duration::from_secs(60 * 60);

/// How old a lock file that never got its name must be before it is its dead maker's.
const UNBORN: Duration = Duration::from_secs(60);

/// Moves the jobs of dead consumers to `interrupted/`, or deletes them where the policy does not keep those. Says whether
/// a claim's directory was removed, which may have been in somebody's way.
pub(crate) fn recover(shared: &Shared, keep: KeepPolicy, durable: bool) -> Result<bool> {
    let layout = shared.layout();
    let processing = layout.dir(State::Processing);
    let (mut claims, mut spares) = (Vec::new(), Vec::new());
    processing
        .list(Reading::AtOnce, |(name, kind)| {
            let is_dir = matches!(kind, None | Some(FileKind::Directory));
            match (job::parse_claim(name).filter(|_| is_dir), Token::parse_spare(name).filter(|_| is_dir)) {
                (Some((job, owner)), _) => claims.push(Found { name: name.to_owned(), job, owner }),
                (None, Some(token)) => spares.push((name.to_owned(), OwnerName::Token(token))),
                (None, None) => shared.tell_stranger(processing, name),
            }
        })
        .at(|| processing.path().into())?;
    let recovery = Recovery { shared, layout: &layout, keep };
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
    if recovered && durable {
        layout.flush(State::Interrupted)?;
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
    keep: KeepPolicy,
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
            let moved = self.move_orphan(claim, &dir, true);
            drop(table);
            return moved;
        }
        drop(table);
        if owner::is_alive(claim.owner, self.layout) {
            return Ok(false);
        }
        step!("recover: judged");
        self.move_orphan(claim, &dir, false)
    }

    fn move_orphan(&self, claim: &Found, dir: &Dir, is_own: bool) -> Result<bool> {
        let path = || dir.path().to_owned();
        let again = self.processing().stat(&claim.name);
        if again.is_err() || again.at(path)?.identity != dir.identity().at(path)? {
            return Ok(false);
        }
        self.move_file(claim, dir)?;
        step!("recover: moved");
        match self.processing().remove_dir(&claim.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty
                    && is_own
                    && dir.is_file(claim.job.claimed_name()).is_ok_and(|is_file| !is_file)
                    && self.is_queued(&claim.job) =>
            {
                self.set_aside(claim).at(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                let dir = dir.path().display();
                self.shared.tell_once(Notice::new(format!(
                    "{dir}: left by a dead consumer; what is in it is no job's file and is kept"
                )));
            }
            removed => removed.at(path)?,
        }
        Ok(true)
    }

    fn is_queued(&self, job: &Job) -> bool {
        self.layout.dir(State::Queued).is_file(&job.entry()).unwrap_or(false)
    }

    /// Gives a leftover of this process's own, which is in the way of the job's next claim, a name that is no claim's.
    fn set_aside(&self, claim: &Found) -> io::Result<()> {
        let mut number = 1;
        loop {
            let aside = claim.job.set_aside_entry(number);
            match self.processing().rename(&claim.name, self.processing(), &aside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                moved => return moved,
            }
        }
    }

    /// Moves the job's file and nothing else.
    fn move_file(&self, claim: &Found, dir: &Dir) -> Result<()> {
        let file = claim.job.claimed_name();
        let path = || dir.path().join(file);
        match dir.stat(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(stat) if stat.kind != FileKind::Regular => return Ok(()),
            stat => stat.at(path)?,
        };
        step!("recover: looked");
        let interrupted = self.layout.dir(State::Interrupted);
        let entry = claim.job.entry();
        let keeps = self.keep.keeps(State::Interrupted);
        let (done, fate) = if keeps {
            (dir.rename(file, interrupted, &entry), "it is kept in interrupted/")
        } else {
            (dir.remove_file(file), "it is deleted, as the keep policy says")
        };
        match done {
            Ok(()) => {
                let Found { job, owner, .. } = claim;
                let id = job.id();
                self.shared.tell(Notice::new(format!("job {id} was interrupted: its consumer ({owner}) died; {fate}")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound || sys::is_busy(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.shared.tell_once(already_there(&path(), State::Interrupted));
            }
            Err(error) => return Err(error).at(|| if keeps { interrupted.path().join(&entry) } else { path() }),
        }
        Ok(())
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
                self.shared.tell_once(already_there(&path, State::Queued));
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
        let abandoned = match temporary {
            Temporary::Ours(owner @ OwnerName::Token(_)) => !lives(owner),
            // Its writer may live in another container, where its PID is another.
            Temporary::Ours(owner) => is_older(tmp, &name, UNHEARD_OF) && !lives(owner),
            // Not before its maker had the time to lock it, which for a program that does not look again must be enough.
            Temporary::Unborn => {
                if is_older(tmp, &name, UNBORN) {
                    owner::remove_unborn(&name, &layout);
                }
                false
            }
            Temporary::Foreign => {
                if is_older(tmp, &name, FORGOTTEN) {
                    let path = tmp.path().join(&name);
                    shared.tell_once(Notice::new(format!(
                        "{}: not written to for a day, and perhaps never finished; it is kept, as it may be the only copy",
                        path.display()
                    )));
                }
                false
            }
        };
        step!("sweep: judged");
        if abandoned {
            match tmp.remove_file(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    shared.tell_failed(&failed(error, tmp, &name));
                }
                _ => {}
            }
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

fn already_there(path: &Path, state: State) -> Notice {
    let (path, state) = (path.display(), state.name());
    Notice::new(format!("{path}: can't be moved to {state}/, where a file of that job is already; both are kept"))
}
