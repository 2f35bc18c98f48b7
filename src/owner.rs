//! Who holds a claim, and whether it is alive.
//!
//! A process that uses lock files holds one token per queue: a file in `owners/` that it keeps locked. The kernel frees
//! the lock when the process ends, however it ends; tokens never come back. A claim by PID is weaker (a PID may be
//! another process's by now) and is there for filesystems that have no locks.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::error::{At, Error, Result};
use crate::fork::{self, Private};
use crate::handle::Handle;
use crate::job::{OwnerName, Token};
use crate::layout::Layout;
use crate::sys::{self, Dir};

/// How the death of a consumer is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashDetection {
    /// By its PID: no process has it, or the process is a zombie.
    Pid,
    /// By its lock file: nobody holds the lock.
    LockFile,
}

/// This process's name on claims and temporaries.
#[derive(Clone)]
pub(crate) enum Owner {
    Pid(u32),
    Token(Arc<LockFile>),
}

impl Owner {
    pub(crate) fn name(&self) -> OwnerName {
        match self {
            Self::Pid(pid) => OwnerName::Pid(*pid),
            Self::Token(lock) => OwnerName::Token(lock.token),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Pid(_) => None,
            Self::Token(lock) => Some(lock.token),
        }
    }

    /// Whether it says that this process is alive.
    pub(crate) fn is_good(&self) -> bool {
        match self {
            Self::Pid(_) => true,
            Self::Token(lock) => lock.is_good(),
        }
    }
}

/// A locked file in `owners/`. Who claims or writes under its token holds a share of it; it goes with the last one.
pub(crate) struct LockFile {
    token: Token,
    file: Private,
    /// The same file, opened once more since somebody closed it in this process.
    again: ArcSwapOption<(Private, Arc<Layout>)>,
    layout: Arc<Layout>,
}

