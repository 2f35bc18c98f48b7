//! Windows: directory handles, and names that are relative to them.
//!
//! Win32 knows only paths. The calls below it, `NtCreateFile` and `NtSetInformationFile`, take an open directory and a
//! name in it, as `openat` and `renameat` do. So a directory that somebody puts in the place of ours is never entered,
//! and a name is taken as it is: `nul` or `con` is no device, and there is no limit of 260 characters. Moreover
//! they tell a file that is being deleted, which is as good as gone, from one that may not be opened.
//!
//! Two consumers may have one file open and rename it in turn, each of them successfully. So a file is moved or deleted
//! through a handle that was opened without sharing: whoever gets one is alone, and the next finds the name gone.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, IntoRawHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::{Duration, SystemTime};

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_CREATE, FILE_DIRECTORY_FILE, FILE_NON_DIRECTORY_FILE, FILE_OPEN, FILE_OPEN_REPARSE_POINT,
    FILE_RENAME_INFORMATION, FILE_SYNCHRONOUS_IO_NONALERT, FileFullDirectoryInformation, FileRenameInformation,
    NTCREATEFILE_CREATE_DISPOSITION, NTCREATEFILE_CREATE_OPTIONS, NtCreateFile, NtQueryDirectoryFile,
    NtSetInformationFile,
};
use windows_sys::Win32::Foundation::{
    CloseHandle, ERROR_ALREADY_EXISTS, ERROR_CALL_NOT_IMPLEMENTED, ERROR_CANT_RESOLVE_FILENAME, ERROR_DIRECTORY,
    ERROR_DIRECTORY_NOT_SUPPORTED, ERROR_FILE_NOT_FOUND, ERROR_FILENAME_EXCED_RANGE, ERROR_INVALID_FUNCTION,
    ERROR_INVALID_NAME, ERROR_INVALID_PARAMETER, ERROR_NOT_SUPPORTED, ERROR_SHARING_VIOLATION,
    ERROR_TOO_MANY_OPEN_FILES, NTSTATUS, RtlNtStatusToDosError, STATUS_DELETE_PENDING, STATUS_FILE_DELETED,
    STATUS_FILE_IS_A_DIRECTORY, STATUS_NO_MORE_FILES, STATUS_NO_SUCH_FILE, UNICODE_STRING, WAIT_OBJECT_0, WIN32_ERROR,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, DELETE, FILE_ACCESS_RIGHTS, FILE_ADD_FILE, FILE_ADD_SUBDIRECTORY,
    FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_REPARSE_POINT, FILE_ATTRIBUTE_TAG_INFO,
    FILE_BASIC_INFO, FILE_DISPOSITION_FLAG_DELETE, FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE,
    FILE_DISPOSITION_FLAG_POSIX_SEMANTICS, FILE_DISPOSITION_INFO, FILE_DISPOSITION_INFO_EX, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_FULL_DIR_INFO, FILE_GENERIC_READ, FILE_GENERIC_WRITE, FILE_INFO_BY_HANDLE_CLASS,
    FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE, FILE_SHARE_MODE, FILE_SHARE_NONE, FILE_SHARE_READ,
    FILE_SHARE_WRITE, FILE_STANDARD_INFO, FILE_TYPE_DISK, FileAttributeTagInfo, FileBasicInfo, FileDispositionInfo,
    FileDispositionInfoEx, FileStandardInfo, GetFileInformationByHandle, GetFileInformationByHandleEx, GetFileType,
    SYNCHRONIZE, SetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;
use windows_sys::Win32::System::Threading::{
    GetProcessId, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

use super::{Access, Doubtful, Entry, FileKind, Identity, Link, Reading, Space, Stat};
use crate::handle::Handle;

const SHARE_ALL: FILE_SHARE_MODE = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// What a link's reparse tag has and others have not (`IsReparseTagNameSurrogate`): symlinks and junctions stand for
/// another name; deduplicated files and those of a cloud have reparse points too, and are files like any other.
const NAME_SURROGATE: u32 = 0x2000_0000;

/// How long to wait, in milliseconds, each time that somebody else has a file open. Another consumer is done at once; a
/// virus scanner or an indexer, which look at every new file, take longer.
const PAUSES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The same where there may be other jobs to go on with.
const SHORT_PAUSES: &[u64] = PAUSES.split_at(7).0;

/// From 1601, where Windows begins to count, to 1970.
const TO_1970: Duration = Duration::from_secs(11_644_473_600);

/// An open directory.
pub(crate) struct Dir {
    file: File,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory by its path, following links.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = look_at(path, FILE_FLAG_BACKUP_SEMANTICS)?;
        if information(&file)?.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY == 0 {
            return Err(win32_error(ERROR_DIRECTORY));
        }
        Ok(Self { file, path: path.into() })
    }

    /// Opens one of its directories; a link in its place is an error (`ERROR_DIRECTORY`).
    pub(crate) fn open_dir(&self, name: &OsStr) -> io::Result<Self> {
        let options = FILE_DIRECTORY_FILE | FILE_OPEN_REPARSE_POINT;
        // Who may only look at attributes is in nobody's way, however little others share.
        let file = self.open_entry(&wide(name)?, FILE_READ_ATTRIBUTES, SHARE_ALL, FILE_OPEN, options)?;
        if reparse_tag(&file)?.is_some_and(is_link) {
            return Err(win32_error(ERROR_DIRECTORY));
        }
        Ok(Self { file, path: self.path.join(name) })
    }

    /// Where it was when it was opened, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> io::Result<Identity> {
        Ok(identity_of(&information(&self.file)?))
    }

    /// When its inode last changed, a change of its names included, as coarsely as the filesystem's clock ticks. Nobody
    /// can set that time.
    pub(crate) fn changed(&self) -> io::Result<SystemTime> {
        Ok(stat_file(&self.file)?.changed)
    }

    /// Whether it is still open. Handles are closed by those who have them, and nobody else.
    #[allow(clippy::unused_self, reason = "elsewhere it is asked")]
    pub(crate) fn is_intact(&self) -> bool {
        true
    }

    /// Whether it still has a name.
    pub(crate) fn is_linked(&self) -> io::Result<bool> {
        has_name(&self.file)
    }

    pub(crate) fn make_dir(&self, name: &OsStr) -> io::Result<()> {
        self.open_entry(&wide(name)?, FILE_READ_ATTRIBUTES, SHARE_ALL, FILE_CREATE, FILE_DIRECTORY_FILE)?;
        Ok(())
    }

    /// Removes an empty directory; `ERROR_DIR_NOT_EMPTY` is the safety catch. A [`Dir`] of it may be open.
    pub(crate) fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        let name = wide(name)?;
        patiently(|| mark_deleted(&self.open_alone(&name, FILE_DIRECTORY_FILE)?))
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        let wide = wide(name)?;
        let file = patiently(|| self.open_alone(&wide, FILE_NON_DIRECTORY_FILE))?;
        remove_open(&file, self, name)
    }

    /// Makes a file that was not there, for writing. Nobody else can open it until it is closed.
    pub(crate) fn create_file(&self, name: &OsStr) -> io::Result<File> {
        // With `DELETE`, so that it can be renamed and deleted through this handle: see `rename_open`.
        let access = FILE_GENERIC_WRITE | FILE_READ_ATTRIBUTES | DELETE;
        let options = FILE_NON_DIRECTORY_FILE | FILE_OPEN_REPARSE_POINT;
        self.open_entry(&wide(name)?, access, FILE_SHARE_NONE, FILE_CREATE, options)
    }

    /// Makes a file that was not there, to be locked.
    pub(crate) fn create_lock_file(&self, name: &OsStr) -> io::Result<File> {
        self.create_file(name)
    }

    /// Opens a file for reading; a link in its place is an error (`ERROR_CANT_RESOLVE_FILENAME`).
    pub(crate) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let name = wide(name)?;
        let open = |options| patiently(|| self.open_entry(&name, FILE_GENERIC_READ, SHARE_ALL, FILE_OPEN, options));
        let file = open(FILE_OPEN_REPARSE_POINT)?;
        let opened = match reparse_tag(&file)? {
            None => return Ok(file),
            Some(tag) if is_link(tag) => None,
            // The bytes of a deduplicated file are shown only to those who do not open the reparse point itself.
            Some(_) => Some(open(0)?),
        };
        match opened {
            Some(opened) if identity_of(&information(&opened)?) == identity_of(&information(&file)?) => Ok(opened),
            _ => Err(win32_error(ERROR_CANT_RESOLVE_FILENAME)),
        }
    }

    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        stat_file(&self.open_entry(
            &wide(name)?,
            FILE_READ_ATTRIBUTES,
            SHARE_ALL,
            FILE_OPEN,
            FILE_OPEN_REPARSE_POINT,
        )?)
    }

    /// Whether this process may do that with an entry is not asked here: what is refused then tells.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "elsewhere it is asked")]
    pub(crate) fn check_access(&self, _name: &OsStr, _access: Access) -> io::Result<()> {
        Ok(())
    }

    /// Which filesystem it is on is not asked here.
    #[allow(clippy::unused_self, reason = "elsewhere it is asked")]
    pub(crate) fn doubtful(&self) -> io::Result<Option<Doubtful>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What is left on its volume.
    pub(crate) fn space(&self) -> io::Result<Space> {
        Ok(Space { bytes: fs2::available_space(self.path())?, files: None })
    }

    /// Moves an entry to a name that is free, in this or another directory.
    pub(crate) fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        self.rename_within(&PAUSES, name, to, new_name)
    }

    /// The same with less patience, for a file that is one of many.
    pub(crate) fn try_rename(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        self.rename_within(SHORT_PAUSES, name, to, new_name)
    }

    fn rename_within(&self, pauses: &[u64], name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        let (name, new_name) = (wide(name)?, wide(new_name)?);
        retried(pauses, || move_to(&self.open_alone(&name, 0)?, to, &new_name))
    }

    /// Moves a file from anywhere to a name that is free in this directory.
    pub(crate) fn take(&self, path: &Path, new_name: &OsStr) -> io::Result<()> {
        let new_name = wide(new_name)?;
        let mut alone = OpenOptions::new();
        alone.access_mode(DELETE | SYNCHRONIZE).share_mode(FILE_SHARE_NONE).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
        patiently(|| move_to(&alone.open(path)?, self, &new_name))
    }

    /// Takes no lock: a rename goes through a handle of the directory that it is about.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "elsewhere it is locked")]
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    #[allow(clippy::unused_self, reason = "elsewhere it is locked")]
    pub(crate) fn unlock(&self) {}

    /// Flushes the names in it to the disk.
    ///
    /// `FlushFileBuffers` writes a file's data and metadata and has the disk empty its cache (`NtFlushBuffersFileEx`);
    /// for a directory that is what it knows of its entries. It needs a handle that may add some: "access denied" is
    /// the answer to one with neither `FILE_ADD_FILE` nor `FILE_ADD_SUBDIRECTORY` ([MS-SMB2] 3.3.5.11). So it does not
    /// mean that there was nothing to flush, and is reported like any other error.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let open = |access| self.open_entry(&[], access, SHARE_ALL, FILE_OPEN, FILE_DIRECTORY_FILE);
        // Of a drive's root, ordinary users may only do the latter.
        open(FILE_ADD_FILE).or_else(|_| open(FILE_ADD_SUBDIRECTORY))?.sync_all()
    }

    /// A directory that is open can't be renamed, and so is none that can be used again.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "elsewhere it is asked")]
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Visits its entries.
    pub(crate) fn list(&self, reading: Reading, mut visit: impl FnMut(Entry<'_>)) -> io::Result<()> {
        /// Bytes. Servers may refuse more at a time than the former; the latter holds some five thousand entries.
        const FIRST: usize = 64 << 10;
        const LARGEST: usize = 1 << 20;
        // A handle's read position is shared by all who use it, so each listing opens its own.
        let listing = self.open_entry(&[], FILE_LIST_DIRECTORY, SHARE_ALL, FILE_OPEN, FILE_DIRECTORY_FILE)?;
        let mut room = FIRST;
        loop {
            let mut buffer = vec![0; room / size_of::<u64>()];
            let mut rest = buffer.clone();
            let filled = read_entries(&listing, &mut buffer, true)?;
            let mut more = read_entries(&listing, &mut rest, false)?;
            // Where a whole directory is wanted and did not fit, all of it is read once more into more room.
            if reading == Reading::AtOnce && more > 0 && room < LARGEST {
                room *= 4;
                continue;
            }
            visit_entries(&buffer, filled, &mut visit);
            while more > 0 {
                visit_entries(&rest, more, &mut visit);
                more = read_entries(&listing, &mut rest, false)?;
            }
            return Ok(());
        }
    }

    /// Opens or makes an entry, or the directory itself once more where the name is empty.
    fn open_entry(
        &self,
        name: &[u16],
        access: FILE_ACCESS_RIGHTS,
        share: FILE_SHARE_MODE,
        disposition: NTCREATEFILE_CREATE_DISPOSITION,
        options: NTCREATEFILE_CREATE_OPTIONS,
    ) -> io::Result<File> {
        let Ok(length) = u16::try_from(size_of_val(name)) else { return Err(win32_error(ERROR_FILENAME_EXCED_RANGE)) };
        let name = UNICODE_STRING { Length: length, MaximumLength: length, Buffer: name.as_ptr().cast_mut() };
        let attributes = OBJECT_ATTRIBUTES {
            Length: size_of_u32::<OBJECT_ATTRIBUTES>(),
            RootDirectory: self.file.as_raw_handle(),
            ObjectName: &raw const name,
            ..OBJECT_ATTRIBUTES::default()
        };
        let mut handle = null_mut();
        let mut io_status = IO_STATUS_BLOCK::default();
        // SAFETY: all pointers are null where that is allowed, or to values that live through the call, which changes
        // only the handle and the status block; the name's length is that of its buffer.
        let status = unsafe {
            NtCreateFile(
                &raw mut handle,
                access | SYNCHRONIZE,
                &raw const attributes,
                &raw mut io_status,
                null(),
                FILE_ATTRIBUTE_NORMAL,
                share,
                disposition,
                options | FILE_SYNCHRONOUS_IO_NONALERT,
                null(),
                0,
            )
        };
        if disposition == FILE_CREATE && status == STATUS_DELETE_PENDING {
            return Err(win32_error(ERROR_ALREADY_EXISTS)); // it keeps its name until the last handle is closed
        }
        check(status)?;
        // SAFETY: the call succeeded, so this is an open handle, and nobody else's.
        Ok(unsafe { File::from_raw_handle(handle) })
    }

    /// Opens an entry, or a link itself, to move or delete it, and to look at its attributes: what is not asked for here
    /// can't be done through the handle. Until it is closed, nobody else can open it for anything but such a look.
    fn open_alone(&self, name: &[u16], options: NTCREATEFILE_CREATE_OPTIONS) -> io::Result<File> {
        let access = DELETE | FILE_READ_ATTRIBUTES;
        self.open_entry(name, access, FILE_SHARE_NONE, FILE_OPEN, options | FILE_OPEN_REPARSE_POINT)
    }
}

