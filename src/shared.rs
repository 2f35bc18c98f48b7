//! What all instances and threads of one process share of one queue: the open directories, the table of the claims that
//! this process works on, its lock file, the verdicts that the disk did not take yet, and who waits.
//!
//! The table is what tells a claim of this process that is alive from a leftover under the same name (a PID from before
//! a reboot or an `exec`, a directory whose removal failed). A job enters it before its claim's directory exists and
//! leaves it after that is gone.

use std::collections::{HashMap, HashSet, hash_map};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use uuid::Uuid;

use crate::claim::{Unflushed, Unsettled};
use crate::error::{At, Error, Result};
use crate::fork::{self, PerProcess};
use crate::history;
use crate::job::{Due, Job, OwnerName};
use crate::layout::{self, Layout};
use crate::leftover;
use crate::limits::Room;
use crate::listing::{Listing, Order};
use crate::notice::Notice;
use crate::owner::{CrashDetection, LockFile, Owner};
use crate::pause::Pause;
use crate::policy::State;
use crate::spare::Spares;
use crate::sys::{self, Dir, Identity};
use crate::wait::{Wait, locked, rest_after, shortened};

/// The queues that this process has open, by the identity of `processing/`: a path through a symlink is the same queue.
static OPEN: PerProcess<Mutex<HashMap<Identity, Weak<Shared>>>> = PerProcess::new(Mutex::default);

/// What was told of each queue and need not be told again.
static TOLD: PerProcess<Mutex<HashMap<Identity, Told>>> = PerProcess::new(Mutex::default);

#[derive(Default)]
struct Told {
    /// In these words.
    once: HashSet<String>,
    /// By their causes, and when each was last met.
    troubles: HashMap<String, Instant>,
}

pub(crate) struct Shared {
    layout: ArcSwap<Layout>,
    identity: Identity,
    generation: u64,
    table: Mutex<Table>,
    unsettled: Mutex<Vec<Unsettled>>,
    /// Of the passes that go on.
    unflushed: Mutex<Vec<Weak<Unflushed>>>,
    notices: Mutex<Vec<Notice>>,
    pub(crate) spares: Spares,
    /// Whether so much was told once that no more of it is.
    told_all: AtomicBool,
    listings: [Mutex<Listing>; 2],
    /// Jobs of which there are records in `history/`, as far as this process knows: no job that succeeds is asked for them.
    histories: Mutex<HashSet<Uuid>>,
    pub(crate) care: Mutex<Care>,
    pub(crate) pause: Pause,
    pub(crate) room: Room,
    /// When the paths of all directories were looked at.
    looked: Mutex<Option<Instant>>,
    pub(crate) wait: Arc<Wait>,
}

/// When this process last looked after what time does to the queue.
#[derive(Default)]
pub(crate) struct Care {
    pub(crate) last: Option<Instant>,
    /// How long that took.
    pub(crate) took: Duration,
    /// When the next job of `scheduled/` is due, if that was read since it last changed.
    pub(crate) schedule: Schedule,
    pub(crate) histories: Histories,
}

/// What is known of `history/` that may have to be swept up.
#[derive(Default)]
pub(crate) struct Histories {
    /// Until when it is not to be read again.
    pub(crate) rests_until: Option<Instant>,
    /// The last job that was looked for. The next look goes on from there.
    pub(crate) last: Option<Job>,
    /// Jobs that were nowhere, and when something was last recorded of each: in the round before, and in this one.
    pub(crate) absent_before: HashMap<Uuid, SystemTime>,
    pub(crate) absent: HashMap<Uuid, SystemTime>,
}

impl Care {
    pub(crate) fn is_wanted(&self, after: Duration) -> bool {
        self.is_due(after) || self.schedule.next_due.is_some_and(|due| due.remaining().is_zero())
    }

    /// Whether this process did not look for so long. Who asks for a look now gets one; others rest after one that took
    /// long.
    pub(crate) fn is_due(&self, after: Duration) -> bool {
        after.is_zero() || self.last.is_none_or(|last| last.elapsed() >= after.max(rest_after(self.took)))
    }
}

