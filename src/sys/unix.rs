//! Linux, macOS and the BSDs: directory handles and the `*at` calls.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use fs2::FileExt as _;
use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::libc;
use nix::sys::signal::kill;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{AccessFlags, Pid, UnlinkatFlags, faccessat, unlinkat};

use super::{Access, Doubtful, Entry, FileKind, Identity, Link, Permissions, Reading, Space, Stat};
use crate::handle::Handle;
#[cfg(any(target_os = "linux", target_os = "android"))]
use {
    super::Woken,
    crate::fork::Private,
    nix::poll::{PollFd, PollFlags, PollTimeout, poll},
    nix::sys::epoll::{Epoll, EpollCreateFlags},
    nix::sys::eventfd::{EfdFlags, EventFd},
    nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify},
    std::io::{Read, Write},
    std::sync::atomic::Ordering,
};

/// What a new file or directory may be, before the umask.
const FILE_MODE: Mode = Mode::from_bits_truncate(0o666);
const DIR_MODE: Mode = Mode::from_bits_truncate(0o777);

/// Never follow a link out of the queue, never wait for a FIFO's other end, never hand the descriptor to a child.
const OPEN: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK);

/// An open directory.
pub(crate) struct Dir {
    handle: Handle,
    path: PathBuf,
    /// How many bytes a listing in one call takes, as far as is known.
    room: AtomicUsize,
}

