//! An open file that is known again.
//!
//! A descriptor is a number, and all code of a process can close it: a program that becomes a daemon closes whatever it
//! finds open, and a library may close one number too many. The number is then the next file's that anybody opens, and
//! whatever is written, moved or closed by it is somebody else's. So a handle that is kept knows which file it is and
//! that it is the last one that was given its number. It is asked before it is used, and it closes nothing else: a handle
//! that was lost once is never closed.
//!
//! The file alone does not tell. A queue whose directories were closed opens them again, and they may get the same
//! numbers as before: the old handles would close the new ones. Hence the table of who has which number ([`unix`]).

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

/// An open file that is kept, and whose descriptor others may have closed.
pub(crate) struct Handle {
    file: ManuallyDrop<File>,
    #[cfg(unix)]
    mark: unix::Mark,
}

impl Handle {
    #[cfg_attr(windows, allow(clippy::unnecessary_wraps, reason = "elsewhere it may fail"))]
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            mark: unix::Mark::new(&file, false)?,
            file: ManuallyDrop::new(file),
        })
    }

    /// A handle of `inotify`, `epoll` and the like, which are all one file to `fstat(2)`. It is closed only if no handle of
    /// this process was found to be lost since it was opened: a program that closes descriptors closes many.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn nameless(file: File) -> io::Result<Self> {
        Ok(Self { mark: unix::Mark::new(&file, true)?, file: ManuallyDrop::new(file) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the descriptor still is this handle's.
    ///
    /// If the system can't answer, the descriptor counts as intact: the next call that uses it fails with the true error.
    #[cfg_attr(windows, allow(clippy::unused_self, reason = "elsewhere it is asked"))]
    pub(crate) fn is_intact(&self) -> bool {
        #[cfg(unix)]
        return self.mark.is_intact();
        // Handles are closed by those who have them.
        #[cfg(windows)]
        true
    }

    /// Which file it was when it was opened: device and inode.
    #[cfg(unix)]
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.mark.identity()
    }

    /// What the file is at the moment; `None` if the descriptor is not this handle's any more.
    #[cfg(unix)]
    pub(crate) fn stat(&self) -> io::Result<Option<nix::libc::stat>> {
        self.mark.stat()
    }

    /// Closes the copy that a forked child got. Async-signal-safe.
    #[cfg(unix)]
    pub(crate) fn close_in_child(&self) {
        self.mark.close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        #[cfg(unix)]
        self.mark.close();
        // SAFETY: dropped once, here, and not used after.
        #[cfg(windows)]
        unsafe {
            ManuallyDrop::drop(&mut self.file);
        }
    }
}

#[cfg(unix)]
pub(crate) mod unix {
    //! Which handle has which descriptor. Nothing here takes a lock, and nothing but a new handle allocates: a forked child
    //! asks while the locks of its parent's threads may be held for ever.

