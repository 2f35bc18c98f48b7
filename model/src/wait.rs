//! Waiting: the threads of a process that sleep until there may be work, the listing that they share, and everything that
//! may wake them. Time never passes, so that what only the poll would notice is slept through for ever.
//!
//! | rule | in a line |
//! | --- | --- |
//! | 13 | Arm the watch, then loop: note the generation, drain, scan, sleep only if the generation has not moved. Draining, and a job that leaves the table, raise it. |
//! | 14 | Before sleeping list afresh: what is left of an older listing tells nothing about newer jobs. |

use stateright::{Model, Property};

const JOBS: usize = 2;
const WAITERS: usize = 2;

/// A rule switched off, or one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// 13: the watch is armed after the first scan.
    R13ArmedFirst,
    /// 13: the generation is noted after the scan.
    R13NotedFirst,
    /// 13: nobody looks at the generation before sleeping.
    R13LookedAt,
    /// 13: draining raises nothing.
    R13DrainingRaises,
    /// 13: a job that leaves the table raises nothing.
    R13LeavingRaises,
    /// 13: a job that this process sends raises nothing.
    R13SendingRaises,
    /// 13: raising does not wake who sleeps on the watch.
    R13LeaderWoken,
    /// 13: who stops sleeping on the watch leaves nobody there.
    R13HandedOver,
    /// 14: a thread sleeps when the listing is used up.
    R14ListedAfresh,
    /// 14: a listing that another thread has read meanwhile is not looked at.
    R14LooksAgain,
    /// 14: the directory's time is taken after its names.
    R14TimeFirst,
    /// 14: a job that could not be claimed now is thought to be gone.
    R14LeftOne,
}

/// Where a job comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Another process sends it.
    Outside,
    /// A thread of this process sends it.
    Inside,
    /// A thread of this process has it, and gives it back to the queue.
    Retry,
    /// A thread of this process promotes or requeues it, and raises nothing.
    Silent,
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub sources: [Source; JOBS],
    /// The kernel watches `queued/`.
    pub watch: bool,
    /// A thread that has entered a job may meet an error, leaves quietly and is gone.
    pub errors: bool,
    /// Who sleeps on the watch may be stopped by a signal, and is gone then.
    pub signals: bool,
    pub without: Option<Without>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Job {
    /// Not sent, or still in `processing/`.
    Away,
    Queued,
    /// A waiter has it.
    Taken,
}

/// The thread that brings a job: what it has done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bringer {
    Ready,
    Renamed,
    Done,
}

/// A waiter: what it has done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    New,
    Armed,
    Noted,
    /// It is to take a job out of the listing.
    Ready,
    /// It has taken this one out.
    InHand(usize),
    Entered(usize),
    Lost(usize),
    Left,
    /// The job was in the table already.
    Blocked,
    /// There was nothing to take.
    UsedUp,
    /// It has the listing locked, and the time of the directory, where that can tell of changes.
    Timed(bool),
    /// The same with the names first. Only without the rule against it.
    Named,
    /// It found nothing.
    Empty,
    /// It sleeps on the watch.
    Leads,
    Woken,
    /// It has drained what raising wrote.
    Drained,
    /// It has drained the events as well, and whether there were any.
    Finished(bool),
    /// It sleeps on the condition.
    Follows,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Armed {
    No,
    Yes,
}

/// The listing that the threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Listing {
    jobs: u8,
    /// One of its jobs was gone.
    stale: bool,
    /// Whether the directory has changed since its time was taken, if that can tell.
    changed: Option<bool>,
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    jobs: [Job; JOBS],
    table: u8,
    /// Jobs that somebody met in the table.
    wanted: u8,
    bringers: [Bringer; JOBS],
    waiters: [Waiter; WAITERS],
    /// Whose noted generation is not the present one any more.
    moved: [bool; WAITERS],
    /// Who would find that the listing was read since they noted how often it was.
    read_since: [bool; WAITERS],
    listing: Listing,
    armed: Armed,
    event: bool,
    wake: bool,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Bring(usize),
    Wait(usize),
    /// The directory changed so lately that its time can't tell.
    TooLate(usize),
    Error(usize),
    Signal(usize),
}

impl State {
    fn is_led(&self) -> bool {
        self.waiters
            .iter()
            .any(|waiter| matches!(waiter, Waiter::Leads | Waiter::Woken | Waiter::Drained | Waiter::Finished(_)))
    }

    fn is_listing_locked(&self) -> bool {
        self.waiters.iter().any(|waiter| matches!(waiter, Waiter::Timed(_) | Waiter::Named))
    }

