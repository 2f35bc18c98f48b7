//! Temporary files: senders that write and publish, and a consumer that deletes what dead senders left.
//!
//! | rule | in a line |
//! | --- | --- |
//! | 8 | A lock file is made under another name, locked, then renamed: nobody sees it unlocked. |
//! | 15 | Our temporaries are called after a token whose lock was taken before, and are deleted when that lock is free. One without a token may be another program's only copy, and is never deleted. |

use stateright::{Model, Property};

/// A rule switched off, or one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// 8: the lock file has its name before it is locked.
    R8LockedFirst,
    /// 15: the temporary is made before the token is taken.
    R15TokenFirst,
    /// 15: a temporary is deleted whoever holds the lock.
    R15LockFree,
    /// 15: one without a token is deleted as well.
    R15BareStays,
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub without: Option<Without>,
}

/// A sender of ours: what it has done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    Dead,
    Idle,
    /// It has made its lock file, under the name that nobody takes for an owner's.
    LockMade,
    Locked,
    /// It has its token.
    Ready,
    /// It has written its temporary.
    Written,
}

/// Another program, whose temporaries have no token. It is never seen to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bare {
    Idle,
    Written,
}

/// Who deletes: what it has done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sweeper {
    Idle,
    /// It has opened the lock file of a temporary's token: that of the sender now alive, or of a dead one.
    Opened(Generation),
    /// It holds that lock.
    Holds(Generation),
    /// It found the lock file missing.
    Missing(Generation),
    /// It has opened a lock file that is not named after an owner yet.
    OpenedUnborn(Generation),
    HoldsUnborn(Generation),
    /// It looks after lock files that nobody's temporaries are named after.
    OpenedOwner(Generation),
    HoldsOwner(Generation),
}

/// Of the tokens only that of the sender alive now and those of the dead are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    Present,
    Past,
}
use Generation::{Past, Present};

/// What there is under one generation's token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Files {
    /// `tmp/owner-<token>`
    unborn: bool,
    /// `owners/<token>`
    owner: bool,
    /// `tmp/<uuid>-<token>`
    temporary: bool,
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    sender: Sender,
    bare: Bare,
    bare_file: bool,
    present: Files,
    past: Files,
    sweeper: Sweeper,
    lost: bool,
}

/// Steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Send,
    Kill,
    Born,
    BareSends,
    Sweep,
    /// The sweeper meets one of those.
    Meet(Kind, Generation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Temporary,
    Unborn,
    Owner,
    Bare,
}

impl State {
    fn files(&mut self, generation: Generation) -> &mut Files {
        match generation {
            Present => &mut self.present,
            Past => &mut self.past,
        }
    }

    fn is_locked(&self, generation: Generation) -> bool {
        generation == Present && matches!(self.sender, Sender::Locked | Sender::Ready | Sender::Written)
    }

    fn sweeper_holds_present(&self) -> bool {
        matches!(self.sweeper, Sweeper::Holds(Present) | Sweeper::HoldsUnborn(Present) | Sweeper::HoldsOwner(Present))
    }
}

