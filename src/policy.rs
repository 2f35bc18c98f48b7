//! What becomes of a job: the states it can be in, the verdicts on it, and which finished jobs are kept.

use crate::job::Due;

/// Where a job is. Each state but [`Processing`](State::Processing) is a directory of job files; a job being processed
/// has a directory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are the layout's, told in ARCHITECTURE.md")]
pub enum State {
    Queued,
    Processing,
    Success,
    Failed,
    Interrupted,
    Scheduled,
}

impl State {
    /// The states in the order in which a job is looked for: a life's order, the only one that needs a listing last.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Processing, Self::Success, Self::Failed, Self::Interrupted, Self::Scheduled];

    /// The directory's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Scheduled => "scheduled",
        }
    }
}

/// Which finished jobs stay on disk: a set of [`SUCCESS`](Self::SUCCESS), [`FAILED`](Self::FAILED) and
/// [`INTERRUPTED`](Self::INTERRUPTED). The others are deleted when they are settled or recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepPolicy(u8);

impl KeepPolicy {
    /// Keep nothing.
    pub const NONE: Self = Self(0);
    /// Keep jobs that succeeded.
    pub const SUCCESS: Self = Self(1);
    /// Keep jobs that failed.
    pub const FAILED: Self = Self(2);
    /// Keep jobs whose consumer died or gave up.
    pub const INTERRUPTED: Self = Self(4);
    /// Keep everything.
    pub const ALL: Self = Self(7);

    /// The set with these bits, or `None` if there are others among them.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::ALL.0 { Some(Self(bits)) } else { None }
    }

    /// The kept states of this set, in the order in which a requeue looks.
    pub fn states(self) -> impl Iterator<Item = State> {
        [State::Failed, State::Interrupted, State::Success].into_iter().filter(move |&state| self.keeps(state))
    }

    /// Whether jobs that end in this state are kept.
    #[must_use]
    pub const fn keeps(self, state: State) -> bool {
        let bit = match state {
            State::Success => Self::SUCCESS,
            State::Failed => Self::FAILED,
            State::Interrupted => Self::INTERRUPTED,
            State::Queued | State::Processing | State::Scheduled => return true,
        };
        self.0 & bit.0 != 0
    }
}

/// The verdict on a claimed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Success,
    /// It can't be done.
    Failed,
    /// Nobody knows how far it came: its consumer died or gave up.
    Interrupted,
    /// Once more, at that time, or at once.
    Retry(Option<Due>),
}

/// What becomes of claimed jobs, settled by their consumer or by who finds that it died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) keep: KeepPolicy,
    /// How often an interrupted job is put back.
    pub(crate) put_back: u32,
    /// After how many attempts it is put back no more.
    pub(crate) attempts: u32,
    pub(crate) durable: bool,
}
