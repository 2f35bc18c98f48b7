//! Claim, settle, recover, requeue, promote and fork: threads of processes on one queue, one system call at a time.
//!
//! A step is one system call, or what the code does in one go under the lock of its table of claims; where it makes system
//! calls under that lock, they are steps and the lock is held from one to the next. Some calls are left out, because nobody
//! can see them: a listing is a hint, so whatever is there now may be in it; closing frees nothing that matters but a lock;
//! and `fsync` is there only for rule 11.
//!
//! | rule | in a line |
//! | --- | --- |
//! | 1 | Only the rename or unlink of a job's own file changes its state. |
//! | 2 | One table of claims per process: a job enters before its directory exists and leaves after that is gone, by whoever entered it. |
//! | 3 | A leftover of the process's own name is judged and moved under that table's lock. |
//! | 4 | A directory that exists is never adopted; the job is moved, settled and removed through the handle of the one that was made. |
//! | 5 | A rename never replaces anything, and is not a link and an unlink. |
//! | 6 | Directories go by `rmdir`; a live owner's is left alone even when empty. |
//! | 7 | To recover: open the directory, judge, look again, move through the handle, `rmdir`. |
//! | 8 | Tokens never come back, and their lock files are never seen unlocked; a PID is dead when no process has it, or one all of whose threads have ended. |
//! | 9 | A token is used only while its lock file is linked; a missing one means dead only if `owners/` is there. |
//! | 10 | A settle that fails keeps entry, directory and verdict; its directory is not reused. |
//! | 11 | A directory may be reused if it was seen empty, its path was handed to nobody, and the queue is not durable. |
//! | 11 | From job to job without a name in between: the next job enters, the directory is seen empty, has the token of the next claim, and gets its name; only then the settled job leaves the table. |
//! | 16 | A forked child starts anew: it settles nothing, closes the lock files and takes a token of its own. |
//! | 23 | A directory that still holds something when the job's file has left it gets a name that is no claim's. |

mod order;
mod search;
mod steps;
mod world;

pub use world::{Action, At, Do, Hold, Place, State, Thread, Verdict, Wrong};

/// A job by its name. Two files may have it: that is what `Config::copy` is for.
pub type Job = u8;
/// A job's bytes.
pub type File = u8;
/// An owner: a PID or a token. Numbers of which no trace is left are given out again, so that births without end need
/// few numbers: to everybody they are new.
pub type Name = u8;
/// A directory's identity. It is free again when neither a name nor a handle is left, as on a disk.
type Inode = u8;
/// A lock file's identity, in the same way.
type Lock = u8;

const JOBS: usize = 2;
const FILES: usize = 2;
const PROCESSES: usize = 3;
const THREADS: usize = 2;
const DIRS: usize = 5;
const LOCKS: usize = 5;
const NAMES: u8 = 8;

/// How owners are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    Tokens,
    Pids,
}

/// A rule of the protocol switched off, or one half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// 1: who made the directory has the job, whatever its rename said.
    R1RenameDecides,
    /// 2: each instance of a process has a table of its own.
    R2OneTable,
    /// 2: the job enters after its directory was made.
    R2EntersFirst,
    /// 2: the job leaves before its directory is gone.
    R2LeavesLast,
    /// 2: a thread that met the job in the table takes it out.
    R2LeavesByWhoEntered,
    /// 3: a leftover is judged under the table's lock, and moved after that was given up.
    R3OneStep,
    /// 4: a directory that is there already is used.
    R4NeverAdopted,
    /// 4: the job is settled through the directory's name.
    R4Handle,
    /// 5: a rename replaces what has the name.
    R5NoReplace,
    /// 5: a link and an unlink in place of the rename.
    R5NotLinkUnlink,
    /// 6: a directory is removed with what is in it.
    R6NotRecursive,
    /// 6: an empty directory is removed whoever has it.
    R6LiveEmptyStays,
    /// 7: first the judgement, then the handle.
    R7HandleFirst,
    /// 7: no second look at what the name means.
    R7SecondLook,
    /// 7: the file is moved by the directory's name.
    R7Handle,
    /// 8: a token comes back.
    R8NeverBack,
    /// 8: the lock file is locked after it got its name.
    R8LockedFirst,
    /// 8: a process whose first thread has ended is dead.
    R8AllThreads,
    /// 8: a zombie is alive.
    R8ZombieIsDead,
    /// 8: a thread's id is a process.
    R8ThreadIsNone,
    /// 9: nobody looks whether the own lock file is still linked.
    R9StillLinked,
    /// 9: a lock file that is missing together with `owners/` means dead.
    R9OwnersThere,
    /// 10: a settle that fails gives up the table's entry.
    R10KeepsEntry,
    /// 10: a settle that fails forgets its verdict.
    R10KeepsVerdict,
    /// 10: the directory of a settle that failed is reused.
    R10NotReused,
    /// 11: a directory is reused without a look whether it is empty.
    R11SeenEmpty,
    /// 11: a directory is reused whose path somebody was told.
    R11NotHandedOut,
    /// 11: directories are reused though the queue is durable.
    R11NotDurable,
    /// 11: a directory goes to the next job though it was seen empty before that was chosen.
    R11SeenEmptyLast,
    /// 11: a directory goes to the next job though that is claimed under another token.
    R11SameToken,
    /// 11: the settled job leaves the table before its directory has the name of the next one.
    R11StaysInTable,
    /// 16: the child settles what its parent claimed.
    R16NeverSettles,
    /// 16: the child keeps its copy of the lock file's descriptor.
    R16ClosesLock,
    /// 16: the child keeps its copy of the lock file that another thread was judging.
    R16ClosesJudged,
    /// 16: the child claims under its parent's token.
    R16OwnToken,
    /// 23: a directory that still holds something when its job is settled keeps its name.
    R23Settle,
    /// 23: a directory that still holds something when its job was recovered keeps its name.
    R23Recovery,
    /// 23: recovery sets a directory aside with the job's file in it.
    R23Emptied,
    /// 23: recovery sets a directory aside that is empty by now.
    R23NotEmpty,
    /// 23: two who recover may set one directory aside at a time.
    R23OneAtATime,
}

