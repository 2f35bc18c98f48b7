//! What a job costs in memory: how often the crate allocates for it, whatever waits.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end that way")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use pacchettino::{CrashDetection, KeepPolicy, Kinds, Order, Outcome, Queue};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "it is const; on Windows clippy does not see it")]
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, which is asked each time.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The least of several times: now and then more is done.
fn allocations(mut f: impl FnMut()) -> usize {
    let count = || COUNT.with(Cell::get);
    (0..20)
        .map(|_| {
            let before = count();
            f();
            count() - before
        })
        .min()
        .unwrap()
}

#[test]
fn a_job_costs_few_allocations() {
    // Under Wine each name that is looked for is looked for in the whole directory.
    let most_waiting = if cfg!(windows) { 500 } else { 10_000 };
    for waiting in [100, most_waiting] {
        let home = tempfile::tempdir().unwrap();
        let queue = Queue::open(home.path(), KeepPolicy::ALL, false, CrashDetection::LockFile).unwrap();
        queue.send_many(&vec![[b'x'; 256]; waiting], None).unwrap();
        let sending = allocations(|| _ = queue.send(&[b'x'; 256], None).unwrap());
        let receiving = allocations(|| {
            let claim = queue.claim(Kinds::ANY, Order::Random, Some(Duration::ZERO), Duration::MAX, || true);
            let claim = claim.unwrap().unwrap();
            claim.read().unwrap();
            claim.settle(Outcome::Success).unwrap();
        });
        // Windows takes each name as UTF-16, and a rename's in a buffer of its own.
        let (most_sending, most_receiving) = if cfg!(windows) { (20, 60) } else { (6, 12) };
        assert!(sending <= most_sending, "{sending} allocations to send beside {waiting} jobs");
        assert!(receiving <= most_receiving, "{receiving} allocations to receive beside {waiting} jobs");
    }
}