impl Dir {
    /// Opens a directory by its path, following links.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Self::new(open(AT_FDCWD, path, flags)?, path.into())
    }

    /// Opens one of its directories; a link in its place is an error (`ENOTDIR`).
    pub(crate) fn open_dir(&self, name: &OsStr) -> io::Result<Self> {
        Self::new(open(self, name, OPEN | OFlag::O_RDONLY | OFlag::O_DIRECTORY)?, self.path.join(name))
    }

    fn new(file: File, path: PathBuf) -> io::Result<Self> {
        Ok(Self { handle: Handle::new(file)?, path, room: AtomicUsize::new(0) })
    }

    /// Where it was when it was opened, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[allow(clippy::unnecessary_wraps, reason = "elsewhere it is asked")]
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        Ok(self.handle.identity())
    }

    /// Whether it is still open, and its descriptor no other file's: see [`Handle`].
    pub(crate) fn is_intact(&self) -> bool {
        self.handle.is_intact()
    }

    /// When its inode last changed, a change of its names included, as coarsely as the filesystem's clock ticks. Nobody
    /// can set that time.
    pub(crate) fn changed(&self) -> io::Result<SystemTime> {
        Ok(stat_of(&fstat(self)?).changed)
    }

    /// Whether it still has a name.
    pub(crate) fn is_linked(&self) -> io::Result<bool> {
        is_linked(&self.handle)
    }

    pub(crate) fn make_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(self, name, DIR_MODE)?)
    }

    /// Removes an empty directory; `ENOTEMPTY` is the safety catch.
    pub(crate) fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self, name, UnlinkatFlags::RemoveDir)?)
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Makes a file that was not there, for writing.
    pub(crate) fn create_file(&self, name: &OsStr) -> io::Result<File> {
        self.create(name, OFlag::O_WRONLY)
    }

    /// Makes a file that was not there, to be locked. Open for reading only: who writes to a file keeps its filesystem
    /// from being made read-only, and a lock is held as long as its process lives.
    pub(crate) fn create_lock_file(&self, name: &OsStr) -> io::Result<File> {
        self.create(name, OFlag::O_RDONLY)
    }

    fn create(&self, name: &OsStr, access: OFlag) -> io::Result<File> {
        open(self, name, OPEN | access | OFlag::O_CREAT | OFlag::O_EXCL)
    }

    /// Opens a file for reading; a link in its place is an error (`ELOOP`).
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        open(self, name, OPEN | OFlag::O_RDONLY)
    }

    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(stat_of(&fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW)?))
    }

    /// Whether this process may do that with an entry; with the directory itself where the name is `.`.
    pub(crate) fn check_access(&self, name: &OsStr, access: Access) -> io::Result<()> {
        #[cfg(not(target_os = "android"))]
        const AS_NOW: AtFlags = AtFlags::AT_EACCESS;
        #[cfg(target_os = "android")]
        const AS_NOW: AtFlags = AtFlags::empty();
        let mode = match access {
            Access::Read => AccessFlags::R_OK,
            Access::Change => AccessFlags::W_OK | AccessFlags::X_OK,
        };
        Ok(faccessat(self, name, mode, AS_NOW)?)
    }

    /// Which mount it is in: no rename leads from one to another, be they of one filesystem. `None` where that is not told.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn mount(&self) -> Option<u64> {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.as_fd().as_raw_fd())).ok()?;
        about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
    }

    /// Whether it is on a filesystem that may not do what this crate needs, by `statfs(2)`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn doubtful(&self) -> io::Result<Option<Doubtful>> {
        let filesystem = nix::sys::statfs::fstatfs(self)?.filesystem_type().0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits, of whatever type")]
        #[allow(clippy::unnecessary_cast, reason = "of whatever type")]
        Ok(match filesystem as u32 {
            0x6969 => Some(Doubtful::Network("NFS")),
            0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some(Doubtful::Network("SMB")),
            0x0102_1997 => Some(Doubtful::Network("9p")),
            0x5346_414f | 0x6b41_4653 => Some(Doubtful::Network("AFS")),
            0x00c3_6400 => Some(Doubtful::Network("Ceph")),
            0x7375_7245 => Some(Doubtful::Network("Coda")),
            0x786f_4256 => Some(Doubtful::Network("VirtualBox's shared folders")),
            0x6573_5546 => Some(Doubtful::Program),
            0x794c_7630 => Some(Doubtful::Overlay),
            _ => None,
        })
    }

    /// The same by the filesystem's name.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn doubtful(&self) -> io::Result<Option<Doubtful>> {
        Ok(match nix::sys::statfs::fstatfs(self)?.filesystem_type_name() {
            "nfs" => Some(Doubtful::Network("NFS")),
            "smbfs" => Some(Doubtful::Network("SMB")),
            "p9fs" => Some(Doubtful::Network("9p")),
            "afpfs" => Some(Doubtful::Network("AFP")),
            "webdav" => Some(Doubtful::Network("WebDAV")),
            name if name.contains("fuse") => Some(Doubtful::Program),
            "unionfs" => Some(Doubtful::Overlay),
            _ => None,
        })
    }

    /// What is left on its filesystem.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless, reason = "the types differ from system to system")]
    pub(crate) fn space(&self) -> io::Result<Space> {
        let now = nix::sys::statvfs::fstatvfs(self)?;
        let bytes = (now.blocks_available() as u64).saturating_mul(now.fragment_size() as u64);
        // Filesystems that make inodes as they are needed have none in all.
        let files = (now.files() > 0).then(|| now.files_available() as u64);
        Ok(Space { bytes, files })
    }

    /// Moves an entry to a name that is free, in this or another directory.
    pub(crate) fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        rename_no_replace(self.as_fd(), name, to.as_fd(), new_name)
    }

    /// The same, without waiting where others have it open: here that hinders nobody.
    pub(crate) fn try_rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        self.rename(name, to, new_name)
    }

    /// Moves a file from anywhere to a name that is free in this directory.
    pub(crate) fn take(&self, path: &Path, new_name: &OsStr) -> io::Result<()> {
        rename_no_replace(AT_FDCWD, path.as_os_str(), self.as_fd(), new_name)
    }

    /// Takes its exclusive `flock(2)` through this handle, or says that somebody has it. Where there are no locks, nobody
    /// has one.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        try_lock(self.handle.file()).or_else(|error| if has_no_locks(&error) { Ok(true) } else { Err(error) })
    }

    /// Gives the lock up, of which a forked child may have a copy.
    pub(crate) fn unlock(&self) {
        _ = fs2::FileExt::unlock(self.handle.file());
    }

    /// Flushes the names in it to the disk (`fsync` of the directory).
    pub(crate) fn sync(&self) -> io::Result<()> {
        sync(self.handle.file())
    }

    /// Has all that anybody wrote to its filesystem flushed to the disk (`syncfs(2)`).
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn sync_filesystem(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(self)?)
    }

    /// How many bytes [`sync_filesystem`](Self::sync_filesystem) may have to wait for by now: what all filesystems together
    /// have not written yet. `None` if it is not known of this one that its disk is flushed by that as by `fsync`, as it is
    /// not through a network or a program.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn unwritten(&self) -> Option<u64> {
        use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs};

        const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342); // nix does not name it on musl
        let filesystem = fstatfs(self).ok()?.filesystem_type();
        if ![EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].contains(&filesystem) {
            return None;
        }
        // proc_meminfo(5): in KiB
        let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
        let kib =
            |name| memory.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok());
        let (dirty, on_the_way): (u64, u64) = (kib("Dirty:")?, kib("Writeback:")?);
        Some((dirty + on_the_way) << 10)
    }

    /// Whether it is seen to be empty. For one whose handle nobody else reads.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        use std::io::{Seek, SeekFrom};

        let mut file = self.handle.file();
        file.seek(SeekFrom::Start(0))?;
        let mut buffer = [0; 64];
        let filled = getdents(file, &mut buffer)?;
        let mut is_empty = true;
        visit_entries(&buffer, filled, &mut |_| is_empty = false);
        Ok(is_empty)
    }

    /// Elsewhere a directory is not asked, and so is none that can be used again.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "Linux looks")]
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Visits its entries.
    pub(crate) fn list(&self, reading: Reading, mut visit: impl FnMut(Entry<'_>)) -> io::Result<()> {
        // A handle's read position is shared by all who use it, so each listing opens its own.
        let listing = open(self, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)?;
        read_dir(&listing, (reading == Reading::AtOnce).then_some(&self.room), &mut visit)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.file().as_fd()
    }
}

