//! What time does to jobs: claims of the dead become `interrupted`, jobs whose delay is over become `queued`.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use crate::error::{At, Result};
use crate::job::{self, Due, Job, OwnerName};
use crate::layout::Layout;
use crate::notice::Notice;
use crate::owner;
use crate::policy::{KeepPolicy, State};
use crate::shared::Shared;
use crate::sys::{self, Dir, FileKind, Reading};

/// Moves the jobs of dead consumers to `interrupted/`, or deletes them where the policy does not keep those.
pub(crate) fn recover(shared: &Shared, keep: KeepPolicy, durable: bool) -> Result<()> {
    let layout = shared.layout();
    let processing = layout.dir(State::Processing);
    let mut claims = Vec::new();
    processing
        .list(Reading::AtOnce, |(name, kind)| {
            if matches!(kind, None | Some(FileKind::Directory))
                && let Some((job, owner)) = job::parse_claim(name)
            {
                claims.push(Found { name: name.to_owned(), job, owner });
            }
        })
        .at(|| processing.path().into())?;
    let recovery = Recovery { shared, layout: &layout, keep };
    let mut moved = false;
    for claim in &claims {
        moved |= recovery.recover_if_dead(claim)?;
    }
    if moved && durable {
        let interrupted = layout.dir(State::Interrupted);
        interrupted.sync().at(|| interrupted.path().into())?;
        processing.sync().at(|| processing.path().into())?;
    }
    Ok(())
}

/// A claim's directory.
struct Found {
    name: OsString,
    job: Job,
    owner: OwnerName,
}

struct Recovery<'a> {
    shared: &'a Shared,
    layout: &'a Layout,
    keep: KeepPolicy,
}

impl Recovery<'_> {
    fn recover_if_dead(&self, claim: &Found) -> Result<bool> {
        // First a handle, then the judgement: a directory made under this name later on is another one.
        let dir = match self.processing().open_dir(&claim.name) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            opened => opened.at(|| self.processing().path().join(&claim.name))?,
        };
        step!("recover: opened");
        let table = self.shared.table();
        if table.works_on(&claim.job, claim.owner) {
            return Ok(false);
        }
        if table.is_own(claim.owner) {
            // A leftover under this process's own name. The table stays locked, or a thread could claim the job in
            // between and lose it to its own process.
            let moved = self.move_orphan(claim, &dir);
            drop(table);
            return moved;
        }
        drop(table);
        if owner::is_alive(claim.owner, self.layout) {
            return Ok(false);
        }
        step!("recover: judged");
        self.move_orphan(claim, &dir)
    }

    fn move_orphan(&self, claim: &Found, dir: &Dir) -> Result<bool> {
        let path = || dir.path().to_owned();
        let again = self.processing().stat(&claim.name);
        if again.is_err() || again.at(path)?.identity != dir.identity().at(path)? {
            return Ok(false);
        }
        let moved = self.move_file(claim, dir)?;
        step!("recover: moved");
        match self.processing().remove_dir(&claim.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                let dir = dir.path().display();
                self.shared.tell_once(Notice::new(format!(
                    "{dir}: left by a dead consumer; what is in it is no job's file and is kept"
                )));
            }
            removed => removed.at(path)?,
        }
        Ok(moved)
    }

    /// Moves the job's file and nothing else.
    fn move_file(&self, claim: &Found, dir: &Dir) -> Result<bool> {
        let file = claim.job.claimed_name();
        let path = || dir.path().join(file);
        match dir.stat(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Ok(stat) if stat.kind != FileKind::Regular => return Ok(false),
            stat => stat.at(path)?,
        };
        step!("recover: looked");
        let interrupted = self.layout.dir(State::Interrupted);
        let (done, fate) = if self.keep.keeps(State::Interrupted) {
            (dir.rename(file, interrupted, &claim.job.entry()), "it is kept in interrupted/")
        } else {
            (dir.remove_file(file), "it is deleted, as the keep policy says")
        };
        match done {
            Ok(()) => {
                let Found { job, owner, .. } = claim;
                let id = job.id();
                self.shared.tell(Notice::new(format!("job {id} was interrupted: its consumer ({owner}) died; {fate}")));
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound || sys::is_busy(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.shared.tell_once(already_there(&path(), State::Interrupted));
                Ok(false)
            }
            Err(error) => Err(error).at(path),
        }
    }

    fn processing(&self) -> &Dir {
        self.layout.dir(State::Processing)
    }
}

/// Moves the jobs whose time has come to `queued/`, and tells when the next one's will.
pub(crate) fn promote(shared: &Shared, durable: bool) -> Result<Option<Due>> {
    let layout = shared.layout();
    let (scheduled, queued) = (layout.dir(State::Scheduled), layout.dir(State::Queued));
    let mut due_now: Vec<(OsString, Job)> = Vec::new();
    let mut next: Option<Due> = None;
    scheduled
        .list(Reading::InPieces, |(name, kind)| {
            let Some((due, job)) = job::parse_scheduled(name).filter(|_| scheduled.is_file(name, kind)) else {
                return;
            };
            if due.remaining().is_zero() {
                due_now.push((name.to_owned(), job));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        })
        .at(|| scheduled.path().into())?;
    due_now.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut moved = false;
    for (name, job) in due_now {
        step!("promote: listed");
        match scheduled.rename(&name, queued, &job.entry()) {
            Ok(()) => moved = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound || sys::is_busy(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = scheduled.path().join(&name);
                shared.tell_once(already_there(&path, State::Queued));
            }
            Err(error) => return Err(error).at(|| scheduled.path().join(&name)),
        }
    }
    if moved && durable {
        queued.sync().at(|| queued.path().into())?;
    }
    Ok(next)
}

fn already_there(path: &Path, state: State) -> Notice {
    let (path, state) = (path.display(), state.name());
    Notice::new(format!("{path}: can't be moved to {state}/, where a file of that job is already; both are kept"))
}
