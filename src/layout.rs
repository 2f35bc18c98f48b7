//! The directories of a queue: the only place where their names are known and their handles are opened.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{At, Result};
use crate::flush::Flush;
use crate::policy::State;
use crate::sys::{self, Dir, Identity};

const TMP: &str = "tmp";
const OWNERS: &str = "owners";
const HISTORY: &str = "history";

/// The file that says, by being there, that the queue is paused.
const PAUSED: &str = "paused";

/// A directory of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    State(State),
    Tmp,
    Owners,
    /// The only one that need not be there.
    History,
}

impl Place {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        State::ALL.into_iter().map(Self::State).chain([Self::Tmp, Self::Owners, Self::History])
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::State(state) => state.name(),
            Self::Tmp => TMP,
            Self::Owners => OWNERS,
            Self::History => HISTORY,
        }
    }
}

/// A queue's directories, open. They are reached through their handles from then on, so that nothing that is done to
/// the path above them leads a job astray.
pub(crate) struct Layout {
    /// The queue's directory itself.
    home: Dir,
    /// In the order of [`State::ALL`].
    states: [Dir; State::ALL.len()],
    /// Of these, in the same order.
    flushes: [Flush; State::ALL.len()],
    pub(crate) tmp: Dir,
    pub(crate) owners: Dir,
    /// Which directories these are, in the order of [`Layout::all`].
    identities: Vec<Identity>,
}

impl Layout {
    /// Opens the directories of the queue at `base` and makes those that are missing, but not `base` itself.
    pub(crate) fn open(base: &Path) -> Result<Self> {
        let home = Dir::open(base).at(|| base.into())?;
        let [queued, processing, success, failed, interrupted, scheduled] = State::ALL.map(State::name);
        let open = |name| open_or_make(&home, OsStr::new(name));
        let mut layout = Self {
            states: [
                open(queued)?,
                open(processing)?,
                open(success)?,
                open(failed)?,
                open(interrupted)?,
                open(scheduled)?,
            ],
            flushes: Default::default(),
            tmp: open(TMP)?,
            owners: open(OWNERS)?,
            identities: Vec::new(),
            home,
        };
        layout.identities = layout.all().map(|dir| dir.identity().at(|| dir.path().into())).collect::<Result<_>>()?;
        Ok(layout)
    }

    pub(crate) fn dir(&self, state: State) -> &Dir {
        let [queued, processing, success, failed, interrupted, scheduled] = &self.states;
        match state {
            State::Queued => queued,
            State::Processing => processing,
            State::Success => success,
            State::Failed => failed,
            State::Interrupted => interrupted,
            State::Scheduled => scheduled,
        }
    }

    /// Has the names in a state's directory flushed to the disk, together with those of other threads.
    pub(crate) fn flush(&self, state: State) -> Result<()> {
        let dir = self.dir(state);
        let place = State::ALL.iter().position(|other| *other == state).unwrap_or_default();
        let flush = || {
            #[cfg(feature = "failpoints")]
            fail::fail_point!("flush: fails", |_| Err(io::Error::from_raw_os_error(5)));
            dir.sync()
        };
        self.flushes[place].run(flush).at(|| dir.path().into())
    }

    /// Where the attempts at jobs are recorded, if one ever was.
    pub(crate) fn history(&self) -> Result<Option<Dir>> {
        find_dir(self.home()?, OsStr::new(HISTORY))
    }

    /// The same, made if it is missing: most queues never need it, and some are only looked at.
    pub(crate) fn make_history(&self) -> Result<Dir> {
        open_or_make(self.home()?, OsStr::new(HISTORY))
    }

    /// The queue's directory, unless somebody closed it in this process: its descriptor may be another directory's by now.
    pub(crate) fn home(&self) -> Result<&Dir> {
        if self.home.is_intact() {
            return Ok(&self.home);
        }
        Err(io::Error::from(io::ErrorKind::NotFound)).at(|| self.home.path().into())
    }

    /// Has the names in the queue's directory flushed to the disk.
    pub(crate) fn flush_home(&self) -> Result<()> {
        self.home.sync().at(|| self.home.path().into())
    }

    /// Which directories these are.
    pub(crate) fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// Whether their paths still lead to them.
    pub(crate) fn is_at(&self, base: &Path) -> bool {
        self.all_at(base).all(|(here, there)| sys::stat(&there).is_ok_and(|there| there.identity == here))
    }

    /// Whether the one that was opened first still is open: who closes descriptors, begins with the low ones.
    pub(crate) fn seems_intact(&self) -> bool {
        self.dir(State::Queued).is_intact()
    }

    /// Whether they are open: somebody may have closed their descriptors in this process.
    pub(crate) fn is_intact(&self) -> bool {
        self.home.is_intact() && self.all().all(Dir::is_intact)
    }

    /// Whether none of them was deleted, or replaced by another one at its path, as far as that can be seen.
    pub(crate) fn is_whole_at(&self, base: &Path) -> bool {
        self.home.is_intact()
            && self.all().all(|dir| dir.is_linked().unwrap_or(true))
            && self.all_at(base).all(|(here, there)| match sys::stat(&there) {
                Ok(there) => there.identity == here,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            })
    }

    fn all(&self) -> impl Iterator<Item = &Dir> {
        self.states.iter().chain([&self.tmp, &self.owners])
    }

    /// Which directories they are, and the paths that should lead to them.
    fn all_at(&self, base: &Path) -> impl Iterator<Item = (Identity, PathBuf)> {
        self.identities.iter().copied().zip(Place::all().map(|place| base.join(place.name())))
    }
}

/// Where the jobs of a state are.
pub(crate) fn state_path(base: &Path, state: State) -> PathBuf {
    base.join(state.name())
}

/// The name in it of the file that says that the queue is paused.
pub(crate) fn paused() -> &'static OsStr {
    OsStr::new(PAUSED)
}

/// Where that file is.
pub(crate) fn paused_path(base: &Path) -> PathBuf {
    base.join(PAUSED)
}

/// Makes the directory of a queue and those above it.
pub(crate) fn make_base(base: &Path) -> Result<()> {
    match std::fs::create_dir_all(base) {
        // Opening it tells better what is in its place.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.at(|| base.into()),
    }
}

/// Flushes the names of a queue's directories, and of all directories above, to the disk: a job flushed into a
/// directory that a power cut takes away is lost all the same.
pub(crate) fn sync_names(base: &Path) -> Result<()> {
    for (height, path) in base.ancestors().enumerate() {
        match Dir::open(path).and_then(|dir| dir.sync()).at(|| path.into()) {
            // A directory that may not be opened or flushed was not made by this program either.
            Err(error) if height > 0 && error.kind().is_some_and(cant_be_flushed) => {}
            synced => synced?,
        }
    }
    Ok(())
}

fn cant_be_flushed(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(kind, PermissionDenied | InvalidInput | ReadOnlyFilesystem | Unsupported)
}

/// Opens a directory in that one, if it is there.
pub(crate) fn find_dir(home: &Dir, name: &OsStr) -> Result<Option<Dir>> {
    match home.open_dir(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).at(|| home.path().join(name)),
    }
}

/// Opens a directory in that one, and makes it if it is missing.
pub(crate) fn open_or_make(home: &Dir, name: &OsStr) -> Result<Dir> {
    let path = || home.path().join(name);
    if let Some(found) = find_dir(home, name)? {
        return Ok(found);
    }
    match home.make_dir(name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error).at(path)?,
        _ => {}
    }
    home.open_dir(name).at(path)
}
