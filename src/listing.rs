//! The jobs that were waiting when `queued/` was last read. A hint, kept compactly: whether a job is still there, only
//! the rename that claims it tells.

use uuid::Uuid;

use crate::error::{At, Result};
use crate::job::{self, Job, Kinds};
use crate::layout::Layout;
use crate::policy::State;
use crate::sys::Reading;

/// In which order jobs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Oldest first, by id, among those listed.
    Fifo,
    /// Any: consumers that work side by side seldom want the same job.
    Random,
}

#[derive(Default)]
pub(crate) struct Listing {
    /// The next one last.
    data: Vec<Uuid>,
    files: Vec<Job>,
}

impl Listing {
    /// Reads `queued/`.
    pub(crate) fn read(layout: &Layout, order: Order) -> Result<Self> {
        let queued = layout.dir(State::Queued);
        let mut listing = Self::default();
        queued
            .list(Reading::InPieces, |(name, kind)| {
                let Some(job) = Job::parse(name).filter(|_| queued.is_file(name, kind)) else { return };
                if job.name().is_some() { listing.files.push(job) } else { listing.data.push(job.id()) }
            })
            .at(|| queued.path().into())?;
        match order {
            Order::Fifo => {
                listing.data.sort_unstable_by(|a, b| b.cmp(a));
                listing.files.sort_unstable_by_key(|job| std::cmp::Reverse(job.id()));
            }
            Order::Random => job::with_random(|random| {
                random.shuffle(&mut listing.data);
                random.shuffle(&mut listing.files);
            })
            .at(|| queued.path().into())?,
        }
        Ok(listing)
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