/// What a path means, following links.
pub(crate) fn stat_target(path: &Path) -> io::Result<Stat> {
    stat_file(&look_at(path, FILE_FLAG_BACKUP_SEMANTICS)?)
}

/// What a path means, not following a link at its end.
pub(crate) fn stat(path: &Path) -> io::Result<Stat> {
    stat_file(&look_at(path, FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)?)
}

/// What an open file is.
pub(crate) fn stat_file(file: &File) -> io::Result<Stat> {
    // SAFETY: an open handle.
    if unsafe { GetFileType(file.as_raw_handle()) } != FILE_TYPE_DISK {
        let never = SystemTime::UNIX_EPOCH;
        return Ok(Stat {
            identity: (0, 0),
            kind: FileKind::Other,
            length: 0,
            has_holes: false,
            modified: never,
            changed: never,
            permissions: None,
        });
    }
    let information = information(file)?;
    let basic: FILE_BASIC_INFO = query(file, FileBasicInfo)?;
    Ok(Stat {
        identity: identity_of(&information),
        kind: kind_of(information.dwFileAttributes, reparse_tag(file)?.unwrap_or_default()),
        length: u64::from(information.nFileSizeHigh) << 32 | u64::from(information.nFileSizeLow),
        has_holes: false, // where they are is not asked
        modified: time_of(basic.LastWriteTime),
        changed: time_of(basic.ChangeTime),
        permissions: None,
    })
}

