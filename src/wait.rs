//! Waking up when there may be work.
//!
//! Who waits arms the watch, notes the generation, looks for a job, and sleeps only if the generation has not moved since:
//! so nothing that happens in between is slept through. Whatever may mean work for somebody raises the generation: an
//! event of the watched directories, and what this process does itself.
//!
//! There is no hidden thread. Of those who wait, one leads: it sleeps in the kernel on the watch, and hands over when it
//! leaves. The others sleep on a condition.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::layout::Layout;
use crate::policy::State;
use crate::sys::{Dir, Watch, Woken};

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
