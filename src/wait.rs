//! Waking up when there may be work.
//!
//! Who waits notes the generation, looks for a job, and sleeps only if the generation has not moved since: so nothing
//! that happens in between is slept through. Whatever may mean work for somebody raises the generation.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Wait {
    generation: Mutex<u64>,
    moved: Condvar,
}

impl Wait {
    pub(crate) fn generation(&self) -> u64 {
        *locked(&self.generation)
    }

    /// Something may be there for those who wait.
    pub(crate) fn raise(&self) {
        *locked(&self.generation) += 1;
        self.moved.notify_all();
    }

    /// Sleeps until the generation is another one than `seen`, but at most that long.
    pub(crate) fn sleep(&self, seen: u64, longest: Duration) {
        let generation = locked(&self.generation);
        let slept = self.moved.wait_timeout_while(generation, longest, |generation| *generation == seen);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Locks, also after a panic elsewhere: what these locks protect is whole between any two statements.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const FOR_EVER: Duration = Duration::from_secs(1 << 40);

    #[test]
    fn what_happens_between_the_look_and_the_sleep_is_not_slept_through() {
        let wait = Wait::default();
        let seen = wait.generation();
        wait.raise();
        wait.sleep(seen, FOR_EVER);
    }

    #[test]
    fn all_who_sleep_are_woken() {
        let wait = Arc::new(Wait::default());
        let seen = wait.generation();
        let sleepers: Vec<_> = (0..4)
            .map(|_| {
                let wait = Arc::clone(&wait);
                std::thread::spawn(move || wait.sleep(seen, FOR_EVER))
            })
            .collect();
        wait.raise();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }
}