/// Opens a file of somebody else's for reading. A link that is refused is opened itself: no regular file.
pub(crate) fn open_source(path: &Path, link: Link) -> io::Result<File> {
    let flags = match link {
        Link::Followed => 0,
        Link::Refused => FILE_FLAG_OPEN_REPARSE_POINT,
    };
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Flushes a file to the disk.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Flushes a file of somebody else's to the disk, which takes a handle that may write to it.
pub(crate) fn sync_source(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.sync_all()
}

/// Whether an open file still has a name.
pub(crate) fn is_linked(handle: &Handle) -> io::Result<bool> {
    has_name(handle.file())
}

fn has_name(file: &File) -> io::Result<bool> {
    let standard: FILE_STANDARD_INFO = query(file, FileStandardInfo)?;
    Ok(standard.NumberOfLinks > 0 && !standard.DeletePending)
}

/// Whether an error is that this process has as many files open as it may.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    is_win32(error, &[ERROR_TOO_MANY_OPEN_FILES])
}

/// Closes a file that was written, and says whether that went well.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: an open handle, and nobody else's from here on.
    succeeded(unsafe { CloseHandle(file.into_raw_handle()) })
}

/// Here a lock file's lock is that it is open without sharing: `create_file` did that already.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it may fail")]
pub(crate) fn try_lock(_file: &File) -> io::Result<bool> {
    Ok(true)
}

