//! One flush for all who wait for it, as databases commit in groups.
//!
//! A flush covers whatever was done before it began. So who comes while one is running waits for its end, and then one
//! of those who came meanwhile flushes for all of them; each hears what came of it.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The flushes of one directory.
#[derive(Default)]
pub(crate) struct Flush {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    /// The flush after the one that runs.
    next: Arc<Round>,
}

/// What came of one flush, once it ended.
type Round = OnceLock<io::Result<()>>;

impl Flush {
    /// Has everything flushed that this thread did before, by a flush that begins after this call: `flush` in this
    /// thread, or that of another one in which this thread joins.
    pub(crate) fn run(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.locked();
        let round = Arc::clone(&state.next);
        while state.running {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            if let Some(done) = round.get() {
                return again(done);
            }
        }
        // Nobody has begun this round.
        state.running = true;
        mem::take(&mut state.next);
        drop(state);
        let lead = Lead { flush: self, round: &round };
        _ = round.set(flush());
        drop(lead);
        round.get().map_or_else(|| Err(broken_off()), again)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lead of one round. It ends in any case, or those who joined would wait for ever.
struct Lead<'a> {
    flush: &'a Flush,
    round: &'a Round,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        _ = self.round.set(Err(broken_off())); // unless it has its outcome
        self.flush.locked().running = false;
        self.flush.ended.notify_all();
    }
}

/// The leader panicked: nobody knows how far the flush came.
fn broken_off() -> io::Error {
    io::Error::other("a flush was broken off")
}

/// The same outcome for one more of those who share it.
fn again(done: &io::Result<()>) -> io::Result<()> {
    match done {
        Ok(()) => Ok(()),
        Err(error) => Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    /// Has a flush run while `followers` come, and gives how many flushes there were and what each follower heard.
    fn led(
        followers: usize,
        first: impl FnOnce() -> io::Result<()> + Send,
        later: Option<i32>,
    ) -> (usize, Vec<Option<i32>>) {
        let flush = Flush::default();
        let flushes = AtomicUsize::new(0);
        let counted = |done: io::Result<()>| {
            flushes.fetch_add(1, SeqCst);
            done
        };
        let meet = Barrier::new(2);
        let heard = thread::scope(|scope| {
            let leader = scope.spawn(|| {
                catch_unwind(AssertUnwindSafe(|| {
                    flush.run(|| {
                        meet.wait(); // it has begun
                        meet.wait(); // it is to end
                        counted(first())
                    })
                }))
            });
            meet.wait();
            let round = Arc::clone(&flush.locked().next);
            let follow =
                || flush.run(|| counted(later.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))));
            let followers: Vec<_> = (0..followers).map(|_| scope.spawn(follow)).collect();
            // Each holds the round that it waits for, beside the one in `next` and the one here.
            while Arc::strong_count(&round) < followers.len() + 2 {
                thread::yield_now();
            }
            assert_eq!(flushes.load(SeqCst), 0, "nobody flushes beside the one who leads");
            meet.wait();
            _ = leader.join().unwrap();
            followers
                .into_iter()
                .map(|follower| follower.join().unwrap().err().and_then(|error| error.raw_os_error()))
                .collect()
        });
        (flushes.load(SeqCst), heard)
    }

    #[test]
    fn who_comes_while_a_flush_runs_is_not_served_by_that_one_but_all_of_them_by_the_next() {
        assert_eq!(led(8, || Ok(()), None), (2, vec![None; 8]));
    }

    #[test]
    fn who_is_alone_flushes_at_once() {
        assert_eq!(led(0, || Ok(()), None), (1, vec![]));
    }

    #[test]
    fn a_flush_that_fails_fails_for_all_who_share_it_and_for_nobody_else() {
        assert_eq!(led(8, || Ok(()), Some(5)), (2, vec![Some(5); 8]));
        assert_eq!(led(8, || Err(io::Error::from_raw_os_error(28)), None), (2, vec![None; 8]));
    }

    #[test]
    fn a_leader_that_panics_keeps_nobody_waiting() {
        assert_eq!(led(8, || panic!("planned"), None), (1, vec![None; 8]));
        let flush = Flush::default();
        _ = catch_unwind(AssertUnwindSafe(|| flush.run(|| panic!("planned"))));
        flush.run(|| Ok(())).unwrap();
    }

    #[test]
    fn many_threads_all_get_a_flush_that_began_after_they_came() {
        let flush = Flush::default();
        let (done, flushed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mine = done.fetch_add(1, SeqCst);
                        let cover = || {
                            let covered = done.load(SeqCst);
                            thread::yield_now();
                            flushed.fetch_max(covered, SeqCst);
                            Ok(())
                        };
                        flush.run(cover).unwrap();
                        assert!(flushed.load(SeqCst) > mine);
                    }
                });
            }
        });
    }
}
