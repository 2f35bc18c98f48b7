//! Directories of claims that wait for their next job: to rename one there and back costs less than to make one and remove
//! it, on some filesystems half of all that a job costs.
//!
//! A directory is used again only if nobody else can be in it (rule 11): its path was handed to nobody, it was seen empty,
//! and the queue is not durable, where a power cut could undo its rename and not that of the file. A consumer that finds no
//! job keeps none.
//!
//! Between two jobs it has a name that is no claim's and tells its owner, with whom it goes. Within a pass, whose next job
//! is claimed at once, it keeps the name of its last claim, and that job its place in the process's table: recovery in
//! another thread would open the directory of the one job, and find the other's file in it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex};

use crate::job::{Job, Token};
use crate::sys::Dir;
use crate::wait::locked;

/// How many jobs in a row make it worth while.
const IN_A_ROW: u64 = 4;

/// More than a process has threads that claim, as a rule: each keeps a descriptor.
const MOST: usize = 16;

#[derive(Default)]
pub(crate) struct Spares(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    waiting: Vec<Spare>,
    /// How many directories were given back since there was last no job.
    given_back: u64,
    /// How many names were given.
    named: u64,
}

/// A directory without a job.
struct Spare {
    name: OsString,
    token: Token,
    dir: Arc<Dir>,
    /// The job whose claim's name it still has.
    last: Option<Job>,
}

impl Spares {
    /// Gives the name of a claim, whose job is in the table, to a directory that waits, if there is one. `gone` hears of the
    /// job that the directory had its last name from, of that name, of the directory, and if it could not be removed.
    pub(crate) fn take(
        &self,
        token: Token,
        processing: &Dir,
        claim: &OsStr,
        gone: impl Fn(&Job, &OsStr, &Dir, io::Result<()>),
    ) -> io::Result<Option<Arc<Dir>>> {
        loop {
            let Some(spare) = locked(&self.0).waiting.pop() else { return Ok(None) };
            // Under a token that was lost it is a dead owner's to others, who may have it open.
            let is_fit = spare.token == token && (spare.last.is_none() || spare.dir.is_empty().unwrap_or(false));
            if !is_fit {
                spare.remove(processing, &gone);
                continue;
            }
            match processing.rename(&spare.name, processing, claim) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    locked(&self.0).waiting.push(spare);
                    return Err(error);
                }
                renamed => {
                    if let Some(job) = &spare.last {
                        gone(job, &spare.name, &spare.dir, Ok(()));
                    }
                    if renamed.is_ok() {
                        return Ok(Some(spare.dir));
                    } // else somebody removed it
                }
            }
        }
    }

    /// Keeps the directory of a claim that is over for the next one, or says that it is to be removed. Where the next one
    /// comes at once, the `last` job leaves its name to it.
    pub(crate) fn give_back(
        &self,
        token: Token,
        processing: &Dir,
        claim: &OsStr,
        dir: &Arc<Dir>,
        last: Option<&Job>,
    ) -> bool {
        let spare_name = {
            let mut pool = locked(&self.0);
            pool.given_back += 1;
            if pool.given_back < IN_A_ROW || pool.waiting.len() >= MOST {
                return false;
            }
            pool.named += 1;
            token.spare(pool.named)
        };
        let name = match last {
            Some(_) => claim.to_owned(), // it will be looked at when it is taken
            None if dir.is_empty().unwrap_or(false) && processing.rename(claim, processing, &spare_name).is_ok() => {
                spare_name
            }
            None => return false,
        };
        locked(&self.0).waiting.push(Spare { name, token, dir: Arc::clone(dir), last: last.cloned() });
        true
    }

    /// Removes those that wait, as there is no job. `gone` as in [`take`](Self::take).
    pub(crate) fn remove(&self, processing: &Dir, gone: impl Fn(&Job, &OsStr, &Dir, io::Result<()>)) {
        let waiting = {
            let mut pool = locked(&self.0);
            pool.given_back = 0;
            std::mem::take(&mut pool.waiting)
        };
        for spare in waiting {
            spare.remove(processing, &gone);
        }
    }
}

impl Spare {
    /// What stays of it goes with its owner.
    fn remove(&self, processing: &Dir, gone: impl Fn(&Job, &OsStr, &Dir, io::Result<()>)) {
        let removed = processing.remove_dir(&self.name);
        if let Some(job) = &self.last {
            gone(job, &self.name, &self.dir, removed);
        }
    }
}
