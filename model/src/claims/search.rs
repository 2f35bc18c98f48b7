//! Who may do what in a state, and what must be true in each.

use stateright::{Model, Property};

use super::world::Place::{Done, Interrupted, Queued, Scheduled};
use super::world::Thread::{Absent, Failed, Held, Idle, Linked, LockTaken, Moved, Opened, Renamed};
use super::world::{Action, Dir, Life, LockFile, Process, State, Wrong};
use super::{Config, DIRS, FILES, File, JOBS, LOCKS, Lock, NAMES, Name, Owners, PROCESSES, Without, number};

impl Config {
    /// Lets recovery run alone, in all live processes, until nothing changes; or in a new one if none is there.
    fn recovered(&self, state: &State) -> State {
        let mut state = *state;
        if state.live().next().is_none()
            && let Some(free) = state.processes.iter_mut().find(|process| process.life == Life::Free)
        {
            free.life = Life::Alive;
            free.pid = NAMES - 1;
            free.threads[0] = Idle;
        }
        for p in 0..PROCESSES {
            let Some(t) = state.processes[p].threads.iter().position(|&thread| thread == Idle) else { continue };
            if !state.processes[p].is_alive() {
                continue;
            }
            for job in 0..self.jobs {
                for name in 0..NAMES {
                    if state.dir_named(number(job), name).is_none() {
                        continue;
                    }
                    let mut thread = self.find(&state, p, number(job), name);
                    while thread != Idle {
                        *state.thread(p, t) = thread;
                        let Some(next) = self.next(&mut state, p, t, thread) else { break };
                        thread = next;
                    }
                    *state.thread(p, t) = Idle;
                }
            }
        }
        state
    }

    /// Whether each live process could claim a job that waits, alone.
    fn can_claim(&self, state: &State) -> bool {
        let after = self.recovered(state);
        (0..PROCESSES).all(|p| {
            let process = &after.processes[p];
            let Some(t) = process.threads.iter().position(|&thread| thread == Idle) else { return true };
            if !process.is_alive() {
                return true;
            }
            (0..self.jobs).map(number).all(|job| {
                let mut alone = after;
                if after.at[usize::from(job)][Queued as usize].is_none()
                    || process.table[usize::from(job)].is_some()
                    || after.dirs[..self.dirs].iter().all(|dir| dir.used)
                {
                    return true;
                }
                let Some(mut thread) = self.enter(&mut alone, p, job) else { return true };
                while thread != Idle {
                    if matches!(thread, Held(..)) {
                        return true;
                    }
                    *alone.thread(p, t) = thread;
                    let Some(next) = self.next(&mut alone, p, t, thread) else { return true };
                    thread = next;
                }
                false
            })
        })
    }

    /// Whether no directory with something in it, but not its job's file, has the name of a living owner's claim.
    fn leaves_no_claim(&self, state: &State) -> bool {
        if self.faults > 0 {
            return true; // what failed is recovery's
        }
        state.live().filter_map(|process| process.lock).all(|lock| {
            let owner = state.locks[usize::from(lock)].name;
            let mut claims = state.dirs.iter().filter(|dir| dir.name.is_some_and(|(_, name)| name == owner));
            claims.all(|dir| dir.file.is_some() || !dir.litter)
        })
    }

    fn actions_of_processes(&self, state: &State, actions: &mut Vec<Action>) {
        let mut choices = Vec::new();
        for (p, process) in state.processes.iter().enumerate() {
            let is_there = process.threads.iter().any(|&thread| thread != Absent);
            match process.life {
                Life::Free if is_there => match self.owners {
                    Owners::Tokens => actions.push(Action::Born(p, 0)),
                    Owners::Pids => {
                        let free = |pid: &Name| {
                            state.thread_ids & (1 << pid) == 0
                                && !state.processes.iter().any(|other| other.life != Life::Free && other.pid == *pid)
                        };
                        actions.extend((0..self.pids).filter(free).map(|pid| Action::Born(p, pid)));
                    }
                },
                Life::Free => {}
                Life::Zombie => actions.push(Action::Reap(p)),
                Life::Alive | Life::Headless => {
                    if self.kills {
                        actions.push(Action::Kill(p));
                    }
                    if self.zombies && process.life == Life::Alive {
                        actions.push(Action::FirstThreadEnds(p));
                    }
                    if process.inherited.is_some() && !self.is_off(Without::R16ClosesLock) {
                        // Before `fork` returns in it.
                        actions.push(Action::ChildCloses(p));
                        continue;
                    }
                    for (t, &thread) in process.threads.iter().enumerate() {
                        self.choices(state, process, thread, &mut choices);
                        actions.extend(choices.drain(..).map(|what| Action::Thread(p, t, what)));
                        if self.forks && matches!(thread, Idle | Held(..)) {
                            let child = state.processes.iter().position(|other| {
                                other.life == Life::Free && other.threads.iter().any(|&thread| thread != Absent)
                            });
                            actions.extend(child.map(|child| Action::Fork(p, t, child)));
                        }
                    }
                    if self.releases && process.lock.is_some() && process.is_table_free() {
                        actions.push(Action::Release(p));
                    }
                }
            }
        }
    }

