//! What a thread does next: the order of system calls in `src/`, step by step.

use super::world::Place::{Done, Interrupted, Queued, Scheduled};
use super::world::Thread::{
    Abandoned, Absent, Beside, Chosen, Cleared, Condemned, Crowded, Emptied, Entered, Failed, Foreign, Found, Guarded,
    Held, Idle, Judged, Left, Linked, LockOpened, LockTaken, Looked, Made, Moved, Opened, Parted, Removed, Renamed,
    Same, SeenEmpty, SweepOpened, SweepTaken, Unfit, UnfitBeside, Unlocked,
};
use super::world::{At, Dir, Do, Hold, Life, LockFile, Process, State, Thread, Unsettled, Verdict, Wrong};
use super::{Config, File, Inode, Job, LOCKS, Lock, NAMES, Name, Owners, Without, number};

impl Config {
    /// What a thread may do now.
    pub(super) fn choices(&self, state: &State, process: &Process, thread: Thread, choices: &mut Vec<Do>) {
        let faults = state.faults > 0;
        if let Moved(at) = thread
            && self.may_pass_on(state, at)
            && process.is_table_free()
        {
            let free = |job: &usize| process.table[*job].is_none() || self.is_off(Without::R11StaysInTable);
            choices.extend((0..self.jobs).filter(free).map(|job| Do::Enter(number(job))));
        }
        match thread {
            Absent => {}
            Idle => {
                for job in 0..self.jobs {
                    if process.unsettled[job].is_some() {
                        choices.push(Do::Again(number(job)));
                    } else if process.is_table_free()
                        && (process.table[job].is_none()
                            || self.is_off(Without::R2LeavesByWhoEntered)
                            || self.is_off(Without::R2OneTable))
                    {
                        choices.push(Do::Enter(number(job)));
                    }
                }
                if self.sweeps_locks {
                    let linked = (0..LOCKS).map(number).filter(|&lock| state.locks[usize::from(lock)].linked);
                    choices.extend(linked.filter(|&lock| process.lock != Some(lock)).map(Do::Sweep));
                }
                choices.extend(state.dirs.iter().filter_map(|dir| dir.name).map(|(job, name)| Do::Find(job, name)));
            }
            // Nobody is told before it is flushed.
            Held(at, _) if state.dirs[usize::from(at.dir)].unflushed => choices.push(Do::Next),
            Held(..) => {
                let verdicts: &[_] = if self.all_verdicts {
                    &[Verdict::To(Done), Verdict::To(Queued), Verdict::To(Scheduled), Verdict::Delete]
                } else {
                    &[Verdict::To(Done), Verdict::To(Queued)]
                };
                for &verdict in verdicts {
                    choices.push(Do::Settle(verdict));
                    if faults {
                        choices.push(Do::SettleFails(verdict));
                    }
                }
            }
            Found(_) | Removed(_) | Renamed(..) | Parted(..) if !process.is_table_free() => {}
            Moved(_) if self.is_off(Without::R2LeavesLast) && !process.is_table_free() => {}
            Made(..) if self.is_off(Without::R2EntersFirst) && !process.is_table_free() => {}
            Entered(..) if process.spare.is_none() && state.dirs[..self.dirs].iter().all(|dir| dir.used) => {}
            Removed(_) | Left(..) | Linked(..) | Unlocked(..) | Renamed(..) | Parted(..) => choices.push(Do::Next),
            _ => {
                choices.push(Do::Next);
                if faults {
                    choices.push(Do::Fail);
                }
            }
        }
    }