    fn queued(&self) -> u8 {
        (0..JOBS).filter(|&job| self.jobs[job] == Job::Queued).fold(0, |jobs, job| jobs | 1 << job)
    }

    /// All who sleep on the condition look at the generation again.
    fn notify(&mut self) {
        for waiter in self.waiters.iter_mut().filter(|waiter| **waiter == Waiter::Follows) {
            *waiter = Waiter::Empty;
        }
    }

    fn change_queued(&mut self) {
        self.listing.changed = self.listing.changed.map(|_| true);
    }
}

impl Config {
    fn is_off(self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    fn raise(self, state: &mut State) {
        state.moved = [true; WAITERS];
        state.wake |= self.watch && state.is_led() && !self.is_off(Without::R13LeaderWoken);
        state.notify();
    }

    fn leave(self, state: &mut State, job: usize) {
        let wanted = state.wanted & (1 << job) != 0;
        state.table &= !(1 << job);
        state.wanted &= !(1 << job);
        if wanted && !self.is_off(Without::R13LeavingRaises) {
            self.raise(state);
        }
    }

    fn bring(self, state: &mut State, job: usize) {
        let source = self.sources[job];
        state.bringers[job] = match (state.bringers[job], source) {
            (Bringer::Ready, _) => {
                state.jobs[job] = Job::Queued;
                state.change_queued();
                state.event |= state.armed == Armed::Yes;
                if matches!(source, Source::Outside | Source::Silent) { Bringer::Done } else { Bringer::Renamed }
            }
            (_, Source::Inside) => {
                if !self.is_off(Without::R13SendingRaises) {
                    self.raise(state);
                }
                Bringer::Done
            }
            _ => {
                self.leave(state, job);
                Bringer::Done
            }
        };
    }

    fn arm(self, state: &mut State) {
        if self.watch {
            state.armed = Armed::Yes;
        }
    }

    /// The names are read; whoever noted before how often the listing was read sees that.
    fn read_names(state: &mut State) {
        state.listing.jobs = state.queued();
        state.listing.stale = false;
        state.read_since = [true; WAITERS];
    }

    fn wait(self, state: &mut State, waiter: usize) {
        let noted_late = self.is_off(Without::R13NotedFirst);
        state.waiters[waiter] = match state.waiters[waiter] {
            Waiter::New => {
                if !self.is_off(Without::R13ArmedFirst) {
                    self.arm(state);
                }
                Waiter::Armed
            }
            Waiter::Armed => {
                if !noted_late {
                    state.moved[waiter] = false;
                }
                Waiter::Noted
            }
            Waiter::Noted => {
                state.read_since[waiter] = false;
                Waiter::Ready
            }
            Waiter::Ready if state.listing.jobs == 0 || state.listing.stale => Waiter::UsedUp,
            Waiter::Ready => {
                let job = state.listing.jobs.trailing_zeros() as usize;
                state.listing.jobs &= !(1 << job);
                Waiter::InHand(job)
            }
            Waiter::InHand(job) if state.table & (1 << job) != 0 => {
                state.wanted |= 1 << job;
                Waiter::Blocked
            }
            Waiter::InHand(job) => {
                state.table |= 1 << job;
                Waiter::Entered(job)
            }
            Waiter::Entered(job) if state.jobs[job] == Job::Queued => {
                state.jobs[job] = Job::Taken;
                state.change_queued();
                Waiter::Done
            }
            Waiter::Entered(job) => Waiter::Lost(job),
            Waiter::Lost(job) => {
                self.leave(state, job);
                Waiter::Left
            }
            Waiter::Left => {
                // Of a listing as short as these one missing job is many.
                state.listing.stale = true;
                Waiter::Ready
            }
            Waiter::Blocked => {
                if !self.is_off(Without::R14LeftOne) {
                    state.listing.changed = None;
                }
                Waiter::Ready
            }
            Waiter::UsedUp => {
                let is_current = state.listing.changed == Some(false);
                if !self.is_off(Without::R14LooksAgain) && state.listing.jobs != 0 && !state.listing.stale {
                    Waiter::Ready
                } else if self.is_off(Without::R14ListedAfresh)
                    || !state.listing.stale && (state.read_since[waiter] || is_current)
                {
                    Waiter::Empty
                } else if self.is_off(Without::R14TimeFirst) {
                    Self::read_names(state);
                    Waiter::Named
                } else {
                    state.listing.changed = Some(false);
                    Waiter::Timed(true)
                }
            }
            Waiter::Timed(_) => {
                Self::read_names(state);
                Waiter::Ready
            }
            Waiter::Named => {
                state.listing.changed = Some(false);
                Waiter::Ready
            }
            _ => self.sleep(state, waiter),
        };
    }

    /// `Wait::sleep`
    fn sleep(self, state: &mut State, waiter: usize) -> Waiter {
        match state.waiters[waiter] {
            Waiter::Empty => {
                self.arm(state);
                if self.is_off(Without::R13NotedFirst) {
                    state.moved[waiter] = false;
                }
                // From here to the sleep under one lock.
                if state.moved[waiter] && !self.is_off(Without::R13LookedAt) {
                    Waiter::Armed
                } else if state.armed == Armed::Yes && !state.is_led() {
                    Waiter::Leads
                } else {
                    Waiter::Follows
                }
            }
            Waiter::Leads => Waiter::Woken,
            Waiter::Woken => {
                state.wake = false;
                Waiter::Drained
            }
            Waiter::Drained => {
                let event = state.event;
                state.event = false;
                Waiter::Finished(event)
            }
            Waiter::Finished(event) => {
                if event && !self.is_off(Without::R13DrainingRaises) {
                    state.moved = [true; WAITERS];
                }
                self.hand_over(state);
                if self.is_off(Without::R13LookedAt) { Waiter::Armed } else { Waiter::Empty }
            }
            other => other,
        }
    }

    fn hand_over(self, state: &mut State) {
        if !self.is_off(Without::R13HandedOver) {
            state.notify();
        }
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let retried = |job: &usize| self.sources[*job] == Source::Retry;
        let start = |bringers: [Bringer; JOBS]| State {
            jobs: [Job::Away; JOBS],
            table: (0..JOBS).filter(retried).fold(0, |table, job| table | 1 << job),
            wanted: 0,
            bringers,
            waiters: [Waiter::New; WAITERS],
            moved: [false; WAITERS],
            read_since: [false; WAITERS],
            listing: Listing { jobs: 0, stale: false, changed: None },
            armed: Armed::No,
            event: false,
            wake: false,
        };
        // The second job may never come.
        vec![start([Bringer::Ready; JOBS]), start([Bringer::Ready, Bringer::Done])]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend((0..JOBS).filter(|&job| state.bringers[job] != Bringer::Done).map(Action::Bring));
        for (waiter, &at) in state.waiters.iter().enumerate() {
            match at {
                Waiter::Done | Waiter::Follows => {}
                Waiter::Leads if !state.event && !state.wake => {
                    if self.signals {
                        actions.push(Action::Signal(waiter));
                    }
                }
                Waiter::Ready | Waiter::Left | Waiter::Blocked | Waiter::UsedUp | Waiter::Noted
                    if state.is_listing_locked() => {}
                Waiter::Timed(true) => actions.extend([Action::Wait(waiter), Action::TooLate(waiter)]),
                Waiter::Entered(..) if self.errors => actions.extend([Action::Wait(waiter), Action::Error(waiter)]),
                _ => actions.push(Action::Wait(waiter)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Bring(job) => self.bring(&mut state, job),
            Action::Wait(waiter) => self.wait(&mut state, waiter),
            Action::TooLate(waiter) => {
                state.listing.changed = None;
                state.waiters[waiter] = Waiter::Timed(false);
            }
            Action::Error(waiter) => {
                let Waiter::Entered(job) = state.waiters[waiter] else { return None };
                state.table &= !(1 << job);
                state.wanted &= !(1 << job);
                state.listing.changed = None;
                state.waiters[waiter] = Waiter::Done;
            }
            Action::Signal(waiter) => {
                state.waiters[waiter] = Waiter::Done;
                self.hand_over(&mut state);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody sleeps beside a job that waits", |config: &Self, state: &State| {
                let mut actions = Vec::new();
                config.actions(state, &mut actions);
                actions.retain(|action| !matches!(action, Action::Signal(_)));
                !actions.is_empty()
                    || state.queued() & !state.table == 0
                    || state.waiters.iter().all(|&waiter| waiter == Waiter::Done)
            }),
            Property::sometimes("one sleeps on the condition", |_: &Self, state: &State| {
                state.waiters.contains(&Waiter::Follows)
            }),
            Property::sometimes("one sleeps on the watch", |config: &Self, state: &State| {
                !config.watch || state.waiters.contains(&Waiter::Leads)
            }),
            Property::sometimes("all jobs are taken", |_: &Self, state: &State| state.jobs == [Job::Taken; JOBS]),
        ]
    }
}
