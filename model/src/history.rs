//! The history of one job: records of its attempts, written by workers, by recoveries and by requeues, while the job moves.
//!
//! A step is one system call. Two things are one step: reading the records that were listed, since a record never changes
//! but for its mark; and all that a program does that knows no records, which is one rename.
//!
//! | rule | in a line |
//! | --- | --- |
//! | 21 | An attempt is recorded under a number of its own, then the job moves, then the record is marked. |
//! | 21 | Recovery records before it moves the job, and adopts what another one recorded of the same claim. |
//! | 21 | A record that another recovery may have adopted is never retracted. |
//! | 21 | A recovery and a requeue record under the number after the last one that they have read, or look again. |
//! | 21 | Of the records of one attempt the marked one counts. |
//! | 21 | A record without a next attempt whose job waits again means that somebody requeued it who writes none. |

use stateright::{Model, Property};

/// A rule switched off, or one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// A recovery moves the job before it records that.
    RecordsFirst,
    /// What a worker recorded that did not come to move its job counts as an attempt of its own.
    CountsOnce,
    /// A recovery whose job is gone retracts its record.
    NeverRetracted,
    /// A record that gets its mark after it was listed is not read.
    MarkFollowed,
    /// A recovery or a requeue records although there are records that it has not read.
    LooksAgain,
    /// A recovery or a requeue does not look after reading whether the job still is where it was.
    LooksAfterReading,
    /// The last record counts, marked or not.
    MarkCounts,
    /// A requeue by somebody who writes no record is not noticed.
    OthersRequeue,
}

impl Without {
    pub const ALL: [Self; 8] = [
        Self::RecordsFirst,
        Self::CountsOnce,
        Self::NeverRetracted,
        Self::MarkFollowed,
        Self::LooksAgain,
        Self::LooksAfterReading,
        Self::MarkCounts,
        Self::OthersRequeue,
    ];
}

const WORKERS: usize = 2;
const RECOVERIES: usize = 2;
/// Records that there may be; what would need more is not tried.
const RECORDS: usize = 5;

/// A worker's name. It never comes back: one of which there is no trace is a new one to everybody.
type Token = u8;
const TOKENS: Token = 16;
/// A record's place, from 0.
type Number = u8;

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How often the job may be claimed.
    pub claims: u8,
    /// How often each of those who recover puts the job back.
    pub put_back: [u8; RECOVERIES],
    /// Those who recover and requeue may be killed, too. Workers always are.
    pub kills_all: bool,
    /// The job is requeued with a record.
    pub requeues: bool,
    /// The job is requeued by somebody who writes none.
    pub others_requeue: bool,
    pub without: Option<Without>,
}

/// Where the job's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Queued,
    /// In the claim of that worker.
    Claimed(Token),
    Failed,
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Ended {
    Retry,
    Failed,
    Interrupted,
    Requeued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Record {
    ended: Ended,
    /// Whether there is to be another attempt.
    is_due: bool,
    count: Count,
    /// Who held the job.
    owner: Option<Token>,
    is_whole: bool,
    is_marked: bool,
}

/// Since the job was sent or requeued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Count {
    attempts: u8,
    interruptions: u8,
}

/// The names in a listing: marked or not.
type Names = [Option<bool>; RECORDS];

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Past {
    count: Count,
    /// What the dead owner, or a recovery of its claim, recorded of the attempt that ends just now.
    pending: Option<(Number, Ended, bool)>,
    /// The number after that of the last record.
    next: Number,
    is_known: bool,
}