    use std::fs::File;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsRawFd, RawFd};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use nix::libc;

    pub(crate) type Identity = (u64, u64);

    const ROW: usize = 1024;

    /// For each descriptor the serial number of the handle that was given it last, or 0. A million of them are known; of
    /// those above, the file alone must tell.
    static ROWS: [AtomicPtr<[AtomicU64; ROW]>; 1024] = [const { AtomicPtr::new(null_mut()) }; 1024];

    /// The serial number of the last handle.
    static LAST: AtomicU64 = AtomicU64::new(0);

    /// The last handle that there was when one was found to be lost.
    static LOST: AtomicU64 = AtomicU64::new(0);

    /// What is known of a descriptor.
    pub(crate) struct Mark {
        number: RawFd,
        serial: u64,
        identity: Identity,
        is_nameless: bool,
    }

    impl Mark {
        pub(super) fn new(file: &File, is_nameless: bool) -> io::Result<Self> {
            let number = file.as_raw_fd();
            let identity = identity_of(&stat(number)?);
            make_row(number);
            let serial = LAST.fetch_add(1, Ordering::AcqRel) + 1;
            // The handle that had the number did not close it: somebody else did.
            if owner_of(number).is_some_and(|owner| owner.swap(serial, Ordering::AcqRel) != 0) {
                LOST.fetch_max(serial - 1, Ordering::AcqRel);
            }
            Ok(Self { number, serial, identity, is_nameless })
        }

        pub(super) fn identity(&self) -> Identity {
            self.identity
        }

        /// The file's state; `None` if the descriptor is lost, which it then is for good.
        pub(super) fn stat(&self) -> io::Result<Option<libc::stat>> {
            if !self.has_number() {
                return Ok(None);
            }
            match stat(self.number) {
                Ok(found) if identity_of(&found) == self.identity => Ok(Some(found)),
                Err(error) if error.raw_os_error() != Some(libc::EBADF) => Err(error),
                _ => {
                    if self.give_up() {
                        LOST.fetch_max(LAST.load(Ordering::Acquire), Ordering::AcqRel);
                    }
                    Ok(None)
                }
            }
        }

        pub(super) fn is_intact(&self) -> bool {
            self.stat().map_or(true, |found| found.is_some())
        }

        pub(super) fn close(&self) {
            let is_certain = !self.is_nameless || self.serial > LOST.load(Ordering::Acquire);
            // If the system can't answer, the descriptor stays open: it may be somebody else's.
            let is_own = self.stat().is_ok_and(|found| found.is_some());
            // The number is given up first: the next file may get it as soon as it is closed.
            if is_own && self.give_up() && is_certain {
                // SAFETY: it is this handle's, and is not used after.
                unsafe { libc::close(self.number) };
            }
        }

        fn has_number(&self) -> bool {
            owner_of(self.number).is_none_or(|owner| owner.load(Ordering::Acquire) == self.serial)
        }

        /// Says whether it was this handle's until now.
        fn give_up(&self) -> bool {
            owner_of(self.number)
                .is_none_or(|owner| owner.compare_exchange(self.serial, 0, Ordering::AcqRel, Ordering::Acquire).is_ok())
        }
    }

    fn stat(number: RawFd) -> io::Result<libc::stat> {
        let mut stat = MaybeUninit::uninit();
        // SAFETY: `fstat` takes any number, and fills the structure where it succeeds.
        unsafe {
            if libc::fstat(number, stat.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stat.assume_init())
        }
    }

    fn identity_of(stat: &libc::stat) -> Identity {
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "signed and narrower on some systems")]
        (stat.st_dev as u64, stat.st_ino as u64)
    }

    fn owner_of(number: RawFd) -> Option<&'static AtomicU64> {
        let number = usize::try_from(number).ok()?;
        // SAFETY: null, or a row that is never freed.
        let row = unsafe { ROWS.get(number / ROW)?.load(Ordering::Acquire).as_ref() }?;
        row.get(number % ROW)
    }

    fn make_row(number: RawFd) {
        let place = usize::try_from(number).ok().and_then(|number| ROWS.get(number / ROW));
        if let Some(place) = place.filter(|place| place.load(Ordering::Acquire).is_null()) {
            let row = Box::into_raw(Box::new([const { AtomicU64::new(0) }; ROW]));
            if place.compare_exchange(null_mut(), row, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was faster, so nobody else has seen this pointer.
                drop(unsafe { Box::from_raw(row) });
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::Handle;
        use super::*;
        use std::os::fd::{FromRawFd, IntoRawFd};

        /// Opens the same directory under a number of its own, high enough that no other test's file gets it.
        fn open_as(number: RawFd) -> Handle {
            let directory = File::open("/").unwrap();
            // SAFETY: a number that only this test uses.
            let copied = unsafe { libc::dup2(directory.as_raw_fd(), number) };
            assert_eq!(copied, number);
            // SAFETY: as above.
            Handle::new(unsafe { File::from_raw_fd(number) }).unwrap()
        }

        fn is_open(number: RawFd) -> bool {
            stat(number).is_ok()
        }

        #[test]
        fn a_lost_handle_does_not_close_the_same_file_that_got_its_number() {
            for number in [700, 3000] {
                let lost = open_as(number);
                let later = open_as(number);
                assert!(!lost.is_intact() && later.is_intact());
                drop(lost);
                assert!(is_open(number));
                drop(later);
                assert!(!is_open(number));
            }
        }

        #[test]
        #[cfg(any(target_os = "linux", target_os = "android"))]
        fn a_nameless_handle_is_left_open_once_another_one_was_lost() {
            use nix::sys::eventfd::EventFd;

            let number = 702;
            let event = EventFd::new().unwrap();
            // SAFETY: a number that only this test uses.
            let nameless = unsafe { File::from_raw_fd(libc::dup2(event.as_raw_fd(), number)) };
            let nameless = Handle::nameless(nameless).unwrap();
            drop((open_as(703), open_as(703)));
            drop(nameless);
            assert!(is_open(number));
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }

        #[test]
        fn a_handle_that_was_found_lost_is_never_closed() {
            let number = 701;
            let lost = open_as(number);
            // SAFETY: what is lost by it is what this test is about.
            unsafe { libc::close(number) };
            assert!(!lost.is_intact());
            let directory = File::open("/").unwrap();
            // SAFETY: a number that only this test uses.
            let stranger = unsafe { File::from_raw_fd(libc::dup2(directory.as_raw_fd(), number)) };
            assert!(!lost.is_intact());
            drop(lost);
            assert!(is_open(number));
            // SAFETY: as above.
            unsafe { libc::close(stranger.into_raw_fd()) };
        }
    }
}
