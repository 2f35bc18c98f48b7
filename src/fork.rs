//! What a forked child must not share with its parent.
//!
//! A fork copies everything: claims, tables, locks held by threads that the child does not have, descriptors whose
//! `flock` lives on as long as any copy is open. So the child starts anew, and touches none of it: a counter tells that
//! a fork happened ([`generation`]), what is the process's own hangs on a [`PerProcess`] pointer that the child finds
//! empty, and descriptors that must not outlive the parent are closed in the child before `fork` returns ([`Private`]).
//! All of this is done by `pthread_atfork`, whose child handler may call only what is async-signal-safe (POSIX).

use std::fs::File;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::handle::Handle;

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A number that is another one in each forked child.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Has forks noticed from now on. To be called before there are other threads: a child forked by one while another is in
/// the middle of this would wait for that for ever.
#[cfg(feature = "python")]
pub(crate) fn watch() {
    handlers::watch_forks();
}

/// A value of this process: made when first asked for, and made anew in a forked child. The parent's is leaked there,
/// since some other thread may have been in the middle of changing it.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<(u64, T)>,
    make: fn() -> T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    pub(crate) fn get(&self) -> &'static T {
        handlers::watch_forks();
        let generation = generation();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: the pointer is null or came from `Box::into_raw` below, and is never freed once published.
            if let Some((made, value)) = unsafe { current.as_ref() }
                && *made == generation
            {
                return value;
            }
            let new = Box::into_raw(Box::new((generation, (self.make)())));
            if self.current.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was faster, so nobody else has seen this pointer.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// Runs `f` while no fork can happen: what it opens and closes again, no child keeps.
pub(crate) fn without_forks<T>(f: impl FnOnce() -> T) -> T {
    handlers::watch_forks();
    #[cfg(unix)]
    let _no_fork = handlers::NoFork::hold();
    f()
}

/// An open file that a forked child does not keep: the child's copy is closed before `fork` returns there.
pub(crate) struct Private {
    /// In a place of its own, where the child finds it.
    handle: ManuallyDrop<Box<Handle>>,
    generation: u64,
    #[cfg(unix)]
    slot: &'static handlers::Slot,
}

impl Private {
    /// Opens the file while no fork can happen in between.
    pub(crate) fn open<E>(open: impl FnOnce() -> Result<Handle, E>) -> Result<Self, E> {
        without_forks(|| {
            let handle = Box::new(open()?);
            Ok(Self {
                #[cfg(unix)]
                slot: handlers::Slot::take(&handle),
                handle: ManuallyDrop::new(handle),
                generation: generation(),
            })
        })
    }

    /// Whether this process opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn file(&self) -> &File {
        self.handle.file()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // In a forked child the descriptor is closed already.
        if self.is_ours() {
            #[cfg(unix)]
            self.slot.give_back();
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

#[cfg(unix)]
mod handlers {
    use std::cell::UnsafeCell;
    use std::ptr::{from_ref, null_mut};
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use nix::libc;

    use crate::handle::Handle;

    /// A list that only grows, so that the child can walk it whatever other threads were doing.
    static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(null_mut());

    /// The place of one open file in the list of those to be closed.
    pub(crate) struct Slot {
        /// Null where there is none.
        handle: AtomicPtr<Handle>,
        next: *mut Slot,
    }

    // SAFETY: `next` is written before the slot is published and never again.
    unsafe impl Sync for Slot {}

    impl Slot {
        /// Takes a place for a handle, which stays where it is until the place is given back.
        pub(crate) fn take(handle: &Handle) -> &'static Self {
            let handle = from_ref(handle).cast_mut();
            for slot in slots() {
                if slot.handle.compare_exchange(null_mut(), handle, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return slot;
                }
            }
            let new: &'static mut Self = Box::leak(Box::new(Self { handle: AtomicPtr::new(handle), next: null_mut() }));
            let mut head = SLOTS.load(Ordering::Acquire);
            loop {
                new.next = head;
                match SLOTS.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return new,
                    Err(other) => head = other,
                }
            }
        }

        pub(crate) fn give_back(&self) {
            self.handle.store(null_mut(), Ordering::Release);
        }
    }

    fn slots() -> impl Iterator<Item = &'static Slot> {
        let mut next = SLOTS.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null or a leaked slot.
            let slot = unsafe { next.as_ref() }?;
            next = slot.next;
            Some(slot)
        })
    }

    /// A lock that `fork` waits for. A plain pthread mutex: the handlers below are its textbook use, and unlike std's
    /// it may be unlocked without a guard.
    struct ForkLock(UnsafeCell<libc::pthread_mutex_t>);

    // SAFETY: a pthread mutex is made to be used by many threads.
    unsafe impl Sync for ForkLock {}

    static FORK_LOCK: ForkLock = ForkLock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

    /// While one is held, no fork happens in this process.
    pub(crate) struct NoFork(());

    impl NoFork {
        pub(crate) fn hold() -> Self {
            lock();
            Self(())
        }
    }

    impl Drop for NoFork {
        fn drop(&mut self) {
            unlock();
        }
    }

    extern "C" fn lock() {
        // SAFETY: an initialized mutex that is never destroyed.
        unsafe { libc::pthread_mutex_lock(FORK_LOCK.0.get()) };
    }

    extern "C" fn unlock() {
        // SAFETY: as above; this thread locked it.
        unsafe { libc::pthread_mutex_unlock(FORK_LOCK.0.get()) };
    }

    extern "C" fn in_child() {
        super::GENERATION.fetch_add(1, Ordering::AcqRel);
        for slot in slots() {
            // SAFETY: null, or a handle that lives until its place is given back, as it was not when the fork happened. Its
            // owner, seeing the new generation, leaves it alone from now on.
            if let Some(handle) = unsafe { slot.handle.swap(null_mut(), Ordering::AcqRel).as_ref() } {
                handle.close_in_child();
            }
        }
        unlock();
    }

    pub(super) fn watch_forks() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handlers live as long as the process and call only async-signal-safe functions.
            let failed = unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(in_child)) };
            assert_eq!(failed, 0, "pthread_atfork has no memory");
        });
    }
}

#[cfg(windows)]
mod handlers {
    /// Windows has no fork.
    pub(super) fn watch_forks() {}
}