/// Whether the filesystem has no locks. All can refuse to share.
pub(crate) fn has_no_locks(_error: &io::Error) -> bool {
    false
}

/// Opens a lock file and takes its lock, or says that somebody has it.
pub(crate) fn take_lock(owners: &Dir, name: &OsStr) -> io::Result<Option<File>> {
    match owners.open_alone(&wide(name)?, FILE_NON_DIRECTORY_FILE) {
        Err(error) if is_busy(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Moves a file that this process has open and locked. Through that handle: another one can't be had.
pub(crate) fn rename_open(file: &File, _from: &Dir, _name: &OsStr, to: &Dir, new_name: &OsStr) -> io::Result<()> {
    let new_name = wide(new_name)?;
    patiently(|| move_to(file, to, &new_name))
}

/// Deletes a file that this process has open and locked. Through that handle: another one can't be had. The name goes
/// when the handle is closed, and until then nobody can open it.
pub(crate) fn remove_open(file: &File, _dir: &Dir, _name: &OsStr) -> io::Result<()> {
    mark_deleted(file)
}

/// Whether a file could not be opened, moved or deleted because somebody has it open.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    is_win32(error, &[ERROR_SHARING_VIOLATION])
}

/// This process's PID.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// This machine's name; empty where it does not tell.
pub(crate) fn host() -> String {
    std::env::var_os("COMPUTERNAME").map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether a process lives. Without proof of the contrary it does: better to wait than to steal.
pub(crate) fn is_alive(pid: u32) -> bool {
    // SAFETY: nothing is pointed to.
    let handle = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE, 0, pid) };
    if handle.is_null() {
        return !is_win32(&io::Error::last_os_error(), &[ERROR_INVALID_PARAMETER]);
    }
    // SAFETY: the call succeeded, so this is an open handle, and nobody else's.
    let process = unsafe { OwnedHandle::from_raw_handle(handle) };
    // Windows finds a process by numbers that differ from its PID in the last two bits, too.
    // SAFETY: an open handle.
    let found = unsafe { GetProcessId(process.as_raw_handle()) };
    // A process that ended stays to be found as long as somebody has a handle of it.
    // SAFETY: an open handle.
    let ended = unsafe { WaitForSingleObject(process.as_raw_handle(), 0) } == WAIT_OBJECT_0;
    (found == pid || found == 0) && !ended
}

/// A name in UTF-16. What is no single name is refused, and so is what would mean a stream of a file (`name:stream`).
fn wide(name: &OsStr) -> io::Result<Vec<u16>> {
    let bytes = name.as_encoded_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|byte| b"\\/:\0".contains(byte)) {
        return Err(win32_error(ERROR_INVALID_NAME));
    }
    Ok(name.encode_wide().collect())
}

