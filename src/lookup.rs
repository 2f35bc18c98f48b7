//! Finding jobs by their names: where one is, which there are.

use std::io;

use crate::error::{At, Result};
use crate::job::{self, Due, Job, JobRef, OwnerName};
use crate::layout::Layout;
use crate::policy::{KeepPolicy, State};
use crate::sys::{FileKind, Reading};

/// Looks for a job whose entry name is known. Only `scheduled/` and `processing/` must be listed for that.
pub(crate) fn has_known(layout: &Layout, state: State, job: &JobRef, known: &Job) -> Result<bool> {
    if matches!(state, State::Scheduled | State::Processing) {
        return Ok(find_listed(layout, state, job)?.is_some());
    }
    let dir = layout.dir(state);
    let entry = known.entry();
    match dir.stat(&entry) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.at(|| dir.path().join(&entry)).map(|stat| stat.kind == FileKind::Regular),
    }
}

/// Looks for a job by its id in a listing.
pub(crate) fn find_listed(layout: &Layout, state: State, wanted: &JobRef) -> Result<Option<Job>> {
    let mut found = None;
    visit_jobs(layout, state, |job| wanted.means(job), |job, _, _| found = Some(job))?;
    Ok(found)
}

/// The jobs that are in some kept states, listed before anything is done to one of them.
pub(crate) fn list_kept(layout: &Layout, which: KeepPolicy) -> Result<Vec<(State, Job)>> {
    let mut jobs = Vec::new();
    for state in which.states() {
        visit_jobs(layout, state, |_| true, |job, _, _| jobs.push((state, job)))?;
    }
    Ok(jobs)
}

/// Visits the jobs of a state that pass the filter, with the due time or the owner that their entries tell.
pub(crate) fn visit_jobs(
    layout: &Layout,
    state: State,
    filter: impl Fn(&Job) -> bool,
    mut visit: impl FnMut(Job, Option<Due>, Option<OwnerName>),
) -> Result<()> {
    let dir = layout.dir(state);
    let path = || dir.path().to_owned();
    let mut claims = Vec::new();
    let reading = if state == State::Processing { Reading::AtOnce } else { Reading::InPieces };
    dir.list(reading, |(name, kind)| match state {
        State::Processing => {
            let claim = job::parse_claim(name).filter(|(job, _)| filter(job));
            claims.extend(claim.map(|(job, owner)| (name.to_owned(), job, owner)));
        }
        State::Scheduled => {
            let scheduled = job::parse_scheduled(name).filter(|(_, job)| filter(job) && dir.is_file(name, kind));
            if let Some((due, job)) = scheduled {
                visit(job, Some(due), None);
            }
        }
        _ => {
            if let Some(job) = Job::parse(name).filter(|job| filter(job) && dir.is_file(name, kind)) {
                visit(job, None, None);
            }
        }
    })
    .at(path)?;
    for (name, job, owner) in claims {
        // A claim counts only with its file in it. One that is settled meanwhile is none; one that only its owner may look
        // into is one.
        let held = dir.open_dir(&name).map(|claim| claim.is_file(job.claimed_name(), None));
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
