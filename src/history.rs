//! Why jobs failed: a record of each attempt that did not simply succeed, kept beside the queue as text.
//!
//! | name | is |
//! | --- | --- |
//! | `history/<job>/<number>` | a record; 1, 2, ... in the order of writing, made exclusively |
//! | `history/<job>/<number>.settled` | the same, once the job's file was moved as the record says: the mark is that rename |
//!
//! A record is lines of `key: value`; lines that go on with a value begin with two spaces. Whoever settles a job writes
//! the record, moves the job's file, and marks the record:
//!
//! | a crash after | leaves |
//! | --- | --- |
//! | making the file | a claim, and an empty or partial record, which counts for nothing |
//! | writing it | a claim, and a record that never came true: recovery sees that it is of the same owner, and counts once |
//! | moving the job's file | the job settled, and a record without its mark, which counts like any other |
//! | marking it | the job settled |
//!
//! A job's attempts are counted by its last record, so a job without records, which is a job that never failed, is at
//! its first. There are a hundred records of one job at the most.
//!
//! Programs that write no records requeue jobs as well. Where the last record leaves no next attempt, but the job waits
//! again, somebody did, and attempts are counted anew.
//!
//! Several processes may recover one claim. Each records the interruption, or adopts the record that another one made of it.
//! So nobody retracts such a record: the job may have moved by it. A record that never came true stays without its mark, and
//! does not count beside one of the same attempt that has it. It is never later than a record of the next attempt: a number
//! is taken only right after the last one that was read, while the job still was in the claim.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{At, Result};
use crate::job::{self, Due, Job, JobRef, OwnerName, record_entry};
use crate::layout::{Layout, find_dir, open_or_make};
use crate::policy::Fate;
use crate::sys::{self, Dir, Reading};

#[cfg(all(unix, any(test, fuzzing)))]
pub(crate) mod fuzz;

/// How many records of one job are kept: one that is tried for ever must not fill the disk.
const MOST_RECORDS: u64 = 100;

/// How long what is said of a failure may be, in characters: of a reason the beginning is kept, of a traceback the end.
const LONGEST_REASON: usize = 1_000;
const LONGEST_TRACEBACK: usize = 16_000;

/// How much of a file is read, whatever somebody put there.
const MOST_READ: u64 = 256 << 10;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It is to be made again.
    Retry,
    /// The job can't be done.
    Failed,
    /// The consumer died or gave up.
    Interrupted,
    /// This is no attempt: somebody put the job back, and attempts are counted anew.
    Requeued,
}

impl Ended {
    const ALL: [Self; 4] = [Self::Retry, Self::Failed, Self::Interrupted, Self::Requeued];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Requeued => "requeued",
        }
    }
}

/// What is to be said of an attempt that did not succeed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Why {
    /// In a few words.
    pub reason: Option<String>,
    /// Where it happened.
    pub traceback: Option<String>,
}

/// An attempt as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which attempt it was, from 1; 0 for a requeue.
    pub attempt: u32,
    /// How it ended.
    pub ended: Ended,
    /// When, since 1970.
    pub at: Duration,
    /// When the next attempt is due, if there is to be one.
    pub due: Option<Due>,
    /// The machine on which this was recorded.
    pub host: String,
    /// The process that recorded it; of a consumer that died, the one that noticed.
    pub pid: u32,
    /// Who held the job.
    pub owner: Option<OwnerName>,
    /// How often the job was put back by now because its consumer had died.
    pub interruptions: u32,
    /// What was said of it.
    pub why: Why,
    /// Whether the job was moved as the record says. If not, its consumer died in between, or before it could say so.
    pub is_settled: bool,
}

impl Record {
    /// A record by this process, as of now.
    pub(crate) fn new(attempt: u32, ended: Ended) -> Self {
        Self {
            attempt,
            ended,
            at: job::unix_now(),
            due: None,
            host: sys::host(),
            pid: sys::pid(),
            owner: None,
            interruptions: 0,
            why: Why::default(),
            is_settled: false,
        }
    }

    /// Whether it says that the job came to rest. One that waits again after that was requeued. Of a record that a power cut
    /// cut off before its `pid`, which comes after its `due`, nobody knows.
    fn is_last(&self) -> bool {
        self.due.is_none() && self.pid != 0 && matches!(self.ended, Ended::Failed | Ended::Interrupted)
    }

    /// Whether it is of the same attempt as a later record.
    fn is_of_one_attempt_with(&self, later: &Self) -> bool {
        self.attempt == later.attempt && self.owner == later.owner && !(self.is_settled && self.is_last())
    }

