//! Finding jobs by their names: where one is, which there are.

use std::io;

use crate::error::{At, Result};
use crate::job::{self, Due, Job, JobRef, OwnerName, Token};
use crate::policy::{KeepPolicy, State};
use crate::shared::Shared;
use crate::sys::Reading;

/// Looks for a job whose entry name is known. Only `scheduled/` and `processing/` must be listed for that.
pub(crate) fn has_known(shared: &Shared, state: State, job: &JobRef, known: &Job) -> Result<bool> {
    if matches!(state, State::Scheduled | State::Processing) {
        return Ok(find_listed(shared, state, job)?.is_some());
    }
    let layout = shared.layout();
    let dir = layout.dir(state);
    let entry = known.entry();
    dir.is_file(&entry).at(|| dir.path().join(&entry))
}

/// Looks for a job by its id in a listing.
pub(crate) fn find_listed(shared: &Shared, state: State, wanted: &JobRef) -> Result<Option<Job>> {
    let mut found = None;
    visit_jobs(shared, state, |job| wanted.means(job), |job, _, _| found = Some(job))?;
    Ok(found)
}

/// The jobs that are in some kept states, listed before anything is done to one of them.
pub(crate) fn list_kept(shared: &Shared, which: KeepPolicy) -> Result<Vec<(State, Job)>> {
    let mut jobs = Vec::new();
    for state in which.states() {
        visit_jobs(shared, state, |_| true, |job, _, _| jobs.push((state, job)))?;
    }
    Ok(jobs)
}

/// Visits the jobs of a state that pass the filter, with the due time or the owner that their entries tell.
pub(crate) fn visit_jobs(
    shared: &Shared,
    state: State,
    filter: impl Fn(&Job) -> bool,
    mut visit: impl FnMut(Job, Option<Due>, Option<OwnerName>),
) -> Result<()> {
    let layout = shared.layout();
    let dir = layout.dir(state);
    let path = || dir.path().to_owned();
    let mut claims = Vec::new();
    let reading = if state == State::Processing { Reading::AtOnce } else { Reading::InPieces };
    dir.list(reading, |(name, kind)| {
        let parsed = match state {
            State::Processing => job::parse_claim(name).map(|(job, owner)| (job, None, Some(owner))),
            State::Scheduled => job::parse_scheduled(name).map(|(due, job)| (job, Some(due), None)),
            _ => Job::parse(name).map(|job| (job, None, None)),
        };
        match parsed {
            Some((job, ..)) if !filter(&job) => {}
            Some((job, _, Some(owner))) => claims.push((name.to_owned(), job, owner)),
            Some((job, due, None)) if dir.may_be_file((name, kind)) => visit(job, due, None),
            _ if state == State::Processing && (Token::parse_spare(name).is_some() || job::is_set_aside(name)) => {}
            _ => shared.tell_stranger(dir, name),
        }
    })
    .at(path)?;
    for (name, job, owner) in claims {
        // A claim counts only with its file in it. One that is settled meanwhile is none; one that only its owner may look
        // into is one.
        let held = dir.open_dir(&name).and_then(|claim| claim.is_file(job.claimed_name()));
        match held {
            Ok(false) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                return Err(error).at(|| dir.path().join(&name));
            }
            Ok(true) | Err(_) => visit(job, None, Some(owner)),
        }
    }
    Ok(())
}
