//! A job queue made of plain directories.
//!
//! One program hands over work (some bytes, or a file) and moves on; other processes or threads take each job, once,
//! and do it. Jobs are files: a job's state is the directory that it is in, and every change of state is one rename.
//!
//! ```text
//! send ──> queued/ ──claim──> processing/<job>.<owner>/ ──settle──> success/ failed/ (or deleted)
//!   │         ^                    │        │
//!   └> scheduled/ <──retry later───┘        └──owner dead──> interrupted/
//! ```
//!
//! # The protocol and its hazards
//! - A job appears by a rename of a finished file from `tmp/`: nobody sees half of one.
//! - A job is claimed by a rename into a directory that the claimer made: of two, one finds it gone.
//! - No rename replaces anything, no directory is removed with something in it: what holds bytes is never destroyed by
//!   a race.
//! - A consumer that dies leaves its claims behind. Their owner's name tells that it is dead (see [`CrashDetection`]);
//!   the job becomes `interrupted` and waits for a decision, since nobody knows how far it came.
//! - A forked child shares no claim and no lock with its parent.
//!
//! ```
//! use pacchettino::{CrashDetection, KeepPolicy, Kinds, Order, Outcome, Queue};
//! use std::time::Duration;
//!
//! # let directory = tempfile::tempdir()?;
//! let queue = Queue::open(directory.path(), KeepPolicy::ALL, false, CrashDetection::LockFile)?;
//! let id = queue.send(b"hello", None)?;
//! let claim = queue.claim(Kinds::ANY, Order::Fifo, Some(Duration::ZERO), Duration::MAX, || true)?.expect("a job waits");
//! assert_eq!(claim.job()?.id(), id);
//! assert_eq!(claim.read()?, b"hello");
//! claim.settle(Outcome::Success)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// A named place between two system calls, where a test can stop a thread.
#[cfg(feature = "failpoints")]
macro_rules! step {
    ($name:literal) => {
        fail::fail_point!($name)
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! step {
    ($name:literal) => {};
}

mod cancel;
mod claim;
mod error;
mod flush;
mod fork;
mod handle;
mod history;
mod inspect;
mod job;
mod layout;
mod leftover;
mod limits;
mod listing;
mod lookup;
mod notice;
mod owner;
mod pause;
mod policy;
mod publish;
mod queue;
mod recover;
mod shared;
mod spare;
mod stats;
mod sys;
mod wait;

#[cfg(feature = "python")]
mod python;

/// What the fuzz targets run with the bytes that they invent (`fuzz/`), and the tests with their corpus.
#[cfg(all(unix, any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzz {
    pub use crate::history::fuzz::history_records;
    pub use crate::job::fuzz::entry_names;

    #[test]
    fn what_holds_of_any_bytes_holds_of_the_corpus() {
        use std::io::Write as _;

        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        if !corpus.is_dir() {
            // Unlike what `eprintln!` prints, this is shown.
            _ = writeln!(std::io::stderr(), "NOT TESTED: needs the corpus, which is not in the package");
            return;
        }
        for (name, target) in [("entry_names", entry_names as fn(&[u8])), ("history_records", history_records)] {
            let files: Vec<_> = std::fs::read_dir(corpus.join(name)).unwrap().collect();
            assert!(!files.is_empty());
            for file in files {
                target(&std::fs::read(file.unwrap().path()).unwrap());
            }
        }
    }
}

pub use claim::Claim;
pub use error::{Error, Result};
pub use history::{Ended, Record, Why};
pub use inspect::{Fault, Finding, Inspection};
pub use job::{Due, Job, JobRef, Kind, Kinds, LONGEST_NAME, OwnerName, Token, sent_at};
pub use limits::Limits;
pub use listing::Order;
pub use notice::Notice;
pub use owner::CrashDetection;
pub use policy::{KeepPolicy, Outcome, State};
pub use publish::Transfer;
pub use queue::{Consumer, Glance, JobInfo, Jobs, Queue};
pub use shared::release_all;
pub use stats::{HeldJob, Stats, Survey};
pub use wait::{Listener, shorten_waits};
