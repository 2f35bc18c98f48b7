//! What is not as it should be in a queue's directory. Here that is only looked at: nothing is made, moved or deleted.
//!
//! A queue that is at work shows things that are over in a moment: the empty directory of a claim that is just being made,
//! the orphan that another consumer is just recovering. So what is found is looked at once more, later, and counts only if
//! it is still there and has not changed meanwhile.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::error::{At, Result};
use crate::job::{self, Job, OwnerName, Token};
use crate::layout::{self, Place};
use crate::owner;
use crate::policy::State;
use crate::recover::{Unfinished, judge_unfinished};
use crate::sys::{self, Access, Dir, Doubtful, Entry, FileKind, Identity, Permissions, Reading, Space};

/// How much later than now a time must be for a clock to be wrong.
const FUTURE: Duration = Duration::from_secs(60);

/// How long a claim's directory of a living owner must have been empty: a flush in between may take its time.
const EMPTY: Duration = Duration::from_secs(60);

/// How far apart the two looks must be that show that a job is gone, of which there are records (rule 21).
const APART: Duration = Duration::from_secs(10);

/// How many findings of one directory are kept: somebody may have put a million files there.
const MOST: usize = 10_000;

/// What is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A directory of the queue is not there.
    Missing,
    /// Something else is in the place of a directory.
    NoDirectory,
    /// This user can't use a directory or read a job.
    Access,
    /// Users of one group can't work together.
    Sharing,
    /// A directory is on another filesystem, or mounted by itself.
    Apart,
    /// The filesystem may not do what the queue needs.
    Filesystem,
    /// The filesystem has no room for a file.
    Full,
    /// No file of the queue.
    Stranger,
    /// A name that is almost a job's.
    AlmostJob,
    /// What has the name of a file of the queue is none.
    NoFile,
    /// A job in two places.
    Twice,
    /// A time that is yet to come.
    Future,
    /// A claim, or a lock file, with an owner that nobody can judge.
    UnknownOwner,
    /// The claim of a dead owner.
    Orphan,
    /// The claim of a living owner, without its job.
    EmptyClaim,
    /// A claim with more in it than its job.
    CrowdedClaim,
    /// What a handler left beside its job.
    Leftover,
    /// What a dead process left.
    Abandoned,
    /// An old unfinished file of an unknown writer.
    Forgotten,
    /// Records of a job that is gone. Consumers sweep them up in time.
    History,
    /// The queue is paused.
    Paused,
    /// This system can't be asked.
    NotAsked,
}

impl Fault {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NoDirectory => "no-directory",
            Self::Access => "access",
            Self::Sharing => "sharing",
            Self::Apart => "apart",
            Self::Filesystem => "filesystem",
            Self::Full => "full",
            Self::Stranger => "stranger",
            Self::AlmostJob => "almost-job",
            Self::NoFile => "no-file",
            Self::Twice => "twice",
            Self::Future => "future",
            Self::UnknownOwner => "unknown-owner",
            Self::Orphan => "orphan",
            Self::EmptyClaim => "empty-claim",
            Self::CrowdedClaim => "crowded-claim",
            Self::Leftover => "leftover",
            Self::Abandoned => "abandoned",
            Self::Forgotten => "forgotten",
            Self::History => "history",
            Self::Paused => "paused",
            Self::NotAsked => "not-asked",
        }
    }

    /// Whether it is only said, and nothing is wrong.
    #[must_use]
    pub const fn is_note(self) -> bool {
        matches!(self, Self::History | Self::Paused | Self::NotAsked)
    }

    /// Whether it is certain what is to be done about it: [`Queue::repair`](crate::Queue::repair) does that.
    #[must_use]
    pub const fn is_repairable(self) -> bool {
        matches!(self, Self::Missing | Self::Orphan | Self::Abandoned | Self::History)
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What kind of thing it is.
    pub fault: Fault,
    /// Where it is.
    pub path: PathBuf,
    /// What was seen, in words.
    pub what: String,
    /// Which file it was, and when its inode had last changed; `None` for what goes on changing.
    stamp: Option<(Identity, SystemTime)>,
}

impl Finding {
    /// What must be the same when it is looked at once more.
    fn key(&self) -> (Fault, &Path, Option<(Identity, SystemTime)>) {
        (self.fault, &self.path, self.stamp)
    }
}

/// What was found in a queue's directory.
pub struct Inspection {
    base: PathBuf,
    found: Found,
    /// When the first look ended, and when the last one began.
    first: Instant,
    last: Instant,
    apart: Duration,
}