/// Tries again for a moment while somebody else has the file open.
fn patiently<T>(action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    retried(&PAUSES, action)
}

fn retried<T>(pauses: &[u64], mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for pause in pauses {
        match action() {
            Err(error) if is_busy(&error) => thread::sleep(Duration::from_millis(*pause)),
            done => return done,
        }
    }
    action()
}

/// Renames what is open with `DELETE` access, unless the new name is taken.
fn move_to(file: &File, to: &Dir, new_name: &[u16]) -> io::Result<()> {
    const NAME: usize = offset_of!(FILE_RENAME_INFORMATION, FileName);
    let (Ok(name_length), Ok(length)) = (
        u32::try_from(size_of_val(new_name)),
        u32::try_from(size_of::<FILE_RENAME_INFORMATION>() + size_of_val(new_name)),
    ) else {
        return Err(win32_error(ERROR_FILENAME_EXCED_RANGE));
    };
    let head = FILE_RENAME_INFORMATION {
        RootDirectory: to.file.as_raw_handle(),
        FileNameLength: name_length,
        ..FILE_RENAME_INFORMATION::default() // which does not replace
    };
    let mut buffer = vec![0_u64; (length as usize).div_ceil(size_of::<u64>())];
    let start = buffer.as_mut_ptr();
    let mut io_status = IO_STATUS_BLOCK::default();
    // SAFETY: the buffer is aligned for the structure and holds `length` bytes, enough for it and the name; it and the
    // status block live through the call.
    let status = unsafe {
        start.cast::<FILE_RENAME_INFORMATION>().write(head);
        start.byte_add(NAME).cast::<u16>().copy_from_nonoverlapping(new_name.as_ptr(), new_name.len());
        NtSetInformationFile(file.as_raw_handle(), &raw mut io_status, start.cast(), length, FileRenameInformation)
    };
    check(status)
}

