//! States that differ in nothing but numbers are one: threads, processes, tokens and identities are put into an order.

use super::world::Thread::{
    Abandoned, Absent, Beside, Chosen, Cleared, Condemned, Crowded, Emptied, Entered, Failed, Foreign, Found, Guarded,
    Held, Idle, Judged, Left, Linked, LockOpened, LockTaken, Looked, Made, Moved, Opened, Parted, Removed, Renamed,
    Same, SeenEmpty, SweepOpened, SweepTaken, Unfit, UnfitBeside, Unlocked,
};
use super::world::{Hold, Process, State, Thread};
use super::{DIRS, Job, LOCKS, NAMES, Owners, number};

/// New numbers in the order in which the old ones are met.
struct Renumbered<const N: usize> {
    new: [u8; N],
    count: u8,
}

impl<const N: usize> Renumbered<N> {
    const UNMET: u8 = u8::MAX;

    fn new() -> Self {
        Self { new: [Self::UNMET; N], count: 0 }
    }

    fn meet(&mut self, old: u8) {
        let new = &mut self.new[usize::from(old)];
        if *new == Self::UNMET {
            *new = self.count;
            self.count += 1;
        }
    }

    fn of(&self, old: u8) -> u8 {
        self.new[usize::from(old)]
    }

    fn in_order(&self) -> Vec<u8> {
        let mut met: Vec<u8> = (0..number(N)).filter(|&old| self.of(old) != Self::UNMET).collect();
        met.sort_unstable_by_key(|&old| self.of(old));
        met
    }
}

impl Thread {
    /// All that does not depend on how names and identities are numbered.
    fn kind(self) -> (u8, Job, Option<Hold>, Option<u8>) {
        let hold = match self {
            Judged(_, hold)
            | Same(_, hold)
            | Looked(_, hold)
            | Emptied(_, hold)
            | Crowded(_, hold)
            | Guarded(_, hold)
            | Abandoned(_, hold) => Some(hold),
            _ => None,
        };
        match self {
            Absent => (0, 0, hold, None),
            Idle => (1, 0, hold, None),
            Unlocked(job, _) => (2, job, hold, None),
            Entered(job, _) => (3, job, hold, None),
            Made(job, _) => (4, job, hold, None),
            Opened(at) => (5, at.job, hold, None),
            Failed(job, _) => (6, job, hold, None),
            Removed(job) => (7, job, hold, None),
            Held(at, file) => (8, at.job, hold, Some(file)),
            Linked(at, file, _) => (9, at.job, hold, Some(file)),
            Moved(at) => (10, at.job, hold, None),
            Left(job, _) => (11, job, hold, None),
            Condemned(job, _) => (12, job, hold, None),
            Found(at) => (13, at.job, hold, None),
            Foreign(at) => (14, at.job, hold, None),
            LockOpened(at, _) => (15, at.job, hold, None),
            LockTaken(at, _) => (16, at.job, hold, None),
            Judged(at, _) => (17, at.job, hold, None),
            Same(at, _) => (18, at.job, hold, None),
            Looked(at, _) => (19, at.job, hold, None),
            Emptied(at, _) => (20, at.job, hold, None),
            SeenEmpty(at) => (21, at.job, hold, None),
            Crowded(at, _) => (22, at.job, hold, None),
            Guarded(at, _) => (23, at.job, hold, None),
            SweepOpened(_) => (24, 0, hold, None),
            SweepTaken(_) => (25, 0, hold, None),
            Chosen(at, next, _) => (26, at.job, hold, Some(next)),
            Cleared(at, next, _) => (27, at.job, hold, Some(next)),
            Renamed(at, last) => (28, at.job, hold, Some(last)),
            Unfit(at, next, _) => (29, at.job, hold, Some(next)),
            Parted(last, next, _) => (30, last, hold, Some(next)),
            Abandoned(at, _) => (31, at.job, hold, None),
            Beside(at) => (32, at.job, hold, None),
            UnfitBeside(at, next, _) => (33, at.job, hold, Some(next)),
        }
    }

