//! Sending: a file is written in `tmp/`, then gets its name in `queued/` or `scheduled/` by one rename.
//!
//! | call | a crash before the next one leaves |
//! | --- | --- |
//! | create `tmp/<uuid>-<owner>`, write, close | that file, which a consumer deletes |
//! | durable: `fsync` of the file, before the close | the same |
//! | rename to `queued/<job>` or `scheduled/<due>-<job>` | the job |
//! | durable: `fsync` of that directory | the job |
//!
//! A move within a filesystem is the rename alone, from where the file was.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::{At, Error, Result};
use crate::job::{self, Due, Job};
use crate::layout::Layout;
use crate::owner::Owner;
use crate::policy::State;
use crate::sys::{self, Dir, FileKind, Link, Stat};

/// What a file sent becomes to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// The queue gets a copy.
    Copy,
    /// The queue gets the file itself; where that was there is nothing then.
    Move,
}

/// How much is copied before the caller is asked whether to go on.
const COPY_PIECE: u64 = 64 << 20;

/// How many stretches between holes are copied before the same.
const MANY_STRETCHES: u64 = 1000;

/// How many files of a batch are open and on their way to the disk. A flush of one covers what came before it in the
/// filesystem's journal, so the more the better; the descriptors are the process's.
const MOST_OPEN: usize = 64;

/// From how many files on it may pay to flush the filesystem as a whole.
const MANY: usize = 8;

/// How much a disk writes, at the least, in the time that the flush of one file takes it.
const WORTH_A_FLUSH: u64 = 64 << 10;

/// How the files of a batch come to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushing {
    Never,
    Each,
    /// By one flush of their filesystem.
    Together,
}

/// Publishes under one owner's name.
pub(crate) struct Publisher<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) owner: &'a Owner,
    pub(crate) durable: bool,
    pub(crate) due: Option<Due>,
}