    /// What a thread does. `None` where the model has no room for it.
    pub(super) fn step(&self, state: &mut State, p: usize, t: usize, what: Do) -> Option<()> {
        let before = *state;
        let next = match (*state.thread(p, t), what) {
            (Idle, Do::Enter(job)) => self.enter(state, p, job)?,
            (Moved(at), Do::Enter(job)) => self.choose(state, p, at, job)?,
            (Idle, Do::Again(job)) => self.settle_again(state, p, job)?,
            (Idle, Do::Sweep(lock)) => SweepOpened(lock),
            (Idle, Do::Find(job, name)) => self.find(state, p, job, name),
            (Held(at, file), Do::Settle(verdict)) => self.settle(state, p, at, file, verdict),
            (Held(at, file), Do::SettleFails(verdict)) => {
                state.faults -= 1;
                self.keep_unsettled(state, p, at, Some((file, verdict)))
            }
            (thread, Do::Fail) => {
                state.faults -= 1;
                match thread {
                    Entered(job, _) | Failed(job, _) => Removed(job),
                    Made(job, name) => Failed(job, name),
                    Opened(at) => Failed(at.job, at.name),
                    Moved(at) | SeenEmpty(at) => self.keep_unsettled(state, p, at, None),
                    Beside(at) => Removed(at.job),
                    Chosen(at, job, name) | Cleared(at, job, name) => Unfit(at, job, name),
                    UnfitBeside(at, job, name) => self.part(at, job, name),
                    Unfit(at, job, name) => {
                        self.keep_unsettled(state, p, at, None);
                        Entered(job, name)
                    }
                    _ => Idle, // recovery ends with an error
                }
            }
            (thread, _) => self.next(state, p, t, thread)?,
        };
        *state.thread(p, t) = next;
        state.drop_locks(&before, p);
        Some(())
    }

    pub(super) fn next(&self, state: &mut State, p: usize, t: usize, thread: Thread) -> Option<Thread> {
        Some(match thread {
            Unlocked(job, lock) => {
                let taken = state.is_locked(lock);
                if taken || !state.locks[usize::from(lock)].used {
                    state.processes[p].lock = None;
                    Idle
                } else {
                    let name = state.locks[usize::from(lock)].name;
                    state.processes[p].table[usize::from(job)] = Some(name);
                    Entered(job, name)
                }
            }
            Entered(job, name) => match state.processes[p].spare {
                Some(_) if state.dir_named(job, name).is_some() => Removed(job),
                Some(dir) => {
                    state.processes[p].spare = None;
                    let spare = &mut state.dirs[usize::from(dir)];
                    spare.name = Some((job, name));
                    spare.known_from_before = spare.handed_out;
                    spare.unflushed = self.durable;
                    Opened(At { job, name, dir })
                }
                None => self.make(state, job, name)?,
            },
            Held(at, file) => {
                state.dirs[usize::from(at.dir)].unflushed = false;
                Held(at, file)
            }
            Made(job, name) => {
                if self.is_off(Without::R2EntersFirst) {
                    state.processes[p].table[usize::from(job)] = Some(name);
                }
                match state.dir_named(job, name) {
                    Some(dir) => Opened(At { job, name, dir }),
                    None => Failed(job, name),
                }
            }
            Opened(at) => self.take(state, at),
            Failed(job, name) => {
                state.remove_dir(self, p, t, job, name);
                Removed(job)
            }
            Removed(job) => {
                state.processes[p].table[usize::from(job)] = None;
                Idle
            }
            Linked(at, _, _) => {
                state.dirs[usize::from(at.dir)].file = None;
                Moved(at)
            }
            Moved(at) if self.is_off(Without::R2LeavesLast) => {
                state.processes[p].table[usize::from(at.job)] = None;
                Left(at.job, at.name)
            }
            Moved(at) if self.may_reuse(state, p, at) => SeenEmpty(at),
            Moved(at) => {
                state.remove_dir(self, p, t, at.job, at.name);
                if self.leaves_something(state, at) { Beside(at) } else { Removed(at.job) }
            }
            Beside(at) => {
                Self::set_aside(state, at);
                Removed(at.job)
            }
            SeenEmpty(at) => {
                Self::spare(state, p, at);
                Removed(at.job)
            }
            Chosen(at, job, name) => {
                let fit = at.name == name || self.is_off(Without::R11SameToken);
                if fit && self.is_empty(state, at) { Cleared(at, job, name) } else { Unfit(at, job, name) }
            }
            Cleared(at, job, name) => self.pass_on(state, at, job, name),
            Renamed(at, last) => {
                state.processes[p].table[usize::from(last)] = None;
                Opened(at)
            }
            Unfit(at, job, name) => {
                state.remove_dir(self, p, t, at.job, at.name);
                if self.leaves_something(state, at) { UnfitBeside(at, job, name) } else { self.part(at, job, name) }
            }
            UnfitBeside(at, job, name) => {
                Self::set_aside(state, at);
                self.part(at, job, name)
            }
            Parted(last, job, name) => {
                state.processes[p].table[usize::from(last)] = None;
                Entered(job, name)
            }
            Absent | Idle => return None,
            recovering => self.next_of_recovery(state, p, t, recovering),
        })
    }

