//! The rules of the protocol, one by one: a thread is stopped between two of its system calls, something else goes by,
//! and the thread goes on. Run with `--features failpoints`, which compile the stops in.
#![cfg(feature = "failpoints")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end that way")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fail::FailScenario;
use pacchettino::{
    Claim, CrashDetection, Due, Ended, Error, Job, JobRef, KeepPolicy, Kinds, Order, Outcome, Queue, State, Transfer,
};
#[cfg(target_os = "linux")]
use pacchettino::{Glance, Listener};

/// A token of nobody's in these tests, and a PID that no process has (Linux goes no further than 4194304).
const FOREIGN: &str = "aaaaaaaaaa";
const DEAD_PID: &str = "4194303";

/// A queue in a directory of its own, and the only test that runs with stops.
struct World {
    home: tempfile::TempDir,
    queue: Arc<Queue>,
    _alone: FailScenario<'static>,
}

impl World {
    fn new() -> Self {
        let alone = FailScenario::setup();
        let mut home = tempfile::tempdir().unwrap();
        // Under Wine a directory that is open stays, and who deletes all that is in another one tries for ever.
        home.disable_cleanup(cfg!(windows));
        let queue = Arc::new(open(home.path()));
        Self { home, queue, _alone: alone }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(path)
    }

    fn send(&self, data: &str) -> Job {
        let id = self.queue.send(data.as_bytes(), None).unwrap();
        Job::parse(OsStr::new(&format!("raw-{id}"))).unwrap()
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whether a claim's directory has something in it, but not its job.
    fn is_left(&self, claim: &str) -> bool {
        let left = self.names(&format!("processing/{claim}"));
        !left.is_empty() && !left.contains(&"raw".into())
    }

    /// The token under which this process claims.
    fn token(&self) -> String {
        self.names("owners").pop().expect("this process has a lock file")
    }

    /// A claim as another process would have it, with or without the job's file in it.
    fn lay_claim(&self, job: &Job, owner: &str, data: Option<&str>) -> PathBuf {
        let dir = self.path("processing").join(format!("{}.{owner}", job.entry().display()));
        fs::create_dir(&dir).unwrap();
        if let Some(data) = data {
            fs::write(dir.join("raw"), data).unwrap();
        }
        dir
    }

    /// Where a claim's directory is once it was set aside.
    fn aside(&self, job: &Job) -> PathBuf {
        self.path("processing").join(format!("{}.left-1", job.entry().display()))
    }

    /// Looks after the dead in a thread of that name.
    fn recover_in_thread(&self, name: &str) -> JoinHandle<()> {
        let queue = Arc::clone(&self.queue);
        thread(name, move || drop(queue.recover(&[]).unwrap()))
    }

    /// The lock file of another process that lives.
    fn lock(&self, token: &str) -> fs::File {
        system::lock(&self.path("owners").join(token))
    }

    fn status(&self, job: &Job) -> Option<State> {
        self.queue.status(&JobRef::Entry(job.clone())).unwrap()
    }

    /// A look that finds nothing to claim, and so only recovers and promotes.
    fn look(&self) {
        assert!(claim(&self.queue).is_none());
    }

    /// Waits for a job, for ever, in a thread of that name.
    fn wait_in_thread(&self, name: &str) -> JoinHandle<Option<Claim>> {
        let queue = Arc::clone(&self.queue);
        thread(name, move || queue.claim(Kinds::ANY, Order::Fifo, None, Duration::MAX, || true).unwrap())
    }

    /// The same as an event loop waits: it sleeps until a descriptor is ready.
    #[cfg(target_os = "linux")]
    fn listen_in_thread(&self, name: &str) -> JoinHandle<Option<Claim>> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

        let queue = Arc::clone(&self.queue);
        thread(name, move || {
            let listener = Arc::new(Listener::new());
            // SAFETY: it is open as long as the listener lives.
            let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(listener.descriptor().unwrap()) };
            loop {
                match queue.glance(Kinds::ANY, Order::Fifo, None, &listener).unwrap() {
                    Glance::Claimed(claim) => return Some(claim),
                    Glance::Over => return None,
                    Glance::Nothing(_) => {
                        poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
                        listener.heard();
                    }
                }
            }
        })
    }

    /// Runs `claim` in a thread of that name.
    fn claim_in_thread(&self, name: &str) -> JoinHandle<Option<Claim>> {
        let queue = Arc::clone(&self.queue);
        thread(name, move || claim(&queue))
    }
}

fn open(base: &Path) -> Queue {
    Queue::open(base, KeepPolicy::ALL, false, CrashDetection::LockFile).unwrap()
}

fn claim(queue: &Queue) -> Option<Claim> {
    queue.claim(Kinds::ANY, Order::Fifo, Some(Duration::ZERO), Duration::MAX, || true).unwrap()
}

fn thread<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.into()).spawn(f).unwrap()
}

/// What each system calls otherwise.
#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use fs2::FileExt;

    pub(crate) fn lock(path: &Path) -> File {
        let lock = File::create(path).unwrap();
        lock.try_lock_exclusive().unwrap();
        lock
    }

    pub(crate) fn is_locked(path: &Path) -> bool {
        File::open(path).unwrap().try_lock_exclusive().is_err()
    }

    pub(crate) fn identity(path: &Path) -> (File, u64) {
        let file = File::open(path).unwrap();
        let inode = file.metadata().unwrap().ino();
        (file, inode)
    }

    pub(crate) fn link(target: &Path, path: &Path) {
        std::os::unix::fs::symlink(target, path).unwrap();
    }
}

/// A lock is a file open without sharing.
#[cfg(windows)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::os::windows::fs::OpenOptionsExt;
    use std::os::windows::io::AsRawHandle;
    use std::path::Path;

    use windows_sys::Win32::Storage::FileSystem::{
        BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, GetFileInformationByHandle,
    };

    pub(crate) fn lock(path: &Path) -> File {
        OpenOptions::new().write(true).create_new(true).share_mode(0).open(path).unwrap()
    }

    pub(crate) fn is_locked(path: &Path) -> bool {
        File::open(path).is_err()
    }

    pub(crate) fn identity(path: &Path) -> (File, u64) {
        let file = OpenOptions::new().access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path).unwrap();
        let mut found = BY_HANDLE_FILE_INFORMATION::default();
        // SAFETY: an open handle, and the structure that the call fills.
        assert_ne!(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut found) }, 0);
        (file, u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow))
    }

    pub(crate) fn link(target: &Path, path: &Path) {
        if target.is_dir() {
            std::os::windows::fs::symlink_dir(target, path).unwrap();
        } else {
            std::os::windows::fs::symlink_file(target, path).unwrap();
        }
    }
}

/// A place where one thread stops, the first time that it comes by.
struct Stop {
    reached: Receiver<()>,
    go: Sender<()>,
}

impl Stop {
    fn at(place: &str, thread: &'static str) -> Self {
        let (tell, reached) = channel();
        let (go, wait) = channel();
        let once = Mutex::new(Some((tell, wait)));
        fail::cfg_callback(place, move || {
            if std::thread::current().name() == Some(thread)
                && let Some((tell, wait)) = once.lock().unwrap().take()
            {
                tell.send(()).unwrap();
                wait.recv().unwrap();
            }
        })
        .unwrap();
        Self { reached, go }
    }

    fn reached(&self) {
        self.reached.recv_timeout(Duration::from_secs(60)).expect("the thread never came by");
    }