/// Deletes what is open with `DELETE` access, once it is closed.
fn mark_deleted(file: &File) -> io::Result<()> {
    // By default a name stays until everybody has closed the file, and one that is write-protected is not deleted.
    let flags = FILE_DISPOSITION_FLAG_DELETE
        | FILE_DISPOSITION_FLAG_POSIX_SEMANTICS
        | FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE;
    match set(file, FileDispositionInfoEx, &FILE_DISPOSITION_INFO_EX { Flags: flags }) {
        // Not every system and filesystem can do otherwise.
        Err(error)
            if is_win32(
                &error,
                &[ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED, ERROR_INVALID_PARAMETER, ERROR_CALL_NOT_IMPLEMENTED],
            ) =>
        {
            set(file, FileDispositionInfo, &FILE_DISPOSITION_INFO { DeleteFile: true })
        }
        done => done,
    }
}

/// Opens what a path means, whatever it is, for a look at its attributes: that is possible also where others share
/// nothing.
fn look_at(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new().access_mode(FILE_READ_ATTRIBUTES | SYNCHRONIZE).custom_flags(flags).open(path)
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    let mut information = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: an open handle, and the structure that the call fills.
    succeeded(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) })?;
    Ok(information)
}

/// Asks for one of the structures of `GetFileInformationByHandleEx`.
fn query<T: Default>(file: &File, class: FILE_INFO_BY_HANDLE_CLASS) -> io::Result<T> {
    let mut information = T::default();
    // SAFETY: an open handle, and a structure of the length that is said.
    succeeded(unsafe {
        GetFileInformationByHandleEx(file.as_raw_handle(), class, (&raw mut information).cast(), size_of_u32::<T>())
    })?;
    Ok(information)
}

/// Hands over one of the structures of `SetFileInformationByHandle`.
fn set<T>(file: &File, class: FILE_INFO_BY_HANDLE_CLASS, information: &T) -> io::Result<()> {
    // SAFETY: an open handle, and a structure of the length that is said, which is only read.
    succeeded(unsafe {
        SetFileInformationByHandle(file.as_raw_handle(), class, (&raw const *information).cast(), size_of_u32::<T>())
    })
}

fn reparse_tag(file: &File) -> io::Result<Option<u32>> {
    // Filesystems without reparse points may not know the tag's structure.
    if information(file)?.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT == 0 {
        return Ok(None);
    }
    let tag: FILE_ATTRIBUTE_TAG_INFO = query(file, FileAttributeTagInfo)?;
    Ok(Some(tag.ReparseTag))
}

fn is_link(tag: u32) -> bool {
    tag & NAME_SURROGATE != 0
}

fn kind_of(attributes: u32, tag: u32) -> FileKind {
    if attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 && is_link(tag) {
        FileKind::Symlink
    } else if attributes & FILE_ATTRIBUTE_DIRECTORY != 0 {
        FileKind::Directory
    } else {
        FileKind::Regular
    }
}

fn identity_of(information: &BY_HANDLE_FILE_INFORMATION) -> Identity {
    let index = u64::from(information.nFileIndexHigh) << 32 | u64::from(information.nFileIndexLow);
    (information.dwVolumeSerialNumber.into(), index)
}

/// The moment that is so many tenths of a microsecond after the beginning of 1601.
fn time_of(ticks: i64) -> SystemTime {
    match u64::try_from(ticks) {
        // FAT keeps no such time. As if it were now: so nothing is taken for old that may be new.
        Ok(0) | Err(_) => SystemTime::now(),
        Ok(ticks) => {
            let since_1601 = Duration::from_micros(ticks / 10) + Duration::from_nanos(ticks % 10 * 100);
            SystemTime::UNIX_EPOCH + since_1601.saturating_sub(TO_1970)
        }
    }
}