/// What is known of `scheduled/`.
#[derive(Default)]
pub(crate) struct Schedule {
    /// When there is something to do next.
    pub(crate) next_due: Option<Due>,
    /// Of a large directory, the jobs that were due first when it was read; the very first one last.
    pub(crate) first: Vec<(Due, Job)>,
    /// Until when it is not to be read again.
    pub(crate) rests_until: Option<Instant>,
    /// The directory's time when it was read, if nothing can have changed since without changing it.
    pub(crate) unchanged_since: Option<SystemTime>,
}

impl Schedule {
    /// Whether no job is due, and a fresh reading would show nothing new.
    pub(crate) fn is_current(&self, scheduled: &Dir) -> bool {
        self.next_due.is_none_or(|due| !due.remaining().is_zero()) && scheduled.is_unchanged(self.unchanged_since)
    }
}

/// The claims that this process works on, and the lock file under which it makes the next.
#[derive(Default)]
pub(crate) struct Table {
    claims: HashMap<Uuid, Entry>,
    lock: Option<Arc<LockFile>>,
    /// Those that were closed in this process. Claims that are in progress under their names hold them.
    closed: Vec<Weak<LockFile>>,
}

struct Entry {
    owner: OwnerName,
    /// Whether another thread met the job here and went on without it.
    wanted: bool,
}

/// How many things are told once of a queue. A directory of a million strangers must not fill the log and the memory.
const MOST_TOLD: usize = 1000;

/// How many notices are kept for a caller who asks for none.
const MOST_KEPT: usize = 1000;

/// For how long a trouble must not have been met to be over.
fn over_after() -> Duration {
    #[cfg(feature = "failpoints")]
    fail::fail_point!("tell: troubles are over at once", |_| Duration::ZERO);
    Duration::from_secs(60)
}

/// Of how many jobs it is known that there are records. Those of others go when they are swept up.
const MOST_HISTORIES: usize = 100_000;

/// How many verdicts that the disk does not take a process may have and go on claiming.
const MOST_UNSETTLED: usize = 8;

/// How many it may have for which there is something in the way: each keeps a descriptor.
const MOST_TAKEN: usize = 256;

