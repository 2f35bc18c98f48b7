//! An open file that is known again.
//!
//! A descriptor is a number, and all code of a process can close it: a program that becomes a daemon closes whatever it
//! finds open, and a library may close one number too many. The number is then the next file's that anybody opens, and
//! what is written, moved or closed by it is somebody else's. So what is kept open knows which file it is: it is asked
//! whether it still is that one before it is used, and it closes nothing else.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;

/// An open file that is kept, and whose descriptor others may have closed.
pub(crate) struct Handle {
    file: ManuallyDrop<File>,
    #[cfg(unix)]
    identity: unix::Identity,
}

impl Handle {
    #[cfg_attr(windows, allow(clippy::unnecessary_wraps, reason = "elsewhere it may fail"))]
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            identity: unix::identity(&file)?,
            file: ManuallyDrop::new(file),
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the descriptor still is the file that was opened. Files that are none, such as those of `inotify` and
    /// `epoll`, can't be told from each other.
    ///
    /// If the system can't answer, the descriptor counts as intact: the next call that uses it fails with the true error.
    #[cfg_attr(windows, allow(clippy::unused_self, reason = "elsewhere it is asked"))]
    pub(crate) fn is_intact(&self) -> bool {
        #[cfg(unix)]
        return match unix::identity(&self.file) {
            Ok(now) => now == self.identity,
            Err(error) => error.raw_os_error() != Some(nix::libc::EBADF),
        };
        // Handles are closed by those who have them.
        #[cfg(windows)]
        true
    }

    /// Which file it was when it was opened: device and inode.
    #[cfg(unix)]
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // If the system can't answer, the descriptor stays open: it may be somebody else's.
        #[cfg(unix)]
        let is_ours = unix::identity(&self.file).is_ok_and(|now| now == self.identity);
        #[cfg(windows)]
        let is_ours = true;
        if is_ours {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(unix)]
pub(crate) mod unix {
    use std::fs::File;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsRawFd, RawFd};

    use nix::libc;

    pub(crate) type Identity = (u64, u64);

    pub(crate) fn identity(file: &File) -> io::Result<Identity> {
        of_number(file.as_raw_fd()).ok_or_else(io::Error::last_os_error)
    }

    /// Which file that number is at the moment, if it is one. Async-signal-safe.
    pub(crate) fn of_number(number: RawFd) -> Option<Identity> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `fstat` takes any number, and fills the structure where it succeeds.
        let stat = unsafe {
            if libc::fstat(number, stat.as_mut_ptr()) != 0 {
                return None;
            }
            stat.assume_init()
        };
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "signed and narrower on some systems")]
        Some((stat.st_dev as u64, stat.st_ino as u64))
    }
}