    pub(super) fn next_of_recovery(&self, state: &mut State, p: usize, t: usize, thread: Thread) -> Thread {
        match thread {
            Condemned(job, name) => match state.dir_named(job, name) {
                Some(dir) => Judged(At { job, name, dir }, Hold::Nothing),
                None => Idle,
            },
            Found(at) => self.judge_by_table(state, p, at),
            Foreign(at) => self.judge(state, at),
            LockOpened(at, lock) => {
                if state.is_locked(lock) {
                    Idle
                } else {
                    LockTaken(at, lock)
                }
            }
            LockTaken(at, lock) => {
                state.unlink_lock(state.locks[usize::from(lock)].name);
                Judged(at, Hold::Nothing)
            }
            Judged(at, hold) => {
                let same = state.dir_named(at.job, at.name) == Some(at.dir);
                if same || self.is_off(Without::R7SecondLook) { Same(at, hold) } else { Idle }
            }
            Same(at, hold) => {
                if state.dirs[usize::from(self.reached(state, at))].file.is_some() {
                    Looked(at, hold)
                } else {
                    Emptied(at, hold)
                }
            }
            Looked(at, hold) => {
                let dir = self.reached(state, at);
                if let Some(file) = state.dirs[usize::from(dir)].file
                    && state.put(self, at.job, Interrupted, file)
                {
                    state.dirs[usize::from(dir)].file = None;
                }
                Emptied(at, hold)
            }
            Emptied(at, hold) => {
                state.remove_dir(self, p, t, at.job, at.name);
                let is_there = state.dir_named(at.job, at.name).is_some();
                if is_there && !self.is_off(Without::R23Recovery) { Crowded(at, hold) } else { Idle }
            }
            Crowded(at, hold) => {
                let is_guarded = state
                    .all_threads()
                    .any(|(_, other)| matches!(other, Guarded(its, _) | Abandoned(its, _) if its.dir == at.dir));
                if is_guarded && !self.is_off(Without::R23OneAtATime) { Idle } else { Guarded(at, hold) }
            }
            // What is beside the job's file stays, and keeps the directory; the file can only leave.
            Guarded(at, hold) => {
                let dir = state.dirs[usize::from(at.dir)];
                let is_left = (dir.litter || self.is_off(Without::R23NotEmpty) || self.is_off(Without::R23Emptied))
                    && (dir.file.is_none() || self.is_off(Without::R23Emptied));
                if is_left && state.dir_named(at.job, at.name) == Some(at.dir) { Abandoned(at, hold) } else { Idle }
            }
            Abandoned(at, _) => {
                state.rename_aside(at.job, at.name);
                Idle
            }
            Left(job, name) => {
                state.remove_dir(self, p, t, job, name);
                Idle
            }
            SweepOpened(lock) if state.is_locked(lock) => Idle,
            SweepOpened(lock) => SweepTaken(lock),
            SweepTaken(lock) => {
                state.unlink_lock(state.locks[usize::from(lock)].name);
                Idle
            }
            other => other,
        }
    }

