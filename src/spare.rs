//! Directories of claims that wait for their next job: to rename one there and back costs less than to make one and remove
//! it, on some filesystems half of all that a job costs.
//!
//! A directory is used again only if nobody else can be in it (rule 11): its path was handed to nobody, it was seen empty,
//! and the queue is not durable, where a power cut could undo its rename and not that of the file. Between two jobs it has
//! a name that is no claim's and tells its owner, with whom it goes. A consumer that finds no job keeps none.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex};

use crate::job::Token;
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

struct Spare {
    name: OsString,
    token: Token,
    dir: Arc<Dir>,
}

impl Spares {
    /// Gives the name of a claim to a directory that waits, if there is one.
    pub(crate) fn take(&self, token: Token, processing: &Dir, claim: &OsStr) -> io::Result<Option<Arc<Dir>>> {
        loop {
            let Some(spare) = locked(&self.0).waiting.pop() else { return Ok(None) };
            if spare.token != token {
                // Of a token that was lost: to others it is a dead owner's.
                _ = processing.remove_dir(&spare.name);
                continue;
            }
            match processing.rename(&spare.name, processing, claim) {
                Ok(()) => return Ok(Some(spare.dir)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // somebody removed it
                Err(error) => {
                    locked(&self.0).waiting.push(spare);
                    return Err(error);
                }
            }
        }
    }

    /// Keeps the directory of a claim that is over for the next one, or says that it is to be removed.
    pub(crate) fn give_back(&self, token: Token, processing: &Dir, claim: &OsStr, dir: &Arc<Dir>) -> bool {
        let name = {
            let mut pool = locked(&self.0);
            pool.given_back += 1;
            if pool.given_back < IN_A_ROW || pool.waiting.len() >= MOST {
                return false;
            }
            pool.named += 1;
            token.spare(pool.named)
        };
        let kept = dir.is_empty().unwrap_or(false) && processing.rename(claim, processing, &name).is_ok();
        if kept {
            locked(&self.0).waiting.push(Spare { name, token, dir: Arc::clone(dir) });
        }
        kept
    }

    /// Removes those that wait, as there is no job.
    pub(crate) fn remove(&self, processing: &Dir) {
        let waiting = {
            let mut pool = locked(&self.0);
            pool.given_back = 0;
            std::mem::take(&mut pool.waiting)
        };
        for spare in waiting {
            _ = processing.remove_dir(&spare.name); // what stays goes with its owner
        }
    }
}