/// Opens or makes a file, again if a signal breaks that off (`open(2)`: `EINTR`), as Python does (PEP 475).
fn open(dir: impl AsFd, path: &(impl NixPath + ?Sized), flags: OFlag) -> io::Result<File> {
    loop {
        match openat(&dir, path, flags, FILE_MODE) {
            Err(Errno::EINTR) => {}
            opened => return clear_of_streams(opened?),
        }
    }
}

/// Gives a file another descriptor if it got that of a standard stream, as in a program that was started without them:
/// what a library prints there would be written into it, and what is opened there as a stream would take its place.
fn clear_of_streams(file: OwnedFd) -> io::Result<File> {
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file.into());
    }
    Ok(file.try_clone()?.into()) // which never is one of a stream, and is closed on exec
}

/// What a path means, following links.
pub(crate) fn stat_target(path: &Path) -> io::Result<Stat> {
    Ok(stat_of(&nix::sys::stat::stat(path)?))
}

/// What a path means, not following a link at its end.
pub(crate) fn stat(path: &Path) -> io::Result<Stat> {
    Ok(stat_of(&nix::sys::stat::lstat(path)?))
}

/// What an open file is.
pub(crate) fn stat_file(file: &File) -> io::Result<Stat> {
    Ok(stat_of(&fstat(file)?))
}

/// Opens a file of somebody else's for reading: a FIFO is not waited for.
pub(crate) fn open_source(path: &Path, link: Link) -> io::Result<File> {
    let flags = match link {
        Link::Followed => OPEN.difference(OFlag::O_NOFOLLOW),
        Link::Refused => OPEN,
    };
    open(AT_FDCWD, path, flags | OFlag::O_RDONLY)
}