    /// Rule 11.
    pub(super) fn may_reuse(&self, state: &State, p: usize, at: At) -> bool {
        self.reuses && state.processes[p].spare.is_none() && self.is_empty(state, at) && self.is_reusable(state, at)
    }

    fn may_pass_on(&self, state: &State, at: At) -> bool {
        self.passes_on && self.is_reusable(state, at)
    }

    fn is_reusable(&self, state: &State, at: At) -> bool {
        (!state.dirs[usize::from(at.dir)].handed_out || self.is_off(Without::R11NotHandedOut))
            && (!self.durable || self.is_off(Without::R11NotDurable))
    }

    fn is_empty(&self, state: &State, at: At) -> bool {
        let dir = state.dirs[usize::from(at.dir)];
        !dir.litter && dir.file.is_none()
            || self.is_off(Without::R11SeenEmpty)
            || self.is_off(Without::R11SeenEmptyLast) // it was looked at earlier
    }

    /// Enters the next job, with the directory of the last one still there.
    fn choose(&self, state: &mut State, p: usize, at: At, job: Job) -> Option<Thread> {
        if self.is_off(Without::R11StaysInTable) {
            state.processes[p].table[usize::from(at.job)] = None;
        }
        match self.enter(state, p, job)? {
            Entered(job, name) => Some(Chosen(at, job, name)),
            _ => None,
        }
    }

    /// Renames whatever has the settled claim's name by now.
    fn pass_on(&self, state: &mut State, at: At, job: Job, name: Name) -> Thread {
        let Some(inode) = state.dir_named(at.job, at.name).filter(|_| state.dir_named(job, name).is_none()) else {
            return Unfit(at, job, name);
        };
        let dir = &mut state.dirs[usize::from(inode)];
        dir.name = Some((job, name));
        dir.known_from_before = dir.handed_out;
        dir.unflushed = self.durable;
        let next = At { job, name, dir: at.dir };
        if self.is_off(Without::R11StaysInTable) { Opened(next) } else { Renamed(next, at.job) }
    }

    /// Renames a claim's directory to a name that is no claim's.
    pub(super) fn spare(state: &mut State, p: usize, at: At) {
        if state.dir_named(at.job, at.name) == Some(at.dir) && state.processes[p].spare.is_none() {
            state.dirs[usize::from(at.dir)].name = None;
            state.processes[p].spare = Some(at.dir);
        }
    }

    /// Whether there is something beside the job's file in a claim's directory, so that it can't be removed.
    fn leaves_something(&self, state: &State, at: At) -> bool {
        state.dir_named(at.job, at.name).is_some() && !self.is_off(Without::R23Settle)
    }

    /// Gives a settled claim's directory a name that is no claim's. One step for the look at the name and the rename:
    /// nobody else touches the directory of a living owner that is not empty.
    fn set_aside(state: &mut State, at: At) {
        if state.dir_named(at.job, at.name) == Some(at.dir) {
            state.rename_aside(at.job, at.name);
        }
    }

    /// The settled claim's directory is gone, and another one is to be made.
    fn part(&self, at: At, job: Job, name: Name) -> Thread {
        if self.is_off(Without::R11StaysInTable) { Entered(job, name) } else { Parted(at.job, job, name) }
    }

    /// The directory that recovery moves a file out of.
    pub(super) fn reached(&self, state: &State, at: At) -> Inode {
        if self.is_off(Without::R7Handle) {
            return state.dir_named(at.job, at.name).unwrap_or(at.dir);
        }
        at.dir
    }

