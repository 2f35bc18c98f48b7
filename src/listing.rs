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

/// What a job costs that was gone when it was to be claimed, in entries of a listing read.
const COST_OF_A_MISS: usize = 32;

/// The same of a job that a look showed to be gone.
const COST_OF_A_LOOK: usize = 3;

/// Among how many of the oldest jobs a consumer chooses at the most.
const WIDEST: usize = 1024;

/// How many jobs in a row must be there before a consumer chooses among fewer.
const CALM: usize = 64;

/// How many jobs must be gone, with fewer than that between two of them, for others to be at work. One or two were rather
/// cancelled, and who is alone keeps the order.
const OTHERS_AT_WORK: usize = 4;

/// What is known of other processes that take the same jobs.
///
/// Who is alone takes the oldest job, and never looks whether it is there: the claim tells. Where several do that, each
/// wants the same job, and most attempts fail, at the cost of a claim each. So who found some jobs gone looks before it claims
/// from then on, and chooses among the oldest few: among twice as many with each job that was gone all the same, and among
/// fewer again while none is. That settles where about one attempt in a hundred fails, whatever the number of consumers.
#[derive(Default, Clone, Copy)]
struct Crowd {
    /// Among how many of the oldest to choose; 0 and 1 are the same.
    width: usize,
    /// How many were gone while no others were known to be at work.
    missed: usize,
    /// How many jobs in a row were there.
    calm: usize,
    /// Whether any was gone meanwhile.
    met: bool,
    /// How many looks in a row showed that the job was gone.
    gone: usize,
    /// Whether the last one did.
    gone_last: bool,
}

impl Crowd {
    fn is_there(self) -> bool {
        self.width > 1
    }

    fn chose(&mut self) {
        if !std::mem::take(&mut self.gone_last) {
            self.gone = 0;
        }
        self.calm += 1;
        if self.calm >= CALM {
            let narrower = if self.is_there() && self.met { (self.width / 2).max(2) } else { 1 };
            *self = Self { width: narrower, ..Self::default() };
        }
    }

    /// A look showed that the job chosen last is gone.
    fn met(&mut self) {
        self.calm = self.calm.saturating_sub(1);
        (self.met, self.gone_last) = (true, true);
        self.gone += 1;
    }

    /// It was gone when it was to be claimed.
    fn missed(&mut self) {
        self.missed += 1;
        if !self.is_there() && self.missed < OTHERS_AT_WORK {
            self.calm = 0;
            return;
        }
        *self = Self { width: (self.width * 2).clamp(2, WIDEST), calm: 0, met: true, ..Self::default() };
    }
}