impl Config {
    fn is_off(self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    fn send(self, state: &mut State) {
        let named_first = self.is_off(Without::R8LockedFirst);
        let starts_anew = |state: &mut State| {
            // Its lock file was taken away: a new token, whose name nobody knows.
            Self::forget(state);
            Sender::Idle
        };
        state.sender = match state.sender {
            Sender::Idle => {
                if self.is_off(Without::R15TokenFirst) {
                    state.present.temporary = true;
                }
                if named_first {
                    state.present.owner = true;
                } else {
                    state.present.unborn = true;
                }
                Sender::LockMade
            }
            Sender::LockMade if state.sweeper_holds_present() => starts_anew(state),
            Sender::LockMade => Sender::Locked,
            Sender::Locked if named_first => Sender::Ready,
            Sender::Locked if state.present.unborn => {
                state.present.unborn = false;
                state.present.owner = true;
                Sender::Ready
            }
            Sender::Locked => starts_anew(state),
            Sender::Ready => {
                state.present.temporary = true;
                Sender::Written
            }
            Sender::Written => {
                // The rename that publishes it.
                state.lost |= !state.present.temporary;
                state.present.temporary = false;
                Sender::Ready
            }
            Sender::Dead => Sender::Dead,
        };
    }

    /// What was the present sender's is a dead one's, to all who have it open as well.
    fn forget(state: &mut State) {
        let Files { unborn, owner, temporary } = state.present;
        state.past.unborn |= unborn;
        state.past.owner |= owner;
        state.past.temporary |= temporary;
        state.present = Files::default();
        state.sweeper = match state.sweeper {
            Sweeper::Idle => Sweeper::Idle,
            Sweeper::Opened(_) => Sweeper::Opened(Past),
            Sweeper::Holds(_) => Sweeper::Holds(Past),
            Sweeper::Missing(_) => Sweeper::Missing(Past),
            Sweeper::OpenedUnborn(_) => Sweeper::OpenedUnborn(Past),
            Sweeper::HoldsUnborn(_) => Sweeper::HoldsUnborn(Past),
            Sweeper::OpenedOwner(_) => Sweeper::OpenedOwner(Past),
            Sweeper::HoldsOwner(_) => Sweeper::HoldsOwner(Past),
        };
    }

    fn meet(self, state: &mut State, kind: Kind, generation: Generation) {
        state.sweeper = match kind {
            Kind::Bare => {
                state.bare_file = false;
                Sweeper::Idle
            }
            Kind::Temporary if self.is_off(Without::R15LockFree) => Sweeper::Missing(generation),
            Kind::Temporary if state.files(generation).owner => Sweeper::Opened(generation),
            Kind::Temporary => Sweeper::Missing(generation),
            Kind::Unborn => Sweeper::OpenedUnborn(generation),
            Kind::Owner => Sweeper::OpenedOwner(generation),
        };
    }

    fn sweep(state: &mut State) {
        let locked = |state: &State, of| state.is_locked(of);
        state.sweeper = match state.sweeper {
            Sweeper::Opened(of) if !locked(state, of) => Sweeper::Holds(of),
            Sweeper::OpenedUnborn(of) if !locked(state, of) => Sweeper::HoldsUnborn(of),
            Sweeper::OpenedOwner(of) if !locked(state, of) => Sweeper::HoldsOwner(of),
            Sweeper::Missing(of) => {
                state.files(of).temporary = false;
                Sweeper::Idle
            }
            Sweeper::Holds(of) => {
                // Without its lock file it is a dead sender's as well: so that may go first.
                state.files(of).owner = false;
                Sweeper::Missing(of)
            }
            Sweeper::HoldsOwner(of) => {
                state.files(of).owner = false;
                Sweeper::Idle
            }
            Sweeper::HoldsUnborn(of) => {
                state.files(of).unborn = false;
                Sweeper::Idle
            }
            _ => Sweeper::Idle,
        };
    }

    fn swept(self, state: &State) -> State {
        let mut state = *state;
        for kind in [Kind::Unborn, Kind::Temporary, Kind::Owner] {
            for generation in [Present, Past] {
                let files = *state.files(generation);
                let there = match kind {
                    Kind::Temporary => files.temporary,
                    Kind::Unborn => files.unborn,
                    _ => files.owner,
                };
                if there {
                    self.meet(&mut state, kind, generation);
                    while state.sweeper != Sweeper::Idle {
                        Self::sweep(&mut state);
                    }
                }
            }
        }
        state
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            sender: Sender::Idle,
            bare: Bare::Idle,
            bare_file: false,
            present: Files::default(),
            past: Files::default(),
            sweeper: Sweeper::Idle,
            lost: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(if state.sender == Sender::Dead {
            vec![Action::Born]
        } else {
            vec![Action::Send, Action::Kill]
        });
        actions.push(Action::BareSends);
        if state.sweeper != Sweeper::Idle {
            actions.push(Action::Sweep);
            return;
        }
        for (of, files) in [(Present, state.present), (Past, state.past)] {
            let kinds = [(files.temporary, Kind::Temporary), (files.unborn, Kind::Unborn), (files.owner, Kind::Owner)];
            actions.extend(kinds.iter().filter(|(there, _)| *there).map(|&(_, kind)| Action::Meet(kind, of)));
        }
        if self.is_off(Without::R15BareStays) && state.bare_file {
            actions.push(Action::Meet(Kind::Bare, Past));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Send => self.send(&mut state),
            Action::Kill => {
                state.sender = Sender::Dead;
                Self::forget(&mut state);
            }
            Action::Born => state.sender = Sender::Idle,
            Action::BareSends => {
                if state.bare == Bare::Idle {
                    state.bare = Bare::Written;
                    state.bare_file = true;
                } else {
                    state.bare = Bare::Idle;
                    state.lost |= !state.bare_file;
                    state.bare_file = false;
                }
            }
            Action::Sweep => Self::sweep(&mut state),
            Action::Meet(kind, of) => self.meet(&mut state, kind, of),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what a live sender writes is published", |_: &Self, state: &State| !state.lost),
            Property::always("nothing of the dead stays", |config: &Self, state: &State| {
                state.sweeper != Sweeper::Idle || config.swept(state).past == Files::default()
            }),
            Property::sometimes("something of the dead is met", |_: &Self, state: &State| {
                matches!(state.sweeper, Sweeper::Holds(Past) | Sweeper::HoldsUnborn(Past))
            }),
        ]
    }
}
