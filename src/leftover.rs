//! What a handler leaves beside its job's file, in the claim's directory (rule 23).
//!
//! Once the owner is gone, the D library's recovery takes any file in a directory with a claim's name for the job's. So a
//! directory that still holds something when the job's file has left it gets a name that is no claim's.

use std::ffi::{OsStr, OsString};
use std::io;

use crate::error::{At, Result};
use crate::job::Job;
use crate::notice::Notice;
use crate::sys::{Dir, Reading};

/// How many names the log shows of what was left.
const MOST_SHOWN: usize = 3;

/// Renames the directory of a claim, which was opened as `of` and could not be removed, to `<job>.left-<n>`, and returns what
/// to log if it did. A directory that is empty by now stays as it is, and so does one that holds the job's file, unless it
/// `is_settled`: then the job's file is elsewhere, whatever the names say.
pub(crate) fn set_aside(
    processing: &Dir,
    job: &Job,
    name: &OsStr,
    of: &Dir,
    is_settled: bool,
) -> Result<Option<Notice>> {
    // Through a handle of its own: somebody may have closed the other one in this process.
    let dir = match processing.open_dir(name) {
        Ok(again) if again.identity().at(|| again.path().into())? == of.identity().at(|| of.path().into())? => again,
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(error).at(|| processing.path().join(name));
        }
        _ => return Ok(None),
    };
    // One at a time: where owners are known by their PIDs, a second one could rename the claim of a process that has the
    // PID by now.
    if !dir.try_lock().at(|| dir.path().into())? {
        return Ok(None);
    }
    step!("set aside: locked");
    let done = rename(processing, job, name, &dir, is_settled);
    dir.unlock();
    let Some((aside, left)) = done.at(|| dir.path().into())? else { return Ok(None) };
    let (id, path) = (job.id(), processing.path().join(aside));
    let shown: Vec<_> = left.iter().take(MOST_SHOWN).map(|name| format!("'{}'", name.to_string_lossy())).collect();
    let more = match left.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "job {id}: {}{more} was left in its claim's directory, and is no job; it is kept in {} until somebody deletes it",
        shown.join(", "),
        path.display()
    );
    Ok(Some(Notice::of(id, text)))
}

/// Says the new name, and what is in the directory, if it was renamed.
fn rename(
    processing: &Dir,
    job: &Job,
    name: &OsStr,
    dir: &Dir,
    is_settled: bool,
) -> io::Result<Option<(OsString, Vec<OsString>)>> {
    let mut left = Vec::new();
    dir.list(Reading::InPieces, |(name, _)| left.push(name.to_owned()))?;
    // What is in it keeps others from removing it. Were it empty, its name could be that of another claim by now.
    if left.is_empty() || (!is_settled && dir.is_file(job.claimed_name())?) {
        return Ok(None);
    }
    match processing.stat(name) {
        Ok(stat) if stat.identity == dir.identity()? => {}
        Ok(_) => return Ok(None),
        Err(error) => return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) },
    }
    step!("set aside: looked");
    left.sort_unstable();
    let mut number = 1;
    loop {
        let aside = job.set_aside_entry(number);
        match processing.rename(name, processing, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => return renamed.map(|()| Some((aside, left))),
        }
    }
}