/// Fills the buffer with the next entries of a directory and says how many bytes they are: none at its end.
fn read_entries(dir: &File, buffer: &mut [u64], from_start: bool) -> io::Result<usize> {
    let length = u32::try_from(size_of_val(buffer)).unwrap_or(u32::MAX);
    let mut io_status = IO_STATUS_BLOCK::default();
    // SAFETY: the buffer has at least that length, and all pointers are null where that is allowed, or to what lives
    // through the call.
    let status = unsafe {
        NtQueryDirectoryFile(
            dir.as_raw_handle(),
            null_mut(),
            None,
            null(),
            &raw mut io_status,
            buffer.as_mut_ptr().cast(),
            length,
            FileFullDirectoryInformation,
            false,
            null(),
            from_start,
        )
    };
    match status {
        STATUS_NO_MORE_FILES | STATUS_NO_SUCH_FILE => Ok(0),
        status => check(status).map(|()| io_status.Information),
    }
}

fn visit_entries(buffer: &[u64], filled: usize, visit: &mut dyn FnMut(Entry<'_>)) {
    const NAME: usize = offset_of!(FILE_FULL_DIR_INFO, FileName);
    // SAFETY: as many initialized bytes as the buffer has, or less.
    let mut rest = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), filled.min(size_of_val(buffer))) };
    loop {
        let number = |at: usize| {
            let bytes = rest.get(at..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*bytes))
        };
        let (Some(next), Some(attributes), Some(length), Some(tag)) = (
            number(offset_of!(FILE_FULL_DIR_INFO, NextEntryOffset)),
            number(offset_of!(FILE_FULL_DIR_INFO, FileAttributes)),
            number(offset_of!(FILE_FULL_DIR_INFO, FileNameLength)),
            number(offset_of!(FILE_FULL_DIR_INFO, EaSize)), // of a reparse point it is the tag
        ) else {
            return;
        };
        let Some(name) = rest.get(NAME..NAME + length as usize) else { return };
        let name: Vec<u16> = name.chunks_exact(2).map(|unit| u16::from_ne_bytes([unit[0], unit[1]])).collect();
        let name = OsString::from_wide(&name);
        if name != "." && name != ".." {
            visit((&name, Some(kind_of(attributes, tag))));
        }
        match rest.get(next as usize..) {
            Some(after) if next > 0 => rest = after,
            _ => return,
        }
    }
}

const fn size_of_u32<T>() -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "no structure is that large")]
    return size_of::<T>() as u32;
}