/// Where a file has data, from that position on; `None` where there is only a hole left, or nothing. All that there is where
/// the filesystem does not tell. The file's own position is another one afterwards.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", target_vendor = "apple"))]
pub(crate) fn next_data(file: &File, from: u64) -> io::Result<Option<std::ops::Range<u64>>> {
    use nix::unistd::{Whence, lseek};

    let seek = |from: u64, whence| {
        let from = from.try_into().map_err(|_| Errno::EOVERFLOW)?;
        lseek(file, from, whence).map(i64::unsigned_abs)
    };
    let found = seek(from, Whence::SeekData).and_then(|start| Ok(start..seek(start, Whence::SeekHole)?));
    match found {
        Err(Errno::ENXIO) => Ok(None),
        Ok(data) if data.start >= from && data.start < data.end => Ok(Some(data)),
        Ok(_) | Err(Errno::EINVAL | Errno::ENOTSUP | Errno::ENOSYS) => Ok(Some(from..u64::MAX)),
        Err(error) => Err(error.into()),
    }
}

/// Flushes a file of somebody else's to the disk.
pub(crate) fn sync_source(path: &Path) -> io::Result<()> {
    sync(&open_source(path, Link::Refused)?)
}

/// Flushes a file or a directory to the disk. On Apple's systems the standard library asks the disk, too, to write down what
/// it holds (`F_FULLFSYNC`); a filesystem that can't pass that on (SMB, FUSE) refuses, and then does what `fsync` does.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        #[cfg(target_vendor = "apple")]
        Err(error)
            if matches!(
                error.raw_os_error().map(Errno::from_raw),
                Some(Errno::ENOTSUP | Errno::ENOTTY | Errno::EINVAL)
            ) =>
        {
            Ok(nix::unistd::fsync(file)?)
        }
        synced => synced,
    }
}

/// Has the disk begin with what was written to a file. What goes wrong [`finish_flush`] or the file's own flush will tell.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn start_flush(file: &File) {
    _ = sync_file_range(file, libc::SYNC_FILE_RANGE_WRITE);
}

/// Waits until the disk has what was written to a file. That is not flushed, nor is it known there how to find it, until
/// [`Dir::sync_filesystem`].
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn finish_flush(file: &File) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, all)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn sync_file_range(file: &File, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: a call without pointers on a descriptor that is open.
    Ok(Errno::result(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) }).map(drop)?)
}

/// Whether an error is that this process, or the system, has as many files open as it may.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

/// Whether an open file still has a name. One that somebody closed has none as far as this process can tell.
pub(crate) fn is_linked(handle: &Handle) -> io::Result<bool> {
    Ok(handle.stat()?.is_some_and(|stat| stat.st_nlink > 0))
}

/// Closes a file that was written, and says whether that went well: some filesystems tell only now that the disk is
/// full (`close(2)`).
pub(crate) fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file)?)
}

/// Takes the exclusive `flock(2)` of a file, or says that somebody has it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock_exclusive() {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => try_lock(file),
        Err(error) => Err(error),
    }
}

/// Whether the filesystem has no locks, by the error of one that was tried (`flock(2)`, and what NFS answers).
pub(crate) fn has_no_locks(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOLCK | Errno::ENOSYS | Errno::ENOTSUP | Errno::EINVAL | Errno::EPERM | Errno::EACCES))
}

/// Opens a lock file and takes its lock, or says that somebody has it.
pub(crate) fn take_lock(owners: &Dir, name: &OsStr) -> io::Result<Option<File>> {
    let file = owners.open_file(name)?;
    Ok(try_lock(&file)?.then_some(file))
}

/// Moves a file that this process has open and locked.
pub(crate) fn rename_open(_file: &File, from: &Dir, name: &OsStr, to: &Dir, new_name: &OsStr) -> io::Result<()> {
    from.rename(name, to, new_name)
}

/// Deletes a file that this process has open and locked.
pub(crate) fn remove_open(_file: &File, dir: &Dir, name: &OsStr) -> io::Result<()> {
    dir.remove_file(name)
}