    fn actions_of_others(&self, state: &State, actions: &mut Vec<Action>) {
        for job in 0..self.jobs {
            let at = state.at[job];
            if at[Scheduled as usize].is_some() {
                actions.push(Action::Promote(number(job)));
            }
            for place in [Done, Interrupted] {
                if at[place as usize].is_some() {
                    actions.push(Action::Requeue(number(job), place));
                }
            }
        }
        if self.deletes_locks {
            // Settled, or never entered.
            let is_over = |process: &Process, job: usize| {
                process.table[job].is_none()
                    || process.threads.iter().any(|&thread| matches!(thread, Moved(at) if usize::from(at.job) == job))
            };
            let idle = |lock: Lock| {
                state.live().all(|process| process.lock != Some(lock) || (0..JOBS).all(|job| is_over(process, job)))
            };
            let linked = (0..LOCKS).filter(|&lock| state.locks[lock].linked && idle(number(lock)));
            actions.extend(linked.map(|lock| Action::DeleteLock(number(lock))));
        }
        if self.deletes_owners && state.owners {
            actions.push(Action::DeleteOwners);
        }
        if self.remakes_owners && !state.owners {
            actions.push(Action::RemakeOwners);
        }
        if self.hands_out {
            for (inode, dir) in state.dirs.iter().enumerate() {
                let held = |thread| matches!(thread, Held(at, _) if usize::from(at.dir) == inode);
                if !dir.handed_out && state.all_threads().any(|(_, thread)| held(thread)) {
                    actions.push(Action::HandOut(number(inode)));
                }
                if dir.known_from_before && dir.file.is_some() {
                    actions.push(Action::LateUse(number(inode)));
                }
            }
        }
        if self.durable && state.live().next().is_some() {
            actions.push(Action::PowerCut);
        }
        if self.litters {
            for (_, thread) in state.all_threads() {
                // Until it is looked at.
                if let Held(at, _) | Moved(at) = thread
                    && !state.dirs[usize::from(at.dir)].litter
                {
                    actions.push(Action::Litter(at.dir));
                }
            }
        }
        if self.thread_ids {
            for pid in 0..self.pids {
                if state.thread_ids & (1 << pid) != 0 {
                    actions.push(Action::ThreadIdFreed(pid));
                } else if !state.processes.iter().any(|process| process.life != Life::Free && process.pid == pid) {
                    actions.push(Action::ThreadIdTaken(pid));
                }
            }
        }
        if self.swaps && state.names_of(1) == 0 && state.dirs.iter().any(|dir| !dir.used) {
            let held = |inode: &usize| {
                let inode = number(*inode);
                state.live().any(|p| p.threads.iter().any(|thread| matches!(thread, Held(at, _) if at.dir == inode)))
            };
            actions.extend((0..DIRS).filter(held).map(|inode| Action::Swap(number(inode))));
        }
    }

