//! The world: what is on the disk, who lives, and what each system call does to both.

use super::{
    Config, DIRS, File, Inode, JOBS, Job, LOCKS, Lock, NAMES, Name, Owners, PROCESSES, THREADS, Without, number,
};

/// The directories with one name per job, as far as the protocol tells them apart: `success/` and `failed/` are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    Queued,
    Scheduled,
    Done,
    Interrupted,
}
use Place::Queued;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    To(Place),
    /// The policy does not keep it.
    Delete,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "facts, each alone")]
pub(super) struct Dir {
    pub(super) used: bool,
    /// Its name in `processing/`.
    pub(super) name: Option<(Job, Name)>,
    pub(super) file: Option<File>,
    /// A file that is no job's.
    pub(super) litter: bool,
    /// Somebody knows it by its path.
    pub(super) handed_out: bool,
    /// Somebody knows it by its path from a claim that is over.
    pub(super) known_from_before: bool,
    /// Its name may not survive a power cut.
    pub(super) unflushed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LockFile {
    pub(super) used: bool,
    pub(super) name: Name,
    pub(super) linked: bool,
    /// It was locked through a descriptor of which a child has a copy.
    pub(super) copied_locked: bool,
}

/// A claim's directory, as a thread knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    pub(super) job: Job,
    pub(super) name: Name,
    /// The handle.
    pub(super) dir: Inode,
}

/// Where a thread is: what it has done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thread {
    /// There is no such thread.
    Absent,
    Idle,
    // Claim
    /// The lock file has its name, and no lock yet. Only without the rule against it.
    Unlocked(Job, Lock),
    Entered(Job, Name),
    Made(Job, Name),
    Opened(At),
    /// The claim has failed; its directory is to go.
    Failed(Job, Name),
    /// There is no directory any more.
    Removed(Job),
    /// It has the claim.
    Held(At, File),
    // Settle
    /// The file has two names. Only without the rule against it.
    Linked(At, File, Place),
    Moved(At),
    /// The directory can't be removed, since there is something else in it.
    Beside(At),
    /// It has seen that the directory is empty.
    SeenEmpty(At),
    // From job to job
    /// It has settled, and entered the next job to be claimed under that name.
    Chosen(At, Job, Name),
    /// It has seen that the directory is empty.
    Cleared(At, Job, Name),
    /// The directory is the next job's; the settled one is still in the table.
    Renamed(At, Job),
    /// The directory can't be the next job's, and is to go.
    Unfit(At, Job, Name),
    /// It can't be removed either, since there is something in it.
    UnfitBeside(At, Job, Name),
    /// It is gone, and the settled job is still in the table.
    Parted(Job, Job, Name),
    /// It has left the table before the directory is gone. Only without the rule against it.
    Left(Job, Name),
    // Recover
    /// Judged before it was opened. Only without the rule against it.
    Condemned(Job, Name),
    Found(At),
    Foreign(At),
    LockOpened(At, Lock),
    LockTaken(At, Lock),
    Judged(At, Hold),
    Same(At, Hold),
    Looked(At, Hold),
    Emptied(At, Hold),
    /// The directory can't be removed.
    Crowded(At, Hold),
    /// It is locked against others that recover.
    Guarded(At, Hold),
    /// Its name still means it, and something is in it, but not the job's file.
    Abandoned(At, Hold),
    // Sweep
    SweepOpened(Lock),
    SweepTaken(Lock),
}
use Thread::{
    Abandoned, Absent, Beside, Chosen, Cleared, Condemned, Crowded, Emptied, Entered, Failed, Foreign, Found, Guarded,
    Held, Idle, Judged, Left, Linked, LockOpened, LockTaken, Looked, Made, Moved, Opened, Parted, Removed, Renamed,
    Same, SeenEmpty, SweepOpened, SweepTaken, Unfit, UnfitBeside, Unlocked,
};

/// Whether a thread that recovers holds the table's lock all the while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    Table,
    Nothing,
}