impl Shared {
    /// What this process shares of the queue at `base`. Directories that are missing there are made.
    pub(crate) fn of(base: &Path) -> Result<Arc<Self>> {
        let layout = Layout::open(base)?;
        let processing = layout.dir(State::Processing);
        let identity = processing.identity().at(|| processing.path().into())?;
        let mut open = locked(OPEN.get());
        if let Some(shared) = open.get(&identity).and_then(Weak::upgrade) {
            // Another of its directories may have been replaced, or somebody closed them.
            let known = shared.layout();
            if known.identities() != layout.identities() || !known.is_intact() {
                shared.layout.store(Arc::new(layout)); // first: nothing is to be done through what is closed
                shared.remove_spares();
                shared.table().keep_alive(&shared.layout());
                shared.wait.disarm();
            }
            return Ok(shared);
        }
        let shared = Arc::new(Self {
            layout: ArcSwap::from_pointee(layout),
            identity,
            generation: fork::generation(),
            table: Mutex::default(),
            unsettled: Mutex::default(),
            unflushed: Mutex::default(),
            notices: Mutex::default(),
            spares: Spares::default(),
            told_all: AtomicBool::new(false),
            listings: Default::default(),
            histories: Mutex::default(),
            care: Mutex::default(),
            pause: Pause::default(),
            room: Room::default(),
            looked: Mutex::default(),
            wait: Arc::default(),
        });
        open.retain(|_, queue| queue.strong_count() > 0);
        open.insert(identity, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Whether this is the process that made it, and not a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Whether the path still leads here. The directory by which a queue is known is looked at each time, the others once a
    /// second.
    pub(crate) fn is_at(&self, base: &Path) -> bool {
        let processing = sys::stat(&layout::state_path(base, State::Processing));
        processing.is_ok_and(|found| found.identity == self.identity) && self.was_at(base)
    }

    /// The same for who need not know it at once: whether within the last second the path led here, and the directories
    /// were open.
    pub(crate) fn was_at(&self, base: &Path) -> bool {
        let mut looked = locked(&self.looked);
        if looked.is_none_or(|then| then.elapsed() >= shortened(Duration::from_secs(1))) {
            let layout = self.layout();
            if !layout.is_intact() || !layout.is_at(base) {
                return false;
            }
            *looked = Some(Instant::now());
        }
        true
    }

    /// The same for who takes no owner's name, which would show whether somebody closed the directories in this process.
    pub(crate) fn is_open_at(&self, base: &Path) -> bool {
        self.layout.load().seems_intact() && self.is_at(base)
    }

    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.load_full()
    }

    /// The open directories, opened anew if somebody closed them in this process.
    pub(crate) fn intact_layout(&self, base: &Path) -> Result<Arc<Layout>> {
        let layout = self.layout();
        if layout.is_intact() {
            return Ok(layout);
        }
        let again = Self::of(base)?;
        if again.identity != self.identity {
            return Err(io::Error::from(io::ErrorKind::NotFound)).at(|| base.into());
        }
        Ok(again.layout())
    }

    /// The name under which to write or to claim. Fails where somebody closed what this process has open.
    pub(crate) fn owner(&self, detection: CrashDetection) -> Result<Owner> {
        locked(&self.table).owner(detection, &self.layout())
    }

    /// Enters a job that is to be claimed under that name into the table, if no thread of this process has it.
    pub(crate) fn enter(&self, job: &Job, owner: OwnerName) -> bool {
        match locked(&self.table).claims.entry(job.id()) {
            hash_map::Entry::Occupied(mut entry) => {
                entry.get_mut().wanted = true;
                false
            }
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry { owner, wanted: false });
                true
            }
        }
    }

    /// Takes a job out of the table again: its claim's directory is gone. Threads that met it there look once more.
    pub(crate) fn leave(&self, job: &Job) {
        let entry = locked(&self.table).claims.remove(&job.id());
        if entry.is_some_and(|entry| entry.wanted) {
            self.wait.raise();
        }
    }

    /// The same, without a look of the others: they would meet what this thread met.
    pub(crate) fn leave_quietly(&self, job: &Job) {
        locked(&self.table).claims.remove(&job.id());
    }

    /// The waiting jobs in that order, as last read by any thread.
    pub(crate) fn listing(&self, order: Order) -> MutexGuard<'_, Listing> {
        locked(&self.listings[usize::from(order == Order::Fifo)])
    }

    /// The table, locked: what is judged under the lock can't change before it is acted upon.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.table)
    }

    /// Gives up the lock file, as at the end of the process. Claims that live hold it on; a later one makes another.
    pub(crate) fn release(&self) {
        self.remove_spares();
        let lock = locked(&self.table).lock.take();
        drop(lock);
    }

    /// Reads `queued/` into a listing.
    pub(crate) fn list(&self, listing: &mut Listing, order: Order) -> Result<()> {
        let layout = self.layout();
        let queued = layout.dir(State::Queued);
        listing.read(queued, order, |name| self.tell_stranger(queued, name))
    }

    /// There is no job: no directory is kept for the next one.
    pub(crate) fn remove_spares(&self) {
        let layout = self.layout();
        let processing = layout.dir(State::Processing);
        self.spares.remove(processing, |job, name, dir, removed| {
            self.leave_spare(processing, job, name, dir, removed);
        });
    }

    /// Takes a job out of the table whose directory waited under its name for the next claim, and waits no more. One in
    /// which something was left is set aside.
    pub(crate) fn leave_spare(&self, processing: &Dir, job: &Job, name: &OsStr, dir: &Dir, removed: io::Result<()>) {
        if removed.is_err_and(|error| error.kind() == io::ErrorKind::DirectoryNotEmpty) {
            self.tell_set_aside(leftover::set_aside(processing, job, name, dir, true));
        }
        self.leave(job);
    }

    /// Logs what came of setting a directory aside, and says whether it was. What failed is tried again by recovery.
    pub(crate) fn tell_set_aside(&self, done: Result<Option<Notice>>) -> bool {
        match done {
            Ok(Some(notice)) => self.tell(notice),
            Ok(None) => return false,
            Err(error) => return self.tell_failed(&error),
        }
        true
    }

    pub(crate) fn keep_unsettled(&self, unsettled: Unsettled) {
        locked(&self.unsettled).push(unsettled);
    }

    /// Tries once more what could not be settled. Says whether anything was, and what went wrong last.
    pub(crate) fn settle_again(&self) -> (bool, Option<Error>) {
        let waiting = std::mem::take(&mut *locked(&self.unsettled));
        let (mut settled, mut failed) = (false, None);
        for mut unsettled in waiting {
            match unsettled.try_again() {
                Ok(()) => settled = true,
                Err(error) => {
                    failed = Some(error);
                    self.keep_unsettled(unsettled);
                }
            }
        }
        (settled, failed)
    }

    /// Whether so many verdicts were not taken yet that there should not be more.
    pub(crate) fn has_many_unsettled(&self) -> bool {
        let unsettled = locked(&self.unsettled);
        let taken = unsettled.iter().filter(|verdict| verdict.is_taken).count();
        taken >= MOST_TAKEN || unsettled.len() - taken >= MOST_UNSETTLED
    }

    /// There are records of that job.
    pub(crate) fn knows_history_of(&self, job: &Job) {
        Self::know(&mut locked(&self.histories), job);
    }

    fn know(histories: &mut HashSet<Uuid>, job: &Job) {
        if histories.len() < MOST_HISTORIES {
            histories.insert(job.id());
        }
    }

    /// There are to be none any more. Says whether there may be some.
    pub(crate) fn forgets_history_of(&self, job: &Job) -> bool {
        locked(&self.histories).remove(&job.id())
    }

    /// Learns of which jobs there are records by a listing.
    pub(crate) fn list_histories(&self, mut visit: impl FnMut(Job)) -> Result<()> {
        // Locked meanwhile, or what another thread learns would be forgotten.
        let mut known = locked(&self.histories);
        known.clear();
        history::visit(&self.layout(), |job| {
            Self::know(&mut known, &job);
            visit(job);
        })
    }

    /// For the verdicts of a pass.
    pub(crate) fn start_pass(&self) -> Arc<Unflushed> {
        let pass = Arc::default();
        let mut passes = locked(&self.unflushed);
        passes.retain(|pass| pass.strong_count() > 0);
        passes.push(Arc::downgrade(&pass));
        pass
    }

    /// Has the verdicts of all passes on the disk, for who may have seen them.
    pub(crate) fn flush_verdicts(&self) {
        let passes: Vec<_> = locked(&self.unflushed).iter().filter_map(Weak::upgrade).collect();
        for pass in &passes {
            pass.flush();
        }
    }

    /// Something that a person should know of, each time.
    pub(crate) fn tell(&self, notice: Notice) {
        let mut notices = locked(&self.notices);
        match notices.len().cmp(&MOST_KEPT) {
            std::cmp::Ordering::Less => notices.push(notice),
            std::cmp::Ordering::Equal => notices.push(Notice::new("more was noticed, and is not logged")),
            std::cmp::Ordering::Greater => {}
        }
    }

    /// Something that a person should know of, once in this process.
    pub(crate) fn tell_once(&self, notice: Notice) {
        let mut told = locked(TOLD.get());
        let once = &mut told.entry(self.identity).or_default().once;
        if once.len() > MOST_TOLD {
            self.told_all.store(true, Ordering::Relaxed);
            return;
        }
        if !once.insert(notice.text.clone()) {
            return;
        }
        self.tell(notice);
        if once.len() > MOST_TOLD {
            self.tell(Notice::new("more of that kind is not told any more"));
        }
    }

    /// Something that can't be done, told once for all that meet the same, and again when it was over for a while.
    pub(crate) fn tell_trouble(&self, error: &Error, notice: Notice) {
        let now = Instant::now();
        let mut told = locked(TOLD.get());
        let troubles = &mut told.entry(self.identity).or_default().troubles;
        troubles.retain(|_, met| now.duration_since(*met) < over_after());
        if troubles.insert(error.cause(), now).is_none() {
            self.tell(notice);
        }
    }

    /// Such a thing of one job, which is no success.
    pub(crate) fn tell_failed(&self, error: &Error) -> bool {
        self.tell_trouble(error, Notice::new(error.to_string()));
        false
    }

    /// An attempt could not be recorded.
    pub(crate) fn tell_unrecorded(&self, job: &Job, error: &Error) {
        let id = job.id();
        self.tell_trouble(error, Notice::of(id, format!("job {id}: this attempt is not in its history: {error}")));
    }

    /// Something in a directory of the queue that is none of its files. It is left where it is.
    pub(crate) fn tell_stranger(&self, dir: &Dir, name: &OsStr) {
        // A million of them, at each look, would take more time to word than to read.
        if self.told_all.load(Ordering::Relaxed) {
            return;
        }
        let path = dir.path().join(name);
        self.tell_once(Notice::new(format!("{}: not a job's file; it is left alone", path.display())));
    }

    pub(crate) fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut locked(&self.notices))
    }

    pub(crate) fn has_notices(&self) -> bool {
        !locked(&self.notices).is_empty()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.remove_spares();
    }
}