    /// Of records of one attempt the greatest one counts: what is marked came true. Without any mark, a job that waits was
    /// rather put back than requeued, or one that kills every worker might never come to rest.
    fn weight(&self) -> (bool, bool) {
        (self.is_settled, self.ended == Ended::Interrupted && self.due.is_some())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |key, value: &str| {
            _ = writeln!(text, "{key}: {}", value.replace('\n', "\n  ")); // writing to a string can't fail
        };
        add("attempt", &self.attempt.to_string());
        add("ended", self.ended.name());
        add("at", &time(self.at));
        if let Some(due) = self.due {
            add("due", &time(Duration::from_millis(due.0)));
        }
        add("host", &printable(self.host.chars()));
        add("pid", &self.pid.to_string());
        if let Some(owner) = self.owner {
            add("owner", &owner.to_string());
        }
        add("interruptions", &self.interruptions.to_string());
        if let Some(reason) = &self.why.reason {
            add("reason", &first(reason, LONGEST_REASON));
        }
        if let Some(traceback) = &self.why.traceback {
            add("traceback", &last(traceback, LONGEST_TRACEBACK));
        }
        text
    }

    /// The record with this text, if its beginning is there: a power cut may have taken the rest.
    fn parse(text: &str, is_settled: bool) -> Option<Self> {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for line in text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n')) {
            match (line.strip_prefix("  "), fields.last_mut(), line.split_once(':')) {
                (Some(more), Some((_, value)), _) => {
                    value.push('\n');
                    value.push_str(more);
                }
                (None, _, Some((key, value))) => fields.push((key, value.strip_prefix(' ').unwrap_or(value).into())),
                _ => {}
            }
        }
        let field = |name| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
        let time = |name| humantime::parse_rfc3339(field(name)?).ok()?.duration_since(UNIX_EPOCH).ok();
        let ended = field("ended")?;
        Some(Self {
            attempt: field("attempt")?.parse().ok()?,
            ended: Ended::ALL.into_iter().find(|known| known.name() == ended)?,
            at: time("at")?,
            due: time("due").and_then(|due| due.as_millis().try_into().ok()).map(Due),
            host: field("host").unwrap_or_default().into(),
            pid: field("pid").and_then(|pid| pid.parse().ok()).unwrap_or_default(),
            owner: field("owner").and_then(|owner| OwnerName::parse(owner.as_bytes())),
            interruptions: field("interruptions").and_then(|count| count.parse().ok()).unwrap_or_default(),
            why: Why { reason: field("reason").map(Into::into), traceback: field("traceback").map(Into::into) },
            is_settled,
        })
    }
}

/// What is recorded of a job before an attempt.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// How many attempts there were since the job was sent or requeued.
    pub(crate) attempts: u32,
    /// How often it was put back since then because its consumer had died.
    pub(crate) interruptions: u32,
    /// A record of the attempt itself, by an owner that did not come to settle the job.
    pub(crate) pending: Option<(u64, Record)>,
    /// Whether there are records.
    pub(crate) is_known: bool,
    last: u64,
}

impl Past {
    /// What is recorded of a job. Who recovers it says who had it: what that owner recorded and did not settle is of the
    /// attempt that is just ending, and not of one before.
    pub(crate) fn of(layout: &Layout, job: &Job, dead: Option<OwnerName>) -> Result<Self> {
        let Some(dir) = find(layout, job)? else { return Ok(Self::default()) };
        let names = numbered(&dir)?;
        step!("history: listed");
        let last = names.last().map_or(0, |(number, _)| *number);
        let mut past = Self { last, is_known: true, ..Self::default() };
        let mut damaged = 0;
        let mut latest: Option<Record> = None;
        for &(number, is_settled) in names.iter().rev() {
            let Some(record) = read(&dir, number, is_settled)? else {
                // Without its mark it was never written to its end; with it, a power cut damaged it.
                damaged += u32::from(is_settled && latest.is_none());
                continue;
            };
            if dead.is_some() && !record.is_settled && record.owner == dead {
                past.pending.get_or_insert((number, record));
                continue;
            }
            match &latest {
                Some(later) if !record.is_of_one_attempt_with(later) => break,
                Some(later) if record.weight() <= later.weight() => {}
                _ => latest = Some(record),
            }
            if latest.as_ref().is_some_and(|latest| latest.is_settled) {
                break;
            }
        }
        if let Some(latest) = latest.filter(|latest| !latest.is_last()) {
            (past.attempts, past.interruptions) = (latest.attempt, latest.interruptions);
        }
        past.attempts = past.attempts.saturating_add(damaged);
        Ok(past)
    }

    /// Which attempt comes after those, or is just ending.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempts.saturating_add(1)
    }

    /// Whether a job whose attempt is interrupted now is to be put back.
    pub(crate) fn is_put_back(&self, fate: &Fate) -> bool {
        self.interruptions < fate.put_back && self.attempt() < fate.attempts
    }
}