impl Inspection {
    /// Looks at all that is in the queue's directory. What it shows in a queue that is at work may be over in a moment:
    /// see [`look_again`](Self::look_again).
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where that can't be read; `NotFound` where there is no queue.
    pub fn begin(base: impl AsRef<Path>) -> Result<Self> {
        let base = std::path::absolute(&base).at(|| base.as_ref().into())?;
        let last = Instant::now();
        let found = look(&base)?;
        Ok(Self { base, found, first: Instant::now(), last, apart: APART })
    }

    /// Sets how far apart the looks must be that show that a job is gone. Less than ten seconds is for tests.
    #[must_use]
    pub fn looks_apart(mut self, apart: Duration) -> Self {
        self.apart = apart;
        self
    }

    /// Looks once more, and keeps only what is as it was.
    ///
    /// # Errors
    /// As of [`begin`](Self::begin).
    pub fn look_again(&mut self) -> Result<()> {
        self.last = Instant::now();
        let now = look(&self.base)?;
        let same: HashSet<_> = now.findings.iter().map(Finding::key).collect();
        self.found.findings.retain(|finding| same.contains(&finding.key()));
        self.found.more = self.found.more.min(now.more);
        Ok(())
    }

    /// What was found.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.found.findings
    }

    /// How much more was found than is told.
    #[must_use]
    pub fn more(&self) -> usize {
        self.found.more
    }

    /// How many jobs there were.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.found.jobs
    }

    /// How long to wait before the look that a repair needs.
    #[must_use]
    pub fn rest(&self) -> Duration {
        let waits = self.findings().iter().any(|finding| finding.fault == Fault::History);
        if waits { self.apart.saturating_sub(self.first.elapsed()) } else { Duration::ZERO }
    }

    /// The jobs of which there are records, and which were in no place in two looks that are far enough apart.
    pub(crate) fn gone(&self) -> impl Iterator<Item = Job> {
        let is_certain = self.last.saturating_duration_since(self.first) >= self.apart;
        let gone = self.findings().iter().filter(move |finding| is_certain && finding.fault == Fault::History);
        gone.filter_map(|finding| Job::parse(finding.path.file_name()?))
    }
}

struct Found {
    findings: Vec<Finding>,
    more: usize,
    jobs: usize,
}

/// Looks at everything once.
fn look(base: &Path) -> Result<Found> {
    let home = Dir::open(base).at(|| base.into())?;
    let mut look = Look {
        now: SystemTime::now(),
        findings: Vec::new(),
        left: MOST,
        more: 0,
        jobs: Vec::new(),
        histories: Vec::new(),
        is_shared: false,
    };
    let mut dirs = Vec::new();
    for place in Place::all() {
        let name = OsStr::new(place.name());
        match home.open_dir(name) {
            Ok(dir) => dirs.push((place, dir)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if place != Place::History {
                    look.say(Fault::Missing, &home, name, "it is not there");
                }
            }
            Err(_) if home.stat(name).is_ok_and(|stat| stat.kind != FileKind::Directory) => {
                look.add(Fault::NoDirectory, &home, name, "a file or a link is in the place of the directory");
            }
            Err(error) => look.say(Fault::Access, &home, name, format!("it can't be opened: {error}")),
        }
    }
    if dirs.is_empty() && look.findings.iter().all(|finding| finding.fault == Fault::Missing) {
        return Err(io::Error::from(io::ErrorKind::NotFound)).at(|| layout::state_path(base, State::Queued));
    }
    look.the_filesystem(&home);
    look.the_directories(&home, &dirs);
    if pause_is_set(base) {
        look.say(Fault::Paused, &home, layout::paused(), "the queue is paused: no job is taken");
    }
    let owners = dirs.iter().find(|(place, _)| *place == Place::Owners).map(|(_, dir)| dir);
    // Without `owners/` nobody can be known to be dead.
    let is_dead = |owner| owners.is_some_and(|owners| !owner::seems_alive(owner, owners));
    // Records first: what has some has a job then, or had one.
    for (place, dir) in dirs.iter().rev() {
        look.left = MOST;
        look.the_entries(*place, dir, &is_dead);
    }
    look.the_jobs(&home, &dirs);
    Ok(Found { findings: look.findings, more: look.more, jobs: look.jobs.len() })
}

fn pause_is_set(base: &Path) -> bool {
    sys::stat(&layout::paused_path(base)).is_ok()
}