impl LockFile {
    pub(crate) fn new(layout: &Arc<Layout>) -> Result<Self> {
        loop {
            let owners = &layout.owners;
            let token = Token::new().at(|| owners.path().into())?;
            if let Some(file) = lock_new(layout, token)? {
                return Ok(Self { token, file, again: ArcSwapOption::empty(), layout: Arc::clone(layout) });
            }
        }
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// The open file, unless somebody closed it in this process.
    pub(crate) fn file(&self) -> Option<&File> {
        (self.file.is_ours() && self.file.handle().is_intact()).then(|| self.file.file())
    }

    /// Whether others can still see it. Somebody may have deleted it, or closed it in this process, and would then take
    /// its owner for dead.
    pub(crate) fn is_good(&self) -> bool {
        self.file.is_ours() && is_linked(&self.file)
    }

    /// The same where others look for it: `owners/` may have been replaced.
    pub(crate) fn is_good_in(&self, layout: &Arc<Layout>) -> bool {
        Arc::ptr_eq(&self.layout, layout) && self.is_good()
    }

    /// Takes the lock again, if nobody has taken its owner for dead: whoever does that removes the file while holding the
    /// lock.
    pub(crate) fn take_again(&self, layout: &Arc<Layout>) {
        if !self.again.load().as_ref().is_some_and(|again| is_linked(&again.0)) {
            let again = reopen(layout, self.token).filter(is_linked);
            self.again.store(again.map(|file| Arc::new((file, Arc::clone(layout)))));
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.file.is_ours() {
            return;
        }
        let again = self.again.load();
        let again = again.as_ref().map(|again| (&again.0, &again.1));
        let is_open =
            |(file, layout): &(&Private, &Arc<Layout>)| file.handle().is_intact() && layout.owners.is_intact();
        if let Some((file, layout)) = [Some((&self.file, &self.layout)), again].into_iter().flatten().find(is_open) {
            // Before the lock is freed. If it can't be removed, it is one more lock file of a dead owner.
            _ = sys::remove_open(file.file(), &layout.owners, self.token.as_os_str());
        }
    }
}

fn is_linked(file: &Private) -> bool {
    sys::is_linked(file.handle()).unwrap_or(false)
}

/// Opens a lock file and takes its lock, unless it is gone or somebody has it.
fn reopen(layout: &Layout, token: Token) -> Option<Private> {
    let opened = Private::open(|| match sys::take_lock(&layout.owners, token.as_os_str())? {
        Some(file) => Handle::new(file),
        None => Err(io::ErrorKind::WouldBlock.into()),
    });
    opened.ok()
}

/// Makes the lock file of a token: it is locked before it gets the name under which others look for it. `None` if
/// somebody took it away in between.
fn lock_new(layout: &Layout, token: Token) -> Result<Option<Private>> {
    let unborn = token.unborn();
    let path = || layout.tmp.path().join(&unborn);
    let mut taken_away = false;
    let file = Private::open(|| {
        let file = layout.tmp.create_lock_file(&unborn).at(path)?;
        step!("owner: made");
        let named = match sys::try_lock(&file) {
            Ok(true) => {
                step!("owner: locked");
                let owners = &layout.owners;
                sys::rename_open(&file, &layout.tmp, &unborn, owners, token.as_os_str()).at(|| owners.path().into())
            }
            Ok(false) => Err(io::Error::from(io::ErrorKind::NotFound)).at(path),
            Err(source) if sys::has_no_locks(&source) => Err(Error::NoLocks { source, path: path() }),
            Err(source) => Err(source).at(path),
        };
        if let Err(error) = named {
            _ = sys::remove_open(&file, &layout.tmp, &unborn);
            // A consumer that found it before it was locked takes it for a dead owner's.
            taken_away = error.is_not_found()
                && [&layout.tmp, &layout.owners].iter().all(|dir| dir.is_linked().unwrap_or(false));
            return Err(error);
        }
        Handle::new(file).at(path)
    });
    match file {
        Err(_) if taken_away => Ok(None),
        other => other.map(Some),
    }
}

/// Whether somebody else's claim is one of the living. Errors mean yes: better to wait than to steal. The lock file of a
/// dead owner is removed.
pub(crate) fn is_alive(owner: OwnerName, layout: &Layout) -> bool {
    // While the lock is held. Its claims are those of a dead owner without the file as well.
    judge(owner, &layout.owners, |lock, token| _ = sys::remove_open(lock, &layout.owners, token.as_os_str()))
}

/// The same for who only looks.
pub(crate) fn seems_alive(owner: OwnerName, owners: &Dir) -> bool {
    judge(owner, owners, |_, _| {})
}

fn judge(owner: OwnerName, owners: &Dir, bury: impl FnOnce(&File, Token)) -> bool {
    match owner {
        OwnerName::Pid(pid) => sys::is_alive(pid),
        // A child forked while the lock is held would hold it on, and the dead owner would live with it.
        OwnerName::Token(token) => fork::without_forks(|| is_locked(token, owners, bury)),
    }
}

fn is_locked(token: Token, owners: &Dir, bury: impl FnOnce(&File, Token)) -> bool {
    match sys::take_lock(owners, token.as_os_str()) {
        Ok(Some(lock)) if !lock.metadata().is_ok_and(|lock| lock.is_file()) => true,
        Ok(Some(lock)) => {
            step!("owner: judged dead");
            bury(&lock, token);
            false
        }
        // Without `owners/` itself a missing file says nothing.
        Err(error) if error.kind() == io::ErrorKind::NotFound => !owners.is_linked().unwrap_or(false),
        Ok(None) | Err(_) => true,
    }
}

/// Whether a lock file that never got its name may be somebody's.
pub(crate) fn is_unborn_locked(name: &OsStr, tmp: &Dir) -> bool {
    fork::without_forks(|| !matches!(sys::take_lock(tmp, name), Ok(Some(_))))
}

/// Removes a lock file that never got its name, if nobody holds its lock.
pub(crate) fn remove_unborn(name: &OsStr, layout: &Layout) {
    fork::without_forks(|| {
        if let Ok(Some(lock)) = sys::take_lock(&layout.tmp, name) {
            _ = sys::remove_open(&lock, &layout.tmp, name);
        }
    });
}
