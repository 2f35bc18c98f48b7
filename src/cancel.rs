//! Taking a job out of the queue before anybody has it.

use std::ffi::OsString;
use std::io;

use crate::error::{At, Result};
use crate::history;
use crate::job::{Job, JobRef};
use crate::lookup::{find_listed, visit_jobs};
use crate::policy::State;
use crate::shared::Shared;

/// Deletes a job that is scheduled or waits, and says where it was. First `scheduled/`, then `queued/`, in the order in
/// which it would move from one to the other meanwhile (rule 19). Who claims it at the same moment either finds it gone or
/// has it: one `unlink` or one `rename` of the same entry succeeds.
pub(crate) fn cancel(shared: &Shared, wanted: &JobRef) -> Result<Option<State>> {
    let mut delayed = None;
    visit_jobs(
        shared,
        State::Scheduled,
        |job| wanted.means(job),
        |job, due, _| {
            delayed = due.map(|due| (job.scheduled_entry(due), job));
        },
    )?;
    step!("cancel: listed");
    if let Some((entry, job)) = delayed
        && remove(shared, State::Scheduled, &entry, &job)?
    {
        return Ok(Some(State::Scheduled));
    }
    let known = wanted.known();
    if remove(shared, State::Queued, &known.entry(), &known)? {
        return Ok(Some(State::Queued));
    }
    if !wanted.is_known()
        && let Some(job) = find_listed(shared, State::Queued, wanted)?
        && remove(shared, State::Queued, &job.entry(), &job)?
    {
        return Ok(Some(State::Queued));
    }
    Ok(None)
}

/// Removes the job's file, and what is recorded of the job.
fn remove(shared: &Shared, state: State, entry: &OsString, job: &Job) -> Result<bool> {
    let layout = shared.layout();
    let dir = layout.dir(state);
    let path = || dir.path().join(entry);
    // It may be something that is no job under a job's name.
    if !dir.is_file(entry).at(path)? {
        return Ok(false);
    }
    step!("cancel: looked");
    match dir.remove_file(entry) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        removed => removed.at(path)?,
    }
    step!("cancel: removed");
    history::remove(&layout, job).unwrap_or_else(|error| _ = shared.tell_failed(&error));
    Ok(true)
}