impl Without {
    pub const ALL: [Self; 40] = [
        Self::R1RenameDecides,
        Self::R2OneTable,
        Self::R2EntersFirst,
        Self::R2LeavesLast,
        Self::R2LeavesByWhoEntered,
        Self::R3OneStep,
        Self::R4NeverAdopted,
        Self::R4Handle,
        Self::R5NoReplace,
        Self::R5NotLinkUnlink,
        Self::R6NotRecursive,
        Self::R6LiveEmptyStays,
        Self::R7HandleFirst,
        Self::R7SecondLook,
        Self::R7Handle,
        Self::R8NeverBack,
        Self::R8LockedFirst,
        Self::R8AllThreads,
        Self::R8ZombieIsDead,
        Self::R8ThreadIsNone,
        Self::R9StillLinked,
        Self::R9OwnersThere,
        Self::R10KeepsEntry,
        Self::R10KeepsVerdict,
        Self::R10NotReused,
        Self::R11SeenEmpty,
        Self::R11NotHandedOut,
        Self::R11NotDurable,
        Self::R11SeenEmptyLast,
        Self::R11SameToken,
        Self::R11StaysInTable,
        Self::R16NeverSettles,
        Self::R16ClosesLock,
        Self::R16ClosesJudged,
        Self::R16OwnToken,
        Self::R23Settle,
        Self::R23Recovery,
        Self::R23Emptied,
        Self::R23NotEmpty,
        Self::R23OneAtATime,
    ];
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each switches one thing on")]
pub struct Config {
    pub owners: Owners,
    /// Threads of each process; 0 for one that is not there.
    pub threads: [usize; PROCESSES],
    pub jobs: usize,
    /// Directories that may exist in `processing/` at once; a claim that would make one more is not tried.
    pub dirs: usize,
    /// PIDs that there are.
    pub pids: u8,
    pub kills: bool,
    /// Somebody put a second file of the first job's name into `interrupted/`.
    pub copy: bool,
    /// How many renames and removals fail in between.
    pub faults: u8,
    /// Somebody deletes the lock files of those who have no claims.
    pub deletes_locks: bool,
    /// Lock files that nobody has locked are deleted.
    pub sweeps_locks: bool,
    /// Somebody deletes `owners/` with all that is in it.
    pub deletes_owners: bool,
    /// Whoever opens the queue next makes `owners/` again.
    pub remakes_owners: bool,
    /// A handler leaves a file of its own beside the job's.
    pub litters: bool,
    /// Processes fork.
    pub forks: bool,
    /// Queues are closed while others of the process go on, which gives up the token.
    pub releases: bool,
    /// First threads end before others, and dead processes are not waited for.
    pub zombies: bool,
    /// PIDs of the dead become ids of threads.
    pub thread_ids: bool,
    /// Somebody gives a claim's name to another directory, with a file of the job's name in it.
    pub swaps: bool,
    /// Directories are reused from one claim to the next, with a name that is no claim's in between.
    pub reuses: bool,
    /// Directories go from a settled job to the next one of the same thread.
    pub passes_on: bool,
    /// Handlers are told the path, and may use it later than they should.
    pub hands_out: bool,
    /// The queue is durable, and the power may be cut.
    pub durable: bool,
    /// It is no matter that a live claim's empty directory is removed: the claim fails then, and the job stays queued.
    pub only_harm: bool,
    /// Retries may be put off; successful jobs may be deleted.
    pub all_verdicts: bool,
    pub without: Option<Without>,
}

impl Config {
    #[must_use]
    pub const fn new(owners: Owners, threads: [usize; PROCESSES]) -> Self {
        Self {
            owners,
            threads,
            jobs: 1,
            dirs: 3,
            pids: 2,
            kills: true,
            copy: false,
            faults: 0,
            deletes_locks: false,
            sweeps_locks: false,
            deletes_owners: false,
            remakes_owners: false,
            litters: false,
            forks: false,
            releases: false,
            zombies: false,
            thread_ids: false,
            swaps: false,
            reuses: false,
            passes_on: false,
            hands_out: false,
            durable: false,
            only_harm: false,
            all_verdicts: false,
            without: None,
        }
    }

    fn is_off(&self, rule: Without) -> bool {
        self.without == Some(rule)
    }
}

fn number(index: usize) -> u8 {
    u8::try_from(index).expect("few")
}