impl Table {
    fn owner(&mut self, detection: CrashDetection, layout: &Arc<Layout>) -> Result<Owner> {
        match (detection, &self.lock) {
            // Who closes descriptors, closes those of many: that this one is open says the same of the directories.
            (CrashDetection::LockFile, Some(lock)) if lock.is_good_in(layout) => Ok(Owner::Token(Arc::clone(lock))),
            (CrashDetection::LockFile, _) if layout.is_intact() => {
                self.keep_alive(layout);
                let lock = Arc::new(LockFile::new(layout)?);
                self.lock = Some(Arc::clone(&lock));
                Ok(Owner::Token(lock))
            }
            (CrashDetection::Pid, _) if layout.seems_intact() => Ok(Owner::Pid(sys::pid())),
            _ => Err(io::Error::other("somebody closed the files that this process has open of the queue"))
                .at(|| layout.owners.path().into()),
        }
    }

    /// Takes the locks again that this process lost since somebody closed their files, for the claims in progress. Another
    /// process that looked before has taken these for a dead worker's. The next claim is made under another name.
    fn keep_alive(&mut self, layout: &Arc<Layout>) {
        if let Some(lock) = self.lock.take_if(|lock| !lock.is_good()) {
            self.closed.push(Arc::downgrade(&lock));
        }
        self.take_again(layout);
    }

    /// The same for those that were lost before: somebody may have looked just then, and held the lock.
    pub(crate) fn take_again(&mut self, layout: &Arc<Layout>) {
        self.closed.retain(|lock| lock.upgrade().inspect(|lock| lock.take_again(layout)).is_some());
    }

    /// Whether a thread of this process works on that job under that name.
    pub(crate) fn works_on(&self, job: &Job, owner: OwnerName) -> bool {
        self.claims.get(&job.id()).is_some_and(|entry| entry.owner == owner)
    }

    /// Whether that is the name under which this process claims.
    pub(crate) fn is_own(&self, owner: OwnerName) -> bool {
        match owner {
            OwnerName::Pid(pid) => pid == sys::pid(),
            OwnerName::Token(token) => {
                let closed = self.closed.iter().filter_map(Weak::upgrade);
                self.lock.iter().cloned().chain(closed).any(|lock| lock.token() == token)
            }
        }
    }
}

/// Gives up the lock files of all queues, as at the end of the process.
pub fn release_all() {
    let open: Vec<_> = locked(OPEN.get()).values().filter_map(Weak::upgrade).collect();
    for shared in open {
        _ = shared.settle_again();
        shared.release();
    }
}