    fn renumber(&mut self, names: &Renumbered<{ NAMES as usize }>, dirs: &Renumbered<DIRS>, locks: &Renumbered<LOCKS>) {
        match self {
            Absent | Idle | Removed(_) => {}
            Unlocked(_, lock) | SweepOpened(lock) | SweepTaken(lock) => *lock = locks.of(*lock),
            Entered(_, name)
            | Made(_, name)
            | Failed(_, name)
            | Left(_, name)
            | Condemned(_, name)
            | Parted(_, _, name) => *name = names.of(*name),
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
            | UnfitBeside(at, ..)
            | Found(at)
            | Foreign(at)
            | LockOpened(at, _)
            | LockTaken(at, _)
            | Judged(at, _)
            | Same(at, _)
            | Looked(at, _)
            | Emptied(at, _)
            | Crowded(at, _)
            | Guarded(at, _)
            | Abandoned(at, _) => {
                at.name = names.of(at.name);
                at.dir = dirs.of(at.dir);
            }
        }
        if let LockOpened(_, lock) | LockTaken(_, lock) = self {
            *lock = locks.of(*lock);
        }
        if let Chosen(_, _, name) | Cleared(_, _, name) | Unfit(_, _, name) | UnfitBeside(_, _, name) = self {
            *name = names.of(*name);
        }
    }
}

impl Process {
    /// As [`Thread::kind`].
    fn kind(&self) -> impl Ord + use<> {
        (
            self.life,
            self.pid,
            (self.lock.is_some(), self.inherited.is_some(), self.leaked.is_some(), self.spare.is_some()),
            self.table.map(|name| name.is_some()),
            self.unsettled.map(|claim| claim.map(|claim| claim.rest)),
            self.threads.map(Thread::kind),
        )
    }
}

impl State {
    /// Threads of a process are alike, and so are processes, tokens and identities: one order stands for many.
    pub(super) fn order(&mut self, owners: Owners) {
        for process in &mut self.processes {
            process.threads.sort_by_key(|thread| thread.kind());
        }
        self.processes.sort_by_key(Process::kind);
        let mut dirs = Renumbered::<DIRS>::new();
        let handles = self.processes.iter().flat_map(|process| {
            let threads = process.threads.iter().filter_map(|thread| thread.dir());
            threads.chain(process.unsettled().map(|claim| claim.at.dir)).chain(process.spare)
        });
        handles.for_each(|dir| dirs.meet(dir));
        let mut rest: Vec<usize> = (0..DIRS).filter(|&dir| self.dirs[dir].used).collect();
        rest.sort_by_key(|&dir| (self.dirs[dir].file, self.dirs[dir].name.map(|(job, _)| job)));
        for dir in rest {
            dirs.meet(number(dir));
        }
        (0..DIRS).for_each(|dir| dirs.meet(number(dir)));

        let mut names = Renumbered::<{ NAMES as usize }>::new();
        if owners == Owners::Tokens {
            for process in &self.processes {
                let locks = process.lock.into_iter().chain(process.inherited).chain(process.leaked);
                locks.for_each(|lock| names.meet(self.locks[usize::from(lock)].name));
                process.threads.iter().filter_map(|thread| thread.names()).for_each(|name| names.meet(name));
                process.unsettled().for_each(|claim| names.meet(claim.at.name));
                process.table.iter().flatten().for_each(|&name| names.meet(name));
            }
            for dir in dirs.in_order() {
                self.dirs[usize::from(dir)].name.into_iter().for_each(|(_, name)| names.meet(name));
            }
        }
        (0..NAMES).for_each(|name| names.meet(name));

        let mut locks = Renumbered::<LOCKS>::new();
        let mut rest: Vec<usize> = (0..LOCKS).filter(|&lock| self.locks[lock].used).collect();
        // Stable: of two files with one name the newer stays behind the older.
        rest.sort_by_key(|&lock| names.of(self.locks[lock].name));
        for lock in rest {
            locks.meet(number(lock));
        }
        (0..LOCKS).for_each(|lock| locks.meet(number(lock)));

        let before = *self;
        for old in 0..DIRS {
            let mut dir = before.dirs[old];
            dir.name = dir.name.map(|(job, name)| (job, names.of(name)));
            self.dirs[usize::from(dirs.of(number(old)))] = dir;
        }
        for old in 0..LOCKS {
            let mut file = before.locks[old];
            file.name = if file.used { names.of(file.name) } else { 0 };
            self.locks[usize::from(locks.of(number(old)))] = file;
        }
        for process in &mut self.processes {
            process.spare = process.spare.map(|dir| dirs.of(dir));
            process.lock = process.lock.map(|lock| locks.of(lock));
            process.inherited = process.inherited.map(|lock| locks.of(lock));
            process.leaked = process.leaked.map(|lock| locks.of(lock));
            process.table = process.table.map(|name| name.map(|name| names.of(name)));
            for claim in process.unsettled.iter_mut().flatten() {
                claim.at.name = names.of(claim.at.name);
                claim.at.dir = dirs.of(claim.at.dir);
            }
            for thread in &mut process.threads {
                thread.renumber(&names, &dirs, &locks);
            }
        }
    }
}