fn succeeded(done: windows_sys::core::BOOL) -> io::Result<()> {
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Win32 calls all of these "access denied", but what is being deleted is no longer there.
fn check(status: NTSTATUS) -> io::Result<()> {
    match status {
        0.. => Ok(()),
        STATUS_DELETE_PENDING | STATUS_FILE_DELETED => Err(win32_error(ERROR_FILE_NOT_FOUND)),
        STATUS_FILE_IS_A_DIRECTORY => Err(win32_error(ERROR_DIRECTORY_NOT_SUPPORTED)),
        // SAFETY: nothing is pointed to.
        status => Err(win32_error(unsafe { RtlNtStatusToDosError(status) })),
    }
}

fn win32_error(code: WIN32_ERROR) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

fn is_win32(error: &io::Error, codes: &[WIN32_ERROR]) -> bool {
    error.raw_os_error().is_some_and(|code| codes.contains(&code.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Barrier;

    fn names(dir: &Dir, reading: Reading) -> Vec<String> {
        let mut names = Vec::new();
        dir.list(reading, |(name, kind)| {
            assert_eq!(kind, Some(FileKind::Regular));
            names.push(name.to_string_lossy().into_owned());
        })
        .unwrap();
        names.sort_unstable();
        names
    }

    fn os(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn a_directory_of_any_size_is_listed_whole() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        for size in [0, 1, 600] {
            for number in names(&dir, Reading::AtOnce).len()..size {
                std::fs::write(home.path().join(format!("{number:0100}")), "").unwrap();
            }
            let expected: Vec<_> = (0..size).map(|number| format!("{number:0100}")).collect();
            assert_eq!(names(&dir, Reading::AtOnce), expected);
            assert_eq!(names(&dir, Reading::InPieces), expected);
        }
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        for name in ["one", "two"] {
            std::fs::write(home.path().join(name), name).unwrap();
        }
        let taken = |done: io::Result<()>| assert_eq!(done.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        taken(dir.rename(os("one"), &dir, os("two")));
        taken(dir.take(&home.path().join("one"), os("two")));
        assert_eq!(std::fs::read(home.path().join("two")).unwrap(), b"two");
        assert_eq!(std::fs::read(home.path().join("one")).unwrap(), b"one");
    }

    #[test]
    fn of_two_who_move_a_file_one_finds_it_gone() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        let start = Barrier::new(4);
        for round in 0..50 {
            std::fs::write(home.path().join("file"), "").unwrap();
            let mover = |mover: usize| {
                let (dir, start) = (&dir, &start);
                move || {
                    start.wait();
                    dir.rename(os("file"), dir, os(&format!("{round}-{mover}"))).map_err(|error| error.kind())
                }
            };
            let outcomes = thread::scope(|threads| {
                let movers: Vec<_> = (0..4).map(|number| threads.spawn(mover(number))).collect();
                movers.into_iter().map(|mover| mover.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
            assert_eq!(outcomes.iter().filter(|&&outcome| outcome == Err(io::ErrorKind::NotFound)).count(), 3);
        }
    }

    #[test]
    fn a_directory_moves_and_goes_while_it_is_open() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        dir.make_dir(os("spare")).unwrap();
        let spare = dir.open_dir(os("spare")).unwrap();
        dir.rename(os("spare"), &dir, os("used")).unwrap();
        // The number alone: Wine does not tell the volume of a directory that was renamed.
        assert_eq!(dir.stat(os("used")).unwrap().identity.1, spare.identity().unwrap().1);
        dir.make_dir(os("claim")).unwrap();
        let claim = dir.open_dir(os("claim")).unwrap();
        drop(claim.create_file(os("job")).unwrap());
        assert_eq!(dir.remove_dir(os("claim")).unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        claim.remove_file(os("job")).unwrap();
        dir.remove_dir(os("claim")).unwrap();
        drop(claim); // where there are no POSIX semantics, it has its name until then
        assert_eq!(dir.open_dir(os("claim")).err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn what_somebody_has_open_is_not_moved_until_it_is_closed() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let reader = dir.open_file(os("file")).unwrap();
        assert!(is_busy(&dir.rename(os("file"), &dir, os("other")).unwrap_err()));
        assert!(is_busy(&dir.remove_file(os("file")).unwrap_err()));
        thread::scope(|threads| {
            threads.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                drop(reader);
            });
            dir.rename(os("file"), &dir, os("other")).unwrap();
        });
    }

    #[test]
    fn a_lock_file_is_locked_from_its_making_to_its_end() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        let lock = dir.create_file(os("unborn")).unwrap();
        assert!(take_lock(&dir, os("unborn")).unwrap().is_none());
        rename_open(&lock, &dir, os("unborn"), &dir, os("lock")).unwrap();
        assert!(has_name(&lock).unwrap());
        assert!(take_lock(&dir, os("lock")).unwrap().is_none());
        assert!(is_busy(&dir.remove_file(os("lock")).unwrap_err()));
        drop(lock);
        let lock = take_lock(&dir, os("lock")).unwrap().unwrap();
        remove_open(&lock, &dir, os("lock")).unwrap();
        drop(lock);
        assert_eq!(take_lock(&dir, os("lock")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_name_is_taken_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let dir = Dir::open(home.path()).unwrap();
        let long = "n".repeat(240);
        for name in ["nul", "con.txt", "end.", "end ", &long] {
            dir.make_dir(os(name)).unwrap();
            let inner = dir.open_dir(os(name)).unwrap();
            drop(inner.create_file(os(name)).unwrap());
            assert_eq!(names(&inner, Reading::AtOnce), [name]);
            inner.sync().unwrap();
            inner.remove_file(os(name)).unwrap();
            dir.remove_dir(os(name)).unwrap();
        }
        for no_name in ["", ".", "..", "a\\b", "a/b", "a:b", "a\0b"] {
            assert_eq!(dir.stat(os(no_name)).unwrap_err().kind(), io::ErrorKind::InvalidFilename);
        }
    }

    #[test]
    fn a_process_lives_until_it_ends() {
        assert!(is_alive(pid()));
        let mut child = Command::new("cmd").args(["/c", "exit"]).spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }
}
