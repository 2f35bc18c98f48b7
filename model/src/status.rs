//! Looking: the status of a job that moves meanwhile, and the listing of a directory in which an entry is renamed.
//!
//! | rule | in a line |
//! | --- | --- |
//! | 12 | A claim counts only with its file in it. A directory in which entries are renamed is read in one call. A job is said to be nowhere only after three passes in the order of a job's life. |

use stateright::{Model, Property};

/// A rule switched off, or one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// 12: one pass.
    R12ThreePasses,
    /// 12: the directories are looked at in another order.
    R12InOrder,
    /// 12: a claim counts without its file.
    R12WithFile,
}

/// The directories, as far as looking tells them apart, in the order in which they are looked at.
const ORDER: [Place; 4] = [Place::Queued, Place::Processing, Place::Done, Place::Scheduled];
const OTHER_ORDER: [Place; 4] = [Place::Done, Place::Processing, Place::Queued, Place::Scheduled];
const CONSUMERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Queued,
    Processing,
    Done,
    Scheduled,
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How often the job may go back against the order: three passes find it if that is at most twice in one call.
    pub back: u8,
    pub without: Option<Without>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumer {
    Idle,
    /// It has made its directory.
    Made,
    /// The job is in it.
    Holds,
    /// The directory is still there.
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// The next to be looked at: pass, place.
    Looks(u8, usize),
    /// These claims were listed in that pass, and are opened one by one.
    Opens(u8, u8),
    Found(Place),
    Nowhere,
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// `None`: in the directory of the consumer that holds it.
    at: Option<Place>,
    consumers: [Consumer; CONSUMERS],
    back: u8,
    reader: Reader,
    /// Where the job was since the reader began.
    was: u8,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Read,
    Make(usize),
    Take(usize),
    GiveUp(usize),
    Settle(usize, Place),
    Remove(usize),
    Promote,
    Requeue,
}

impl State {
    fn place(&self) -> Place {
        self.at.unwrap_or(Place::Processing)
    }
}

impl Config {
    fn passes(self) -> u8 {
        if self.without == Some(Without::R12ThreePasses) { 1 } else { 3 }
    }

    fn next_look(self, pass: u8, place: usize) -> Reader {
        match (pass, place + 1) {
            (pass, place) if place < ORDER.len() => Reader::Looks(pass, place),
            (pass, _) if pass + 1 < self.passes() => Reader::Looks(pass + 1, 0),
            _ => Reader::Nowhere,
        }
    }

    fn read(self, state: &State) -> Reader {
        let order = if self.without == Some(Without::R12InOrder) { OTHER_ORDER } else { ORDER };
        match state.reader {
            Reader::Looks(pass, place) if order[place] == Place::Processing => {
                let there = |consumer: &usize| state.consumers[*consumer] != Consumer::Idle;
                let claims = (0..CONSUMERS).filter(there).fold(0, |claims, consumer| claims | 1 << consumer);
                if claims != 0 && self.without == Some(Without::R12WithFile) {
                    return Reader::Found(Place::Processing);
                }
                Reader::Opens(pass, claims)
            }
            Reader::Looks(_, place) if state.at == Some(order[place]) => Reader::Found(order[place]),
            Reader::Looks(pass, place) => self.next_look(pass, place),
            Reader::Opens(pass, 0) => self.next_look(pass, 1),
            Reader::Opens(pass, claims) => {
                let consumer = claims.trailing_zeros() as usize;
                if state.consumers[consumer] == Consumer::Holds {
                    Reader::Found(Place::Processing)
                } else {
                    Reader::Opens(pass, claims & !(1 << consumer))
                }
            }
            done => done,
        }
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let start = |at| State {
            at: Some(at),
            consumers: [Consumer::Idle; CONSUMERS],
            back: self.back,
            reader: Reader::Looks(0, 0),
            was: 1 << at as u8,
        };
        [Place::Queued, Place::Done, Place::Scheduled].map(start).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if matches!(state.reader, Reader::Looks(..) | Reader::Opens(..)) {
            actions.push(Action::Read);
        } else {
            return;
        }
        let may_go_back = state.back > 0;
        for (consumer, &at) in state.consumers.iter().enumerate() {
            match at {
                Consumer::Idle => actions.push(Action::Make(consumer)),
                Consumer::Made if state.at == Some(Place::Queued) => actions.push(Action::Take(consumer)),
                Consumer::Made => actions.push(Action::GiveUp(consumer)),
                Consumer::Holds => {
                    actions.extend([Place::Done, Place::Scheduled].map(|place| Action::Settle(consumer, place)));
                    if may_go_back {
                        actions.push(Action::Settle(consumer, Place::Queued));
                    }
                }
                Consumer::Moved => actions.push(Action::Remove(consumer)),
            }
        }
        match state.at {
            Some(Place::Scheduled) if may_go_back => actions.push(Action::Promote),
            Some(Place::Done) if may_go_back => actions.push(Action::Requeue),
            _ => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Read => state.reader = self.read(last),
            Action::Make(consumer) => state.consumers[consumer] = Consumer::Made,
            Action::Take(consumer) => {
                state.consumers[consumer] = Consumer::Holds;
                state.at = None;
            }
            Action::Settle(consumer, place) => {
                state.consumers[consumer] = Consumer::Moved;
                state.at = Some(place);
                state.back -= u8::from(place == Place::Queued);
            }
            Action::GiveUp(consumer) | Action::Remove(consumer) => state.consumers[consumer] = Consumer::Idle,
            Action::Promote | Action::Requeue => {
                state.at = Some(Place::Queued);
                state.back -= 1;
            }
        }
        state.was |= 1 << state.place() as u8;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a job that is somewhere is found", |_: &Self, state: &State| {
                state.reader != Reader::Nowhere
            }),
            Property::always("it was where it is said to be", |_: &Self, state: &State| match state.reader {
                Reader::Found(place) => state.was & (1 << place as u8) != 0,
                _ => true,
            }),
            Property::sometimes("it is found in the last pass", |config: &Self, state: &State| {
                config.without.is_some() || matches!(state.reader, Reader::Opens(2, _) | Reader::Looks(2, _))
            }),
        ]
    }
}

/// A directory of a few places, read while its one entry is renamed from one place to another.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// 12: read in one call, or place by place.
    pub at_once: bool,
}

/// A state of that directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    entry: u8,
    next: u8,
    seen: u8,
    renames: u8,
}

const PLACES: u8 = 4;

impl Model for Listing {
    type State = Listed;
    /// The entry's next place, or the next read.
    type Action = Option<u8>;

    fn init_states(&self) -> Vec<Listed> {
        (0..PLACES).map(|entry| Listed { entry, next: 0, seen: 0, renames: 4 }).collect()
    }

    fn actions(&self, state: &Listed, actions: &mut Vec<Option<u8>>) {
        if state.next < PLACES {
            actions.push(None);
            if state.renames > 0 {
                actions.extend((0..PLACES).filter(|&place| place != state.entry).map(Some));
            }
        }
    }

    fn next_state(&self, last: &Listed, action: Option<u8>) -> Option<Listed> {
        let mut state = *last;
        if let Some(place) = action {
            state.entry = place;
            state.renames -= 1;
        } else {
            let end = if self.at_once { PLACES } else { state.next + 1 };
            state.seen += u8::from((state.next..end).contains(&state.entry));
            state.next = end;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("an entry is seen once", |_: &Self, state: &Listed| {
            state.next < PLACES || state.seen == 1
        })]
    }
}
