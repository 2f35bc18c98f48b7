//! The jobs that were waiting when `queued/` was last read, shared by the threads of a process. A hint, kept compactly:
//! whether a job is still there, only the rename that claims it tells.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::time::SystemTime;

use uuid::Uuid;

use crate::error::{At, Result};
use crate::job::{self, Job, Kinds};
use crate::sys::{Dir, Reading};

/// In which order jobs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Oldest first, by id, among those listed.
    Fifo,
    /// Any: consumers that work side by side seldom want the same job.
    Random,
}

/// What a job found gone costs, in entries of a listing read.
const COST_OF_A_MISS: usize = 32;

#[derive(Default)]
pub(crate) struct Listing {
    /// The next one last.
    data: Vec<Uuid>,
    files: Vec<Job>,
    /// How many there were.
    listed: usize,
    /// How many were gone when they were to be claimed: others work on the same jobs.
    missed: usize,
    /// The directory's time, if nothing can have changed since without changing it.
    unchanged_since: Option<SystemTime>,
    /// How often `queued/` was read.
    pub(crate) readings: u64,
}

impl Listing {
    /// Reads `queued/` afresh, and tells of what is no job in it.
    pub(crate) fn read(&mut self, queued: &Dir, order: Order, mut stranger: impl FnMut(&OsStr)) -> Result<()> {
        let path = || queued.path().to_owned();
        let readings = self.readings + 1;
        // The time is taken before the names: what comes in between is then found the next time.
        let unchanged_since = queued.settled_time().at(path)?;
        // The room is kept: in a loop there will be as many again.
        let (mut data, mut files) = (std::mem::take(&mut self.data), std::mem::take(&mut self.files));
        data.clear();
        files.clear();
        *self = Self { readings, ..Self::default() };
        queued
            .list(Reading::InPieces, |(name, kind)| {
                match Job::parse(name).filter(|_| queued.may_be_file((name, kind))) {
                    None => stranger(name),
                    Some(job) if job.name().is_some() => files.push(job),
                    Some(job) => data.push(job.id()),
                }
            })
            .at(path)?;
        match order {
            Order::Fifo => {
                data.sort_unstable_by(|a, b| b.cmp(a));
                files.sort_unstable_by_key(|job| std::cmp::Reverse(job.id()));
            }
            Order::Random => job::with_random(|random| {
                random.shuffle(&mut data);
                random.shuffle(&mut files);
            })
            .at(path)?,
        }
        self.listed = data.len() + files.len();
        self.unchanged_since = unchanged_since;
        (self.data, self.files) = (data, files);
        Ok(())
    }

    /// Whether a fresh reading would show nothing new.
    pub(crate) fn is_current(&self, queued: &Dir) -> bool {
        queued.is_unchanged(self.unchanged_since)
    }

    /// The job that was taken out of it was gone.
    pub(crate) fn missed(&mut self) {
        self.missed += 1;
    }

    /// The job that was taken out of it waits on: another reading would show it again.
    pub(crate) fn left_one(&mut self) {
        self.unchanged_since = None;
    }

    /// Whether so many were gone that a fresh reading is cheaper than to go on.
    pub(crate) fn is_stale(&self) -> bool {
        self.missed * COST_OF_A_MISS > self.listed
    }

    /// Drops what another listing, read later, does not have.
    pub(crate) fn keep_only(&mut self, later: Self) {
        let mut there: HashSet<Uuid> = later.data.into_iter().collect();
        there.extend(later.files.iter().map(Job::id));
        self.data.retain(|id| there.contains(id));
        self.files.retain(|job| there.contains(&job.id()));
        (self.listed, self.missed) = (self.data.len() + self.files.len(), 0);
    }

    /// Whether a job of these kinds is in it.
    pub(crate) fn has(&self, kinds: Kinds) -> bool {
        (kinds.data && !self.data.is_empty()) || (kinds.file && !self.files.is_empty())
    }

    /// Takes the next job of these kinds out of it.
    pub(crate) fn next(&mut self, kinds: Kinds, order: Order) -> Option<Job> {
        let data = self.data.last().filter(|_| kinds.data);
        let file = self.files.last().filter(|_| kinds.file);
        let take_data = match (data, file, order) {
            (None, None, _) => return None,
            (data, None, _) => data.is_some(),
            (None, Some(_), _) => false,
            (Some(data), Some(file), Order::Fifo) => *data < file.id(),
            (Some(_), Some(_), Order::Random) => {
                let (data, files) = (self.data.len(), self.files.len());
                job::with_random(|random| random.usize(..data + files) < data).unwrap_or(true)
            }
        };
        if take_data { self.data.pop().map(Job::data) } else { self.files.pop() }
    }
}