impl Publisher<'_> {
    pub(crate) fn data(&self, data: &[u8]) -> Result<Uuid> {
        let draft = self.draft(self.new_id()?, |file| file.write_all(data))?;
        let job = Job::data(draft.id);
        self.publish(draft, &job)?;
        self.sync_target(&[job.id()])?;
        Ok(job.id())
    }

    /// Writes all, then publishes all in order, then flushes the directory once.
    ///
    /// First the disk is told to begin with each file, and by the time that it is waited for, it has done many of them
    /// together. Then each is flushed by itself or, where others have written so little that this is far cheaper, all of
    /// the filesystem at once.
    pub(crate) fn many<T: AsRef<[u8]>>(&self, items: &[T]) -> Result<Vec<Uuid>> {
        let flushing = self.flushing(items.len());
        let most_open = if self.durable { MOST_OPEN } else { 0 };
        let mut drafts = Vec::with_capacity(items.len());
        let mut open = VecDeque::new();
        for item in items {
            let write = |file: &mut File| file.write_all(item.as_ref());
            let written = match self.written(self.new_id()?, write) {
                // No more descriptors: then with those that there are.
                Err(Error::Io { ref source, .. }) if !open.is_empty() && sys::is_out_of_files(source) => {
                    for written in open.drain(..) {
                        drafts.push(Self::finish(written, flushing)?);
                    }
                    self.written(self.new_id()?, write)?
                }
                written => written?,
            };
            if self.durable {
                sys::start_flush(&written.file);
            }
            open.push_back(written);
            if open.len() > most_open {
                drafts.extend(open.pop_front().map(|written| Self::finish(written, flushing)).transpose()?);
            }
        }
        for written in open {
            drafts.push(Self::finish(written, flushing)?);
        }
        // What fails there may be others' writes; then each of these tells for itself.
        if flushing == Flushing::Together && self.layout.tmp.sync_filesystem().is_err() {
            for draft in &drafts {
                draft.tmp.open_file(&draft.name).and_then(|file| sys::sync(&file)).at(|| draft.path())?;
            }
        }
        step!("publish: flushed");
        let mut sent = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let id = draft.id;
            match self.publish(draft, &Job::data(id)) {
                Ok(()) => sent.push(id),
                Err(source) if sent.is_empty() => return Err(source),
                Err(source) => {
                    // What is published already is to be as safe as it would be alone.
                    _ = self.sync_target(&sent);
                    return Err(Error::Sent { source: source.into(), sent });
                }
            }
        }
        self.sync_target(&sent)?;
        Ok(sent)
    }

    /// `go_on` is asked between the pieces of a copy.
    pub(crate) fn file(
        &self,
        path: &Path,
        name: &OsStr,
        transfer: Transfer,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Uuid> {
        if let Some(fault) = sys::name_fault(name) {
            return Err(Error::Name { what: fault.into() });
        }
        let (look, link): (fn(&Path) -> _, _) = match transfer {
            Transfer::Move => (sys::stat, Link::Refused),
            Transfer::Copy => (sys::stat_target, Link::Followed),
        };
        check_regular(look(path).at(|| path.into())?.kind, path)?;
        let id = job::new_id().at(|| path.into())?;
        let job = Job::file(id, name)?;
        if transfer == Transfer::Move && self.rename_source(path, &job)? {
            self.sync_target(&[id])?;
            return Ok(id);
        }
        step!("publish: copies");
        let source = sys::open_source(path, link).at(|| path.into())?;
        // Something else may have come to its place.
        let copied = sys::stat_file(&source).at(|| path.into())?;
        check_regular(copied.kind, path)?;
        self.copy(&source, copied.has_holes, &job, go_on)?;
        self.sync_target(&[id])?;
        if transfer == Transfer::Move {
            step!("publish: copied across");
            remove_copied(path, &copied).map_err(|source| Error::Sent { source: source.into(), sent: vec![id] })?;
        }
        Ok(id)
    }

    /// Moves the file itself, or says that it is on another filesystem.
    fn rename_source(&self, path: &Path, job: &Job) -> Result<bool> {
        if self.durable {
            sys::sync_source(path).at(|| path.into())?;
        }
        let (target, entry) = self.target(job);
        match target.take(path, &entry) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(false),
            moved => moved.at(|| path.into()).map(|()| true),
        }
    }

    fn copy(&self, source: &File, has_holes: bool, job: &Job, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let mut stopped = false;
        let draft = self.draft(job.id(), |file| {
            let mut copy = Copy { source, file, go_on, stopped: &mut stopped };
            if has_holes { copy.data_alone() } else { copy.stretch(0, u64::MAX).map(drop) }
        });
        if stopped {
            return Err(Error::Stopped);
        }
        self.publish(draft?, job)
    }

    fn new_id(&self) -> Result<Uuid> {
        job::new_id().at(|| self.layout.tmp.path().into())
    }

    /// How that many files are flushed.
    fn flushing(&self, files: usize) -> Flushing {
        let worth = WORTH_A_FLUSH.saturating_mul(files as u64);
        if !self.durable {
            Flushing::Never
        } else if files >= MANY && self.layout.tmp.unwritten().is_some_and(|others| others <= worth) {
            Flushing::Together
        } else {
            Flushing::Each
        }
    }

    /// Makes a whole file in `tmp/`.
    fn draft(&self, id: Uuid, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Draft<'_>> {
        Self::finish(self.written(id, write)?, self.flushing(1))
    }

    /// Writes a file in `tmp/`.
    fn written(&self, id: Uuid, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Written<'_>> {
        let tmp = &self.layout.tmp;
        let name = job::temporary(id, self.owner.name());
        let file = tmp.create_file(&name).at(|| tmp.path().join(&name))?;
        let mut written = Written { file, draft: Draft { tmp, id, name, published: false } };
        step!("publish: created");
        write(&mut written.file).at(|| written.draft.path())?;
        step!("publish: written");
        Ok(written)
    }

    /// Says that it is whole.
    fn finish(written: Written<'_>, flushing: Flushing) -> Result<Draft<'_>> {
        match flushing {
            Flushing::Never => Ok(()),
            Flushing::Each => sys::sync(&written.file),
            Flushing::Together => sys::finish_flush(&written.file),
        }
        .at(|| written.draft.path())?;
        let Written { file, draft } = written;
        sys::close(file).at(|| draft.path())?;
        step!("publish: closed");
        Ok(draft)
    }

    /// The one rename that makes it a job.
    fn publish(&self, mut draft: Draft<'_>, job: &Job) -> Result<()> {
        let (target, entry) = self.target(job);
        draft.tmp.rename(&draft.name, target, &entry).at(|| target.path().join(&entry))?;
        draft.published = true;
        step!("publish: published");
        Ok(())
    }

    fn target(&self, job: &Job) -> (&Dir, OsString) {
        match self.due {
            None => (self.layout.dir(State::Queued), job.entry()),
            Some(due) => (self.layout.dir(State::Scheduled), job.scheduled_entry(due)),
        }
    }

    fn sync_target(&self, sent: &[Uuid]) -> Result<()> {
        if !self.durable || sent.is_empty() {
            return Ok(());
        }
        self.layout
            .flush(if self.due.is_some() { State::Scheduled } else { State::Queued })
            .map_err(|source| Error::Sent { source: source.into(), sent: sent.into() })
    }
}