/// A claim whose verdict the disk did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Unsettled {
    pub(super) at: At,
    /// `None` where the file is moved and only the directory is left.
    pub(super) rest: Option<(File, Verdict)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Life {
    Free,
    Alive,
    /// Its first thread has ended, the others work on.
    Headless,
    /// Dead, and not waited for: its PID is still taken.
    Zombie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) life: Life,
    /// PIDs only.
    pub(super) pid: Name,
    /// The lock file under which it makes the next claim.
    pub(super) lock: Option<Lock>,
    /// A copy of its parent's descriptor.
    pub(super) inherited: Option<Lock>,
    /// A copy of the descriptor of a lock file that another thread of its parent was judging.
    pub(super) leaked: Option<Lock>,
    pub(super) table: [Option<Name>; JOBS],
    pub(super) unsettled: [Option<Unsettled>; JOBS],
    pub(super) threads: [Thread; THREADS],
    /// A directory for the next claim, under a name that is no claim's.
    pub(super) spare: Option<Inode>,
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) at: [[Option<File>; 4]; JOBS],
    pub(super) dirs: [Dir; DIRS],
    pub(super) locks: [LockFile; LOCKS],
    /// Whether `owners/` is there.
    pub(super) owners: bool,
    /// Numbers that are ids of threads.
    pub(super) thread_ids: u8,
    pub(super) processes: [Process; PROCESSES],
    pub(super) faults: u8,
    /// Files that the policy deleted.
    pub(super) deleted: u8,
    /// Files that were claimed since they were last put into the queue.
    pub(super) handed: u8,
    pub(super) wrong: Option<Wrong>,
}

/// What no state shows but a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// A job was claimed twice, though it was put into the queue once.
    HandedTwice,
    /// A live thread's directory was removed under its claim.
    DirectoryRemoved,
    /// A job was moved into a directory with something else in it.
    NotAlone,
    /// A verdict was given to another file than the one handled.
    OtherFile,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Thread of process.
    Thread(usize, usize, Do),
    Kill(usize),
    FirstThreadEnds(usize),
    Reap(usize),
    Born(usize, Name),
    /// Process, thread, and where the child is to be.
    Fork(usize, usize, usize),
    ChildCloses(usize),
    Release(usize),
    Promote(Job),
    Requeue(Job, Place),
    DeleteLock(Lock),
    DeleteOwners,
    RemakeOwners,
    Litter(Inode),
    HandOut(Inode),
    /// Somebody deletes a file by a path that was of the claim before.
    LateUse(Inode),
    PowerCut,
    ThreadIdTaken(Name),
    ThreadIdFreed(Name),
    Swap(Inode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Do {
    /// The next call, which succeeds or fails as the disk has it.
    Next,
    /// The next call fails for another reason.
    Fail,
    Enter(Job),
    Settle(Verdict),
    SettleFails(Verdict),
    Again(Job),
    Find(Job, Name),
    Sweep(Lock),
}

impl Thread {
    /// The claim's directory that it has a handle of.
    pub(super) fn dir(self) -> Option<Inode> {
        match self {
            Opened(at)
            | Held(at, _)
            | Linked(at, ..)
            | Moved(at)
            | Beside(at)
            | SeenEmpty(at)
            | Chosen(at, ..)
            | Cleared(at, ..)
            | Renamed(at, _)
            | Unfit(at, ..)
            | UnfitBeside(at, ..) => Some(at.dir),
            _ => self.recovers().map(|at| at.dir),
        }
    }

    /// The claim that it has found, if it recovers one.
    fn recovers(self) -> Option<At> {
        match self {
            Found(at)
            | Foreign(at)
            | LockOpened(at, _)
            | LockTaken(at, _)
            | Judged(at, _)
            | Same(at, _)
            | Looked(at, _)
            | Emptied(at, _)
            | Crowded(at, _)
            | Guarded(at, _)
            | Abandoned(at, _) => Some(at),
            _ => None,
        }
    }

    /// The job and the name of the claim that it makes, has or settles.
    pub(super) fn claim(self) -> Option<(Job, Name)> {
        match self {
            Entered(job, name) | Made(job, name) | Failed(job, name) | Parted(_, job, name) => Some((job, name)),
            Opened(at)
            | Held(at, _)
            | Linked(at, ..)
            | Moved(at)
            | Beside(at)
            | SeenEmpty(at)
            | Chosen(at, ..)
            | Cleared(at, ..)
            | Renamed(at, _)
            | Unfit(at, ..)
            | UnfitBeside(at, ..) => Some((at.job, at.name)),
            _ => None,
        }
    }

    /// Whether it has entered that job into the table.
    pub(super) fn has_entered(self, job: Job) -> bool {
        let other = match self {
            Removed(job)
            | Chosen(_, job, _)
            | Cleared(_, job, _)
            | Renamed(_, job)
            | Unfit(_, job, _)
            | UnfitBeside(_, job, _)
            | Parted(job, ..) => Some(job),
            _ => None,
        };
        other == Some(job) || self.claim().is_some_and(|(its, _)| its == job)
    }

    pub(super) fn names(self) -> Option<Name> {
        match self {
            Left(_, name) | Condemned(_, name) => Some(name),
            _ => self.recovers().map(|at| at.name).or_else(|| self.claim().map(|(_, name)| name)),
        }
    }

    pub(super) fn lock(self) -> Option<Lock> {
        match self {
            LockOpened(_, lock) | LockTaken(_, lock) | Unlocked(_, lock) | SweepOpened(lock) | SweepTaken(lock) => {
                Some(lock)
            }
            _ => None,
        }
    }

    pub(super) fn holds_table(self) -> bool {
        matches!(
            self,
            Unlocked(..)
                | Judged(_, Hold::Table)
                | Same(_, Hold::Table)
                | Looked(_, Hold::Table)
                | Emptied(_, Hold::Table)
                | Crowded(_, Hold::Table)
                | Guarded(_, Hold::Table)
                | Abandoned(_, Hold::Table)
        )
    }
}

impl Process {
    pub(super) const NONE: Self = Self {
        life: Life::Free,
        pid: 0,
        lock: None,
        inherited: None,
        leaked: None,
        table: [None; JOBS],
        unsettled: [None; JOBS],
        threads: [Absent; THREADS],
        spare: None,
    };

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.life, Life::Alive | Life::Headless)
    }

    pub(super) fn is_table_free(&self) -> bool {
        !self.threads.iter().any(|thread| thread.holds_table())
    }

    pub(super) fn unsettled(&self) -> impl Iterator<Item = Unsettled> {
        self.unsettled.into_iter().flatten()
    }

    /// What is left when it ends.
    pub(super) fn end(&mut self, life: Life) {
        let threads = self.threads.map(|thread| if thread == Absent { Absent } else { Idle });
        *self = Self { life, pid: if life == Life::Free { 0 } else { self.pid }, threads, ..Self::NONE };
    }
}