    /// That the thread is held up somewhere before this place.
    fn is_not_reached(&self) {
        assert_eq!(self.reached.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    }

    fn go(&self) {
        self.go.send(()).unwrap();
    }
}

#[test]
fn rule_1_a_directory_claims_nothing_only_the_rename_does() {
    let world = World::new();
    let job = world.send("work");
    let stop = Stop::at("claim: opened", "slow");
    let slow = world.claim_in_thread("slow");
    stop.reached();
    assert_eq!(world.names("processing").len(), 1);
    assert_eq!(world.status(&job), Some(State::Queued));

    // Another process is faster.
    let _alive = world.lock(FOREIGN);
    let theirs = world.lay_claim(&job, FOREIGN, None);
    fs::rename(world.path("queued").join(job.entry()), theirs.join("raw")).unwrap();
    stop.go();

    assert!(slow.join().unwrap().is_none());
    assert_eq!(world.names("processing"), [theirs.file_name().unwrap().to_str().unwrap()]);
}

#[test]
fn rule_2_a_thread_skips_the_job_that_another_thread_is_claiming() {
    for place in ["claim: entered", "claim: made", "claim: opened", "claim: taken"] {
        let world = World::new();
        world.send("work");
        let link = tempfile::tempdir().unwrap();
        system::link(world.home.path(), &link.path().join("queue"));
        let same_queue = open(&link.path().join("queue"));

        let stop = Stop::at(place, "first");
        let first = world.claim_in_thread("first");
        stop.reached();
        assert!(claim(&same_queue).is_none(), "{place}: it was claimed twice, or recovered");
        stop.go();

        let claim = first.join().unwrap().expect("the claim was disturbed");
        assert_eq!(claim.read().unwrap(), b"work");
        claim.settle(Outcome::Success).unwrap();
        assert_eq!((world.names("success").len(), world.names("processing").len()), (1, 0));
    }
}

#[test]
fn rule_2_a_job_leaves_the_table_after_its_directory_is_gone() {
    let world = World::new();
    world.send("work");
    let held = claim(&world.queue).unwrap();
    let stop = Stop::at("settle: flushed", "settler");
    let settler = thread("settler", move || held.settle(Outcome::Retry(None)));
    stop.reached();
    // The job is back in the queue, its old directory is still there: it is not to be claimed into that.
    assert_eq!((world.names("queued").len(), world.names("processing").len()), (1, 1));
    assert!(claim(&world.queue).is_none());
    stop.go();
    settler.join().unwrap().unwrap();
    assert!(claim(&world.queue).is_some());
}

#[test]
fn rule_3_a_leftover_of_the_own_name_is_judged_and_moved_in_one_step() {
    let world = World::new();
    let job = world.send("leftover");
    let entry = world.path("queued").join(job.entry());
    fs::remove_file(&entry).unwrap();
    world.lay_claim(&job, &world.token(), Some("leftover"));

    let judged = Stop::at("recover: looked", "recoverer");
    let entered = Stop::at("claim: entered", "claimer");
    let recoverer = world.claim_in_thread("recoverer");
    judged.reached();
    // Meanwhile a thread would claim that very job.
    fs::write(&entry, "again").unwrap();
    let claimer = world.claim_in_thread("claimer");
    entered.is_not_reached();
    judged.go();
    let first = recoverer.join().unwrap();
    entered.go();
    let second = claimer.join().unwrap();

    assert_eq!(fs::read(world.path("interrupted").join(job.entry())).unwrap(), b"leftover");
    let again = first.or(second).expect("one of the two claims the job");
    assert_eq!(again.read().unwrap(), b"again");
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn rule_4_a_directory_that_is_there_is_not_adopted() {
    let world = World::new();
    let job = world.send("work");
    let stop = Stop::at("claim: entered", "claimer");
    let claimer = world.claim_in_thread("claimer");
    stop.reached();
    let leftover = world.lay_claim(&job, &world.token(), None);
    let (_open, inode) = system::identity(&leftover); // open, so that no other gets its number
    stop.go();
    // Recovery removes it, and the way is free.
    let held = claimer.join().unwrap().unwrap();
    assert_eq!(held.read().unwrap(), b"work");
    assert_eq!(held.path().unwrap().parent(), Some(&*leftover));
    assert_ne!(system::identity(&leftover).1, inode);
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn rule_4_a_job_is_reached_through_the_directory_that_was_made_for_it() {
    for place in ["claim: opened", "claim: taken", "claim: confirmed"] {
        let world = World::new();
        let job = world.send("mine");
        let stop = Stop::at(place, "claimer");
        let claimer = world.claim_in_thread("claimer");
        stop.reached();
        // Its name becomes somebody else's, who has a file there.
        let name = world.path("processing").join(&world.names("processing")[0]);
        fs::rename(&name, world.path("processing/elsewhere")).unwrap();
        fs::create_dir(&name).unwrap();
        fs::write(name.join("raw"), "theirs").unwrap();
        stop.go();
        let claim = claimer.join().unwrap().unwrap();
        assert_eq!(claim.read().unwrap(), b"mine");
        claim.settle(Outcome::Success).unwrap();
        assert_eq!(fs::read(world.path("success").join(job.entry())).unwrap(), b"mine");
        assert_eq!(fs::read(name.join("raw")).unwrap(), b"theirs");
    }
}

#[test]
fn rule_5_no_move_replaces_a_file() {
    let world = World::new();
    let check = |from: PathBuf, to: PathBuf| {
        assert_eq!(fs::read(from).unwrap(), b"mine");
        assert_eq!(fs::read(&to).unwrap(), b"theirs");
        fs::remove_file(to).unwrap();
    };

    // Settle: the claim is kept, and the verdict is tried again.
    let job = world.send("mine");
    let held = claim(&world.queue).unwrap();
    let file = held.path().unwrap();
    let there = world.path("success").join(job.entry());
    fs::write(&there, "theirs").unwrap();
    assert!(matches!(held.settle(Outcome::Success), Err(Error::Unsettled { .. })));
    check(file, there);
    world.look();
    assert_eq!(world.status(&job), Some(State::Success));

    // Requeue.
    let there = world.path("queued").join(job.entry());
    fs::write(&there, "theirs").unwrap();
    assert!(world.queue.requeue(&JobRef::Entry(job.clone())).is_err());
    check(world.path("success").join(job.entry()), there);

    // Recover.
    let there = world.path("interrupted").join(job.entry());
    let file = world.lay_claim(&job, DEAD_PID, Some("mine")).join("raw");
    fs::write(&there, "theirs").unwrap();
    world.look();
    check(file, there);
    world.look();
    assert_eq!(fs::read(world.path("interrupted").join(job.entry())).unwrap(), b"mine");

    // Promote.
    let due = world.path("scheduled").join(format!("0000000000001-{}", job.entry().display()));
    fs::write(&due, "mine").unwrap();
    let there = world.path("queued").join(job.entry());
    fs::write(&there, "theirs").unwrap();
    let first = claim(&world.queue).unwrap();
    assert_eq!(first.read().unwrap(), b"theirs");
    drop(first); // interrupted: there is one of that name already
    assert_eq!(fs::read(world.path("interrupted").join(job.entry())).unwrap(), b"mine");
}

#[test]
fn rule_6_a_directory_with_something_in_it_is_not_removed() {
    let world = World::new();
    let job = world.send("work");
    let held = claim(&world.queue).unwrap();
    let beside = held.path().unwrap().with_file_name("beside");
    fs::write(&beside, "bytes").unwrap();
    held.settle(Outcome::Success).unwrap();
    assert_eq!(world.status(&job), Some(State::Success));
    world.look();
    assert_eq!(fs::read(world.aside(&job).join("beside")).unwrap(), b"bytes");

    let orphan = world.lay_claim(&world_job(1), DEAD_PID, Some("work"));
    fs::write(orphan.join("beside"), "bytes").unwrap();
    world.look();
    assert_eq!(fs::read(world.aside(&world_job(1)).join("beside")).unwrap(), b"bytes");
    assert_eq!(world.status(&world_job(1)), Some(State::Interrupted));
}

#[test]
fn rule_6_a_live_owners_directory_stays_even_when_it_is_empty() {
    let world = World::new();
    let lock = world.lock(FOREIGN);
    let empty = world.lay_claim(&world_job(1), FOREIGN, None);
    world.look();
    assert!(empty.exists());
    drop(lock);
    world.look();
    assert!(!empty.exists());
    assert!(!world.path("owners").join(FOREIGN).exists());
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn rule_7_a_claim_made_after_the_judgement_is_not_touched() {
    let world = World::new();
    let job = world_job(1);
    let name = world.lay_claim(&job, DEAD_PID, Some("old"));
    let stop = Stop::at("recover: judged", "recoverer");
    let recoverer = world.claim_in_thread("recoverer");
    stop.reached();
    // Another recovery was faster, the job was requeued, and the PID was born again and claimed it.
    fs::rename(name.join("raw"), world.path("interrupted").join(job.entry())).unwrap();
    fs::remove_dir(&name).unwrap();
    let name = world.lay_claim(&job, DEAD_PID, Some("new"));
    let live = system::identity(&name).1;
    stop.go();
    assert!(recoverer.join().unwrap().is_none());
    assert_eq!(fs::read(name.join("raw")).unwrap(), b"new");
    assert_eq!(system::identity(&name).1, live);
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn rule_7_the_file_is_moved_through_the_handle() {
    let world = World::new();
    let job = world_job(1);
    let name = world.lay_claim(&job, DEAD_PID, Some("old"));
    let stop = Stop::at("recover: looked", "recoverer");
    let recoverer = world.claim_in_thread("recoverer");
    stop.reached();
    fs::rename(&name, world.path("processing/elsewhere")).unwrap();
    let name = world.lay_claim(&job, DEAD_PID, Some("new"));
    stop.go();
    assert!(recoverer.join().unwrap().is_none());
    assert_eq!(fs::read(world.path("interrupted").join(job.entry())).unwrap(), b"old");
    assert_eq!(fs::read(name.join("raw")).unwrap(), b"new");
}

#[test]
fn rule_7_two_recoveries_move_an_orphan_once() {
    for place in ["recover: opened", "recover: judged", "recover: looked", "recover: moved"] {
        let world = World::new();
        let job = world_job(1);
        let orphan = world.lay_claim(&job, FOREIGN, Some("work"));
        let stop = Stop::at(place, "slow");
        let slow = world.claim_in_thread("slow");
        stop.reached();
        // Another process's recovery is faster, unless this one has moved the file already.
        _ = fs::rename(orphan.join("raw"), world.path("interrupted").join(job.entry()));
        fs::remove_dir(&orphan).unwrap();
        stop.go();
        assert!(slow.join().unwrap().is_none());
        assert_eq!(fs::read(world.path("interrupted").join(job.entry())).unwrap(), b"work", "{place}");
        assert_eq!(world.names("processing").len(), 0, "{place}");
    }
}

#[test]
fn rule_8_a_token_does_not_come_back() {
    let mut seen = std::collections::HashSet::new();
    let world = World::new();
    for _ in 0..100 {
        let queue = open(world.home.path());
        world.queue.close();
        queue.send(b"", None).unwrap();
        assert!(seen.insert(world.token()));
        queue.close();
        drop(queue);
        assert_eq!(world.names("owners"), [""; 0], "the lock file goes with its last user");
    }
}

#[test]
fn rule_8_a_lock_file_is_never_seen_unlocked() {
    for place in ["owner: made", "owner: locked"] {
        let world = World::new();
        let stop = Stop::at(place, "opener");
        let queue = Arc::clone(&world.queue);
        let opener = thread("opener", move || queue.send(b"work", None));
        stop.reached();
        assert_eq!(world.names("owners"), [""; 0]);
        stop.go();
        opener.join().unwrap().unwrap();
        assert!(system::is_locked(&world.path("owners").join(world.token())), "the owner has the lock");
    }
}

#[test]
#[cfg_attr(windows, ignore = "NOT TESTED: on Windows nobody can delete what is open")]
fn rule_9_a_lock_file_that_was_deleted_is_not_claimed_under() {
    let world = World::new();
    world.send("work");
    let deleted = world.token();
    fs::remove_file(world.path("owners").join(&deleted)).unwrap();
    let held = claim(&world.queue).unwrap();
    assert_ne!(world.token(), deleted);
    assert!(held.path().unwrap().parent().unwrap().to_str().unwrap().ends_with(&world.token()));
}

#[test]
fn rule_9_without_the_directory_of_lock_files_nobody_is_dead() {
    let world = World::new();
    let theirs = world.lay_claim(&world_job(1), FOREIGN, Some("work"));
    let stop = Stop::at("recover: opened", "recoverer");
    let recoverer = world.claim_in_thread("recoverer");
    stop.reached();
    fs::remove_dir_all(world.path("owners")).unwrap();
    let owners = world.path("owners");
    fail::cfg_callback("recover: judged", move || assert!(owners.exists(), "judged dead without it")).unwrap();
    stop.go();
    recoverer.join().unwrap();
    // The look that met this made the directory again; with it, a missing lock file tells.
    assert_eq!(world.status(&world_job(1)), Some(State::Interrupted));
    assert!(!theirs.exists());
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn rule_10_a_settle_that_fails_keeps_the_claim_and_the_verdict() {
    let world = World::new();
    let job = world.send("work");
    let held = claim(&world.queue).unwrap();
    let file = held.path().unwrap();
    fs::remove_dir(world.path("failed")).unwrap();
    assert!(matches!(held.settle(Outcome::Failed), Err(Error::Unsettled { .. })));
    assert_eq!(fs::read(&file).unwrap(), b"work");
    assert_eq!(world.status(&job), Some(State::Processing));

    // It is neither recovered nor reused while others work.
    world.send("other");
    let other = claim(&world.queue).unwrap();
    assert_eq!(other.read().unwrap(), b"other");
    other.settle(Outcome::Success).unwrap();

    world.look();
    assert_eq!(world.status(&job), Some(State::Failed));
    assert_eq!(world.names("processing"), [""; 0]);
}

/// Handles twenty jobs in a row, and says how many directories were made for them.
fn directories_made(world: &World, queue: &Queue, send: impl Fn(), meanwhile: impl Fn(&Claim)) -> usize {
    let made = Arc::new(Mutex::new(0));
    let count = Arc::clone(&made);
    fail::cfg_callback("claim: made", move || *count.lock().unwrap() += 1).unwrap();
    for _ in 0..20 {
        send();
        let held = claim(queue).unwrap();
        meanwhile(&held);
        _ = held.settle(Outcome::Success);
        assert!(world.names("processing").iter().filter(|name| name.starts_with("spare-")).count() <= 1);
        assert_eq!(queue.count(State::Processing).unwrap(), 0);
    }
    assert!(claim(queue).is_none());
    assert!(!world.names("processing").iter().any(|name| name.starts_with("spare-")), "who has no job shows none");
    *made.lock().unwrap()
}

#[test]
#[cfg_attr(windows, ignore = "NOT TESTED: on Windows no directory is used again")]
fn rule_11_a_directory_is_used_again_where_nobody_else_can_be_in_it() {
    let world = World::new();
    let send = || _ = world.send("work");
    assert_eq!(directories_made(&world, &world.queue, send, |_| ()), 4);
    assert_eq!(world.names("processing"), [""; 0]);
    let handed_out = |held: &Claim| _ = held.path().unwrap();
    assert_eq!(directories_made(&world, &world.queue, send, handed_out), 20);
    let durable = Queue::open(world.home.path(), KeepPolicy::ALL, true, CrashDetection::LockFile).unwrap();
    assert_eq!(directories_made(&world, &durable, send, |_| ()), 20);
    world.queue.set_crash_detection(CrashDetection::Pid);
    assert_eq!(directories_made(&world, &world.queue, send, |_| ()), 20);
    world.queue.set_crash_detection(CrashDetection::LockFile);
    assert_eq!(world.names("processing"), [""; 0]);

    // Nobody told where it is, and still somebody puts something there, or takes the file.
    let dir = || {
        let names = world.names("processing");
        world
            .path("processing")
            .join(names.iter().find(|name| name.starts_with("raw-") && !world.is_left(name)).unwrap())
    };
    assert_eq!(directories_made(&world, &world.queue, send, |_| fs::write(dir().join("more"), "theirs").unwrap()), 20);
    assert_eq!(directories_made(&world, &world.queue, send, |_| fs::remove_file(dir().join("raw")).unwrap()), 20);
}

/// A pass in which the directories of claims are used again, and the last of its claims so far.
#[cfg(target_os = "linux")]
fn pass_with_reuse(world: &World) -> (pacchettino::Consumer, Claim) {
    for job in 0..20 {
        world.send(&job.to_string());
    }
    let mut pass = world.queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    for _ in 0..5 {
        world.queue.claim_next(&mut pass).unwrap().unwrap().settle(Outcome::Success).unwrap();
    }
    let last = world.queue.claim_next(&mut pass).unwrap().unwrap();
    (pass, last)
}

#[test]
#[cfg(target_os = "linux")]
fn rule_11_in_a_pass_a_directory_goes_from_job_to_job_and_goes_with_the_pass() {
    let world = World::new();
    let (mut pass, claim) = pass_with_reuse(&world);
    let dir = world.names("processing");
    let number = || {
        let dir = world.path("processing").join(&world.names("processing")[0]);
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir).unwrap())
    };
    let same = number();
    claim.settle(Outcome::Failed).unwrap();
    assert_eq!(world.names("processing"), dir, "it keeps its name until there is another");
    assert_eq!(world.queue.count(State::Processing).unwrap(), 0);
    let _looked = open(world.home.path()).pass(Kinds { data: false, file: true }, Order::Fifo).unwrap();
    assert_eq!(world.names("processing"), dir, "who looks after the dead does not take it for a leftover");
    let next = world.queue.claim_next(&mut pass).unwrap().unwrap();
    assert_ne!(world.names("processing"), dir);
    assert_eq!(number(), same);
    next.settle(Outcome::Success).unwrap();
    pass.end();
    assert_eq!(world.names("processing"), [""; 0]);
    // Who has begun a job settles it all the same.
    drop(pass);
    let (pass, claim) = pass_with_reuse(&world);
    drop(pass);
    claim.settle(Outcome::Success).unwrap();
    assert!(!world.names("processing").iter().any(|name| name.starts_with("raw-")));
}

#[test]
#[cfg(target_os = "linux")]
fn rule_11_a_job_whose_directory_waits_under_its_name_is_claimed_again_once_that_is_gone() {
    let world = World::new();
    let (pass, held) = pass_with_reuse(&world);
    let job = held.job().unwrap().clone();
    held.settle(Outcome::Success).unwrap();
    assert!(world.queue.requeue(&JobRef::Entry(job.clone())).unwrap());
    let others: Vec<_> = (6..20).map(|_| claim(&world.queue).unwrap()).collect();
    assert!(others.iter().all(|other| other.job().unwrap().id() != job.id()), "its last claim is not over");
    fail::cfg("wait: no slow poll", "return").unwrap();
    let again = world.wait_in_thread("waiting").join().unwrap().unwrap();
    assert_eq!(again.job().unwrap().id(), job.id());
    drop(pass);
}

#[test]
#[cfg(target_os = "linux")]
fn rule_23_what_somebody_puts_into_a_directory_that_waits_is_set_aside_and_told() {
    for goes_on in [true, false] {
        let world = World::new();
        let (mut pass, claim) = pass_with_reuse(&world);
        let id = claim.job().unwrap().id();
        claim.settle(Outcome::Success).unwrap();
        let dir = world.path("processing").join(&world.names("processing")[0]);
        fs::write(dir.join("raw"), "theirs").unwrap();
        fs::write(dir.join("more"), "theirs, too").unwrap();
        if goes_on {
            let next = world.queue.claim_next(&mut pass).unwrap().unwrap();
            assert_eq!(next.read().unwrap(), b"6");
        } else {
            pass.end();
        }
        assert!(!dir.exists(), "it has a claim's name");
        let aside = world.aside(&Job::parse(OsStr::new(&format!("raw-{id}"))).unwrap());
        assert_eq!(fs::read(aside.join("raw")).unwrap(), b"theirs");
        let told = world.queue.take_notices();
        assert_eq!(told.len(), 1);
        for part in [&*id.to_string(), "'more', 'raw' was left in", &*aside.to_string_lossy()] {
            assert!(told[0].text.contains(part), "{}", told[0].text);
        }
    }
}

#[test]
fn rule_11_a_directory_that_waits_goes_with_its_owner() {
    let world = World::new();
    let waiting = format!("spare-{FOREIGN}-7");
    fs::create_dir(world.path("processing").join(&waiting)).unwrap();
    let lock = world.lock(FOREIGN);
    world.look();
    assert_eq!(world.names("processing"), [waiting]);
    drop(lock);
    world.look();
    assert_eq!(world.names("processing"), [""; 0]);
}

#[test]
fn rule_12_a_claim_counts_only_with_its_file() {
    let world = World::new();
    let job = world.send("work");
    let stop = Stop::at("claim: opened", "claimer");
    let claimer = world.claim_in_thread("claimer");
    stop.reached();
    assert_eq!(world.queue.count(State::Processing).unwrap(), 0);
    assert_eq!(world.queue.jobs(State::Processing).unwrap().count(), 0);
    assert_eq!(world.status(&job), Some(State::Queued));
    stop.go();
    let held = claimer.join().unwrap();
    assert_eq!(world.queue.count(State::Processing).unwrap(), 1);
    assert_eq!(world.status(&job), Some(State::Processing));
    drop(held);
}

#[test]
fn rule_12_a_job_that_moves_between_two_looks_is_not_unknown() {
    let world = World::new();
    let job = world.send("work");
    let [queued, failed] = ["queued", "failed"].map(|state| world.path(state).join(job.entry()));
    fs::rename(&queued, &failed).unwrap();
    // Twice it is where it was looked for just before: in queued/ when the turn is failed/'s, and back.
    let looks = Mutex::new(0);
    fail::cfg_callback("status: looks", move || {
        let mut look = looks.lock().unwrap();
        *look += 1;
        match *look {
            4 | 10 => fs::rename(&failed, &queued).unwrap(),
            7 => fs::rename(&queued, &failed).unwrap(),
            _ => {}
        }
    })
    .unwrap();
    assert_eq!(world.status(&job), Some(State::Queued));
}

/// Has a job come as another process would send it, or one that is due already.
fn send_by_another_process(world: &World, state: &str) {
    let due = if state == "scheduled" { "0000000000001-" } else { "" };
    let entry = format!("{due}{}", world_job(1).entry().display());
    fs::write(world.path("tmp/work"), "work").unwrap();
    fs::rename(world.path("tmp/work"), world.path(state).join(entry)).unwrap();
}

/// A job comes by another process while a thread is about to wait, at each place on its way to sleep; nothing but the
/// kernel's word can end its wait.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs a kernel that tells of new files")]
fn rule_13_no_job_that_comes_on_the_way_to_sleep_is_slept_through() {
    let places = ["look: armed", "look: noted", "look: lists", "look: found nothing", "wait: leads"];
    for place in places {
        for state in ["queued", "scheduled"] {
            let world = World::new();
            fail::cfg("wait: no slow poll", "return").unwrap();
            let stop = Stop::at(place, "waiter");
            let waiter = world.wait_in_thread("waiter");
            stop.reached();
            send_by_another_process(&world, state);
            stop.go();
            assert_eq!(waiter.join().unwrap().unwrap().read().unwrap(), b"work", "{place} {state}");
        }
    }
}

/// The same of who sleeps in an event loop, which watches a descriptor.
#[test]
#[cfg(target_os = "linux")]
fn rule_13_no_job_that_comes_on_the_way_to_an_event_loop_is_slept_through() {
    for place in ["look: armed", "look: noted", "look: lists", "look: found nothing"] {
        for state in ["queued", "scheduled"] {
            let world = World::new();
            fail::cfg("wait: no slow poll", "return").unwrap();
            let stop = Stop::at(place, "waiter");
            let waiter = world.listen_in_thread("waiter");
            stop.reached();
            send_by_another_process(&world, state);
            stop.go();
            assert_eq!(waiter.join().unwrap().unwrap().read().unwrap(), b"work", "{place} {state}");
        }
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs a kernel that tells of new files")]
fn who_stops_or_closes_a_queue_ends_a_wait_that_is_on_its_way_to_sleep() {
    let ends: [fn(&Queue); 2] = [Queue::stop, Queue::close];
    for place in ["look: armed", "look: noted", "look: lists", "look: found nothing"] {
        for end in ends {
            for listens in [false, true] {
                let world = World::new();
                fail::cfg("wait: no slow poll", "return").unwrap();
                let stop = Stop::at(place, "waiter");
                #[cfg(target_os = "linux")]
                let waiter = if listens { world.listen_in_thread("waiter") } else { world.wait_in_thread("waiter") };
                #[cfg(not(target_os = "linux"))]
                let waiter = world.wait_in_thread("waiter");
                stop.reached();
                end(&world.queue);
                stop.go();
                assert!(waiter.join().unwrap().is_none(), "{place} {listens}");
            }
        }
    }
}

#[test]
fn a_queue_that_is_stopped_gives_no_job_and_goes_on_otherwise() {
    let world = World::new();
    world.send("one");
    let mut pass = world.queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    let held = world.queue.claim_next(&mut pass).unwrap().unwrap();
    let two = world.send("two");
    let mut pass = world.queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    world.queue.stop();
    assert!(world.queue.claim_next(&mut pass).unwrap().is_none());
    assert!(claim(&world.queue).is_none());
    assert!(world.wait_in_thread("waiting").join().unwrap().is_none());
    held.settle(Outcome::Success).unwrap();
    assert_eq!(world.status(&two), Some(State::Queued));
    world.send("three");
    assert_eq!(claim(&open(world.home.path())).unwrap().job().unwrap(), &two);
}

/// A job that a thread skipped, since another one was at it, is offered again when that one leaves it.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs a kernel that tells of new files")]
fn rule_13_a_job_that_leaves_the_table_wakes_who_skipped_it() {
    let world = World::new();
    fail::cfg("wait: no slow poll", "return").unwrap();
    world.send("work");
    let held = claim(&world.queue).unwrap();
    let stop = Stop::at("settle: removed", "settler");
    let settler = thread("settler", move || held.settle(Outcome::Retry(None)));
    stop.reached();
    let sleeps = Stop::at("wait: leads", "waiter");
    let waiter = world.wait_in_thread("waiter");
    sleeps.reached();
    sleeps.go();
    stop.go();
    settler.join().unwrap().unwrap();
    assert_eq!(waiter.join().unwrap().unwrap().read().unwrap(), b"work");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs a kernel that tells of new files")]
fn rule_13_threads_that_sleep_are_all_asked_and_one_gets_the_job() {
    let world = World::new();
    fail::cfg("wait: no slow poll", "return").unwrap();
    let waiters: Vec<_> = ["one", "two", "three"].map(|name| world.wait_in_thread(name)).into();
    for number in 1..=3 {
        let path = world.path("queued").join(world_job(number).entry());
        fs::write(world.path("tmp/work"), "work").unwrap();
        fs::rename(world.path("tmp/work"), path).unwrap();
    }
    let claims: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap().unwrap()).collect();
    let ids: std::collections::HashSet<_> = claims.iter().map(|claim| claim.job().unwrap().id()).collect();
    assert_eq!(ids.len(), 3);
}

#[test]
fn rule_14_a_drain_lists_the_queue_a_bounded_number_of_times() {
    let world = World::new();
    let listings = Arc::new(Mutex::new(0));
    let count = Arc::clone(&listings);
    fail::cfg_callback("look: lists", move || *count.lock().unwrap() += 1).unwrap();
    let items = vec![b"work"; if cfg!(windows) { 300 } else { 2000 }]; // under Wine a large directory is slow
    world.queue.send_many(&items, None).unwrap();
    for _ in &items {
        claim(&world.queue).unwrap().settle(Outcome::Success).unwrap();
    }
    world.look();
    assert_eq!(*listings.lock().unwrap(), 2, "one to begin with, one to see that there is no more");
}

#[test]
fn rule_14_before_returning_empty_handed_the_queue_is_listed_afresh() {
    let world = World::new();
    world.send("first");
    claim(&world.queue).unwrap().settle(Outcome::Success).unwrap();
    let stop = Stop::at("look: lists", "claimer");
    let claimer = world.claim_in_thread("claimer");
    stop.reached();
    world.send("second");
    stop.go();
    assert_eq!(claimer.join().unwrap().unwrap().read().unwrap(), b"second");
}

#[test]
fn rule_14_what_another_thread_has_listed_meanwhile_is_looked_at() {
    let world = World::new();
    world.send("first");
    world.send("second");
    let stop = Stop::at("look: used up", "claimer");
    let claimer = world.claim_in_thread("claimer");
    stop.reached();
    // This one lists both jobs and takes one of them.
    let held = claim(&world.queue).unwrap();
    stop.go();
    assert_eq!(claimer.join().unwrap().unwrap().read().unwrap(), b"second");
    drop(held);
}

#[test]
fn rule_15_a_temporary_goes_when_its_writers_lock_is_free_and_only_then() {
    let world = World::new();
    let id = world_job(1).id();
    let abandoned = world.path("tmp").join(format!("{id}-{FOREIGN}"));
    let foreign = world.path("tmp").join(id.to_string());
    for path in [&abandoned, &foreign] {
        fs::write(path, "half").unwrap();
    }
    let lock = world.lock(FOREIGN);
    world.look();
    assert!(abandoned.exists(), "its writer lives");
    drop(lock);
    world.look();
    assert!(!abandoned.exists());
    assert_eq!(fs::read(&foreign).unwrap(), b"half", "it may be a program's only copy");
}

#[test]
#[cfg_attr(windows, ignore = "NOT TESTED: on Windows nobody can delete what is open")]
fn rule_15_a_sender_whose_temporary_was_taken_for_a_dead_ones_sends_again() {
    let world = World::new();
    let stop = Stop::at("publish: closed", "sender");
    let queue = Arc::clone(&world.queue);
    let sender = thread("sender", move || queue.send(b"work", None));
    stop.reached();
    fs::remove_file(world.path("owners").join(world.token())).unwrap();
    for name in world.names("tmp") {
        fs::remove_file(world.path("tmp").join(name)).unwrap();
    }
    stop.go();
    sender.join().unwrap().unwrap();
    assert_eq!(claim(&world.queue).unwrap().read().unwrap(), b"work");
    assert_eq!(world.names("tmp"), [""; 0]);
}

#[test]
#[cfg(target_os = "linux")]
fn rule_16_a_child_does_not_keep_the_lock_of_a_dead_owner_that_is_being_judged() {
    let world = World::new();
    fs::write(world.path("owners").join(FOREIGN), "").unwrap();
    let judged = Stop::at("owner: judged dead", "judge");
    let judge = world.claim_in_thread("judge");
    judged.reached();
    let (tell, forked) = channel();
    let parent = thread("parent", move || {
        // SAFETY: the child calls nothing but what is async-signal-safe.
        let child = unsafe { nix::unistd::fork() }.unwrap();
        if child.is_child() {
            loop {
                nix::unistd::pause();
            }
        }
        tell.send(()).unwrap();
        child
    });
    assert!(forked.recv_timeout(Duration::from_millis(300)).is_err(), "a fork has to wait");
    judged.go();
    judge.join().unwrap();
    let nix::unistd::ForkResult::Parent { child } = parent.join().unwrap() else { unreachable!() };
    let files = fs::read_dir(format!("/proc/{child}/fd")).unwrap();
    let kept: Vec<_> = files
        .filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .filter(|path| path.to_string_lossy().contains("/owners/"))
        .collect();
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
    nix::sys::wait::waitpid(child, None).unwrap();
    assert_eq!(kept, Vec::<PathBuf>::new());
}

/// What is recorded of a job: attempt, ending, and whether it is marked.
fn history(queue: &Queue, job: &Job) -> Vec<(u32, Ended, bool)> {
    let records = queue.history(&JobRef::Entry(job.clone())).unwrap();
    records.into_iter().map(|record| (record.attempt, record.ended, record.is_settled)).collect()
}

#[test]
fn rule_21_an_attempt_is_recorded_then_settled_then_marked() {
    let world = World::new();
    let job = world.send("work");
    let claim = claim(&world.queue).unwrap();
    let (recorded, moved) = (Stop::at("settle: recorded", "slow"), Stop::at("settle: moved", "slow"));
    let slow = thread("slow", move || claim.settle(Outcome::Failed));
    recorded.reached();
    assert_eq!(history(&world.queue, &job), [(1, Ended::Failed, false)]);
    assert_eq!(world.status(&job), Some(State::Processing));
    recorded.go();
    moved.reached();
    assert_eq!(history(&world.queue, &job), [(1, Ended::Failed, false)]);
    assert_eq!(world.status(&job), Some(State::Failed));
    moved.go();
    slow.join().unwrap().unwrap();
    assert_eq!(history(&world.queue, &job), [(1, Ended::Failed, true)]);
}

#[test]
fn rule_21_recovery_records_before_it_moves_and_who_comes_after_a_crash_records_no_second_time() {
    for put_back in [0, 1] {
        let world = World::new();
        world.queue.set_put_back(put_back, u32::MAX);
        let job = world_job(1);
        world.lay_claim(&job, FOREIGN, Some("work"));
        let stop = Stop::at("recover: recorded", "slow");
        let slow = world.claim_in_thread("slow");
        stop.reached();
        let recorded = [(1, Ended::Interrupted, false)];
        assert_eq!(history(&open(world.home.path()), &job), recorded);
        // As after a crash, a process that decides alike finds the record, and one that decides otherwise makes its own.
        let orphan = format!("processing/{}.{FOREIGN}/raw", job.entry().display());
        assert!(world.path(orphan).exists());
        stop.go();
        let claim = slow.join().unwrap();
        assert_eq!(claim.is_some(), put_back > 0);
        assert_eq!(history(&open(world.home.path()), &job), [(1, Ended::Interrupted, true)]);
        assert!(claim.is_none_or(|claim| claim.attempt().unwrap() == 2));
    }
}

#[test]
fn rule_21_a_record_of_the_dead_that_was_left_unmarked_is_the_next_ones_too() {
    let world = World::new();
    let job = world_job(1);
    world.lay_claim(&job, FOREIGN, Some("work"));
    let dir = world.path("history").join(job.entry());
    fs::create_dir_all(&dir).unwrap();
    let at = "at: 2026-01-01T00:00:00Z";
    let left = format!("attempt: 4\nended: interrupted\n{at}\nowner: {FOREIGN}\ninterruptions: 0\n");
    fs::write(dir.join("7"), left).unwrap();
    world.look();
    assert_eq!(history(&world.queue, &job), [(4, Ended::Interrupted, true)]);
    assert_eq!(world.status(&job), Some(State::Interrupted));
}

#[test]
fn rule_21_of_two_recoveries_the_one_that_moved_nothing_leaves_the_record_to_the_other() {
    let world = World::new();
    world.queue.set_put_back(9, u32::MAX);
    let job = world_job(1);
    world.lay_claim(&job, FOREIGN, Some("work"));
    let (recorded, marks) = (Stop::at("recover: recorded", "slow"), Stop::at("recover: marks", "fast"));
    let slow = world.recover_in_thread("slow");
    recorded.reached();
    let fast = world.recover_in_thread("fast");
    marks.reached(); // it has moved the job by the record of the slow one
    recorded.go();
    slow.join().unwrap();
    let again = claim(&world.queue).unwrap();
    assert_eq!(again.attempt().unwrap(), 2);
    marks.go();
    fast.join().unwrap();
    assert_eq!(history(&world.queue, &job), [(1, Ended::Interrupted, true)]);
}

#[test]
fn rule_21_a_record_that_is_marked_between_its_listing_and_its_reading_counts() {
    let world = World::new();
    world.queue.set_put_back(9, u32::MAX);
    world.lay_claim(&world_job(1), FOREIGN, Some("work"));
    let (marks, listed) = (Stop::at("recover: marks", "recoverer"), Stop::at("history: listed", "reader"));
    let recoverer = world.recover_in_thread("recoverer");
    marks.reached();
    let again = claim(&world.queue).unwrap();
    let reader = thread("reader", move || again.attempt().unwrap());
    listed.reached();
    marks.go();
    recoverer.join().unwrap();
    listed.go();
    assert_eq!(reader.join().unwrap(), 2);
}

#[test]
fn rule_21_a_recovery_that_comes_late_records_nothing() {
    for place in ["recover: opened", "recover: judged", "recover: read", "recover: looked"] {
        let world = World::new();
        world.queue.set_put_back(9, u32::MAX);
        let job = world_job(1);
        world.lay_claim(&job, FOREIGN, Some("work"));
        let stop = Stop::at(place, "slow");
        let slow = world.recover_in_thread("slow");
        stop.reached();
        world.queue.recover(&[]).unwrap();
        let again = claim(&world.queue).unwrap();
        assert_eq!(again.attempt().unwrap(), 2);
        again.settle_because(Outcome::Retry(None), pacchettino::Why::default()).unwrap();
        stop.go();
        slow.join().unwrap();
        let recorded = [(1, Ended::Interrupted, true), (2, Ended::Retry, true)];
        assert_eq!(history(&world.queue, &job), recorded, "{place}");
        assert_eq!(claim(&world.queue).unwrap().attempt().unwrap(), 3, "{place}");
    }
}

#[test]
fn rule_21_a_requeue_that_comes_late_records_nothing() {
    let world = World::new();
    let job = world.send("work");
    claim(&world.queue).unwrap().settle(Outcome::Failed).unwrap();
    let stop = Stop::at("requeue: read", "slow");
    let queue = Arc::clone(&world.queue);
    let slow = {
        let job = JobRef::Entry(job.clone());
        thread("slow", move || queue.requeue(&job).unwrap())
    };
    stop.reached();
    fs::rename(world.path("failed").join(job.entry()), world.path("queued").join(job.entry())).unwrap();
    claim(&world.queue).unwrap().settle(Outcome::Retry(None)).unwrap();
    stop.go();
    assert!(!slow.join().unwrap());
    assert_eq!(history(&world.queue, &job), [(1, Ended::Failed, true), (1, Ended::Retry, true)]);
    assert_eq!(claim(&world.queue).unwrap().attempt().unwrap(), 2);
}

#[test]
fn rule_21_recoveries_of_two_minds_count_what_the_one_did_that_moved_the_job() {
    for puts_back_last in [true, false] {
        let world = World::new();
        world.queue.set_put_back(9, u32::MAX);
        let job = world_job(1);
        world.lay_claim(&job, FOREIGN, Some("work"));
        let gives_up = Arc::new(open(world.home.path()));
        let queues =
            if puts_back_last { [gives_up, Arc::clone(&world.queue)] } else { [Arc::clone(&world.queue), gives_up] };
        // Both record the interruption, one after the other, before either moves the job.
        let [queue, other] = queues;
        let first = Stop::at("recover: recorded", "first");
        let one = thread("first", move || queue.recover(&[]).unwrap());
        first.reached();
        let second = Stop::at("recover: recorded", "second");
        let two = thread("second", move || other.recover(&[]).unwrap());
        second.reached();
        let stops = if puts_back_last { [(second, two), (first, one)] } else { [(first, one), (second, two)] };
        for (stop, recovery) in stops {
            stop.go();
            recovery.join().unwrap();
        }
        let is_marked = |number| (1, Ended::Interrupted, (number == 2) == puts_back_last);
        assert_eq!(history(&world.queue, &job), [is_marked(1), is_marked(2)]);
        let again = claim(&world.queue).unwrap();
        assert_eq!(again.attempt().unwrap(), 2, "{puts_back_last}");
        again.settle(Outcome::Retry(None)).unwrap();
        let records = world.queue.history(&JobRef::Entry(job)).unwrap();
        assert_eq!(records.last().unwrap().interruptions, 1, "{puts_back_last}");
    }
}

/// Rule 21's last sentence, whether or not who settled the job came to mark that.
#[test]
fn rule_21_a_job_that_waits_again_after_its_last_record_was_requeued() {
    for outcome in [Outcome::Failed, Outcome::Interrupted] {
        for is_marked in [true, false] {
            let world = World::new();
            let job = world.send("work");
            for expected in 1..=3 {
                let claim = claim(&world.queue).unwrap();
                assert_eq!(claim.attempt().unwrap(), expected);
                let is_last = expected == 3;
                claim.settle(if is_last { outcome } else { Outcome::Retry(None) }).unwrap();
            }
            let records = world.path("history").join(job.entry());
            if !is_marked {
                fs::rename(records.join("3.settled"), records.join("3")).unwrap();
            }
            let place = if outcome == Outcome::Failed { "failed" } else { "interrupted" };
            fs::rename(world.path(place).join(job.entry()), world.path("queued").join(job.entry())).unwrap();
            assert_eq!(claim(&world.queue).unwrap().attempt().unwrap(), 1, "{outcome:?}, {is_marked}");
        }
    }
}

#[test]
fn rule_21_of_two_recoveries_the_one_that_finds_the_job_gone_leaves_its_record() {
    let world = World::new();
    let job = world_job(1);
    let orphan = world.lay_claim(&job, FOREIGN, Some("work"));
    let stop = Stop::at("recover: recorded", "slow");
    let slow = world.claim_in_thread("slow");
    stop.reached();
    fs::rename(orphan.join("raw"), world.path("interrupted").join(job.entry())).unwrap();
    stop.go();
    assert!(slow.join().unwrap().is_none());
    assert_eq!(history(&world.queue, &job), [(1, Ended::Interrupted, false)]);
}

#[test]
fn rule_21_a_record_gets_a_number_that_none_has_marked_or_not() {
    let world = World::new();
    let job = world.send("work");
    let claim = claim(&world.queue).unwrap();
    assert_eq!(claim.attempt().unwrap(), 1);
    // Somebody who thought that this process was dead.
    let dir = world.path("history").join(job.entry());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("1.settled"), "theirs").unwrap();
    fs::write(dir.join("2"), "theirs").unwrap();
    claim.settle(Outcome::Failed).unwrap();
    assert_eq!(world.names(&format!("history/{}", job.entry().display())), ["1.settled", "2", "3.settled"]);
    assert_eq!(fs::read(dir.join("1.settled")).unwrap(), b"theirs");
}

/// Has a job fail, and its file taken away by another program.
fn forgotten(world: &World) -> Job {
    let job = world.send("work");
    claim(&world.queue).unwrap().settle(Outcome::Failed).unwrap();
    fs::rename(world.path("failed").join(job.entry()), world.path("elsewhere")).unwrap();
    job
}

#[test]
fn rule_21_a_history_goes_after_its_job_was_absent_twice_and_nothing_was_recorded_in_between() {
    let world = World::new();
    fail::cfg("sweep: histories at once", "return").unwrap();
    let job = forgotten(&world);
    world.look();
    assert_eq!(history(&world.queue, &job).len(), 1, "it was absent once");
    let place = world.path("failed").join(job.entry());
    fs::rename(world.path("elsewhere"), &place).unwrap();
    world.look();
    fs::rename(&place, world.path("elsewhere")).unwrap();
    world.look();
    assert_eq!(history(&world.queue, &job).len(), 1, "it was back in between");
    fs::write(world.path("history").join(job.entry()).join("2"), "").unwrap();
    world.look();
    assert_eq!(history(&world.queue, &job).len(), 1, "something was recorded in between");
    world.look();
    assert_eq!(history(&world.queue, &job), []);
    assert!(world.names("history").is_empty());
}

#[test]
fn rule_21_the_two_absences_are_apart_in_time() {
    let world = World::new();
    let job = forgotten(&world);
    for _ in 0..5 {
        world.look();
    }
    assert_eq!(history(&world.queue, &job).len(), 1);
}

#[test]
fn rule_21_a_history_stays_wherever_its_job_is_and_however_many_there_are() {
    let world = World::new();
    fail::cfg("sweep: histories at once", "return").unwrap();
    let name = OsStr::new("a name");
    for number in 0..250 {
        let file = world.path("file");
        fs::write(&file, "work").unwrap();
        world.queue.send_file(&file, Some(name), Transfer::Move, None, || true).unwrap();
        let claim = claim(&world.queue).unwrap();
        let job = claim.job().unwrap().clone();
        let outcome = [Outcome::Failed, Outcome::Interrupted, Outcome::Retry(Some(Due(9_000_000_000_000)))][number % 3];
        claim.settle(outcome).unwrap();
        if number % 3 == 0 && number % 2 == 0 {
            fs::rename(world.path("failed").join(job.entry()), world.path("success").join(job.entry())).unwrap();
        }
    }
    let gone: Vec<_> = (0..3).map(|_| forgotten(&world)).collect();
    for _ in 0..9 {
        world.look();
    }
    assert_eq!(world.names("history").len(), 250);
    assert!(gone.iter().all(|job| history(&world.queue, job).is_empty()));
}

#[test]
fn a_leftover_that_holds_its_job_is_not_set_aside() {
    let world = World::new();
    world.queue.set_crash_detection(CrashDetection::Pid);
    let job = world_job(1);
    world.lay_claim(&job, &std::process::id().to_string(), Some("mine"));
    let twin = world.path("interrupted").join(job.entry());
    fs::write(&twin, "theirs").unwrap();
    let stop = Stop::at("recover: moved", "recoverer");
    let recoverer = world.claim_in_thread("recoverer");
    stop.reached();
    fs::rename(&twin, world.path("queued").join(job.entry())).unwrap();
    stop.go();
    // With the way free, the next recovery moves it, and the other one can be claimed.
    let held = recoverer.join().unwrap().unwrap();
    assert_eq!(fs::read(&twin).unwrap(), b"mine");
    assert_eq!(held.read().unwrap(), b"theirs");
}

#[test]
#[cfg(unix)]
fn rule_23_what_one_sets_aside_nobody_else_does() {
    let world = World::new();
    let job = world_job(1);
    let orphan = world.lay_claim(&job, DEAD_PID, Some("work"));
    fs::write(orphan.join("beside"), "bytes").unwrap();
    let stop = Stop::at("set aside: looked", "slow");
    let slow = world.recover_in_thread("slow");
    stop.reached();
    // Were it renamed now, its name could be that of a claim, by a process with that PID, when the other one goes on.
    world.queue.recover(&[]).unwrap();
    assert_eq!(world.names("processing"), [orphan.file_name().unwrap().to_str().unwrap()]);
    stop.go();
    slow.join().unwrap();
    assert_eq!(fs::read(world.aside(&job).join("beside")).unwrap(), b"bytes");
    assert_eq!(world.names("processing").len(), 1);
}

#[test]
fn rule_23_what_is_empty_by_now_is_not_set_aside() {
    let world = World::new();
    let job = world_job(1);
    let orphan = world.lay_claim(&job, DEAD_PID, Some("mine"));
    let twin = world.path("interrupted").join(job.entry());
    fs::write(&twin, "theirs").unwrap(); // it keeps the job's file in the claim
    let stop = Stop::at("set aside: locked", "slow");
    let slow = world.recover_in_thread("slow");
    stop.reached();
    fs::remove_file(&twin).unwrap();
    fs::rename(orphan.join("raw"), &twin).unwrap();
    stop.go();
    slow.join().unwrap();
    assert!(orphan.exists());
    world.queue.recover(&[]).unwrap();
    assert_eq!(world.names("processing"), [""; 0]);
}

#[test]
fn a_verdict_that_is_taken_at_last_may_be_a_job_to_claim() {
    let world = World::new();
    let job = world.send("work");
    let held = claim(&world.queue).unwrap();
    let there = world.path("queued").join(job.entry());
    fs::write(&there, "in the way").unwrap();
    assert!(matches!(held.settle(Outcome::Retry(None)), Err(Error::Unsettled { .. })));
    fs::remove_file(there).unwrap();
    assert_eq!(claim(&world.queue).unwrap().read().unwrap(), b"work");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs /dev/shm")]
fn a_file_that_changes_while_it_is_copied_across_filesystems_is_not_removed() {
    for replaced in [true, false] {
        let world = World::new();
        let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
        let source = elsewhere.path().join("log");
        fs::write(&source, "old").unwrap();
        let other = fs::hard_link(&source, world.path("other")).unwrap_err().kind();
        assert_eq!(other, std::io::ErrorKind::CrossesDevices, "this test needs another filesystem than /dev/shm");
        let stop = Stop::at("publish: copied across", "sender");
        let (queue, path) = (Arc::clone(&world.queue), source.clone());
        let sender = thread("sender", move || queue.send_file(&path, None, pacchettino::Transfer::Move, None, || true));
        stop.reached();
        let (new, written) = (elsewhere.path().join("new"), if replaced { "new" } else { "old and more" });
        if replaced {
            fs::write(&new, written).unwrap();
            fs::rename(&new, &source).unwrap();
        } else {
            fs::write(&source, written).unwrap();
        }
        stop.go();
        let Err(Error::Sent { sent, .. }) = sender.join().unwrap() else { panic!("nobody was told") };
        assert_eq!(fs::read_to_string(&source).unwrap(), written);
        let held = claim(&world.queue).unwrap();
        assert_eq!((held.job().unwrap().id(), held.read().unwrap()), (sent[0], b"old".to_vec()));
    }
}

// What somebody swaps meanwhile

/// A directory beside the queue, in which nobody may read, write, move or delete anything.
struct Outside(tempfile::TempDir);

impl Outside {
    fn new() -> Self {
        let outside = Self(tempfile::tempdir().unwrap());
        fs::write(outside.path("raw"), "secret").unwrap();
        fs::create_dir(outside.path("empty")).unwrap();
        outside
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a link to it, or to the file in it, in place of something of the queue's, which goes elsewhere.
    fn replace(&self, path: &Path, target: &str) {
        fs::rename(path, path.with_file_name("elsewhere")).unwrap();
        system::link(&self.path(target), path);
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(fs::read(self.path("raw")).unwrap(), b"secret");
            assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 2);
            assert_eq!(fs::read_dir(self.path("empty")).unwrap().count(), 0);
        }
    }
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn a_job_is_not_moved_out_of_the_queue_through_a_link_in_place_of_the_claims_directory() {
    let (world, outside) = (World::new(), Outside::new());
    let job = world.send("work");
    let stop = Stop::at("claim: made", "claimer");
    let queue = Arc::clone(&world.queue);
    let claimer =
        thread("claimer", move || queue.claim(Kinds::ANY, Order::Fifo, Some(Duration::ZERO), Duration::MAX, || true));
    stop.reached();
    outside.replace(&world.path("processing").join(&world.names("processing")[0]), "empty");
    stop.go();
    assert!(claimer.join().unwrap().is_err());
    assert_eq!(world.names("queued"), [job.entry().to_str().unwrap()]);
}

#[test]
fn a_link_in_place_of_a_claimed_jobs_file_is_not_read() {
    for place in ["claim: taken", "claim: confirmed"] {
        let (world, outside) = (World::new(), Outside::new());
        world.send("work");
        let stop = Stop::at(place, "claimer");
        let claimer = world.claim_in_thread("claimer");
        stop.reached();
        let claim = world.path("processing").join(&world.names("processing")[0]);
        outside.replace(&claim.join("raw"), "raw");
        stop.go();
        let held = claimer.join().unwrap().unwrap();
        assert!(held.read().is_err(), "{place}");
        held.settle(Outcome::Failed).unwrap();
        assert_eq!(world.queue.requeue_all(KeepPolicy::ALL).unwrap(), 0, "{place}");
        assert_eq!(world.queue.cleanup(KeepPolicy::ALL, Duration::ZERO).unwrap(), 0, "{place}");
    }
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn recovery_moves_nothing_through_a_link_in_place_of_a_claim_or_its_file() {
    // Before the last look at the directory nothing is moved; afterwards its file is, through the handle.
    for (place, swapped, interrupted) in [
        ("recover: opened", "", 0),
        ("recover: judged", "", 0),
        ("recover: looked", "", 1),
        ("recover: moved", "", 1),
        ("recover: opened", "raw", 0),
        ("recover: judged", "raw", 0),
        ("recover: looked", "raw", 0),
    ] {
        for keep in [KeepPolicy::ALL, KeepPolicy::NONE] {
            let (world, outside) = (World::new(), Outside::new());
            let claim = world.lay_claim(&world_job(1), DEAD_PID, Some("work"));
            let queue = Queue::open(world.home.path(), keep, false, CrashDetection::LockFile).unwrap();
            let stop = Stop::at(place, "recoverer");
            let recoverer = thread("recoverer", move || assert!(self::claim(&queue).is_none()));
            stop.reached();
            outside.replace(&if swapped.is_empty() { claim } else { claim.join(swapped) }, swapped);
            stop.go();
            recoverer.join().unwrap();
            let kept = if keep == KeepPolicy::ALL { interrupted } else { 0 };
            assert_eq!(world.queue.count(State::Interrupted).unwrap(), kept, "{place}, {swapped:?}");
            assert_eq!(world.queue.requeue_all(KeepPolicy::ALL).unwrap(), kept, "{place}, {swapped:?}");
        }
    }
}

#[test]
#[cfg_attr(
    windows,
    ignore = "NOT TESTED: under Wine a directory that is open stays when it is deleted, and what moves is what has the path"
)]
fn a_link_in_place_of_a_due_job_or_a_draft_is_not_followed() {
    // A delayed job, between the listing and the move.
    let (world, outside) = (World::new(), Outside::new());
    let due = world.path("scheduled").join(format!("0000000000001-{}", world_job(1).entry().display()));
    fs::write(&due, "work").unwrap();
    let stop = Stop::at("promote: listed", "promoter");
    let promoter = world.claim_in_thread("promoter");
    stop.reached();
    outside.replace(&due, "raw");
    stop.go();
    assert!(promoter.join().unwrap().is_none());
    world.look();

    // A draft, between its being written and its being published.
    let stop = Stop::at("publish: closed", "sender");
    let queue = Arc::clone(&world.queue);
    let sender = thread("sender", move || queue.send(b"work", None).unwrap());
    stop.reached();
    outside.replace(&world.path("tmp").join(&world.names("tmp")[0]), "raw");
    stop.go();
    sender.join().unwrap();
    world.look();

    // A dead sender's draft, between the judgement and the removal.
    let draft = world.path("tmp").join(format!("{}-{FOREIGN}", world_job(2).id()));
    fs::write(&draft, "half of it").unwrap();
    let stop = Stop::at("sweep: judged", "sweeper");
    let sweeper = world.claim_in_thread("sweeper");
    stop.reached();
    fs::remove_file(world.path("tmp/elsewhere")).unwrap();
    outside.replace(&draft, "raw");
    stop.go();
    assert!(sweeper.join().unwrap().is_none());
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "NOT TESTED: needs /dev/shm")]
fn a_link_in_place_of_a_file_that_is_moved_across_filesystems_is_not_followed() {
    let (world, outside) = (World::new(), Outside::new());
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = elsewhere.path().join("log");
    fs::write(&source, "mine").unwrap();
    let stop = Stop::at("publish: copies", "sender");
    let (queue, path) = (Arc::clone(&world.queue), source.clone());
    let sender = thread("sender", move || queue.send_file(&path, None, pacchettino::Transfer::Move, None, || true));
    stop.reached();
    outside.replace(&source, "raw");
    stop.go();
    assert!(matches!(sender.join().unwrap(), Err(Error::Io { .. })));
    world.look();
    assert_eq!((world.names("queued").len(), world.names("tmp").len()), (0, 0));
    assert_eq!(fs::read_link(&source).unwrap(), outside.path("raw"));
}

/// Sends a sparse file, to which something is done at that place, and gives what arrived.
#[cfg(target_os = "linux")]
fn sent_sparse(place: &'static str, change: impl Fn(&fs::File) + Send + Sync + 'static) -> Vec<u8> {
    use std::os::unix::fs::FileExt;

    let world = World::new();
    let source = world.path("sparse");
    let file = fs::File::options().write(true).create_new(true).open(&source).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(b"second", 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    let once = std::sync::Once::new();
    fail::cfg_callback(place, move || once.call_once(|| change(&file))).unwrap();
    world.queue.send_file(&source, None, Transfer::Copy, None, || true).unwrap();
    let [sent] = <[String; 1]>::try_from(world.names("queued")).unwrap();
    fs::read(world.path("queued").join(sent)).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn of_a_sparse_file_that_grows_while_it_is_copied_all_arrives() {
    use std::os::unix::fs::FileExt;

    for place in ["publish: copies", "publish: found data", "publish: found no more data"] {
        let sent = sent_sparse(place, |file| file.write_all_at(b"appended", 3 << 20).unwrap());
        assert_eq!(sent.len(), (3 << 20) + 8, "{place}");
        assert_eq!(
            (&sent[..5], &sent[1 << 20..(1 << 20) + 6], &sent[3 << 20..]),
            (&b"first"[..], &b"second"[..], &b"appended"[..])
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn of_a_sparse_file_that_is_cut_while_it_is_copied_nothing_arrives_that_was_never_there() {
    let second = (1 << 20) + 3;
    // At the first data nothing was copied yet, at the end of it all was.
    for (place, length, arrives) in [
        ("publish: copies", second, second),
        ("publish: found data", second, second),
        ("publish: found data", 1 << 19, 1 << 19),
        ("publish: found data", 3, 3),
        ("publish: found no more data", 3 << 19, 3 << 19),
    ] {
        let sent = sent_sparse(place, move |file| file.set_len(length as u64).unwrap());
        assert_eq!(sent.len(), arrives, "{place}, {length}");
        let mut whole = vec![0; 2 << 20];
        whole[..5].copy_from_slice(b"first");
        whole[1 << 20..(1 << 20) + 6].copy_from_slice(b"second");
        assert!(sent == whole[..arrives], "{place}, {length}");
    }
}

/// A job that nobody sent.
fn world_job(number: u8) -> Job {
    Job::parse(OsStr::new(&format!("raw-01a227f2-b0d6-7000-826e-93b281bc7b{number:02x}"))).unwrap()
}

#[test]
fn a_trouble_is_told_once_and_again_when_it_was_over_for_a_while() {
    let world = World::new();
    let base = world.path("queue");
    let queue = open(&base);
    fs::rename(&base, world.path("away")).unwrap();
    let told = || {
        let mut looks = [true, false].into_iter(); // one look, no sleep
        let nothing = queue.claim(Kinds::ANY, Order::Fifo, None, Duration::MAX, || looks.next().unwrap());
        assert!(matches!(nothing, Err(Error::Stopped)));
        queue.take_notices().len()
    };
    assert_eq!((told(), told()), (1, 0));
    fail::cfg("tell: troubles are over at once", "return").unwrap();
    assert_eq!((told(), told()), (1, 1));
}

// Rule 18: flushes that are shared.

/// A durable queue in which jobs wait, and a pass of it that has its first.
fn begun_pass(world: &World, jobs: usize) -> (Queue, pacchettino::Consumer, Claim) {
    let queue = Queue::open(world.home.path(), KeepPolicy::ALL, true, CrashDetection::LockFile).unwrap();
    for job in 0..jobs {
        world.send(&job.to_string());
    }
    let mut pass = queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    let claim = queue.claim_next(&mut pass).unwrap().unwrap();
    (queue, pass, claim)
}

#[test]
fn a_flush_that_fails_is_the_failure_of_each_sender_that_shared_it() {
    let world = World::new();
    let queue = Arc::new(Queue::open(world.home.path(), KeepPolicy::ALL, true, CrashDetection::LockFile).unwrap());
    fail::cfg("flush: fails", "return").unwrap();
    let senders: Vec<_> = (0..8)
        .map(|_| {
            let queue = Arc::clone(&queue);
            thread("sender", move || queue.send(b"", None))
        })
        .collect();
    let mut told: Vec<_> = senders
        .into_iter()
        .map(|sender| match sender.join().unwrap() {
            Err(Error::Sent { source, sent }) => {
                assert_eq!(source.errno(), Some(5));
                let [id] = sent[..] else { panic!("{sent:?}") };
                format!("raw-{id}")
            }
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort();
    assert_eq!(world.names("queued"), told);
}

#[test]
fn a_verdict_of_a_pass_is_flushed_before_its_next_claim_is_given_or_it_ends_or_somebody_sees_it() {
    let flushed = |pass: pacchettino::Consumer, queue: &Queue, way: &str| {
        let mut pass = Some(pass);
        match way {
            "the next claim" => {
                let next = queue.claim_next(pass.as_mut().unwrap()).unwrap().unwrap();
                next.settle(Outcome::Retry(None)).unwrap();
            }
            "the end" => pass.as_mut().unwrap().end(),
            "the drop" => drop(pass.take()),
            "count" => assert_eq!(queue.count(State::Success).unwrap(), 1),
            "jobs" => assert_eq!(queue.jobs(State::Success).unwrap().count(), 1),
            "requeue_all" => assert_eq!(queue.requeue_all(KeepPolicy::ALL).unwrap(), 1),
            "cleanup" => assert_eq!(queue.cleanup(KeepPolicy::ALL, Duration::ZERO).unwrap(), 1),
            _ => unreachable!(),
        }
        pass
    };
    for way in ["the next claim", "the end", "the drop", "count", "jobs", "requeue_all", "cleanup"] {
        let world = World::new();
        let (queue, pass, claim) = begun_pass(&world, 2);
        let dir = claim.path().unwrap().parent().unwrap().to_owned();
        claim.settle(Outcome::Success).unwrap();
        assert_eq!(world.names("success").len(), 1, "the verdict is given");
        assert!(dir.exists(), "its directory stays until the flush");
        let pass = flushed(pass, &queue, way);
        assert!(!dir.exists(), "{way}");
        drop(pass);
    }
}

#[test]
fn a_verdict_that_others_wait_for_or_whose_pass_is_over_is_flushed_at_once() {
    let world = World::new();
    let (_queue, _pass, claim) = begun_pass(&world, 1);
    claim.settle(Outcome::Retry(None)).unwrap();
    assert!(world.names("processing").is_empty());

    let (_queue, pass, claim) = begun_pass(&world, 0);
    drop(pass);
    claim.settle(Outcome::Success).unwrap();
    assert!(world.names("processing").is_empty());
}

#[test]
fn two_verdicts_of_a_pass_wait_for_one_flush_each() {
    let world = World::new();
    let (queue, mut pass, one) = begun_pass(&world, 2);
    let two = queue.claim_next(&mut pass).unwrap().unwrap();
    one.settle(Outcome::Success).unwrap();
    two.settle(Outcome::Failed).unwrap();
    assert_eq!(world.names("processing").len(), 1);
    pass.end();
    assert!(world.names("processing").is_empty());
}

#[test]
fn a_verdict_of_a_pass_whose_flush_fails_is_told_and_tried_again() {
    let world = World::new();
    let (queue, mut pass, claim) = begun_pass(&world, 1);
    let id = claim.job().unwrap().id();
    claim.settle(Outcome::Success).unwrap();
    fail::cfg("flush: fails", "return").unwrap();
    pass.end();
    let notices = queue.take_notices();
    assert!(notices.iter().any(|notice| notice.text.starts_with(&format!("job {id} could not be settled: "))));
    assert_eq!(world.names("processing").len(), 1);
    fail::remove("flush: fails");
    world.look();
    assert!(world.names("processing").is_empty());
}

// Rules 19 and 20: pause and cancel.

#[test]
fn a_job_claimed_while_the_queue_is_paused_goes_back() {
    let world = World::new();
    let job = world.send("a");
    fail::cfg("pause: no lag", "return").unwrap();
    let paused = world.path("paused");
    let file = paused.clone();
    fail::cfg_callback("claim: taken", move || drop(fs::write(&file, ""))).unwrap();
    assert!(claim(&world.queue).is_none());
    assert_eq!(world.status(&job), Some(State::Queued));
    fs::remove_file(&paused).unwrap();
    let mut pass = world.queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    assert!(world.queue.claim_next(&mut pass).unwrap().is_none());
    assert_eq!(world.status(&job), Some(State::Queued));
    assert!(world.names("processing").is_empty());
    fail::remove("claim: taken");
    fs::remove_file(&paused).unwrap();
    assert_eq!(claim(&world.queue).unwrap().attempt().unwrap(), 1, "that was no attempt");
}

#[test]
fn of_a_paused_queue_no_job_is_even_touched() {
    let world = World::new();
    world.send("a");
    world.queue.pause().unwrap();
    fail::cfg("claim: entered", "panic").unwrap();
    assert!(claim(&world.queue).is_none());
    let mut pass = world.queue.pass(Kinds::ANY, Order::Fifo).unwrap();
    assert!(world.queue.claim_next(&mut pass).unwrap().is_none());
}

#[test]
fn who_saw_that_a_queue_is_not_paused_looks_again_after_a_second_also_in_the_middle_of_a_claim() {
    let world = World::new();
    let job = world.send("a");
    let paused = world.path("paused");
    fail::cfg_callback("claim: taken", move || {
        fs::write(&paused, "").unwrap();
        std::thread::sleep(Duration::from_secs(1));
    })
    .unwrap();
    assert!(claim(&world.queue).is_none());
    assert_eq!(world.status(&job), Some(State::Queued));
}

#[test]
fn a_job_that_becomes_due_while_it_is_cancelled_is_found_where_it_went() {
    let world = World::new();
    let id = world.queue.send(b"a", Due::after(Duration::from_secs(3600)).unwrap()).unwrap();
    let job = Job::parse(OsStr::new(&format!("raw-{id}"))).unwrap();
    for place in ["cancel: listed", "cancel: looked"] {
        let home = world.home.path().to_owned();
        fail::cfg_callback(place, move || {
            for entry in fs::read_dir(home.join("scheduled")).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                fs::rename(entry.path(), home.join("queued").join(&name[14..])).unwrap();
            }
        })
        .unwrap();
        assert!(world.queue.cancel(&JobRef::Entry(job.clone())).unwrap());
        assert_eq!(world.status(&job), None);
        fail::remove(place);
        fs::write(world.path("scheduled").join(format!("9000000000000-raw-{id}")), "a").unwrap();
    }
}

#[test]
fn a_job_that_is_claimed_while_it_is_cancelled_is_its_claimers() {
    let world = World::new();
    let job = world.send("a");
    let (home, name) = (world.home.path().to_owned(), job.entry());
    fail::cfg_callback("cancel: looked", move || {
        fs::rename(home.join("queued").join(&name), home.join("taken")).unwrap();
    })
    .unwrap();
    assert!(!world.queue.cancel(&JobRef::Entry(job)).unwrap());
    assert!(world.path("taken").exists());
}