/// A file that was written, and may not be whole on the disk.
struct Written<'a> {
    /// Closed before the draft is dropped: Windows deletes no file that is open.
    file: File,
    draft: Draft<'a>,
}

/// A file in `tmp/` that is deleted unless it is published.
struct Draft<'a> {
    tmp: &'a Dir,
    id: Uuid,
    name: OsString,
    published: bool,
}

impl Draft<'_> {
    fn path(&self) -> PathBuf {
        self.tmp.path().join(&self.name)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.published {
            // If it stays, the next consumer deletes it once this process has ended.
            _ = self.tmp.remove_file(&self.name);
        }
    }
}

/// A copy that is under way.
struct Copy<'a> {
    source: &'a File,
    file: &'a mut File,
    go_on: &'a mut dyn FnMut() -> bool,
    /// Whether the caller did not want it to go on.
    stopped: &'a mut bool,
}

impl Copy<'_> {
    /// Copies from where both files are, at `start`, and says whether the source is as long as until `end`.
    fn stretch(&mut self, start: u64, end: u64) -> io::Result<bool> {
        let mut piece = COPY_PIECE.min(end - start);
        loop {
            // The standard library's copy is `copy_file_range(2)` or, where that can't, `sendfile(2)`: no byte passes
            // through this process, and filesystems that can share blocks do.
            match io::copy(&mut self.source.take(piece), self.file) {
                Ok(copied) if copied < piece => return Ok(false),
                // After a signal that broke it off, both files are where it came to.
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if end < u64::MAX {
                piece = COPY_PIECE.min(end.saturating_sub(self.source.stream_position()?));
                if piece == 0 {
                    return Ok(true);
                }
            }
            self.ask()?;
        }
    }

    /// Asks the caller whether to go on.
    fn ask(&mut self) -> io::Result<()> {
        if (self.go_on)() {
            return Ok(());
        }
        *self.stopped = true;
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Copies what there is between the holes, and leaves the holes out. The source may grow or shrink meanwhile: what was
    /// appended belongs to the copy, and what was cut off before it was reached does not.
    fn data_alone(&mut self) -> io::Result<()> {
        let mut end = 0;
        for count in 1_u64.. {
            let length = self.length()?;
            let Some(data) = sys::next_data(self.source, end)? else {
                step!("publish: found no more data");
                match self.length()? {
                    longer if longer > length => continue,
                    length => return self.end_with_hole(end, length),
                }
            };
            step!("publish: found data");
            self.source.seek(SeekFrom::Start(data.start))?;
            self.file.seek(SeekFrom::Start(data.start))?;
            if !self.stretch(data.start, data.end)? {
                let length = self.length()?.min(data.start);
                return self.end_with_hole(end, length);
            }
            end = data.end;
            if count.is_multiple_of(MANY_STRETCHES) {
                self.ask()?;
            }
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.source.metadata()?.len())
    }

    fn end_with_hole(&self, end: u64, length: u64) -> io::Result<()> {
        if length > end { self.file.set_len(length) } else { Ok(()) }
    }
}

/// Removes a file that was copied, unless it is another one by now, or was written to.
fn remove_copied(path: &Path, copied: &Stat) -> Result<()> {
    let now = sys::stat(path).at(|| path.into())?;
    let same = |stat: &Stat| (stat.identity, stat.length, stat.modified);
    if same(&now) != same(copied) {
        return Err(Error::Changed { path: path.into() });
    }
    std::fs::remove_file(path).at(|| path.into())
}

fn check_regular(kind: FileKind, path: &Path) -> Result<()> {
    let (what, kind) = match kind {
        FileKind::Regular => return Ok(()),
        FileKind::Directory => ("a directory can't be sent; pack it into a file first", io::ErrorKind::IsADirectory),
        FileKind::Symlink => {
            ("a symlink can't be moved into the queue; send a copy, or what it points to", io::ErrorKind::InvalidInput)
        }
        FileKind::Other => ("only a regular file can be sent", io::ErrorKind::InvalidInput),
    };
    Err(Error::NotRegular { what, kind, path: path.into() })
}