impl State {
    pub(super) fn dir_named(&self, job: Job, name: Name) -> Option<Inode> {
        let found = self.dirs.iter().position(|dir| dir.name == Some((job, name)));
        found.map(number)
    }

    pub(super) fn thread(&mut self, process: usize, thread: usize) -> &mut Thread {
        &mut self.processes[process].threads[thread]
    }

    pub(super) fn all_threads(&self) -> impl Iterator<Item = (&Process, Thread)> {
        self.processes.iter().flat_map(|process| process.threads.iter().map(move |&thread| (process, thread)))
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.is_alive())
    }

    /// Whether a process holds that lock: for itself, for a claim that lives, or as a copy that it has not closed.
    pub(super) fn holds(&self, process: &Process, lock: Lock) -> bool {
        let file = self.locks[usize::from(lock)];
        let locked = !process.threads.iter().any(|&thread| matches!(thread, Unlocked(_, other) if other == lock));
        process.is_alive()
            && (process.lock == Some(lock) && locked
                || process.inherited == Some(lock)
                || self.uses(process, file.name, lock))
    }

    /// Whether a claim of the process is under that token.
    pub(super) fn uses(&self, process: &Process, name: Name, lock: Lock) -> bool {
        // A name that came back is the newer file's.
        let newest = self.locks.iter().rposition(|file| file.used && file.name == name).map(number) == Some(lock);
        newest
            && (process.table.contains(&Some(name))
                || process.threads.iter().any(|thread| thread.claim().is_some_and(|(_, used)| used == name))
                || process.unsettled().any(|unsettled| unsettled.at.name == name))
    }

    pub(super) fn is_locked(&self, lock: Lock) -> bool {
        self.processes.iter().any(|process| self.holds(process, lock))
            || self
                .all_threads()
                .any(|(_, thread)| matches!(thread, LockTaken(_, taken) | SweepTaken(taken) if taken == lock))
            || self.live().any(|process| process.leaked == Some(lock) && self.locks[usize::from(lock)].copied_locked)
    }

    pub(super) fn has_handle(&self, dir: Inode) -> bool {
        self.all_threads().any(|(_, thread)| thread.dir() == Some(dir))
            || self.processes.iter().flat_map(Process::unsettled).any(|claim| claim.at.dir == dir)
    }

    /// Frees what has neither name nor handle.
    pub(super) fn tidy(&mut self) {
        for inode in 0..DIRS {
            let dir = self.dirs[inode];
            if dir.used && dir.name.is_none() && dir.file.is_none() {
                let spare = self.processes.iter().any(|process| process.spare == Some(number(inode)));
                if !spare && !self.has_handle(number(inode)) {
                    self.dirs[inode] = Dir::default();
                }
            }
        }
        for lock in 0..LOCKS {
            let file = self.locks[lock];
            // A dead owner's lock file for which nobody will look is as good as none.
            let lost = !self.dirs.iter().any(|dir| dir.name.is_some_and(|(_, name)| name == file.name))
                && !self.all_threads().any(|(_, thread)| thread.names() == Some(file.name));
            if file.used && (!file.linked || lost) {
                let lock = number(lock);
                let held = self.is_locked(lock)
                    || self.all_threads().any(|(_, thread)| thread.lock() == Some(lock))
                    || self.processes.iter().any(|process| process.lock == Some(lock));
                if !held {
                    self.locks[usize::from(lock)] = LockFile::default();
                }
            }
        }
    }

    /// `Drop` of a lock file: with the last who uses it in its process it is unlinked, then closed.
    pub(super) fn drop_locks(&mut self, before: &Self, p: usize) {
        for lock in (0..LOCKS).map(number) {
            if before.holds(&before.processes[p], lock) && !self.holds(&self.processes[p], lock) {
                self.unlink_lock(self.locks[usize::from(lock)].name);
            }
        }
    }

    /// By its name, whichever file that is by now.
    pub(super) fn unlink_lock(&mut self, name: Name) {
        for file in self.locks.iter_mut().filter(|file| file.used && file.name == name) {
            file.linked = false;
        }
    }

    /// A name of which there is no trace.
    pub(super) fn new_name(&self) -> Option<Name> {
        (0..NAMES).find(|&name| {
            !self.dirs.iter().any(|dir| dir.name.is_some_and(|(_, used)| used == name))
                && !self.locks.iter().any(|file| file.used && file.name == name)
                && !self.all_threads().any(|(_, thread)| thread.names() == Some(name))
                && !self.processes.iter().any(|process| {
                    process.table.contains(&Some(name)) || process.unsettled().any(|claim| claim.at.name == name)
                })
        })
    }

    /// In how many places a file is.
    pub(super) fn names_of(&self, file: File) -> usize {
        let kept = self.at.iter().flatten().filter(|&&at| at == Some(file)).count();
        kept + self.dirs.iter().filter(|dir| dir.file == Some(file)).count()
    }

    /// Puts a file into a directory, unless its name is taken there.
    pub(super) fn put(&mut self, config: &Config, job: Job, place: Place, file: File) -> bool {
        let there = &mut self.at[usize::from(job)][place as usize];
        if there.is_some() && !config.is_off(Without::R5NoReplace) {
            return false;
        }
        *there = Some(file);
        if place == Queued {
            self.handed &= !(1 << file);
        }
        true
    }

    /// Gives whatever has that name by now one that is no claim's.
    pub(super) fn rename_aside(&mut self, job: Job, name: Name) {
        if let Some(dir) = self.dir_named(job, name) {
            self.dirs[usize::from(dir)].name = None;
        }
    }

    /// `rmdir`, by a thread of a process.
    pub(super) fn remove_dir(&mut self, config: &Config, process: usize, thread: usize, job: Job, name: Name) {
        let Some(inode) = self.dir_named(job, name) else { return };
        let dir = &mut self.dirs[usize::from(inode)];
        if dir.file.is_some() || dir.litter {
            if !config.is_off(Without::R6NotRecursive) {
                return;
            }
            dir.file = None;
            dir.litter = false;
        }
        dir.name = None;
        for (number, other) in self.processes.iter().enumerate().filter(|(_, other)| other.is_alive()) {
            for (index, &thread_there) in other.threads.iter().enumerate() {
                let its = match thread_there {
                    Made(made, used) => (made, used) == (job, name),
                    Opened(at) | Renamed(at, _) => at.dir == inode,
                    _ => false,
                };
                // By PID it may happen, harmlessly, that somebody removes the directory of one born again.
                let may = config.owners == Owners::Pids && number != process;
                if its && (number, index) != (process, thread) && !may && !config.only_harm {
                    self.wrong = Some(Wrong::DirectoryRemoved);
                }
            }
        }
    }
}