/// Whether a file could not be opened, moved or deleted because somebody has it open. Here that hinders nobody.
pub(crate) fn is_busy(_error: &io::Error) -> bool {
    false
}

/// Why programs could not open a file of that name. Here they can open all.
pub(crate) fn name_fault(_name: &OsStr) -> Option<&'static str> {
    None
}

/// The same path as programs can open it.
pub(crate) fn for_programs(path: PathBuf) -> PathBuf {
    path
}

/// This process's PID.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// This machine's name; empty where it does not tell.
pub(crate) fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether a process lives. Without proof of the contrary it does: better to wait than to steal.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(raw) = i32::try_from(pid) else { return true };
    match kill(Pid::from_raw(raw), None) {
        Err(Errno::ESRCH) => false,
        _ => !is_zombie_or_thread(pid),
    }
}

/// Whether this is the id of a process that ended and was not waited for, or of a mere thread. Only Linux tells.
fn is_zombie_or_thread(pid: u32) -> bool {
    let field = |path: &str, name: &str| {
        let status = std::fs::read_to_string(path).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let has_ended = |path: &str| field(path, "State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    let process = format!("/proc/{pid}");
    if field(&format!("{process}/status"), "Tgid:").is_some_and(|process| process != pid.to_string()) {
        return true;
    }
    // The first thread may have ended while others work on: it then looks like a zombie too.
    let Ok(threads) = std::fs::read_dir(format!("{process}/task")) else { return false };
    let mut all =
        threads.map(|thread| thread.is_ok_and(|thread| has_ended(&thread.path().join("status").to_string_lossy())));
    has_ended(&format!("{process}/status")) && all.all(|ended| ended)
}

fn identity_of(stat: &FileStat) -> Identity {
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "signed and narrower on some systems")]
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn stat_of(stat: &FileStat) -> Stat {
    let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => FileKind::Regular,
        SFlag::S_IFDIR => FileKind::Directory,
        SFlag::S_IFLNK => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let modified = time(stat.st_mtime, stat.st_mtime_nsec);
    let changed = time(stat.st_ctime, stat.st_ctime_nsec);
    let length = stat.st_size.try_into().unwrap_or_default();
    let has_holes = stat.st_blocks < stat.st_size / 512; // in whole units of 512 bytes, whatever a block is
    #[allow(clippy::useless_conversion, reason = "narrower on some systems")]
    let permissions = Some(Permissions { mode: stat.st_mode.into(), group: stat.st_gid });
    Stat { identity: identity_of(stat), kind, length, has_holes, modified, changed, permissions }
}

/// A file's time. One before 1970 is nothing that this crate compares with.
fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let seconds = Duration::from_secs(seconds.try_into().unwrap_or_default());
    SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(nanoseconds.try_into().unwrap_or_default())
}

fn rename_no_replace(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new_name: &OsStr) -> io::Result<()> {
    match rename_exclusively(from, name, to, new_name) {
        // Not every filesystem can: then look first.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::ENOTSUP) => {
            if fstatat(to, new_name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
                return Err(Errno::EEXIST.into());
            }
            Ok(nix::fcntl::renameat(from, name, to, new_name)?)
        }
        done => Ok(done?),
    }
}

/// A rename that fails with `EEXIST` rather than replace.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_exclusively(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new_name: &OsStr) -> nix::Result<()> {
    let done = name.with_nix_path(|name| {
        new_name.with_nix_path(|new_name| {
            // SAFETY: two descriptors and two NUL-terminated strings that live through the call.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            return unsafe {
                libc::syscall(
                    libc::SYS_renameat2,
                    from.as_raw_fd(),
                    name.as_ptr(),
                    to.as_raw_fd(),
                    new_name.as_ptr(),
                    libc::RENAME_NOREPLACE,
                )
            };
            // SAFETY: as above.
            #[cfg(target_vendor = "apple")]
            return unsafe {
                libc::renameatx_np(
                    from.as_raw_fd(),
                    name.as_ptr(),
                    to.as_raw_fd(),
                    new_name.as_ptr(),
                    libc::RENAME_EXCL,
                )
            };
        })
    })??;
    Errno::result(done).map(drop)
}