#[derive(Default)]
pub(crate) struct Listing {
    /// The next one last.
    data: Vec<Uuid>,
    files: Vec<Job>,
    /// How many there were.
    listed: usize,
    /// How many were gone when they were to be claimed.
    missed: usize,
    crowd: Crowd,
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
        *self = Self { readings, crowd: self.crowd, ..Self::default() };
        self.crowd.gone = 0;
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
        self.crowd.missed();
    }

    /// The same, as a look showed that was made before.
    pub(crate) fn met(&mut self) {
        self.crowd.met();
    }

    /// Whether others take the same jobs, so that a look before a claim is worth its while.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd.is_there()
    }

    /// The job that was taken out of it waits on: another reading would show it again.
    pub(crate) fn left_one(&mut self) {
        self.unchanged_since = None;
    }

    /// Whether so many were gone that a fresh reading is cheaper than to go on.
    pub(crate) fn is_stale(&self, order: Order) -> bool {
        let rest = self.data.len() + self.files.len();
        // A reading shows those that wait. In order these are nearly all of the rest. At random they are as many as were
        // met: after some in a row that were gone, one among that many.
        let waiting = if order == Order::Fifo { rest } else { rest / self.crowd.gone.max(1) };
        self.missed * COST_OF_A_MISS > self.listed || self.crowd.gone * COST_OF_A_LOOK > waiting.max(COST_OF_A_MISS)
    }

    /// Drops what another listing, read later, does not have.
    pub(crate) fn keep_only(&mut self, later: Self) {
        let mut there: HashSet<Uuid> = later.data.into_iter().collect();
        there.extend(later.files.iter().map(Job::id));
        self.data.retain(|id| there.contains(id));
        self.files.retain(|job| there.contains(&job.id()));
        (self.listed, self.missed) = (self.data.len() + self.files.len(), 0);
        self.crowd.gone = 0;
    }

    /// Whether a job of these kinds is in it.
    pub(crate) fn has(&self, kinds: Kinds) -> bool {
        (kinds.data && !self.data.is_empty()) || (kinds.file && !self.files.is_empty())
    }

    /// Takes the next job of these kinds out of it.
    pub(crate) fn next(&mut self, kinds: Kinds, order: Order) -> Option<Job> {
        let data = if kinds.data { self.data.len() } else { 0 };
        let files = if kinds.file { self.files.len() } else { 0 };
        let random = |among| job::with_random(|random| random.usize(..among)).unwrap_or_default();
        self.crowd.chose();
        let (is_data, nth) = match order {
            _ if data + files == 0 => return None,
            Order::Fifo if self.crowd.is_there() => {
                self.oldest(data, files, random(self.crowd.width.min(data + files)))
            }
            Order::Fifo => self.oldest(data, files, 0),
            Order::Random => (files == 0 || (data > 0 && random(data + files) < data), 0),
        };
        Some(if is_data { Job::data(self.data.remove(data - 1 - nth)) } else { self.files.remove(files - 1 - nth) })
    }

    /// Where the one is that comes after so many older ones: among the data jobs or the files, and after how many of those.
    fn oldest(&self, data: usize, files: usize, after: usize) -> (bool, usize) {
        let (mut d, mut f) = (0, 0);
        loop {
            let is_data = f == files || (d < data && self.data[data - 1 - d] < self.files[files - 1 - f].id());
            if d + f == after {
                return (is_data, if is_data { d } else { f });
            }
            if is_data { d += 1 } else { f += 1 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: u128 = 4000;

    fn listing() -> Listing {
        let (data, files) = (0..JOBS).rev().map(Uuid::from_u128).partition::<Vec<_>, _>(|id| id.as_u128() % 3 > 0);
        let files = files.into_iter().map(|id| Job::file(id, OsStr::new("file")).unwrap()).collect();
        Listing { data, files, ..Listing::default() }
    }

    /// Has it find so many jobs gone, after those by which others were noticed.
    fn miss(listing: &mut Listing, more: usize) {
        (0..OTHERS_AT_WORK + more).for_each(|_| listing.missed());
    }

    fn next(listing: &mut Listing) -> u128 {
        listing.next(Kinds::ANY, Order::Fifo).unwrap().id().as_u128()
    }

    #[test]
    fn who_is_alone_takes_the_oldest() {
        let mut listing = listing();
        (0..JOBS).for_each(|oldest| assert_eq!(next(&mut listing), oldest));
        assert!(!listing.is_crowded());
        assert_eq!(listing.next(Kinds::ANY, Order::Fifo), None);
    }

    #[test]
    fn of_who_finds_few_jobs_gone_the_order_stays() {
        let mut listing = listing();
        for oldest in 0..JOBS {
            if oldest % 70 < 3 {
                listing.missed();
            }
            assert_eq!(next(&mut listing), oldest);
        }
    }

    #[test]
    fn in_a_crowd_one_of_the_oldest_is_taken_and_each_once() {
        let mut listing = listing();
        let mut left: Vec<_> = (0..JOBS).collect();
        while !left.is_empty() {
            miss(&mut listing, 0);
            assert!(listing.is_crowded());
            let taken = left.binary_search(&next(&mut listing)).unwrap();
            assert!(taken < WIDEST);
            left.remove(taken);
        }
    }

    /// The worst that can be: all choose at one moment, and then all try.
    #[test]
    fn in_a_crowd_few_attempts_are_in_vain() {
        const CONSUMERS: usize = 8;
        const JOBS: u128 = 20_000;
        for order in [Order::Fifo, Order::Random] {
            let mut waiting: HashSet<Uuid> = (0..JOBS).map(Uuid::from_u128).collect();
            let mut crowd: Vec<_> = (0..CONSUMERS)
                .map(|_| {
                    let mut data: Vec<_> = (0..JOBS).rev().map(Uuid::from_u128).collect();
                    if order == Order::Random {
                        job::with_random(|random| random.shuffle(&mut data)).unwrap();
                    }
                    Listing { data, ..Listing::default() }
                })
                .collect();
            let mut in_vain = 0;
            while waiting.len() > CONSUMERS {
                let mut choose = |listing: &mut Listing| {
                    loop {
                        let id = listing.next(Kinds::ANY, order)?.id();
                        if !listing.is_crowded() || waiting.contains(&id) {
                            return Some(id);
                        }
                        listing.met();
                    }
                };
                let chosen: Vec<_> = crowd.iter_mut().map(&mut choose).collect();
                for (listing, id) in crowd.iter_mut().zip(chosen) {
                    if id.is_some_and(|id| !waiting.remove(&id)) {
                        listing.missed();
                        in_vain += 1;
                    }
                }
            }
            assert!(in_vain < JOBS / 20, "{in_vain}");
        }
    }

    #[test]
    fn the_choice_narrows_while_nobody_is_met_and_who_is_alone_again_takes_the_oldest() {
        let mut listing = listing();
        miss(&mut listing, 3);
        for width in [16, 8, 4, 2, 2, 2] {
            assert_eq!(listing.crowd.width, width);
            next(&mut listing);
            listing.met();
            (0..CALM).for_each(|_| _ = next(&mut listing));
        }
        (0..2 * CALM).for_each(|_| _ = next(&mut listing));
        assert!(!listing.is_crowded());
    }

    #[test]
    fn a_listing_whose_jobs_are_mostly_gone_is_read_again() {
        for (order, many) in [(Order::Random, 120), (Order::Fifo, 1400)] {
            let mut listing = listing();
            listing.listed = 4000;
            listing.missed();
            let mut gone = 0;
            while !listing.is_stale(order) {
                next(&mut listing);
                listing.met();
                gone += 1;
            }
            assert!((many / 4..many).contains(&gone), "{gone}");
        }
    }
}
