//! The seam between the protocol and the system: what a directory queue asks of an operating system, with one file per
//! family and equal signatures in each. Nothing outside this folder knows which one it runs on.
//!
//! A [`Dir`] is an open directory; all names given to it are single entries of it. A rename never replaces anything.

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub(crate) use unix::*;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
mod windows_names;
#[cfg(windows)]
pub(crate) use {windows::*, windows_names::*};

use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime};

/// Which file or directory it is, whatever it is called.
pub(crate) type Identity = (u64, u64);

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    Directory,
    Symlink,
    Other,
}

/// What is known of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub identity: Identity,
    pub kind: FileKind,
    /// In bytes.
    pub length: u64,
    /// Whether less of it is stored than it is long: it may have holes.
    pub has_holes: bool,
    /// When its content last changed; of a directory, its names.
    pub modified: SystemTime,
    /// When its inode last changed, a rename included: the only time that is not the sender's.
    pub changed: SystemTime,
    /// Who may do what, where a file's mode says that.
    pub permissions: Option<Permissions>,
}

/// The mode and the group of a file.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(windows, allow(dead_code, reason = "nobody makes one there"))]
pub(crate) struct Permissions {
    pub mode: u32,
    pub group: u32,
}

/// What one wants to do with a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// To change the names in a directory.
    Change,
}

/// A filesystem that is not known to do what a local one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(windows, allow(dead_code, reason = "nobody asks there"))]
pub(crate) enum Doubtful {
    /// Other machines have it, too.
    Network(&'static str),
    /// A program makes it (FUSE).
    Program,
    /// A layer upon others, of which a file is a copy once it was changed.
    Overlay,
}

/// What is left on a filesystem for users other than root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    /// How many files and directories can be made; `None` where only bytes limit that.
    pub(crate) files: Option<u64>,
}

/// How a directory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// In one call, so that it is shown as it was at one moment. For directories that are small.
    AtOnce,
    /// In large pieces: an entry that moves meanwhile may be shown twice or not at all.
    InPieces,
}

/// What is to be done about a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Followed,
    Refused,
}

/// What ended a sleep on a [`Watch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    allow(dead_code, reason = "nobody sleeps on it there")
)]
pub(crate) enum Woken {
    /// Something came into one of the watched directories.
    ByEvent,
    /// [`Watch::wake`], or the time was over.
    Otherwise,
    /// A signal.
    BySignal,
}

/// An entry of a listing: its name, and its kind where the directory tells.
pub(crate) type Entry<'a> = (&'a OsStr, Option<FileKind>);

impl Dir {
    /// Whether there is a regular file of that name.
    pub(crate) fn is_file(&self, name: &OsStr) -> io::Result<bool> {
        match self.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            stat => stat.map(|stat| stat.kind == FileKind::Regular),
        }
    }

    /// Whether a listed entry is a regular file, for all that can be told: what is done to it next shows it if not.
    pub(crate) fn may_be_file(&self, (name, kind): Entry<'_>) -> bool {
        kind.map_or_else(|| self.is_file(name).unwrap_or(true), |kind| kind == FileKind::Regular)
    }

    /// When its names last changed, if that is so long ago that whatever changes them from now on changes the time too:
    /// longer than the coarsest clock ticks by which a filesystem stamps its directories.
    pub(crate) fn settled_time(&self) -> io::Result<Option<SystemTime>> {
        const SETTLED: Duration = Duration::from_secs(3);
        let changed = self.changed()?;
        Ok(Some(changed).filter(|changed| changed.elapsed().is_ok_and(|age| age > SETTLED)))
    }

    /// Whether its names are the same as they were at that [`settled_time`](Self::settled_time). A clock that went back
    /// gives the same time to a change once more: the time must be long ago now as well.
    pub(crate) fn is_unchanged(&self, since: Option<SystemTime>) -> bool {
        since.is_some() && self.settled_time().is_ok_and(|now| now == since)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Dir {
    #[allow(clippy::unused_self, reason = "Linux tells")]
    pub(crate) fn mount(&self) -> Option<u64> {
        None
    }
}

/// Elsewhere a file does not tell where it has data.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", target_vendor = "apple")))]
#[allow(clippy::unnecessary_wraps, reason = "elsewhere it is asked")]
pub(crate) fn next_data(_file: &std::fs::File, from: u64) -> io::Result<Option<std::ops::Range<u64>>> {
    Ok(Some(from..u64::MAX))
}

/// Elsewhere each file is flushed by itself, all at once.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod one_by_one {
    use super::{Dir, io};
    use std::fs::File;

    pub(crate) fn start_flush(_file: &File) {}

    pub(crate) fn finish_flush(file: &File) -> io::Result<()> {
        super::sync(file)
    }

    impl Dir {
        #[allow(clippy::unused_self, reason = "Linux looks")]
        pub(crate) fn unwritten(&self) -> Option<u64> {
            None
        }

        pub(crate) fn sync_filesystem(&self) -> io::Result<()> {
            self.sync()
        }
    }
}
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use one_by_one::*;

/// Where the kernel does not tell, those who wait look from time to time.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) struct Watch(std::convert::Infallible);

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Watch {
    pub(crate) fn new(_arrivals: &[&Dir], _changes: &Dir) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_intact(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn sleep(&self, _longest: Duration) -> Woken {
        match self.0 {}
    }

    pub(crate) fn wake(&self) {
        match self.0 {}
    }

    pub(crate) fn take_events(&self) -> bool {
        match self.0 {}
    }
}

/// Where the kernel does not tell, an event loop looks from time to time as well.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) struct Bell(std::convert::Infallible);

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_good(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn descriptor(&self) -> i32 {
        match self.0 {}
    }

    pub(crate) fn join(&self, _watch: &Watch) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn leave(&self, _watch: &Watch) {
        match self.0 {}
    }

    pub(crate) fn ring(&self) {
        match self.0 {}
    }

    pub(crate) fn was_rung(&self) -> bool {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_whose_time_is_that_of_before_but_not_long_ago_may_have_changed() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        assert!(!dir.is_unchanged(Some(dir.changed().unwrap())));
    }
}
