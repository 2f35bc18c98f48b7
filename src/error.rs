//! What can go wrong, once for the whole crate. Every failed system call keeps its `errno` and the path it was about.

use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::job::LONGEST_NAME;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The system's own error, with its `errno`.
        source: io::Error,
        /// The file or directory that the call was about.
        path: PathBuf,
    },
    /// The filesystem refuses `flock`, so lock files can't tell whether a consumer lives.
    #[error("{}: this filesystem refuses file locks ({source}); open the queue with crash detection by PID", path.display())]
    NoLocks {
        /// What `flock` answered.
        source: io::Error,
        /// The lock file.
        path: PathBuf,
    },
    /// A file to be sent is a symlink, a directory, a FIFO, ...
    #[error("{}: {what}", path.display())]
    NotRegular {
        /// What it is, and what can be sent instead.
        what: &'static str,
        /// `EISDIR` for a directory, else `EINVAL`.
        kind: io::ErrorKind,
        /// The file.
        path: PathBuf,
    },
    /// A file that was to be moved changed while it was copied to the queue's filesystem.
    #[error("{}: it changed while it was copied, and is left where it is", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file name that can't be a job's.
    #[error("{what}")]
    Name {
        /// What is wrong with it.
        what: String,
    },
    /// A due time that does not fit into the 13 digits of a scheduled job's name.
    #[error("the delay ends after the year 2286, the last that a scheduled job's name can hold")]
    TooLate,
    /// There is no room for a job: too many wait, or the disk is too full. Nothing was sent.
    #[error("{what}")]
    Full {
        /// How much there is of what, and the limit.
        what: String,
    },
    /// More jobs at once than may ever wait.
    #[error("{jobs} jobs can't be sent at once: max_queued is {most}")]
    TooMany {
        /// How many they are.
        jobs: u64,
        /// The limit.
        most: u64,
    },
    /// Jobs were published, and then something failed: they exist, and sending them again would run them twice.
    #[error("{source}, after {} job(s) had been sent", sent.len())]
    Sent {
        /// What failed.
        source: Box<Error>,
        /// The jobs that exist, in the order of the items sent.
        sent: Vec<Uuid>,
    },
    /// The verdict is taken, but the disk did not take it yet.
    #[error("{source}; the verdict is kept, and tried again whenever this process looks for jobs")]
    Unsettled {
        /// What failed.
        source: Box<Error>,
    },
    /// The claim belongs to the process that this one was forked from.
    #[error("the job belongs to the parent process: a forked child can't settle it")]
    Inherited,
    /// The caller, asked whether to go on, said no. Nothing was done.
    #[error("stopped by the caller")]
    Stopped,
    /// [`Queue::close`](crate::Queue::close) was called.
    #[error("the queue is closed; open another one on the directory")]
    Closed,
}

impl Error {
    /// The `errno` of the failed call, where there was one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::NoLocks { source, .. } => source.raw_os_error(),
            Self::Sent { source, .. } | Self::Unsettled { source } => source.errno(),
            _ => None,
        }
    }

    /// The path that the failed call was about, where there was one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::NoLocks { path, .. }
            | Self::NotRegular { path, .. }
            | Self::Changed { path } => Some(path),
            Self::Sent { source, .. } | Self::Unsettled { source } => source.path(),
            _ => None,
        }
    }

    /// The kind of the failed call's error, where there was one.
    #[must_use]
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } | Self::NoLocks { source, .. } => Some(source.kind()),
            Self::NotRegular { kind, .. } => Some(*kind),
            Self::Changed { .. } => Some(io::ErrorKind::ResourceBusy),
            Self::Sent { source, .. } | Self::Unsettled { source } => source.kind(),
            _ => None,
        }
    }

    /// Whether nothing was done, so that it can be tried again.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// Whether it may be over by itself, so that who waits goes on waiting.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Unsettled { .. })
    }

    /// Whether something that the call named is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    /// What the failures of many jobs have in common: the storage that refuses, or the directory. It is told once for all.
    pub(crate) fn cause(&self) -> String {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match (self.kind(), self.path().and_then(Path::parent)) {
            (Some(kind @ (QuotaExceeded | ReadOnlyFilesystem | StorageFull)), _) => kind.to_string(),
            (Some(kind), Some(dir)) => format!("{}: {kind}", dir.display()),
            _ => self.to_string(),
        }
    }

    pub(crate) fn too_long(length: usize) -> Self {
        Self::Name {
            what: format!("the file name has {length} bytes; the longest that can be sent has {LONGEST_NAME}"),
        }
    }
}

/// Adds the path to a system call's error.
pub(crate) trait At<T> {
    fn at(self, path: impl FnOnce() -> PathBuf) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: impl FnOnce() -> PathBuf) -> Result<T> {
        self.map_err(|source| Error::Io { source, path: path() })
    }
}