    /// `Shared::enter`: all under the table's lock.
    pub(super) fn enter(&self, state: &mut State, p: usize, job: Job) -> Option<Thread> {
        let entry = usize::from(job);
        if state.processes[p].table[entry].is_some() {
            if self.is_off(Without::R2LeavesByWhoEntered) {
                state.processes[p].table[entry] = None;
                return Some(Idle);
            }
            if !self.is_off(Without::R2OneTable) {
                return None;
            }
        }
        let name = match self.owners {
            Owners::Pids => state.processes[p].pid,
            Owners::Tokens => {
                let lock = state.processes[p].lock;
                let good = |lock: Lock| state.locks[usize::from(lock)].linked || self.is_off(Without::R9StillLinked);
                if let Some(lock) = lock.filter(|&lock| good(lock)) {
                    state.locks[usize::from(lock)].name
                } else {
                    let lock = self.take_token(state)?;
                    state.processes[p].lock = Some(lock);
                    if self.is_off(Without::R8LockedFirst) {
                        return Some(Unlocked(job, lock));
                    }
                    state.locks[usize::from(lock)].name
                }
            }
        };
        if !self.is_off(Without::R2EntersFirst) {
            state.processes[p].table[entry] = Some(name);
        }
        Some(Entered(job, name))
    }

    /// `LockFile::new`. Before its rename nobody knows the file, so that is all there is to see.
    pub(super) fn take_token(&self, state: &mut State) -> Option<Lock> {
        let comes_back = self.is_off(Without::R8NeverBack);
        let name = if comes_back {
            // As where it is made of something that a later process has as well. Never two at once.
            (0..NAMES).find(|&name| {
                !(0..LOCKS).any(|lock| {
                    let file = state.locks[lock];
                    file.used && file.name == name && (file.linked || state.is_locked(number(lock)))
                })
            })?
        } else {
            state.new_name()?
        };
        // `uses` takes the last file of a name for the newest.
        let oldest = state.locks.iter().rposition(|file| file.used && file.name == name).map_or(0, |last| last + 1);
        let lock = (oldest..LOCKS).find(|&lock| !state.locks[lock].used)?;
        if state.owners {
            state.locks[lock] = LockFile { used: true, name, linked: true, copied_locked: false };
            Some(number(lock))
        } else {
            None // no token can be had: the claim is an error
        }
    }

    pub(super) fn make(&self, state: &mut State, job: Job, name: Name) -> Option<Thread> {
        if state.dir_named(job, name).is_some() {
            let adopted = self.is_off(Without::R4NeverAdopted);
            return Some(if adopted { Made(job, name) } else { Removed(job) });
        }
        let inode = state.dirs[..self.dirs].iter().position(|dir| !dir.used)?;
        state.dirs[inode] = Dir { used: true, name: Some((job, name)), file: None, ..Dir::default() };
        Some(Made(job, name))
    }

    /// The rename that is the claim.
    pub(super) fn take(&self, state: &mut State, at: At) -> Thread {
        let (job, inode) = (usize::from(at.job), usize::from(at.dir));
        let dir = state.dirs[inode];
        match state.at[job][Queued as usize] {
            Some(file) if dir.name.is_some() && dir.file.is_none() => {
                // Without rule 5 these are a link and an unlink as well; where jobs are settled they are two steps.
                state.dirs[inode].file = Some(file);
                if dir.litter {
                    state.wrong = Some(Wrong::NotAlone);
                }
                state.at[job][Queued as usize] = None;
                if state.handed & (1 << file) != 0 {
                    state.wrong = Some(Wrong::HandedTwice);
                }
                state.handed |= 1 << file;
                Held(at, file)
            }
            _ if self.is_off(Without::R1RenameDecides) => Held(at, 0),
            _ => Failed(at.job, at.name),
        }
    }

    pub(super) fn settle(&self, state: &mut State, p: usize, at: At, file: File, verdict: Verdict) -> Thread {
        let dir =
            if self.is_off(Without::R4Handle) { state.dir_named(at.job, at.name).unwrap_or(at.dir) } else { at.dir };
        let inode = usize::from(dir);
        let Some(there) = state.dirs[inode].file else {
            // "moved or deleted while it was being handled"
            return Moved(at);
        };
        if there != file {
            state.wrong = Some(Wrong::OtherFile);
        }
        match verdict {
            Verdict::Delete => state.deleted |= 1 << there,
            Verdict::To(place) => {
                if !state.put(self, at.job, place, there) {
                    return self.keep_unsettled(state, p, at, Some((file, verdict)));
                }
                if self.is_off(Without::R5NotLinkUnlink) {
                    return Linked(at, there, place);
                }
            }
        }
        state.dirs[inode].file = None;
        if self.is_off(Without::R11SeenEmptyLast) && state.dirs[inode].litter {
            return Removed(at.job); // it stays
        }
        Moved(at)
    }

