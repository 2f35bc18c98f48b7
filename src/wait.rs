//! Waking up when there may be work.
//!
//! Who waits arms the watch, notes the generation, looks for a job, and sleeps only if the generation has not moved since:
//! so nothing that happens in between is slept through. Whatever may mean work for somebody raises the generation: an
//! event of the watched directories, and what this process does itself.
//!
//! There is no hidden thread. Of those who wait, one leads: it sleeps in the kernel on the watch, and hands over when it
//! leaves. The others sleep on a condition.
//!
//! Who runs an event loop does not sleep here: it has the loop watch the descriptor of a [`Listener`]. The watch is
//! everybody's: who takes events from it raises the generation, whether it leads or listens. So between an event and the
//! raise either the watch is ready still, or somebody is about to raise; and a raise rings the listeners. A listener is
//! enlisted before each look, under the lock under which others raise: of what happened before, the look shows what came
//! of it; what happens after makes the descriptor ready, and it stays so until its owner has [`heard`](Listener::heard),
//! after which it looks again.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::layout::Layout;
use crate::policy::State;
use crate::sys::{Bell, Dir, Watch, Woken};

/// How long it is left alone after the kernel refused a watch.
const REST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Wait {
    state: Mutex<Waiting>,
    moved: Condvar,
}

#[derive(Default)]
struct Waiting {
    generation: u64,
    watch: Armed,
    /// Whether somebody sleeps on the watch.
    led: bool,
    /// How many sleep on the condition.
    following: usize,
    listeners: Vec<Weak<Listener>>,
}

#[derive(Default)]
enum Armed {
    #[default]
    NotYet,
    Yes(Arc<Watch>),
    /// The kernel can't, or its limits were hit at that time: then only the poll is left, for a while.
    Failed(Instant),
}

impl Wait {
    /// Arms the watch, unless that was done. Says whether the kernel will wake those who sleep; the first time that it
    /// can't, why.
    pub(crate) fn arm(&self, layout: &Layout, base: &Path) -> Result<bool, io::Error> {
        let mut state = locked(&self.state);
        match state.watch {
            Armed::Yes(ref watch) if watch.is_intact() => return Ok(true),
            Armed::Failed(then) if then.elapsed() < REST => return Ok(false),
            Armed::NotYet | Armed::Yes(_) | Armed::Failed(_) => {}
        }
        if !layout.is_intact() {
            return Ok(false); // somebody closed them, and others may have their numbers: they are opened again soon
        }
        // In the queue's own directory the file comes and goes that says that the queue is paused.
        let watch = Dir::open(base)
            .and_then(|home| Watch::new(&[layout.dir(State::Queued), layout.dir(State::Scheduled)], &home));
        match watch {
            Ok(watch) => {
                state.watch = Armed::Yes(Arc::new(watch));
                Ok(true)
            }
            Err(error) => {
                state.watch = Armed::Failed(Instant::now());
                if error.kind() == io::ErrorKind::Unsupported { Ok(false) } else { Err(error) }
            }
        }
    }

    /// The watched directories were replaced: others are to be watched.
    pub(crate) fn disarm(&self) {
        self.raise();
        locked(&self.state).watch = Armed::NotYet;
    }

    pub(crate) fn generation(&self) -> u64 {
        locked(&self.state).generation
    }

    /// Something may be there for those who wait.
    pub(crate) fn raise(&self) {
        let mut state = locked(&self.state);
        state.generation += 1;
        if state.led
            && let Armed::Yes(watch) = &state.watch
        {
            watch.wake();
        }
        if state.following > 0 {
            self.moved.notify_all();
        }
        state.ring();
    }

    /// Has a listener's descriptor ready when something happens from now on. Says whether that goes for what the kernel
    /// tells as well.
    pub(crate) fn enlist(self: &Arc<Self>, listener: &Arc<Listener>) -> bool {
        let mut state = locked(&self.state);
        if !state.listeners.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener))) {
            state.listeners.retain(|known| known.strong_count() > 0);
            state.listeners.push(Arc::downgrade(listener));
        }
        listener.is_silent.store(false, Ordering::Relaxed);
        match &state.watch {
            Armed::Yes(watch) => listener.hear(self, watch),
            Armed::NotYet | Armed::Failed(_) => false,
        }
    }

    /// Sleeps until the generation is another one than `seen`, a signal arrives, or that much time has passed.
    pub(crate) fn sleep(&self, seen: u64, longest: Duration) {
        let end = Instant::now().checked_add(longest);
        let mut state = locked(&self.state);
        while state.generation == seen {
            let left = end.map_or(longest, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            let watch = match &state.watch {
                Armed::Yes(watch) if !state.led => Arc::clone(watch),
                _ => {
                    state.following += 1;
                    let slept = self.moved.wait_timeout(state, left);
                    state = slept.unwrap_or_else(PoisonError::into_inner).0;
                    state.following -= 1;
                    continue;
                }
            };
            state.led = true;
            drop(state);
            step!("wait: leads");
            let woken = watch.sleep(left);
            state = locked(&self.state);
            state.led = false;
            if woken == Woken::ByEvent {
                state.generation += 1;
                state.ring();
            }
            // Another one leads from here, and all look if something happened.
            if state.following > 0 {
                self.moved.notify_all();
            }
            if woken == Woken::BySignal {
                return;
            }
        }
    }
}