/// The other systems have none.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename_exclusively(_from: BorrowedFd<'_>, _name: &OsStr, _to: BorrowedFd<'_>, _new: &OsStr) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

/// Visits the entries of a directory; all as they are at one moment where there is `room` for them, which is corrected.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_dir(dir: &File, mut room: Option<&AtomicUsize>, visit: &mut dyn FnMut(Entry<'_>)) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};

    /// More than the longest entry takes.
    const LONGEST: usize = 512;
    const LEAST: usize = 32 << 10;
    const PIECE: usize = 256 << 10;
    let buffer_of = |bytes: usize| vec![0_u64; bytes / size_of::<u64>()];
    let mut buffer = buffer_of(room.map_or(PIECE, |room| room.load(Ordering::Relaxed).max(LEAST)));
    loop {
        let filled = getdents(dir, &mut buffer)?;
        if let Some(room) = room.filter(|_| filled > 0) {
            // What did not fit is read once more into twice the room. The next time it is known: a directory of a million
            // entries would be read twelve times, to the half of its bytes, before it fits.
            if filled + LONGEST > size_of_val(&*buffer) {
                (&mut &*dir).seek(SeekFrom::Start(0))?;
                buffer = buffer_of(2 * size_of_val(&*buffer));
                continue;
            }
            room.store((filled + LONGEST).next_power_of_two(), Ordering::Relaxed);
        }
        room = None;
        if filled == 0 {
            return Ok(());
        }
        visit_entries(&buffer, filled, visit);
    }
}

/// Visits what [`getdents`] read.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn visit_entries(buffer: &[u64], filled: usize, visit: &mut dyn FnMut(Entry<'_>)) {
    use std::ffi::CStr;

    // SAFETY: the kernel filled that many bytes of the buffer, each of them initialized before as well.
    let mut rest = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), filled) };
    // struct linux_dirent64 (getdents(2)): inode 8, offset 8, record length 2, type 1, name and NULs
    while let (Some(length), Some(&kind)) = (rest.get(16..18), rest.get(18)) {
        let (record, after) = rest.split_at(usize::from(u16::from_ne_bytes([length[0], length[1]])));
        rest = after;
        let name = CStr::from_bytes_until_nul(&record[19..]).unwrap_or_default();
        visit_entry(name.to_bytes(), kind, visit);
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn getdents(dir: &File, buffer: &mut [u64]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most that many bytes to a buffer that is as long.
    let filled =
        unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), size_of_val(buffer)) };
    Ok(Errno::result(filled)?.unsigned_abs().try_into().unwrap_or_default())
}

/// Elsewhere `readdir` decides how much is read in one call.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_dir(dir: &File, _room: Option<&AtomicUsize>, visit: &mut dyn FnMut(Entry<'_>)) -> io::Result<()> {
    use nix::dir::{Dir as Stream, Type};

    for entry in Stream::from_fd(dir.try_clone()?.into())? {
        let entry = entry?;
        let kind = match entry.file_type() {
            Some(Type::File) => libc::DT_REG,
            Some(Type::Directory) => libc::DT_DIR,
            Some(Type::Symlink) => libc::DT_LNK,
            Some(_) => libc::DT_FIFO,
            None => libc::DT_UNKNOWN,
        };
        visit_entry(entry.file_name().to_bytes(), kind, visit);
    }
    Ok(())
}

