//! How much may wait, and how full the disk may be: looked at before a job is sent.
//!
//! To count what waits with each send would cost more than the send. So a process counts, sends a few jobs on that, and
//! counts again: after [`SHARE`] of the limit, so that a count costs each of these sends the reading of that many entries
//! at the most, and next to nothing while few jobs wait. Alone it keeps the limit exactly, since others only take jobs;
//! each other process that sends meanwhile may be over it by that share. The disk is asked likewise.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::wait::{locked, rest_after, shortened};

/// What part of the limit, or of the room on the disk, may be used before it is measured again.
const SHARE: u64 = 16;

/// For how long what the disk told is good: all programs write there.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// What a file of that length takes on a disk.
pub(crate) fn on_disk(length: usize) -> u64 {
    const BLOCK: u64 = 4096;
    (length as u64).div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// What must be so for a job to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// How many jobs may wait, in `queued/` and in `scheduled/`.
    pub max_queued: Option<u64>,
    /// How many bytes must be free on the queue's filesystem afterwards; 0 is no limit.
    pub min_free: u64,
}

/// What this process knows of the room that there is.
#[derive(Default)]
pub(crate) struct Room {
    jobs: Mutex<Jobs>,
    bytes: Mutex<Option<Measured>>,
}

#[derive(Default)]
struct Jobs {
    known: Option<Counted>,
    /// How many threads of this process are about to send: a count may miss those.
    on_the_way: u64,
}

struct Counted {
    at: Instant,
    took: Duration,
    /// How many jobs there were, and those sent since.
    waiting: u64,
    sent: u64,
}

struct Measured {
    at: Instant,
    /// How many bytes were free, less those sent since.
    free: u64,
    sent: u64,
}

impl Room {
    /// Takes the room for so many jobs, or says that there is none. [`have_come`](Self::have_come) says that they are where
    /// a count finds them, or will never be.
    pub(crate) fn take_jobs(&self, jobs: u64, most: u64, count: impl FnOnce() -> Result<u64>) -> Result<()> {
        if jobs > most {
            return Err(Error::TooMany { jobs, most });
        }
        let mut room = locked(&self.jobs);
        let is_good = room.known.as_ref().is_some_and(|known| {
            if known.waiting + jobs <= most {
                known.sent + jobs <= most / SHARE
            } else {
                // Who tries again and again would do nothing but count where that takes long.
                known.at.elapsed() < rest_after(known.took)
            }
        });
        if !is_good {
            room.known = None;
            let at = Instant::now();
            let waiting = count()? + room.on_the_way;
            room.known = Some(Counted { at, took: at.elapsed(), waiting, sent: 0 });
        }
        match &mut room.known {
            Some(known) if known.waiting + jobs <= most => {
                known.waiting += jobs;
                known.sent += jobs;
                room.on_the_way += jobs;
                Ok(())
            }
            known => {
                let waiting = known.as_ref().map_or(0, |known| known.waiting);
                Err(Error::Full { what: format!("{waiting} job(s) wait; max_queued is {most}") })
            }
        }
    }

    /// Jobs for which there was room were sent, or could not be.
    pub(crate) fn have_come(&self, jobs: u64) {
        locked(&self.jobs).on_the_way -= jobs;
    }

    /// Takes the room for so many bytes, or says that there is none.
    pub(crate) fn take_bytes(&self, bytes: u64, min_free: u64, measure: impl FnOnce() -> Result<u64>) -> Result<()> {
        let mut known = locked(&self.bytes);
        let is_good = known.as_ref().is_some_and(|known| {
            known.at.elapsed() < shortened(GOOD_FOR)
                && known.sent.saturating_add(bytes) <= known.free.saturating_sub(min_free) / SHARE
        });
        if !is_good {
            *known = None;
            *known = Some(Measured { at: Instant::now(), free: measure()?, sent: 0 });
        }
        match &mut *known {
            Some(known) if known.free.saturating_sub(bytes) >= min_free => {
                known.free -= bytes;
                known.sent += bytes;
                Ok(())
            }
            known => {
                let free = known.as_ref().map_or(0, |known| known.free);
                let needed = if bytes > 0 { format!(", and {bytes} are needed") } else { String::new() };
                Err(Error::Full { what: format!("{free} bytes are free on the disk{needed}; min_free is {min_free}") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_that_takes_long_to_count_is_not_counted_again_at_once() {
        let room = Room::default();
        let slowly = || {
            std::thread::sleep(Duration::from_millis(30));
            Ok(5)
        };
        let full = |count: fn() -> Result<u64>| matches!(room.take_jobs(1, 5, count), Err(Error::Full { .. }));
        assert!(matches!(room.take_jobs(1, 5, slowly), Err(Error::Full { .. })));
        assert!(full(|| panic!("it was counted again")));
        std::thread::sleep(Duration::from_millis(310));
        while full(|| Ok(4)) {} // the machine may have slept longer than it was asked to
        assert!(full(|| Ok(5)));
    }

    #[test]
    fn what_is_on_its_way_is_counted_with_what_is_there() {
        let room = Room::default();
        room.take_jobs(2, 3, || Ok(0)).unwrap();
        assert!(room.take_jobs(2, 3, || Ok(0)).is_err());
        room.have_come(2);
        room.take_jobs(3, 3, || Ok(0)).unwrap();
    }

    #[test]
    fn the_disk_is_asked_again_after_a_sixteenth_of_the_room_or_a_second() {
        let room = Room::default();
        let asked = std::cell::Cell::new(0);
        let take = |blocks: u64| {
            room.take_bytes(blocks * 4096, 4096, || {
                asked.set(asked.get() + 1);
                Ok(4096 * 161)
            })
            .unwrap();
            asked.get()
        };
        assert_eq!((take(5), take(4)), (1, 1));
        assert_eq!(take(2), 2);
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(take(1), 3);
    }

    #[test]
    fn an_empty_file_takes_nothing_and_any_other_whole_blocks() {
        assert_eq!([0, 1, 4096, 4097].map(on_disk), [0, 4096, 4096, 8192]);
    }
}