/// One look at everything.
struct Look {
    now: SystemTime,
    findings: Vec<Finding>,
    /// How many more findings of the directory at hand are kept.
    left: usize,
    more: usize,
    jobs: Vec<(Uuid, State)>,
    /// Of which jobs there are records.
    histories: Vec<(Uuid, OsString)>,
    /// Whether the queue is meant for all of a group.
    is_shared: bool,
}

impl Look {
    /// Notes an entry, unless it is gone by now.
    fn add(&mut self, fault: Fault, dir: &Dir, name: &OsStr, what: impl Into<String>) {
        match dir.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            stat => self.note(fault, dir, name, what.into(), stat.ok().map(|stat| (stat.identity, stat.changed))),
        }
    }

    /// Notes what is not there, or goes on changing.
    fn say(&mut self, fault: Fault, dir: &Dir, name: &OsStr, what: impl Into<String>) {
        self.note(fault, dir, name, what.into(), None);
    }

    fn note(&mut self, fault: Fault, dir: &Dir, name: &OsStr, what: String, stamp: Option<(Identity, SystemTime)>) {
        if self.left == 0 {
            self.more += 1;
            return;
        }
        self.left -= 1;
        let path = if name == "." { dir.path().into() } else { dir.path().join(name) };
        self.findings.push(Finding { fault, path, what, stamp });
    }

    fn the_filesystem(&mut self, home: &Dir) {
        let here = OsStr::new(".");
        match home.doubtful() {
            Ok(None) => {}
            Ok(Some(Doubtful::Network(name))) => {
                let what = format!("it is on {name}, a network filesystem, where nothing is promised");
                self.say(Fault::Filesystem, home, here, what);
            }
            Ok(Some(Doubtful::Program)) => {
                let what =
                    "it is on a filesystem that a program makes (FUSE): what is promised depends on that program";
                self.say(Fault::Filesystem, home, here, what);
            }
            Ok(Some(Doubtful::Overlay)) => {
                let what = "it is on an overlay, as of a container: jobs go when that goes, other containers don't see them, \
                            and directories that came with its image can't be moved";
                self.say(Fault::Filesystem, home, here, what);
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let what = "the filesystem, and who may do what, are not looked at on this system";
                self.say(Fault::NotAsked, home, here, what);
            }
            Err(error) => self.say(Fault::Access, home, here, format!("its filesystem does not answer: {error}")),
        }
        match home.space() {
            Ok(Space { files: Some(0), .. }) => {
                self.say(Fault::Full, home, here, "its filesystem has no free inodes, whatever space is left");
            }
            Ok(Space { bytes: 0, .. }) => self.say(Fault::Full, home, here, "its filesystem has no free space"),
            Ok(_) => {}
            Err(error) => self.say(Fault::Access, home, here, format!("its free space is not known: {error}")),
        }
    }

    /// Looks at the directories themselves.
    fn the_directories(&mut self, home: &Dir, dirs: &[(Place, Dir)]) {
        if let Err(error) = home.check_access(OsStr::new("."), Access::Change) {
            self.say(Fault::Access, home, OsStr::new("."), format!("this user can't change it: {error}"));
        }
        let stats: Vec<_> =
            dirs.iter().filter_map(|(place, dir)| Some((dir, home.stat(OsStr::new(place.name())).ok()?))).collect();
        let permissions: Vec<_> = stats.iter().filter_map(|(_, stat)| stat.permissions).collect();
        let is_most = |count: usize| 2 * count > permissions.len();
        let of_group = |group| permissions.iter().filter(|other| other.group == group).count();
        self.is_shared = is_most(permissions.iter().filter(|other| other.mode & 0o020 != 0).count());
        let group = permissions.iter().map(|one| one.group).find(|group| is_most(of_group(*group)));
        let (device, mount) = (home.identity().map(|identity| identity.0).ok(), home.mount());
        for (dir, stat) in &stats {
            let name = dir.path().file_name().unwrap_or_default();
            if let Err(error) = dir.check_access(OsStr::new("."), Access::Change) {
                self.say(Fault::Access, home, name, format!("this user can't change it: {error}"));
            }
            if Some(stat.identity.0) != device || dir.mount() != mount {
                self.say(
                    Fault::Apart,
                    home,
                    name,
                    "it is on another filesystem than the queue's directory, or mounted",
                );
            }
            if self.is_future(stat.changed) {
                self.say(Fault::Future, home, name, "it was changed at a time that is yet to come");
            }
            if let Some(Permissions { mode, group: own }) = stat.permissions.filter(|_| self.is_shared) {
                let fault = match mode {
                    _ if group.is_some_and(|group| group != own) => "it is another group's than the others",
                    _ if mode & 0o070 != 0o070 => "its group can't use it, as it can others",
                    _ if mode & 0o2000 == 0 => "it has no set-group-id bit: what is made in it is its maker's group's",
                    _ if mode & 0o1000 != 0 => "its sticky bit keeps users from moving each other's jobs",
                    _ => continue,
                };
                self.say(Fault::Sharing, home, name, fault);
            }
        }
    }

    fn the_entries(&mut self, place: Place, dir: &Dir, is_dead: &dyn Fn(OwnerName) -> bool) {
        let read = match place {
            Place::State(State::Processing) => self.the_claims(dir, is_dead),
            Place::State(state) => dir.list(Reading::InPieces, |entry| self.a_job(state, dir, entry)),
            Place::Tmp => dir.list(Reading::InPieces, |entry| self.a_temporary(dir, entry, is_dead)),
            Place::Owners => dir.list(Reading::InPieces, |entry| self.a_lock_file(dir, entry, is_dead)),
            Place::History => dir.list(Reading::InPieces, |entry| self.a_history(dir, entry)),
        };
        if let Err(error) = read {
            self.say(Fault::Access, dir, OsStr::new("."), format!("it can't be read: {error}"));
        }
    }

    fn a_job(&mut self, state: State, dir: &Dir, entry: Entry<'_>) {
        let (name, _) = entry;
        let (plain, scheduled) = (Job::parse(name), job::parse_scheduled(name));
        let wants_due = state == State::Scheduled;
        match if wants_due { scheduled.clone().map(|(_, job)| job) } else { plain.clone() } {
            Some(job) if dir.may_be_file(entry) => {
                self.jobs.push((job.id(), state));
                self.a_file(dir, name, &job);
            }
            Some(_) => self.add(Fault::NoFile, dir, name, "it has the name of a job and is no regular file"),
            None if plain.is_some() => self.add(Fault::AlmostJob, dir, name, "a job without the time when it is due"),
            None if scheduled.is_some() => {
                self.add(Fault::AlmostJob, dir, name, "a job with a time when it is due, which belongs to scheduled/");
            }
            None => self.no_job(dir, name),
        }
    }

    /// Looks at a job's file.
    fn a_file(&mut self, dir: &Dir, name: &OsStr, job: &Job) {
        if self.is_future(UNIX_EPOCH + job::sent_at(job.id())) {
            self.add(Fault::Future, dir, name, "it was sent at a time that is yet to come");
        }
        match dir.check_access(name, Access::Read) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.add(Fault::Access, dir, name, format!("this user can't read it: {error}"));
            }
            Ok(()) if self.is_shared => {
                let mode = dir.stat(name).ok().and_then(|stat| stat.permissions).map(|permissions| permissions.mode);
                if mode.is_some_and(|mode| mode & 0o040 == 0) {
                    self.add(Fault::Sharing, dir, name, "the queue is shared, and this job's group can't read it");
                }
            }
            _ => {}
        }
    }

    fn no_job(&mut self, dir: &Dir, name: &OsStr) {
        if job::is_almost_job(name) {
            self.add(Fault::AlmostJob, dir, name, "its name is almost a job's");
        } else {
            self.add(Fault::Stranger, dir, name, "it is no file of the queue");
        }
    }

    fn the_claims(&mut self, dir: &Dir, is_dead: &dyn Fn(OwnerName) -> bool) -> io::Result<()> {
        let mut entries = Vec::new();
        dir.list(Reading::AtOnce, |(name, kind)| entries.push((name.to_owned(), kind)))?;
        for (name, kind) in &entries {
            let is_dir = matches!(kind, None | Some(FileKind::Directory));
            match (job::parse_claim(name), Token::parse_spare(name)) {
                (Some((job, owner)), _) if is_dir => self.a_claim(dir, name, &job, owner, is_dead),
                (None, Some(token)) if is_dir => self.a_spare(dir, name, token, is_dead),
                (None, None) if job::is_set_aside(name) && is_dir => {
                    self.add(Fault::Leftover, dir, name, "what is in it was left beside a job's file");
                }
                (None, None) if job::is_unowned(name) => {
                    self.add(Fault::UnknownOwner, dir, name, "nobody can tell whether its owner lives");
                }
                (None, None) => self.no_job(dir, name),
                _ => self.add(Fault::NoFile, dir, name, "it has the name of a claim and is no directory"),
            }
        }
        Ok(())
    }

    /// Looks at a directory that waits to be a claim's again.
    fn a_spare(&mut self, dir: &Dir, name: &OsStr, token: Token, is_dead: &dyn Fn(OwnerName) -> bool) {
        let mut is_empty = true;
        match dir.open_dir(name).and_then(|spare| spare.list(Reading::InPieces, |_| is_empty = false)) {
            Err(error) => self.add(Fault::Access, dir, name, format!("this user can't look into it: {error}")),
            Ok(()) if !is_empty => {
                self.add(Fault::Stranger, dir, name, "something is in a directory that waits for its next claim");
            }
            Ok(()) if is_dead(OwnerName::Token(token)) => {
                self.add(Fault::Abandoned, dir, name, "it waits for its next claim, and its owner is dead");
            }
            Ok(()) => {}
        }
    }

    fn a_claim(&mut self, dir: &Dir, name: &OsStr, job: &Job, owner: OwnerName, is_dead: &dyn Fn(OwnerName) -> bool) {
        let (mut has_job, mut others) = (false, 0_usize);
        let opened = dir.open_dir(name).and_then(|claim| {
            claim.list(Reading::AtOnce, |entry| {
                if entry.0 == job.claimed_name() && claim.may_be_file(entry) {
                    has_job = true;
                } else {
                    others += 1;
                }
            })?;
            Ok(claim)
        });
        let claim = match opened {
            Ok(claim) => claim,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.add(Fault::Access, dir, name, format!("this user can't look into it: {error}")),
        };
        if has_job {
            self.jobs.push((job.id(), State::Processing));
            self.a_file(&claim, job.claimed_name(), job);
        }
        if others > 0 {
            let what = format!("{others} thing(s) in it that are not its job");
            self.add(Fault::CrowdedClaim, dir, name, what);
        }
        if is_dead(owner) {
            if has_job || others == 0 {
                let what = if has_job { "its consumer" } else { "empty, and its consumer" };
                self.add(Fault::Orphan, dir, name, format!("{what} ({owner}) is dead"));
            }
        } else if !has_job
            && others == 0
            && let Ok(stat) = dir.stat(name)
            && self.now.duration_since(stat.modified).is_ok_and(|age| age > EMPTY)
        {
            self.add(Fault::EmptyClaim, dir, name, format!("it is empty, and its owner ({owner}) lives"));
        }
    }

    fn a_temporary(&mut self, dir: &Dir, entry: Entry<'_>, is_dead: &dyn Fn(OwnerName) -> bool) {
        let (name, _) = entry;
        let Some(temporary) = job::parse_temporary(name) else { return self.no_job(dir, name) };
        if !dir.may_be_file(entry) {
            return self.add(Fault::NoFile, dir, name, "it has the name of an unfinished file and is none");
        }
        match judge_unfinished(dir, name, temporary, |owner| !is_dead(owner)) {
            Unfinished::Awaited => {}
            Unfinished::Abandoned => self.add(Fault::Abandoned, dir, name, "its writer died before it was sent"),
            Unfinished::Unborn if owner::is_unborn_locked(name, dir) => {}
            Unfinished::Unborn => self.add(Fault::Abandoned, dir, name, "its maker died before it was a lock file"),
            Unfinished::Forgotten => {
                self.add(Fault::Forgotten, dir, name, "nobody wrote to it for a day, and it does not tell its writer");
            }
        }
    }

    fn a_lock_file(&mut self, dir: &Dir, entry: Entry<'_>, is_dead: &dyn Fn(OwnerName) -> bool) {
        let (name, _) = entry;
        match Token::parse(name.as_encoded_bytes()) {
            None => self.add(Fault::UnknownOwner, dir, name, "it is no lock file's name"),
            Some(_) if !dir.may_be_file(entry) => {
                self.add(Fault::NoFile, dir, name, "it has the name of a lock file and is no regular file");
            }
            Some(token) if is_dead(OwnerName::Token(token)) => {
                self.add(Fault::Abandoned, dir, name, "the lock file of a process that died");
            }
            Some(_) => {}
        }
    }

    fn a_history(&mut self, dir: &Dir, (name, kind): Entry<'_>) {
        match Job::parse(name) {
            Some(job) if matches!(kind, None | Some(FileKind::Directory)) => {
                self.histories.push((job.id(), name.to_owned()));
            }
            Some(_) => self.add(Fault::NoFile, dir, name, "it has the name of a job's records and is no directory"),
            None => self.no_job(dir, name),
        }
    }

    /// Looks at what only all directories together tell.
    fn the_jobs(&mut self, home: &Dir, dirs: &[(Place, Dir)]) {
        self.left = MOST;
        self.jobs.sort_unstable_by_key(|(id, _)| *id);
        if dirs.iter().filter(|(place, _)| matches!(place, Place::State(_))).count() == State::ALL.len() {
            let history = dirs.iter().find(|(place, _)| *place == Place::History).map_or(home, |(_, dir)| dir);
            for (id, name) in std::mem::take(&mut self.histories) {
                if self.jobs.binary_search_by_key(&id, |(id, _)| *id).is_err() {
                    self.add(Fault::History, history, &name, "records of a job that is gone");
                }
            }
        }
        let twice: HashSet<_> = self.jobs.windows(2).filter(|two| two[0].0 == two[1].0).map(|two| two[0].0).collect();
        if !twice.is_empty() {
            self.the_doubles(&twice, dirs);
        }
    }

    /// Looks for all places of some jobs. One that moved meanwhile was seen twice, and is in one of them.
    fn the_doubles(&mut self, twice: &HashSet<Uuid>, dirs: &[(Place, Dir)]) {
        let mut found: HashMap<Uuid, Vec<(State, &Dir, OsString)>> = HashMap::new();
        for (place, dir) in dirs {
            let Place::State(state) = *place else { continue };
            // That a directory can't be read was said before.
            _ = dir.list(Reading::InPieces, |(name, _)| {
                let job = match state {
                    State::Processing => job::parse_claim(name).map(|(job, _)| job),
                    State::Scheduled => job::parse_scheduled(name).map(|(_, job)| job),
                    _ => Job::parse(name),
                };
                if let Some(job) = job.filter(|job| twice.contains(&job.id())) {
                    found.entry(job.id()).or_default().push((state, dir, name.to_owned()));
                }
            });
        }
        for (id, places) in found {
            for (number, (_, dir, name)) in places.iter().enumerate() {
                if let Some((other, ..)) = places.get(usize::from(number == 0)) {
                    self.add(Fault::Twice, dir, name, format!("job {id} is in {}/ as well", other.name()));
                }
            }
        }
    }

    fn is_future(&self, time: SystemTime) -> bool {
        time.duration_since(self.now).is_ok_and(|ahead| ahead > FUTURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CrashDetection, KeepPolicy, Queue};

    fn queue() -> (tempfile::TempDir, Queue) {
        let home = tempfile::tempdir().unwrap();
        let queue = Queue::open(home.path(), KeepPolicy::ALL, false, CrashDetection::LockFile).unwrap();
        (home, queue)
    }

    /// What was found, but for what some systems are not asked.
    fn faults(found: &Inspection) -> Vec<Fault> {
        found.findings().iter().map(|finding| finding.fault).filter(|&fault| fault != Fault::NotAsked).collect()
    }

    #[test]
    fn what_is_over_or_has_changed_at_the_second_look_is_no_finding() {
        let (home, _queue) = queue();
        let paths = ["stays", "goes", "changes"].map(|name| home.path().join("queued").join(name));
        for path in &paths {
            std::fs::write(path, "").unwrap();
        }
        let mut found = Inspection::begin(home.path()).unwrap();
        assert_eq!(faults(&found), [Fault::Stranger; 3]);
        std::fs::remove_file(&paths[1]).unwrap();
        // Another file of that name: the old one keeps its inode.
        std::fs::rename(&paths[2], home.path().join("kept")).unwrap();
        std::fs::write(&paths[2], "").unwrap();
        found.look_again().unwrap();
        assert_eq!(faults(&found), [Fault::Stranger]);
        assert!(found.findings().iter().any(|finding| finding.path == paths[0]));
    }

    /// Rule 21 of the protocol.
    #[test]
    fn records_of_a_job_that_is_gone_stay_unless_it_was_gone_twice_apart_in_time() {
        let (home, queue) = queue();
        let id = job::new_id().unwrap();
        let records = home.path().join("history").join(Job::data(id).entry());
        std::fs::create_dir_all(&records).unwrap();
        std::fs::write(records.join("1"), "").unwrap();
        let mut found = Inspection::begin(home.path()).unwrap();
        found.look_again().unwrap();
        assert_eq!(faults(&found), [Fault::History]);
        assert!(!found.rest().is_zero());
        queue.repair(&found).unwrap();
        assert!(records.exists());
        found.last = found.first + APART;
        queue.repair(&found).unwrap();
        assert!(!records.exists());
    }
}