/// Writes a record of an attempt by who holds the job, and returns its number.
pub(crate) fn record(layout: &Layout, job: &Job, past: &Past, record: &Record, durable: bool) -> Result<u64> {
    let mut number = past.last + 1;
    loop {
        if let Some(number) = record_as(layout, job, number, past, record, durable)? {
            return Ok(number);
        }
        number += 1;
    }
}

/// Writes a record right after the last one that was read, and returns its number; `None` if somebody recorded something
/// meanwhile, and all is to be looked at again.
pub(crate) fn record_next(
    layout: &Layout,
    job: &Job,
    past: &Past,
    record: &Record,
    durable: bool,
) -> Result<Option<u64>> {
    record_as(layout, job, past.last + 1, past, record, durable)
}

fn record_as(
    layout: &Layout,
    job: &Job,
    number: u64,
    past: &Past,
    record: &Record,
    durable: bool,
) -> Result<Option<u64>> {
    let history = layout.make_history()?;
    let dir = open_or_make(&history, &job.entry())?;
    let Some(mut file) = create(&dir, number)? else { return Ok(None) };
    let name = record_entry(number, false);
    step!("history: made");
    let written =
        file.write_all(record.text().as_bytes()).and_then(|()| if durable { sys::sync(&file) } else { Ok(()) });
    let written = written.and(sys::close(file)).at(|| dir.path().join(&name));
    if let Err(error) = written {
        _ = dir.remove_file(&name); // what stays counts for nothing
        return Err(error);
    }
    if durable {
        dir.sync().at(|| dir.path().into())?;
        if !past.is_known {
            // Later ones find the names above them on the disk.
            history.sync().at(|| history.path().into())?;
            layout.flush_home()?;
        }
    }
    if let Some(oldest) = number.checked_sub(MOST_RECORDS) {
        for is_settled in [false, true] {
            _ = dir.remove_file(&record_entry(oldest, is_settled)); // most often only one of them is there
        }
    }
    Ok(Some(number))
}

/// Makes the file of a record, unless its number is that of another one, marked or not.
fn create(dir: &Dir, number: u64) -> Result<Option<std::fs::File>> {
    let name = record_entry(number, false);
    let file = match dir.create_file(&name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        created => created.at(|| dir.path().join(&name))?,
    };
    if !dir.is_file(&record_entry(number, true)).at(|| dir.path().join(&name))? {
        return Ok(Some(file));
    }
    drop(file);
    dir.remove_file(&name).at(|| dir.path().join(&name))?;
    Ok(None)
}

/// Marks a record: the job's file is where it says.
pub(crate) fn mark(layout: &Layout, job: &Job, number: u64) -> Result<()> {
    let Some(dir) = find(layout, job)? else { return Ok(()) };
    let name = record_entry(number, false);
    dir.rename(&name, &dir, &record_entry(number, true)).at(|| dir.path().join(&name))
}

/// Takes the record of a requeue back: somebody else moved the job. Nobody adopts such a record.
pub(crate) fn retract(layout: &Layout, job: &Job, number: u64) -> Result<()> {
    let Some(dir) = find(layout, job)? else { return Ok(()) };
    let name = record_entry(number, false);
    dir.remove_file(&name).at(|| dir.path().join(&name))
}

/// Removes a job's records: it is gone. What else somebody put there stays.
pub(crate) fn remove(layout: &Layout, job: &Job) -> Result<()> {
    let Some(history) = layout.history()? else { return Ok(()) };
    let entry = job.entry();
    let Some(dir) = find_dir(&history, &entry)? else { return Ok(()) };
    for (number, is_settled) in numbered(&dir)? {
        let name = record_entry(number, is_settled);
        unless_gone(dir.remove_file(&name)).at(|| dir.path().join(&name))?;
    }
    drop(dir);
    match history.remove_dir(&entry) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => unless_gone(removed).at(|| history.path().join(&entry)),
    }
}

/// The records of a job, oldest first.
pub(crate) fn records(layout: &Layout, job: &JobRef) -> Result<Vec<Record>> {
    let known = job.known();
    let dir = match find(layout, &known)? {
        None if !job.is_known() => {
            let mut found = None;
            visit(layout, |listed| {
                if job.means(&listed) {
                    found = Some(listed);
                }
            })?;
            match found {
                Some(found) => find(layout, &found)?,
                None => None,
            }
        }
        dir => dir,
    };
    let Some(dir) = dir else { return Ok(Vec::new()) };
    let names = numbered(&dir)?.into_iter();
    names.filter_map(|(number, is_settled)| read(&dir, number, is_settled).transpose()).collect()
}