impl Waiting {
    fn ring(&self) {
        self.listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.ring());
    }
}

/// Who waits in an event loop. It belongs to the process that made it: in a forked child nothing rings it.
pub struct Listener {
    /// None where there is no such thing, or the process has no more descriptors.
    bell: Option<Bell>,
    /// Whether it was rung, or has heard, since it was last enlisted: once is enough.
    is_silent: AtomicBool,
    hears: Mutex<Option<(Arc<Wait>, Arc<Watch>)>>,
    /// For how long it rests after the next error, in microseconds.
    rest: AtomicU64,
}

impl Listener {
    /// One that nothing rings yet.
    #[must_use]
    pub fn new() -> Self {
        let (is_silent, hears, rest) = Default::default();
        Self { bell: Bell::new().ok(), is_silent, hears, rest }
    }

    /// What the event loop is to watch, until it is readable; if there is nothing, it looks from time to time.
    #[must_use]
    pub fn descriptor(&self) -> Option<i32> {
        self.bell().map(Bell::descriptor)
    }

    /// Takes what there was to be heard. Says whether to look for a job.
    pub fn heard(&self) -> bool {
        let Some(bell) = self.bell() else { return true };
        let was_rung = bell.was_rung();
        let told = locked(&self.hears).clone().filter(|(_, watch)| watch.take_events());
        if was_rung || told.is_some() {
            self.is_silent.store(true, Ordering::Relaxed);
        }
        let is_told = told.is_some();
        if let Some((wait, _)) = told {
            wait.raise(); // the others look, too
        }
        was_rung || is_told
    }

    pub(crate) fn rest(&self) -> Duration {
        Duration::from_micros(self.rest.load(Ordering::Relaxed))
    }