    pub(super) fn keep_unsettled(&self, state: &mut State, p: usize, at: At, rest: Option<(File, Verdict)>) -> Thread {
        let job = usize::from(at.job);
        if self.is_off(Without::R10KeepsEntry) {
            state.processes[p].table[job] = None;
        }
        if self.is_off(Without::R10NotReused) {
            Self::spare(state, p, at);
        }
        if !self.is_off(Without::R10KeepsVerdict) {
            state.processes[p].unsettled[job] = Some(Unsettled { at, rest });
        }
        Idle
    }

    pub(super) fn settle_again(&self, state: &mut State, p: usize, job: Job) -> Option<Thread> {
        let Unsettled { at, rest } = state.processes[p].unsettled[usize::from(job)].take()?;
        Some(match rest {
            Some((file, verdict)) => self.settle(state, p, at, file, verdict),
            None => Moved(at),
        })
    }

    /// Lists, and opens one of what was listed. The list is a hint, so that any name may be in it.
    pub(super) fn find(&self, state: &State, p: usize, job: Job, name: Name) -> Thread {
        let Some(dir) = state.dir_named(job, name) else { return Idle };
        let at = At { job, name, dir };
        if self.is_off(Without::R7HandleFirst) {
            return match self.judge_by_table(state, p, at) {
                Idle => Idle,
                Judged(..) => Condemned(job, name),
                _ => match self.judge(state, at) {
                    Judged(..) => Condemned(job, name),
                    LockOpened(_, lock) if !state.is_locked(lock) => Condemned(job, name),
                    _ => Idle,
                },
            };
        }
        Found(at)
    }

    pub(super) fn judge_by_table(&self, state: &State, p: usize, at: At) -> Thread {
        let process = &state.processes[p];
        let works = !self.is_off(Without::R2OneTable) && process.table[usize::from(at.job)] == Some(at.name);
        let own = match self.owners {
            Owners::Pids => process.pid == at.name,
            Owners::Tokens => process.lock.is_some_and(|lock| state.locks[usize::from(lock)].name == at.name),
        };
        match (works, own) {
            (true, _) => Idle,
            (false, true) if self.is_off(Without::R3OneStep) => Judged(at, Hold::Nothing),
            (false, true) => Judged(at, Hold::Table),
            (false, false) => Foreign(at),
        }
    }

    /// `owner::is_alive`, up to where it has the lock file open.
    pub(super) fn judge(&self, state: &State, at: At) -> Thread {
        if self.is_off(Without::R6LiveEmptyStays) && state.dirs[usize::from(at.dir)].file.is_none() {
            return Emptied(at, Hold::Nothing);
        }
        let dead = match self.owners {
            Owners::Tokens => {
                let linked = |file: &LockFile| file.used && file.linked && file.name == at.name;
                match state.locks.iter().position(linked) {
                    Some(lock) => return LockOpened(at, number(lock)),
                    None => state.owners || self.is_off(Without::R9OwnersThere),
                }
            }
            Owners::Pids => {
                let thread = state.thread_ids & (1 << at.name) != 0;
                let process = state.processes.iter().find(|p| p.life != Life::Free && p.pid == at.name);
                match process.map(|process| process.life) {
                    None | Some(Life::Free) => !thread || !self.is_off(Without::R8ThreadIsNone),
                    Some(Life::Alive) => false,
                    Some(Life::Headless) => self.is_off(Without::R8AllThreads),
                    Some(Life::Zombie) => !self.is_off(Without::R8ZombieIsDead),
                }
            }
        };
        if dead { Judged(at, Hold::Nothing) } else { Idle }
    }
}