/// Visits the jobs of which there are records.
pub(crate) fn visit(layout: &Layout, mut visit: impl FnMut(Job)) -> Result<()> {
    let Some(history) = layout.history()? else { return Ok(()) };
    history
        .list(Reading::InPieces, |(name, _)| {
            if let Some(job) = Job::parse(name) {
                visit(job);
            }
        })
        .at(|| history.path().into())
}

/// When something was last recorded of a job.
pub(crate) fn changed(layout: &Layout, job: &Job) -> Result<Option<SystemTime>> {
    find(layout, job)?.map(|dir| dir.changed().at(|| dir.path().into())).transpose()
}

fn find(layout: &Layout, job: &Job) -> Result<Option<Dir>> {
    layout.history()?.map_or(Ok(None), |history| find_dir(&history, &job.entry()))
}

/// The records in a job's directory, in their order: number, and whether it is marked. In one call, or one that is marked
/// meanwhile might not be shown.
fn numbered(dir: &Dir) -> Result<Vec<(u64, bool)>> {
    let mut names = Vec::new();
    dir.list(Reading::AtOnce, |(name, kind)| {
        names.extend(job::parse_record(name).filter(|_| dir.may_be_file((name, kind))));
    })
    .at(|| dir.path().into())?;
    names.sort_unstable();
    Ok(names)
}

/// Reads a record, though it got its mark since it was listed; `None` for what is gone, or is none.
fn read(dir: &Dir, number: u64, is_settled: bool) -> Result<Option<Record>> {
    let name = record_entry(number, is_settled);
    let bytes = dir.is_file(&name).and_then(|is_file| {
        let mut bytes = Vec::new();
        if is_file {
            dir.open_file(&name)?.take(MOST_READ).read_to_end(&mut bytes)?;
        }
        Ok(is_file.then_some(bytes))
    });
    match bytes {
        Ok(Some(bytes)) => Ok(Record::parse(&String::from_utf8_lossy(&bytes), is_settled)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at(|| dir.path().join(&name)),
        _ if is_settled => Ok(None),
        _ => read(dir, number, true),
    }
}

fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// A time as people and programs read it; the last that can be written for one past the year 9999.
fn time(since_1970: Duration) -> String {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_1970.min(LAST)).to_string()
}

fn first(text: &str, length: usize) -> String {
    let end = text.char_indices().nth(length).map_or(text.len(), |(end, _)| end);
    printable(text[..end].chars().chain(if end < text.len() { "..." } else { "" }.chars()))
}

fn last(text: &str, length: usize) -> String {
    let begin = text.char_indices().rev().nth(length - 1).map_or(0, |(begin, _)| begin);
    printable(if begin > 0 { "...\n" } else { "" }.chars().chain(text[begin..].trim_end().chars()))
}

/// What can be shown in a terminal without harm.
fn printable(text: impl Iterator<Item = char>) -> String {
    let mut shown = String::new();
    for c in text {
        if c.is_control() && c != '\n' && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Record {
        Record {
            due: Some(Due(1_700_000_000_123)),
            owner: Some(OwnerName::Pid(7)),
            interruptions: 2,
            why: Why {
                reason: Some("two\nlines: \u{1b}[31m".into()),
                traceback: Some("Traceback\n  File\n\nattempt: 9".into()),
            },
            ..Record::new(3, Ended::Retry)
        }
    }

    #[test]
    fn a_record_comes_back_from_its_text() {
        let mut record = whole();
        record.at = Duration::from_millis(1_600_000_000_001);
        let found = Record::parse(&record.text(), true).unwrap();
        record.why.reason = Some("two\nlines: \\u{1b}[31m".into());
        assert_eq!(found, Record { is_settled: true, ..record });
    }

    #[test]
    fn a_record_that_was_cut_off_counts_once_its_beginning_is_there() {
        let text = whole().text();
        let begin = text.find("due").unwrap();
        for end in 0..text.len() {
            let parsed = Record::parse(&text[..end], false);
            assert_eq!(parsed.map(|record| record.attempt), (end >= begin).then_some(3), "{end}");
        }
        assert_eq!(Record::parse(&"\0".repeat(500), false), None);
    }

    #[test]
    fn what_is_said_is_bounded() {
        let long = "\u{e9}".repeat(1 << 20);
        let mut record = whole();
        record.why = Why { reason: Some(format!("begin{long}")), traceback: Some(format!("{long}end\n")) };
        let text = record.text();
        assert!(text.len() < 64 << 10);
        let why = Record::parse(&text, false).unwrap().why;
        let (reason, traceback) = (why.reason.unwrap(), why.traceback.unwrap());
        assert!(reason.starts_with("begin") && reason.ends_with("..."));
        assert!(traceback.starts_with("...\n") && traceback.ends_with("end"));
    }
}