fn visit_entry(name: &[u8], kind: u8, visit: &mut dyn FnMut(Entry<'_>)) {
    if name == b"." || name == b".." {
        return;
    }
    let kind = match kind {
        libc::DT_UNKNOWN => None,
        libc::DT_REG => Some(FileKind::Regular),
        libc::DT_DIR => Some(FileKind::Directory),
        libc::DT_LNK => Some(FileKind::Symlink),
        _ => Some(FileKind::Other),
    };
    visit((OsStr::from_bytes(name), kind));
}

/// Wakes who waits for something to come into a directory, by `inotify(7)`. Neither descriptor is kept by a forked
/// child.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) struct Watch {
    events: Private,
    waker: Private,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Watch {
    /// Watches what comes into the ones, and what comes into the other or leaves it. Fails with `EMFILE` or `ENOSPC` when the
    /// user's limits are hit (`inotify(7)`).
    pub(crate) fn new(arrivals: &[&Dir], changes: &Dir) -> io::Result<Self> {
        let events = Private::open(|| {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            let arriving = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
            let leaving = AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE;
            let arrivals = arrivals.iter().map(|dir| (*dir, arriving));
            for (dir, events) in arrivals.chain([(changes, arriving | leaving)]) {
                // The directory that is open, whatever its path means by now.
                let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
                inotify.add_watch(&path, events | AddWatchFlags::IN_ONLYDIR)?;
            }
            Handle::nameless(clear_of_streams(inotify.into())?)
        })?;
        Ok(Self { events, waker: new_waker()? })
    }

    /// Whether it is still open, and its descriptors no other files', as far as can be told.
    pub(crate) fn is_intact(&self) -> bool {
        [&self.events, &self.waker].iter().all(|file| file.handle().is_intact())
    }

    /// Sleeps until something happened or that much time has passed.
    pub(crate) fn sleep(&self, longest: Duration) -> Woken {
        let mut polled =
            [self.events.file(), self.waker.file()].map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
        // Rounded up: a wake-up just before a job is due would be followed by another one.
        let milliseconds = i32::try_from(longest.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => return Woken::BySignal,
            Err(_) => {
                // Never spin, whatever is wrong.
                std::thread::sleep(longest.min(Duration::from_millis(50)));
                return Woken::ByEvent;
            }
            Ok(_) if !self.is_intact() => {
                // Somebody closed it: who looks again watches anew.
                std::thread::sleep(longest.min(Duration::from_millis(50)));
                return Woken::ByEvent;
            }
            Ok(_) => {}
        }
        _ = self.waker.file().read(&mut [0; 8]);
        if drain(self.events.file()) { Woken::ByEvent } else { Woken::Otherwise }
    }

    /// Ends the sleep of who sleeps on it, or the next one.
    pub(crate) fn wake(&self) {
        wake(&self.waker);
    }

    /// Takes what the kernel tells without a sleep, and says whether that was anything. If somebody closed it, who looks
    /// again watches anew.
    pub(crate) fn take_events(&self) -> bool {
        !self.is_intact() || drain(self.events.file())
    }
}

/// One descriptor for who sleeps in an event loop: it is ready when a watch has something to tell, or when it is rung. No
/// forked child keeps it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) struct Bell {
    set: Private,
    waker: Private,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EpollCreateFlags::EPOLL_CLOEXEC;
        let set = Private::open(|| Handle::nameless(clear_of_streams(Epoll::new(flags)?.0)?))?;
        let bell = Self { set, waker: new_waker()? };
        bell.control(libc::EPOLL_CTL_ADD, &bell.waker)?;
        Ok(bell)
    }

    /// Whether this is the process that made it, and its descriptors are no other files', as far as can be told.
    pub(crate) fn is_good(&self) -> bool {
        [&self.set, &self.waker].iter().all(|file| file.is_ours() && file.handle().is_intact())
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.set.file().as_raw_fd()
    }

    /// Is ready from now on when this watch has something to tell.
    pub(crate) fn join(&self, watch: &Watch) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, &watch.events)
    }

    pub(crate) fn leave(&self, watch: &Watch) {
        _ = self.control(libc::EPOLL_CTL_DEL, &watch.events); // where somebody closed it, it is gone already
    }

    pub(crate) fn ring(&self) {
        wake(&self.waker);
    }

    /// Says whether it was rung since the last time.
    pub(crate) fn was_rung(&self) -> bool {
        self.waker.file().read(&mut [0; 8]).is_ok()
    }

    fn control(&self, what: i32, of: &Private) -> io::Result<()> {
        #[allow(clippy::cast_sign_loss, reason = "a flag")]
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both are open descriptors, and the event lives for the call.
        let done = unsafe { libc::epoll_ctl(self.descriptor(), what, of.file().as_raw_fd(), &raw mut event) };
        Errno::result(done)?;
        Ok(())
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn new_waker() -> io::Result<Private> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    Private::open(|| Handle::nameless(clear_of_streams(EventFd::from_value_and_flags(0, flags)?.into())?))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn wake(waker: &Private) {
    if waker.handle().is_intact() {
        _ = waker.file().write(&1_u64.to_ne_bytes());
    }
}

/// Reads away the events that there are, and says whether any was of a file. Directories come and go where a queue is made
/// or deleted: who looked then would make those that are missing, in the middle of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn drain(mut file: &File) -> bool {
    const HEAD: usize = size_of::<libc::inotify_event>();
    let mut buffer = [0; 4096];
    let mut any = false;
    while let Ok(read @ 1..) = file.read(&mut buffer) {
        let mut rest = &buffer[..read];
        while let Some((&[_, _, _, _, a, b, c, d, _, _, _, _, e, f, g, h], names)) = rest.split_first_chunk::<HEAD>() {
            any |= u32::from_ne_bytes([a, b, c, d]) & libc::IN_ISDIR == 0;
            rest = names.get(u32::from_ne_bytes([e, f, g, h]) as usize..).unwrap_or_default();
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Dir, reading: Reading) -> Vec<String> {
        let mut names = Vec::new();
        dir.list(reading, |(name, _)| names.push(name.to_string_lossy().into_owned())).unwrap();
        names
    }

    #[test]
    fn a_directory_of_any_size_is_listed_whole() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        for size in [0, 1, 600, 5000] {
            for number in names(&dir, Reading::AtOnce).len()..size {
                std::fs::write(home.path().join(format!("{number:0100}")), "").unwrap();
            }
            let mut at_once = names(&dir, Reading::AtOnce);
            let mut in_pieces = names(&dir, Reading::InPieces);
            at_once.sort_unstable();
            in_pieces.sort_unstable();
            assert_eq!(at_once, in_pieces);
            assert_eq!(at_once, (0..size).map(|number| format!("{number:0100}")).collect::<Vec<_>>());
        }
    }

    /// Rule 12 of the protocol: in pieces, an entry that is renamed meanwhile is seen twice or not at all.
    #[test]
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn read_at_once_an_entry_that_moves_is_seen_once() {
        use std::sync::atomic::AtomicBool;

        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        for number in 0..2000 {
            std::fs::write(home.path().join(format!("{number:0100}")), "").unwrap();
        }
        std::fs::write(home.path().join("here"), "").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (here, there) = (OsStr::new("here"), OsStr::new("there"));
                while !done.load(Ordering::Relaxed) {
                    dir.rename(here, &dir, there).unwrap();
                    dir.rename(there, &dir, here).unwrap();
                }
            });
            let wrong = (0..500)
                .map(|_| names(&dir, Reading::AtOnce).iter().filter(|name| name.ends_with("here")).count())
                .filter(|&seen| seen != 1)
                .count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(wrong, 0);
        });
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        for name in ["one", "two"] {
            std::fs::write(home.path().join(name), name).unwrap();
        }
        let error = dir.rename(OsStr::new("one"), &dir, OsStr::new("two")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(home.path().join("two")).unwrap(), b"two");
        assert_eq!(std::fs::read(home.path().join("one")).unwrap(), b"one");
    }
}