    /// Whether nobody is in the middle of anything and each process has a thread to spare.
    fn is_quiet(&self, state: &State) -> bool {
        state.owners
            && state.all_threads().all(|(_, thread)| matches!(thread, Absent | Idle | Held(..)))
            && state.live().all(|process| process.threads.contains(&Idle))
            && (self.is_off(Without::R16ClosesLock) || state.live().all(|process| process.inherited.is_none()))
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            at: [[None; 4]; JOBS],
            dirs: [Dir::default(); DIRS],
            locks: [LockFile::default(); LOCKS],
            owners: true,
            thread_ids: 0,
            processes: self.threads.map(|threads| {
                let mut process = Process::NONE;
                process.threads[..threads].fill(Idle);
                process
            }),
            faults: self.faults,
            deleted: 0,
            handed: 0,
            wrong: None,
        };
        for job in 0..self.jobs {
            let start = if job == 0 { Queued } else { Scheduled };
            state.at[job][start as usize] = Some(number(job));
        }
        if self.copy || self.swaps {
            assert!(self.jobs == 1, "the second file is the copy");
        }
        if self.copy {
            state.at[0][Interrupted as usize] = Some(1);
        }
        state.tidy();
        state.order(self.owners);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_none() {
            self.actions_of_processes(state, actions);
            self.actions_of_others(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        let state = &mut next;
        match action {
            Action::Thread(p, t, what) => self.step(state, p, t, what)?,
            Action::Kill(p) => {
                let stays = self.zombies && self.owners == Owners::Pids;
                state.processes[p].end(if stays { Life::Zombie } else { Life::Free });
            }
            Action::FirstThreadEnds(p) => state.processes[p].life = Life::Headless,
            Action::Reap(p) => state.processes[p].end(Life::Free),
            Action::Born(p, pid) => {
                state.processes[p].life = Life::Alive;
                state.processes[p].pid = pid;
            }
            Action::Fork(p, t, child) => {
                let (parent, thread) = (state.processes[p], *state.thread(p, t));
                let judged = parent.threads.iter().find_map(|thread| match thread {
                    // The lock is the open file's, whichever copy of the descriptor it was taken through. Where it is
                    // only open as yet the lock may come later; that is the same but for the time.
                    LockTaken(_, lock) => Some(*lock),
                    _ => None,
                });
                if let Some(lock) = judged {
                    state.locks[usize::from(lock)].copied_locked = self.is_off(Without::R16ClosesJudged);
                }
                let child = &mut state.processes[child];
                child.life = Life::Alive;
                child.inherited = parent.lock;
                child.leaked = judged.filter(|_| self.is_off(Without::R16ClosesJudged));
                if self.is_off(Without::R16OwnToken) {
                    child.lock = parent.lock;
                }
                if self.is_off(Without::R16NeverSettles)
                    && let Some(first) = child.threads.iter_mut().find(|thread| **thread == Idle)
                {
                    *first = thread;
                }
            }
            Action::ChildCloses(p) => state.processes[p].inherited = None,
            Action::Release(p) => {
                state.processes[p].lock = None;
                state.drop_locks(last, p);
            }
            Action::Promote(job) => {
                let file = state.at[usize::from(job)][Scheduled as usize]?;
                if !state.put(self, job, Queued, file) {
                    return None;
                }
                state.at[usize::from(job)][Scheduled as usize] = None;
            }
            Action::Requeue(job, place) => {
                let file = state.at[usize::from(job)][place as usize]?;
                if !state.put(self, job, Queued, file) {
                    return None;
                }
                state.at[usize::from(job)][place as usize] = None;
            }
            Action::DeleteLock(lock) => state.locks[usize::from(lock)].linked = false,
            Action::RemakeOwners => state.owners = true,
            Action::HandOut(inode) => state.dirs[usize::from(inode)].handed_out = true,
            Action::LateUse(inode) => state.dirs[usize::from(inode)].file = None,
            Action::PowerCut => {
                for process in &mut state.processes {
                    process.end(Life::Free);
                }
                for dir in state.dirs.iter_mut().filter(|dir| dir.unflushed) {
                    dir.unflushed = false;
                    dir.name = None; // that of a spare one
                }
            }
            Action::Litter(inode) => state.dirs[usize::from(inode)].litter = true,
            Action::DeleteOwners => {
                state.owners = false;
                for file in &mut state.locks {
                    file.linked = false;
                }
            }
            Action::ThreadIdTaken(pid) => state.thread_ids |= 1 << pid,
            Action::ThreadIdFreed(pid) => state.thread_ids &= !(1 << pid),
            Action::Swap(inode) => {
                let dir = state.dirs.iter().position(|dir| !dir.used)?;
                let name = state.dirs[usize::from(inode)].name.take();
                state.dirs[dir] = Dir { used: true, name, file: Some(1), ..Dir::default() };
            }
        }
        state.tidy();
        state.order(self.owners);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each job's file is in one place", |config: &Self, state: &State| {
                let files = if config.copy { FILES } else { config.jobs };
                (0..files).map(number).all(|file| {
                    let linked = state
                        .all_threads()
                        .any(|(process, thread)| process.is_alive() && matches!(thread, Linked(_, f, _) if f == file));
                    let names = state.names_of(file);
                    if state.deleted & (1 << file) != 0 { names == 0 } else { names == 1 || names == 2 && linked }
                })
            }),
            Property::always("a job can be reached", |config: &Self, state: &State| {
                config.swaps
                    || state
                        .dirs
                        .iter()
                        .enumerate()
                        .all(|(inode, dir)| dir.file.is_none() || dir.name.is_some() || state.has_handle(number(inode)))
            }),
            Property::always("a job is alone in its directory", |_: &Self, state: &State| {
                state.wrong != Some(Wrong::NotAlone)
            }),
            Property::always("a live claim has its file", |_: &Self, state: &State| {
                state.live().all(|process| {
                    let claims = process.threads.iter().filter_map(|&thread| match thread {
                        Held(at, file) => Some((at, file)),
                        _ => None,
                    });
                    let unsettled =
                        process.unsettled().filter_map(|claim| claim.rest.map(|(file, _)| (claim.at, file)));
                    claims.chain(unsettled).all(|(at, file)| state.dirs[usize::from(at.dir)].file == Some(file))
                })
            }),
            Property::always("a file is claimed once for each time it is queued", |_: &Self, state: &State| {
                state.wrong != Some(Wrong::HandedTwice)
            }),
            Property::always("nobody removes the directory of a live claim", |_: &Self, state: &State| {
                state.wrong != Some(Wrong::DirectoryRemoved)
            }),
            Property::always("a verdict moves what was handled", |_: &Self, state: &State| {
                state.wrong != Some(Wrong::OtherFile)
            }),
            Property::always("the table holds only what is worked on", |config: &Self, state: &State| {
                state.live().all(|process| {
                    (0..config.jobs).all(|job| {
                        process.table[job].is_none()
                            || process.unsettled[job].is_some()
                            || process.threads.iter().any(|thread| thread.has_entered(number(job)))
                    })
                })
            }),
            Property::always("when all are idle, recovery leaves what is alive", |config: &Self, state: &State| {
                if !config.is_quiet(state) {
                    return true;
                }
                let after = config.recovered(state);
                after.dirs.iter().enumerate().all(|(inode, dir)| {
                    dir.name.is_none_or(|(job, name)| {
                        let lives = after.live().any(|process| {
                            process.threads.iter().any(|thread| thread.claim() == Some((job, name)))
                                || process.unsettled().any(|claim| claim.at.dir == number(inode))
                        });
                        // Where there is a file of that name both are kept.
                        let taken = after.at[usize::from(job)][Interrupted as usize].is_some();
                        lives || dir.file.is_some() && taken && (config.copy || config.swaps)
                    })
                })
            }),
            Property::always("a living owner leaves no claim without its job", |config: &Self, state: &State| {
                !config.is_quiet(state) || config.leaves_no_claim(state)
            }),
            Property::always("when all are idle, a job that waits can be claimed", |config: &Self, state: &State| {
                !config.is_quiet(state) || config.can_claim(state)
            }),
            Property::sometimes("a job is recovered", |config: &Self, state: &State| {
                !config.kills || state.at[0][Interrupted as usize].is_some_and(|file| file == 0)
            }),
            Property::always("a file bears its job's name", |config: &Self, state: &State| {
                let is_its = |job: usize, file: Option<File>| {
                    file.is_none_or(|file| config.copy || config.swaps || usize::from(file) == job)
                };
                state.at.iter().enumerate().all(|(job, places)| places.iter().all(|&file| is_its(job, file)))
                    && state.dirs.iter().all(|dir| dir.name.is_none_or(|(job, _)| is_its(usize::from(job), dir.file)))
            }),
            Property::sometimes("a directory goes from job to job", |config: &Self, state: &State| {
                !config.passes_on
                    || config.durable
                    || state.all_threads().any(|(_, thread)| matches!(thread, Renamed(..)))
            }),
            Property::sometimes("two want one job", |_: &Self, state: &State| {
                state.all_threads().filter(|(_, thread)| matches!(thread, Opened(at) if at.job == 0)).count() > 1
                    || state.all_threads().any(|(_, thread)| matches!(thread, Failed(0, _)))
            }),
        ]
    }
}
