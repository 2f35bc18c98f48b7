//! A queue in a few figures.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, SystemTime};

use crate::error::{At, Result};
use crate::job::{self, Due, Job, OwnerName};
use crate::lookup::visit_jobs;
use crate::owner;
use crate::policy::State;
use crate::shared::Shared;

/// A queue in a few figures. They are read one directory after the other: a job that moves meanwhile may be counted twice,
/// or not at all.
#[derive(Debug, Clone)]
pub struct Stats {
    /// How many jobs there are, in the order of [`State::ALL`].
    pub counts: [usize; State::ALL.len()],
    /// When the oldest of the jobs that wait was sent, in Unix time.
    pub oldest: Option<Duration>,
    /// When the next of the scheduled jobs is due.
    pub next_due: Option<Due>,
    /// What living consumers hold, oldest first.
    pub held: Vec<HeldJob>,
}

/// A job in the hands of a living consumer.
#[derive(Debug, Clone)]
pub struct HeldJob {
    /// The job.
    pub job: Job,
    /// Who holds it.
    pub owner: OwnerName,
    /// Since when.
    pub since: SystemTime,
}

/// What who watches a queue wants to see of it.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The figures.
    pub stats: Stats,
    /// How many of the jobs were sent at that time or later.
    pub sent: usize,
    /// The jobs that failed or were interrupted last, the very last first, and when: when their file last changed its name.
    pub failures: Vec<(SystemTime, State, Job)>,
}

/// Looks at the jobs that were sent since then, in Unix time, and at so many failures.
pub(crate) fn survey(shared: &Shared, since: Duration, most: usize) -> Result<Survey> {
    let mut sent = 0;
    let stats = stats(shared, |job| sent += usize::from(job::sent_at(job.id()) >= since))?;
    let layout = shared.layout();
    let mut last = BinaryHeap::new();
    for state in [State::Failed, State::Interrupted] {
        let dir = layout.dir(state);
        let mut jobs = Vec::new();
        visit_jobs(shared, state, |_| true, |job, _, _| jobs.push(job))?;
        for job in jobs {
            let entry = job.entry();
            match dir.stat(&entry) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                stat => last.push(Reverse((stat.at(|| dir.path().join(&entry))?.changed, state, job))),
            }
            if last.len() > most {
                last.pop();
            }
        }
    }
    let failures = last.into_sorted_vec().into_iter().map(|Reverse(failure)| failure).collect();
    Ok(Survey { stats, sent, failures })
}

/// Reads the figures, and shows each job to `visit`.
pub(crate) fn stats(shared: &Shared, mut visit: impl FnMut(&Job)) -> Result<Stats> {
    let mut stats = Stats { counts: Default::default(), oldest: None, next_due: None, held: Vec::new() };
    let mut claims = Vec::new();
    for (count, state) in stats.counts.iter_mut().zip(State::ALL) {
        visit_jobs(
            shared,
            state,
            |_| true,
            |job, due, owner| {
                *count += 1;
                visit(&job);
                match (state, due, owner) {
                    (State::Queued, ..) => {
                        let sent = job::sent_at(job.id());
                        stats.oldest = Some(stats.oldest.map_or(sent, |known| sent.min(known)));
                    }
                    (_, Some(due), _) => stats.next_due = Some(stats.next_due.map_or(due, |known| due.min(known))),
                    (.., Some(owner)) => claims.push((job, owner)),
                    _ => {}
                }
            },
        )?;
    }
    let layout = shared.layout();
    let processing = layout.dir(State::Processing);
    claims.sort_unstable_by_key(|(job, _)| job.id());
    for (job, owner) in claims {
        let table = shared.table();
        let (is_worked_on, is_own) = (table.works_on(&job, owner), table.is_own(owner));
        drop(table);
        let is_alive = is_worked_on || (!is_own && owner::is_alive(owner, &layout));
        // The directory's names last changed when the job's file came in.
        if let Some(claim) = processing.stat(&job.claim_entry(owner)).ok().filter(|_| is_alive) {
            stats.held.push(HeldJob { job, owner, since: claim.modified });
        }
    }
    Ok(stats)
}