impl Past {
    /// Whether the model has room for the next record.
    fn has_room(self) -> Option<()> {
        (usize::from(self.next) < RECORDS).then_some(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Worker {
    Idle,
    Claims,
    Listed(Names),
    /// Its handler runs. What was counted before, and the number of the next record.
    Handles(Count, Number),
    /// It has made the file of a record. Whether there is to be another attempt.
    Made(Number, bool),
    Recorded(Number, bool),
    Moved(Number),
}

/// Somebody who recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Recovery {
    Idle,
    Found(Token),
    Listed(Token, Names),
    Read(Token, Past),
    /// The job was still there after that.
    Looked(Token, Past),
    Made(Token, Number, bool),
    /// The job is to move by that record; whether it is put back, and whether the record is its own.
    Recorded(Token, Number, bool, bool),
    Moved(Number),
    /// It has moved the job, and is to record that. Only without the rule against it.
    MovedFirst(Token, Past, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Requeuer {
    Idle,
    Found(bool),
    Listed(bool, Names),
    Read(bool, Past),
    Looked(bool, Past),
    Made(bool, Number),
    Recorded(bool, Option<Number>),
    Moved(Number),
    Failed(Number),
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    at: Place,
    records: [Option<Record>; RECORDS],
    workers: [(Token, Worker); WORKERS],
    recoveries: [Recovery; RECOVERIES],
    requeuer: Requeuer,
    claims: u8,
    /// What is to be counted.
    truth: Count,
    /// What a worker was told instead, if that was something else.
    told: Option<Count>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Work(usize),
    /// The handler ends: the job is to be tried again, or has failed.
    End(usize, bool),
    Recover(usize),
    Requeue,
    OthersRequeue,
    KillWorker(usize),
    KillRecovery(usize),
    KillRequeuer,
}

impl State {
    fn list(&self) -> Names {
        self.records.map(|record| record.map(|record| record.is_marked))
    }

    fn is_alive(&self, token: Token) -> bool {
        self.workers.iter().any(|(its, _)| *its == token)
    }

    fn is_finished(&self) -> bool {
        matches!(self.at, Place::Failed | Place::Interrupted)
    }

    fn mark(&mut self, number: Number) {
        if let Some(record) = &mut self.records[usize::from(number)] {
            record.is_marked = true;
        }
    }

    /// `write` of a record whose file was made.
    fn write(&mut self, number: Number) {
        if let Some(record) = &mut self.records[usize::from(number)] {
            record.is_whole = true;
        }
    }

    /// Makes the file of a record, unless there is one of that number.
    fn make(&mut self, number: Number, record: Record) -> bool {
        let place = &mut self.records[usize::from(number)];
        let is_free = place.is_none();
        if is_free {
            *place = Some(Record { is_whole: false, ..record });
        }
        is_free
    }

    /// The tokens in the order in which they are met.
    fn tokens(&mut self) -> impl Iterator<Item = &mut Token> {
        let recoveries = self.recoveries.iter_mut().filter_map(|recovery| match recovery {
            Recovery::Found(token)
            | Recovery::Listed(token, _)
            | Recovery::Read(token, _)
            | Recovery::Looked(token, _)
            | Recovery::Made(token, ..)
            | Recovery::Recorded(token, ..)
            | Recovery::MovedFirst(token, ..) => Some(token),
            Recovery::Idle | Recovery::Moved(_) => None,
        });
        let held = if let Place::Claimed(token) = &mut self.at { Some(token) } else { None };
        let records = self.records.iter_mut().flatten().filter_map(|record| record.owner.as_mut());
        self.workers.iter_mut().map(|(token, _)| token).chain(held).chain(records).chain(recoveries)
    }

    /// One of which there is no trace.
    fn new_token(mut self) -> Option<Token> {
        let used: Vec<Token> = self.tokens().map(|token| *token).collect();
        (0..TOKENS).find(|token| !used.contains(token))
    }

    /// Workers are alike, and so are tokens, and those who recover in the same way: one order stands for many.
    fn order(&mut self, config: Config) {
        self.workers.sort_unstable_by_key(|(_, worker)| *worker);
        if config.put_back[0] == config.put_back[1] {
            self.recoveries.sort_unstable();
        }
        let mut met = Vec::new();
        for token in self.tokens() {
            let new = met.iter().position(|old| old == token).unwrap_or_else(|| {
                met.push(*token);
                met.len() - 1
            });
            *token = number(new);
        }
    }

    fn requeued(&mut self) {
        self.at = Place::Queued;
        self.truth = Count::default();
    }
}

impl Config {
    fn is_off(self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    /// `Past::of`.
    fn read(self, state: &State, names: Names, dead: Option<Token>) -> Past {
        let next = names.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let mut past = Past { count: Count::default(), pending: None, next: number(next), is_known: next > 0 };
        // Of the last attempt, the record that counts most.
        let mut last: Option<(Record, (bool, bool))> = None;
        for index in (0..next).rev() {
            let (Some(listed), Some(record)) = (names[index], state.records[index]) else { continue };
            if listed != record.is_marked && self.is_off(Without::MarkFollowed) || !record.is_whole {
                continue;
            }
            if dead.is_some() && record.owner == dead && !record.is_marked && !self.is_off(Without::CountsOnce) {
                past.pending = past.pending.or(Some((number(index), record.ended, record.is_due)));
                continue;
            }
            let weight = (record.is_marked, record.ended == Ended::Interrupted && record.is_due);
            let is_over = record.is_marked && !record.is_due;
            match last {
                Some((later, _))
                    if is_over || later.count.attempts != record.count.attempts || later.owner != record.owner =>
                {
                    break;
                }
                Some((_, heaviest)) if weight <= heaviest || self.is_off(Without::MarkCounts) => {}
                _ => last = Some((record, weight)),
            }
        }
        if let Some((record, _)) = last {
            let is_over = !record.is_due && !self.is_off(Without::OthersRequeue);
            past.count = if is_over { Count::default() } else { record.count };
        }
        past
    }

    fn work(self, state: &mut State, w: usize) -> Option<()> {
        let (token, worker) = state.workers[w];
        let next = match worker {
            Worker::Idle => {
                if state.at != Place::Queued || state.claims == 0 {
                    return None;
                }
                state.claims -= 1;
                state.at = Place::Claimed(token);
                Worker::Claims
            }
            Worker::Claims => Worker::Listed(state.list()),
            Worker::Listed(names) => {
                let past = self.read(state, names, None);
                if past.count != state.truth {
                    state.told = Some(past.count);
                }
                Worker::Handles(past.count, past.next)
            }
            Worker::Handles(..) => return None,
            Worker::Made(number, is_due) => {
                state.write(number);
                Worker::Recorded(number, is_due)
            }
            Worker::Recorded(number, is_due) => {
                state.at = if is_due { Place::Queued } else { Place::Failed };
                state.truth.attempts += 1;
                Worker::Moved(number)
            }
            Worker::Moved(number) => {
                state.mark(number);
                Worker::Idle
            }
        };
        state.workers[w].1 = next;
        Some(())
    }

    /// A handler ends, and its attempt gets the first number that is free: nobody else records an attempt of this claim.
    fn end(state: &mut State, w: usize, is_due: bool) -> Option<()> {
        let (token, Worker::Handles(before, next)) = state.workers[w] else { return None };
        let ended = if is_due { Ended::Retry } else { Ended::Failed };
        let count = Count { attempts: before.attempts + 1, ..before };
        let record = Record { ended, is_due, count, owner: Some(token), is_whole: true, is_marked: false };
        let number = (usize::from(next)..RECORDS).map(number).find(|&number| state.make(number, record))?;
        state.workers[w].1 = Worker::Made(number, is_due);
        Some(())
    }

    fn recover(self, state: &mut State, r: usize) -> Option<()> {
        let put_back = self.put_back[r];
        state.recoveries[r] = match state.recoveries[r] {
            Recovery::Idle => match state.at {
                Place::Claimed(token) if !state.is_alive(token) => Recovery::Found(token),
                _ => return None,
            },
            Recovery::Found(token) => Recovery::Listed(token, state.list()),
            Recovery::Listed(token, names) => {
                let past = self.read(state, names, Some(token));
                if self.is_off(Without::LooksAfterReading) {
                    Recovery::Looked(token, past)
                } else {
                    Recovery::Read(token, past)
                }
            }
            Recovery::Read(token, _) if state.at != Place::Claimed(token) => Recovery::Idle,
            Recovery::Read(token, past) => Recovery::Looked(token, past),
            Recovery::Looked(token, past) => {
                let is_due = past.count.interruptions < put_back;
                match past.pending {
                    _ if self.is_off(Without::RecordsFirst) => {
                        if Self::move_job(state, token, is_due) {
                            Recovery::MovedFirst(token, past, is_due)
                        } else {
                            Recovery::Idle
                        }
                    }
                    Some((number, Ended::Interrupted, again)) if again == is_due => {
                        Recovery::Recorded(token, number, is_due, false)
                    }
                    _ => self.record_recovery(state, token, past, is_due)?,
                }
            }
            Recovery::Made(token, number, is_due) => {
                state.write(number);
                Recovery::Recorded(token, number, is_due, true)
            }
            Recovery::Recorded(token, number, is_due, is_own) => {
                if Self::move_job(state, token, is_due) {
                    Recovery::Moved(number)
                } else {
                    if is_own && self.is_off(Without::NeverRetracted) {
                        let record = &mut state.records[usize::from(number)];
                        *record = record.filter(|record| record.is_marked);
                    }
                    Recovery::Idle
                }
            }
            Recovery::Moved(number) => {
                state.mark(number);
                Recovery::Idle
            }
            Recovery::MovedFirst(token, past, is_due) => match self.record_recovery(state, token, past, is_due)? {
                Recovery::Made(_, number, _) => {
                    state.write(number);
                    Recovery::Moved(number)
                }
                _ => Recovery::Idle,
            },
        };
        Some(())
    }

    fn record_recovery(self, state: &mut State, token: Token, past: Past, is_due: bool) -> Option<Recovery> {
        let count =
            Count { attempts: past.count.attempts + 1, interruptions: past.count.interruptions + u8::from(is_due) };
        let ended = Ended::Interrupted;
        let record = Record { ended, is_due, count, owner: Some(token), is_whole: true, is_marked: false };
        past.has_room()?;
        Some(match self.make_next(state, past, record) {
            Some(number) => Recovery::Made(token, number, is_due),
            None => Recovery::Found(token),
        })
    }

    /// Makes a record under the number after the last one that was read. If there is one by now, all is to be looked at
    /// again.
    fn make_next(self, state: &mut State, past: Past, record: Record) -> Option<Number> {
        let last = if self.is_off(Without::LooksAgain) { RECORDS } else { usize::from(past.next) + 1 };
        (usize::from(past.next)..last).map(number).find(|&number| state.make(number, record))
    }

    /// The rename out of a dead worker's claim.
    fn move_job(state: &mut State, token: Token, is_due: bool) -> bool {
        let is_there = state.at == Place::Claimed(token);
        if is_there {
            state.at = if is_due { Place::Queued } else { Place::Interrupted };
            state.truth.attempts += 1;
            state.truth.interruptions += u8::from(is_due);
        }
        is_there
    }

    fn requeue(self, state: &mut State) -> Option<()> {
        let is_at = |state: &State, failed| state.at == if failed { Place::Failed } else { Place::Interrupted };
        state.requeuer = match state.requeuer {
            Requeuer::Idle if state.is_finished() => Requeuer::Found(state.at == Place::Failed),
            Requeuer::Idle => return None,
            Requeuer::Found(failed) => Requeuer::Listed(failed, state.list()),
            Requeuer::Listed(failed, names) => {
                let past = self.read(state, names, None);
                if !past.is_known {
                    Requeuer::Recorded(failed, None)
                } else if self.is_off(Without::LooksAfterReading) {
                    Requeuer::Looked(failed, past)
                } else {
                    Requeuer::Read(failed, past)
                }
            }
            Requeuer::Read(failed, past) if is_at(state, failed) => Requeuer::Looked(failed, past),
            Requeuer::Read(..) => Requeuer::Idle,
            Requeuer::Looked(failed, past) => {
                let (ended, count) = (Ended::Requeued, Count::default());
                let record = Record { ended, is_due: true, count, owner: None, is_whole: true, is_marked: false };
                past.has_room()?;
                match self.make_next(state, past, record) {
                    Some(number) => Requeuer::Made(failed, number),
                    None => Requeuer::Found(failed),
                }
            }
            Requeuer::Made(failed, number) => {
                state.write(number);
                Requeuer::Recorded(failed, Some(number))
            }
            Requeuer::Recorded(failed, number) => {
                let is_there = is_at(state, failed);
                if is_there {
                    state.requeued();
                }
                match number {
                    Some(number) if is_there => Requeuer::Moved(number),
                    Some(number) => Requeuer::Failed(number),
                    None => Requeuer::Idle,
                }
            }
            Requeuer::Moved(number) => {
                state.mark(number);
                Requeuer::Idle
            }
            Requeuer::Failed(number) => {
                state.records[usize::from(number)] = None;
                Requeuer::Idle
            }
        };
        Some(())
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            at: Place::Queued,
            records: [None; RECORDS],
            workers: [(0, Worker::Idle), (1, Worker::Idle)],
            recoveries: [Recovery::Idle; RECOVERIES],
            requeuer: Requeuer::Idle,
            claims: self.claims,
            truth: Count::default(),
            told: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.told.is_some() {
            return;
        }
        for (w, (_, worker)) in state.workers.iter().enumerate() {
            match worker {
                Worker::Handles(..) => actions.extend([Action::End(w, true), Action::End(w, false)]),
                _ => actions.push(Action::Work(w)),
            }
            if *worker != Worker::Idle {
                actions.push(Action::KillWorker(w));
            }
        }
        for (r, recovery) in state.recoveries.iter().enumerate() {
            actions.push(Action::Recover(r));
            if self.kills_all && *recovery != Recovery::Idle {
                actions.push(Action::KillRecovery(r));
            }
        }
        if self.requeues {
            actions.push(Action::Requeue);
            if self.kills_all && state.requeuer != Requeuer::Idle {
                actions.push(Action::KillRequeuer);
            }
        }
        if self.others_requeue && state.is_finished() {
            actions.push(Action::OthersRequeue);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        let state = &mut next;
        match action {
            Action::Work(w) => self.work(state, w)?,
            Action::End(w, is_due) => Self::end(state, w, is_due)?,
            Action::Recover(r) => self.recover(state, r)?,
            Action::Requeue => self.requeue(state)?,
            Action::OthersRequeue => state.requeued(),
            Action::KillWorker(w) => {
                state.workers[w] = (state.new_token()?, Worker::Idle);
            }
            Action::KillRecovery(r) => state.recoveries[r] = Recovery::Idle,
            Action::KillRequeuer => state.requeuer = Requeuer::Idle,
        }
        state.order(*self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each attempt and interruption is counted once", |_: &Self, state: &State| {
                state.told.is_none()
            }),
            Property::sometimes("a record is adopted", |config: &Self, state: &State| {
                config.put_back[0] != config.put_back[1]
                    || state.recoveries.iter().any(|recovery| matches!(recovery, Recovery::Recorded(.., false)))
            }),
            Property::sometimes("a job that was put back waits", |_: &Self, state: &State| {
                state.at == Place::Queued && state.truth.interruptions > 0
            }),
            Property::sometimes("the last claim is told", |_: &Self, state: &State| {
                state.claims == 0 && state.workers.iter().any(|(_, worker)| matches!(worker, Worker::Handles(..)))
            }),
        ]
    }
}

fn number(index: usize) -> Number {
    Number::try_from(index).expect("few")
}