    pub(crate) fn set_rest(&self, rest: Duration) {
        self.rest.store(rest.as_micros().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn bell(&self) -> Option<&Bell> {
        self.bell.as_ref().filter(|bell| bell.is_good())
    }

    fn hear(&self, wait: &Arc<Wait>, watch: &Arc<Watch>) -> bool {
        let Some(bell) = self.bell() else { return false };
        let mut hears = locked(&self.hears);
        if hears.as_ref().is_some_and(|(_, known)| Arc::ptr_eq(known, watch)) {
            return true;
        }
        if let Some((_, old)) = hears.take() {
            bell.leave(&old);
        }
        let joined = bell.join(watch).is_ok();
        *hears = joined.then(|| (Arc::clone(wait), Arc::clone(watch)));
        joined
    }

    fn ring(&self) {
        if !self.is_silent.swap(true, Ordering::Relaxed)
            && let Some(bell) = self.bell()
        {
            bell.ring();
        }
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self::new()
    }
}

/// By what [`shortened`] divides.
static SHORTENED: AtomicU32 = AtomicU32::new(1);

/// Divides the waits for what nobody reports, which take seconds, in this process and those that it forks. For tests.
pub fn shorten_waits(times: NonZeroU32) {
    SHORTENED.store(times.get(), Ordering::Relaxed);
}

/// Returns how long a wait takes that takes so long unless a test has shortened it.
pub(crate) fn shortened(wait: Duration) -> Duration {
    wait / SHORTENED.load(Ordering::Relaxed)
}

/// For how long a directory is left alone that took so long to read: who waits beside a million entries that change all the
/// time would do nothing but read them. Small ones are read whenever there is a reason.
pub(crate) fn rest_after(reading: Duration) -> Duration {
    if reading < Duration::from_millis(20) { Duration::ZERO } else { reading * 10 }
}

/// Locks, also after a panic elsewhere: what these locks protect is whole between any two statements.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(1 << 40);

    /// A queue's directories and who waits for them, with or without a watch.
    struct World {
        #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "it is kept while the test lasts"))]
        home: tempfile::TempDir,
        wait: Arc<Wait>,
    }

    impl World {
        fn new(watched: bool) -> Self {
            let home = tempfile::tempdir().unwrap();
            let wait = Arc::new(Wait::default());
            let layout = Layout::open(home.path()).unwrap();
            if watched {
                assert_eq!(wait.arm(&layout, home.path()).unwrap(), cfg!(target_os = "linux"));
            }
            Self { home, wait }
        }

        #[cfg(target_os = "linux")]
        fn publish(&self, state: &str) {
            let path = |dir: &str| -> std::path::PathBuf { self.home.path().join(dir).join("job") };
            std::fs::write(path("tmp"), "").unwrap();
            std::fs::rename(path("tmp"), path(state)).unwrap();
        }

        fn sleeper(&self, seen: u64) -> std::thread::JoinHandle<()> {
            let wait = Arc::clone(&self.wait);
            std::thread::spawn(move || wait.sleep(seen, FOR_EVER))
        }
    }

    // None of these has a poll: what is slept through is slept through for ever.

    #[test]
    fn what_happens_between_the_look_and_the_sleep_is_not_slept_through() {
        for watched in [false, true] {
            let world = World::new(watched);
            let seen = world.wait.generation();
            world.wait.raise();
            world.wait.sleep(seen, FOR_EVER);
        }
    }

    #[test]
    fn all_who_sleep_are_woken_whoever_leads() {
        for watched in [false, true] {
            let world = World::new(watched);
            let seen = world.wait.generation();
            let sleepers: Vec<_> = (0..4).map(|_| world.sleeper(seen)).collect();
            world.wait.raise();
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_job_of_another_process_wakes_all_who_sleep_or_are_about_to() {
        for state in ["queued", "scheduled"] {
            for before in [true, false] {
                let world = World::new(true);
                let seen = world.wait.generation();
                if before {
                    world.publish(state);
                }
                let sleepers: Vec<_> = (0..4).map(|_| world.sleeper(seen)).collect();
                if !before {
                    world.publish(state);
                }
                for sleeper in sleepers {
                    sleeper.join().unwrap();
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    impl World {
        fn listener(&self) -> Arc<Listener> {
            let listener = Arc::default();
            assert!(self.wait.enlist(&listener));
            listener
        }
    }

    /// Whether the descriptor is ready, or becomes so in a time in which it should have long ago.
    #[cfg(target_os = "linux")]
    fn is_ready(listener: &Listener, milliseconds: u16) -> bool {
        use nix::poll::{PollFd, PollFlags, poll};
        use std::os::fd::BorrowedFd;

        // SAFETY: it is open as long as the listener lives.
        let descriptor = unsafe { BorrowedFd::borrow_raw(listener.descriptor().unwrap()) };
        poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], milliseconds).unwrap() == 1
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_happens_after_a_listener_was_enlisted_is_heard_once() {
        let happen: [fn(&World); 2] = [|world| world.wait.raise(), |world| world.publish("queued")];
        for happens in happen {
            let world = World::new(true);
            happens(&world);
            let listener = world.listener();
            _ = listener.heard(); // what was before may be heard, or not
            world.wait.enlist(&listener);
            assert!(!is_ready(&listener, 0));
            happens(&world);
            assert!(is_ready(&listener, 10_000));
            assert!(listener.heard());
            world.wait.enlist(&listener);
            assert!(!is_ready(&listener, 0));
        }
    }

    /// Waits until a listener has heard. Where another one takes the event just before, it hears when that one rings.
    #[cfg(target_os = "linux")]
    fn hears(listener: &Listener) {
        loop {
            assert!(is_ready(listener, 10_000));
            if listener.heard() {
                return;
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn of_what_happens_all_hear_whoever_takes_it_from_the_watch() {
        for turn in 0..60 {
            let world = World::new(true);
            let listeners = [world.listener(), world.listener()];
            let seen = world.wait.generation();
            let sleepers: Vec<_> = (0..turn % 3).map(|_| world.sleeper(seen)).collect();
            if turn % 2 == 0 {
                std::thread::yield_now();
            }
            world.publish("queued");
            if turn % 5 == 0 {
                // The listener takes it, and those who sleep are to be told.
                hears(&listeners[0]);
                world.wait.enlist(&listeners[0]);
            }
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
            for listener in &listeners[usize::from(turn % 5 == 0)..] {
                hears(listener);
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listener_hears_of_the_directories_that_are_watched_now() {
        let world = World::new(true);
        let listener = world.listener();
        world.wait.disarm();
        assert!(is_ready(&listener, 0) && listener.heard());
        assert!(!world.wait.enlist(&listener), "nothing is watched");
        let other = World::new(false);
        let layout = Layout::open(other.home.path()).unwrap();
        assert!(world.wait.arm(&layout, other.home.path()).unwrap());
        assert!(world.wait.enlist(&listener));
        world.publish("scheduled");
        assert!(!is_ready(&listener, 0));
        other.publish("scheduled");
        assert!(is_ready(&listener, 10_000) && listener.heard());
        world.wait.enlist(&listener);
        assert!(!is_ready(&listener, 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn when_the_leader_leaves_another_one_leads() {
        let world = World::new(true);
        let seen = world.wait.generation();
        let short = Arc::clone(&world.wait);
        let leader = std::thread::spawn(move || short.sleep(seen, Duration::from_millis(20)));
        let sleepers: Vec<_> = (0..2).map(|_| world.sleeper(seen)).collect();
        leader.join().unwrap();
        world.publish("queued");
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }
}
