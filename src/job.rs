//! Ids and names: the only place where the name of an entry is made or parsed.
//!
//! | name | of |
//! | --- | --- |
//! | `raw-<uuid>` | a data job |
//! | `fle-<uuid>-<name>` | a file job |
//! | `<due>-<job>` | a job in `scheduled/`; 13 digits, Unix milliseconds |
//! | `<job>.<owner>` | a claim's directory |
//! | `<job>.left-<n>` | one that was a claim's, and holds what somebody put beside the job |
//! | `<uuid>-<owner>`, `owner-<token>` | our files in `tmp/` |
//! | `<number>`, `<number>.settled` | records of attempts at a job, in `history/<job>/` |
//!
//! Names are bytes: whatever a file name may hold is kept. What does not parse is no job of ours and is left alone.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unicode_normalization::UnicodeNormalization as _;
use uuid::{Uuid, Variant};

use crate::error::{Error, Result};
use crate::fork;

#[cfg(all(unix, any(test, fuzzing)))]
pub(crate) mod fuzz;

/// The longest file name, in bytes, that can be sent: 255 less `<due>-` and `fle-<uuid>-`.
pub const LONGEST_NAME: usize = 200;

const DATA: &str = "raw-";
const FILE: &str = "fle-";
const ID_LENGTH: usize = 36;
const DUE_DIGITS: usize = 13;
const LAST_DUE: u64 = 9_999_999_999_999;
const LAST_SENT: u64 = 253_402_300_799_999;
const TOKEN_LENGTH: usize = 10;

/// What a job carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes.
    Data,
    /// A file with a name.
    File,
}

/// A set of [`Kind`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    /// Data jobs are in the set.
    pub data: bool,
    /// File jobs are in the set.
    pub file: bool,
}

impl Kinds {
    /// Both kinds.
    pub const ANY: Self = Self { data: true, file: true };
}

/// A job's identity, and with it its entry name. Older ones come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    id: Uuid,
    name: Option<OsString>,
}

impl Job {
    pub(crate) fn data(id: Uuid) -> Self {
        Self { id, name: None }
    }

    pub(crate) fn file(id: Uuid, name: &OsStr) -> Result<Self> {
        check_name(name)?;
        Ok(Self { id, name: Some(name.to_owned()) })
    }

    /// The job with this entry name, if it is one.
    #[must_use]
    pub fn parse(entry: &OsStr) -> Option<Self> {
        let rest = entry.as_encoded_bytes();
        if let Some(id) = rest.strip_prefix(DATA.as_bytes()) {
            return Some(Self::data(parse_id(id)?));
        }
        let (id, name) = rest.strip_prefix(FILE.as_bytes())?.split_at_checked(ID_LENGTH)?;
        let name = name.strip_prefix(b"-")?;
        Self::file(parse_id(id)?, os_str(name)).ok()
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// What it carries.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.name.is_some() { Kind::File } else { Kind::Data }
    }

    /// A file job's file name, byte for byte.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        self.name.as_deref()
    }

    /// The name of its file in every directory but `scheduled/` and `processing/`.
    #[must_use]
    pub fn entry(&self) -> OsString {
        let (prefix, name) = match &self.name {
            None => (DATA, None),
            Some(name) => (FILE, Some(name)),
        };
        let mut entry = OsString::with_capacity(prefix.len() + ID_LENGTH + 1 + name.map_or(0, |name| name.len()));
        entry.push(prefix);
        entry.push(self.id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        if let Some(name) = name {
            entry.push("-");
            entry.push(name);
        }
        entry
    }

    /// The name of its file in `scheduled/`.
    pub(crate) fn scheduled_entry(&self, due: Due) -> OsString {
        let mut entry = OsString::from(format!("{:0DUE_DIGITS$}-", due.0));
        entry.push(self.entry());
        entry
    }

    /// The name of its directory in `processing/`.
    pub(crate) fn claim_entry(&self, owner: OwnerName) -> OsString {
        let mut entry = self.entry();
        _ = write!(entry, ".{owner}"); // writing to a string can't fail
        entry
    }

    /// The name of such a directory that is no claim any more: what follows the last dot is no owner.
    pub(crate) fn set_aside_entry(&self, number: u32) -> OsString {
        let mut entry = self.entry();
        _ = write!(entry, ".left-{number}");
        entry
    }

    /// The name of its file in that directory.
    pub(crate) fn claimed_name(&self) -> &OsStr {
        self.name.as_deref().unwrap_or(OsStr::new("raw"))
    }
}

/// The job and the due time in an entry of `scheduled/`.
pub(crate) fn parse_scheduled(entry: &OsStr) -> Option<(Due, Job)> {
    let (due, job) = entry.as_encoded_bytes().split_at_checked(DUE_DIGITS)?;
    let job = job.strip_prefix(b"-")?;
    Some((Due(parse_digits(due)?), Job::parse(os_str(job))?))
}

/// The job and the owner in an entry of `processing/`.
pub(crate) fn parse_claim(entry: &OsStr) -> Option<(Job, OwnerName)> {
    let entry = entry.as_encoded_bytes();
    let dot = entry.iter().rposition(|&byte| byte == b'.')?;
    Some((Job::parse(os_str(&entry[..dot]))?, OwnerName::parse(&entry[dot + 1..])?))
}

/// Whether that is the name of a claim's directory that was set aside.
pub(crate) fn is_set_aside(entry: &OsStr) -> bool {
    let entry = entry.as_encoded_bytes();
    let dot = entry.iter().rposition(|&byte| byte == b'.');
    dot.is_some_and(|dot| {
        let number = entry[dot + 1..].strip_prefix(b"left-").and_then(parse_digits);
        number.is_some() && Job::parse(os_str(&entry[..dot])).is_some()
    })
}

/// Whether an entry that is no job's looks as if it was meant to be one.
pub(crate) fn is_almost_job(entry: &OsStr) -> bool {
    let entry = entry.as_encoded_bytes();
    let entry = match entry.iter().position(|byte| !byte.is_ascii_digit()) {
        Some(end @ 1..) if entry[end] == b'-' => &entry[end + 1..],
        _ => entry,
    };
    [DATA, FILE].iter().any(|prefix| {
        let begin = entry.split_at_checked(prefix.len()).map(|(begin, _)| begin);
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()))
    })
}

/// Whether an entry of `processing/` tells a job, but an owner that nobody can judge, or none.
pub(crate) fn is_unowned(entry: &OsStr) -> bool {
    let bytes = entry.as_encoded_bytes();
    let dot = bytes.iter().rposition(|&byte| byte == b'.');
    Job::parse(entry).is_some() || dot.is_some_and(|dot| Job::parse(os_str(&bytes[..dot])).is_some())
}

/// A job as somebody names it: by its id, or by its whole entry name.
#[derive(Debug, Clone)]
pub enum JobRef {
    /// The id alone. The file name of a file job must be looked up in a listing.
    Id(Uuid),
    /// The entry name.
    Entry(Job),
}

impl JobRef {
    /// Parses an id or an entry name.
    #[must_use]
    pub fn parse(text: &OsStr) -> Option<Self> {
        parse_id(text.as_encoded_bytes()).map(Self::Id).or_else(|| Job::parse(text).map(Self::Entry))
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        match self {
            Self::Id(id) => *id,
            Self::Entry(job) => job.id,
        }
    }

    /// The jobs that it may mean, as far as that can be said without a listing.
    pub(crate) fn known(&self) -> Job {
        match self {
            Self::Id(id) => Job::data(*id),
            Self::Entry(job) => job.clone(),
        }
    }

    /// Whether that is all it may mean. A file's name can stand in a listing in another spelling.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self, Self::Entry(job) if job.kind() == Kind::Data)
    }

    pub(crate) fn means(&self, job: &Job) -> bool {
        match self {
            Self::Id(id) => *id == job.id,
            Self::Entry(known) => known.id == job.id && is_same_name(known.name(), job.name()),
        }
    }
}

/// When the job with this id was sent.
#[must_use]
pub fn sent_at(id: Uuid) -> Duration {
    Duration::from_millis(u64::from_be_bytes(id.into_bytes()[..8].try_into().unwrap_or_default()) >> 16)
}

/// When a delayed job is to be handled, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due(pub u64);

impl Due {
    /// The time after that delay, or `None` where there is no delay.
    ///
    /// # Errors
    /// [`Error::TooLate`] past the 13 digits of a name.
    pub fn after(delay: Duration) -> Result<Option<Self>> {
        if delay.is_zero() {
            return Ok(None);
        }
        // Rounded up: a job must not come before its time.
        let due = unix_now().saturating_add(delay).as_nanos().div_ceil(1_000_000);
        match u64::try_from(due) {
            Ok(due) if due <= LAST_DUE => Ok(Some(Self(due))),
            _ => Err(Error::TooLate),
        }
    }

    /// That time since 1970, if a name can hold it.
    pub(crate) fn at(since_1970: Duration) -> Option<Self> {
        u64::try_from(since_1970.as_millis()).ok().filter(|&due| due <= LAST_DUE).map(Self)
    }

    /// How long it is until then.
    pub(crate) fn remaining(self) -> Duration {
        Duration::from_millis(self.0).saturating_sub(unix_now())
    }
}

/// Who holds a claim, as the name of its directory says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerName {
    /// A process, alive while that PID exists.
    Pid(u32),
    /// A process, alive while `owners/<token>` is locked.
    Token(Token),
}

/// The name of a lock file: a letter and nine letters or digits, lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN_LENGTH]);

impl Token {
    pub(crate) fn new() -> io::Result<Self> {
        with_random(|random| {
            let mut token = [0; TOKEN_LENGTH].map(|_: u8| {
                random.choice(b"0123456789abcdefghijklmnopqrstuvwxyz"[..].iter()).copied().unwrap_or(b'0')
            });
            token[0] = random.u8(b'a'..=b'z');
            Self(token)
        })
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let token: [u8; TOKEN_LENGTH] = text.try_into().ok()?;
        let good = token[0].is_ascii_lowercase()
            && token.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        good.then_some(Self(token))
    }

    pub(crate) fn as_os_str(&self) -> &OsStr {
        os_str(&self.0)
    }

    /// The name of a directory that waits to be a claim's again, in `processing/`.
    pub(crate) fn spare(&self, number: u64) -> OsString {
        let mut name = OsString::from("spare-");
        name.push(self.as_os_str());
        _ = write!(name, "-{number}"); // writing to a string can't fail
        name
    }

    /// Whose directory that is, if it is one.
    pub(crate) fn parse_spare(entry: &OsStr) -> Option<Self> {
        let (token, number) = entry.as_encoded_bytes().strip_prefix(b"spare-")?.split_at_checked(TOKEN_LENGTH)?;
        let is_numbered = matches!(number, [b'-', digits @ ..] if digits.iter().all(u8::is_ascii_digit));
        Self::parse(token).filter(|_| is_numbered)
    }

    /// The lock file's name until it is locked, in `tmp/`.
    pub(crate) fn unborn(&self) -> OsString {
        let mut name = OsString::from("owner-");
        name.push(self.as_os_str());
        name
    }
}

impl OwnerName {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if let Some(token) = Token::parse(text) {
            return Some(Self::Token(token));
        }
        let pid = parse_digits(text).filter(|_| text[0] != b'0')?;
        i32::try_from(pid).ok().map(|pid| Self::Pid(pid.unsigned_abs()))
    }
}

impl fmt::Display for OwnerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Token(token) => f.write_str(&token.as_os_str().to_string_lossy()),
        }
    }
}

/// The name of a file being written, in `tmp/`: with that of its writer, whose death then shows.
pub(crate) fn temporary(id: Uuid, writer: OwnerName) -> OsString {
    let mut name = OsString::from(&*id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
    _ = write!(name, "-{writer}"); // writing to a string can't fail
    name
}

/// What a file in `tmp/` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temporary {
    /// Being written by this process.
    Ours(OwnerName),
    /// A lock file that is not locked yet.
    Unborn,
    /// Being written by a program that does not say who it is.
    Foreign,
}

/// What an entry of `tmp/` is.
pub(crate) fn parse_temporary(entry: &OsStr) -> Option<Temporary> {
    let entry = entry.as_encoded_bytes();
    if let Some(token) = entry.strip_prefix(b"owner-") {
        return Token::parse(token).map(|_| Temporary::Unborn);
    }
    let (id, rest) = entry.split_at_checked(ID_LENGTH)?;
    parse_id(id)?;
    match rest {
        [] => Some(Temporary::Foreign),
        [b'-', owner @ ..] => OwnerName::parse(owner).map(Temporary::Ours),
        _ => None,
    }
}

const SETTLED: &str = ".settled";

/// The name of a record of an attempt, in the job's directory in `history/`; marked once the job is settled as it says.
pub(crate) fn record_entry(number: u64, is_settled: bool) -> OsString {
    format!("{number}{}", if is_settled { SETTLED } else { "" }).into()
}

/// The number of a record, and whether it is marked.
pub(crate) fn parse_record(entry: &OsStr) -> Option<(u64, bool)> {
    let entry = entry.as_encoded_bytes();
    let digits = entry.strip_suffix(SETTLED.as_bytes());
    // Of so few digits that there always is a next one.
    let number = parse_digits(digits.unwrap_or(entry)).filter(|&number| entry[0] != b'0' && number < 1 << 60)?;
    Some((number, digits.is_some()))
}

/// A new id: a version-7 UUID (RFC 9562), greater than all that this process made before, whatever the clock does. One
/// past the year 9999 counts as its end: ids hold only some centuries more, and would begin anew.
pub(crate) fn new_id() -> io::Result<Uuid> {
    /// 48 bits of milliseconds and the 12 of the counter.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = u64::try_from(unix_now().as_millis()).map_or(LAST_SENT, |now| now.min(LAST_SENT)) << 12;
    let next = |last: u64| now.max(last + 1);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))).unwrap_or_default();
    let stamp = next(last);
    with_random(|random| {
        let mut rest = [0; 10];
        rest[..2].copy_from_slice(&(stamp & 0xfff).to_be_bytes()[6..]);
        rest[2..].copy_from_slice(&random.u64(..).to_be_bytes());
        uuid::Builder::from_unix_timestamp_millis(stamp >> 12, &rest).into_uuid()
    })
}

/// Runs `f` with this thread's random numbers, seeded by the system, and anew in a forked child: two processes that
/// went on with one state would make one id.
pub(crate) fn with_random<T>(f: impl FnOnce(&mut fastrand::Rng) -> T) -> io::Result<T> {
    thread_local! {
        #[allow(clippy::missing_const_for_thread_local, reason = "it is const; on Windows clippy does not see it")]
        static RANDOM: RefCell<Option<(u64, fastrand::Rng)>> = const { RefCell::new(None) };
    }
    let generation = fork::generation();
    RANDOM.with_borrow_mut(|random| match random {
        Some((made, random)) if *made == generation => Ok(f(random)),
        _ => {
            let seed = getrandom::u64().map_err(io::Error::other)?;
            Ok(f(&mut random.insert((generation, fastrand::Rng::with_seed(seed))).1))
        }
    })
}

/// The wall clock, since 1970; a clock before that counts as 1970.
pub(crate) fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn parse_id(text: &[u8]) -> Option<Uuid> {
    if text.len() != ID_LENGTH || text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let id = Uuid::try_parse_ascii(text).ok()?;
    (id.get_version_num() == 7 && id.get_variant() == Variant::RFC4122).then_some(id)
}

fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn check_name(name: &OsStr) -> Result<()> {
    let bytes = name.as_encoded_bytes();
    if bytes.len() > LONGEST_NAME {
        return Err(Error::too_long(bytes.len()));
    }
    let fault = match bytes {
        b"" => "a file name can't be empty",
        b"." | b".." => "`.` and `..` are directories, not file names",
        _ if bytes.contains(&0) => "a file name can't hold a NUL byte",
        _ if bytes.iter().any(|&byte| std::path::is_separator(byte.into())) => {
            "the name of a job's file is a base name, without a path separator"
        }
        _ => return Ok(()),
    };
    Err(Error::Name { what: fault.into() })
}

/// Whether two names are one to a filesystem that ignores case, or how an accented letter is encoded (composed or not),
/// and may show a name otherwise than it was given (macOS, Windows, FUSE).
fn is_same_name(one: Option<&OsStr>, other: Option<&OsStr>) -> bool {
    let spelled = |name: Option<&OsStr>| {
        name.and_then(OsStr::to_str).map(|name| name.nfd().flat_map(char::to_lowercase).nfd().collect::<String>())
    };
    one == other || spelled(one).is_some_and(|one| spelled(other) == Some(one))
}

/// A part of a name that was cut out of it beside an ASCII character.
fn os_str(bytes: &[u8]) -> &OsStr {
    // SAFETY: the bytes come from `OsStr::as_encoded_bytes`, cut only directly before or after ASCII characters.
    unsafe { OsStr::from_encoded_bytes_unchecked(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a227f2-b0d6-7000-826e-93b281bc7bc6";

    fn parse(entry: &str) -> Option<Job> {
        Job::parse(OsStr::new(entry))
    }

    #[test]
    fn an_entry_name_comes_back_from_what_it_parses_to() {
        for name in ["a", "-", "--", " ", "a.12345", "b.abcdefghij", "new\nline", ".hidden", "raw", "raw-x", "..."] {
            let entry = format!("fle-{ID}-{name}");
            let job = parse(&entry).unwrap();
            assert_eq!(job.name(), Some(OsStr::new(name)));
            assert_eq!(job.entry(), *entry);
        }
        let entry = format!("raw-{ID}");
        assert_eq!(parse(&entry).unwrap().entry(), *entry);
    }

    #[test]
    fn what_is_no_job_does_not_parse() {
        let upper = ID.to_uppercase();
        let other_version = ID.replace("-7000-", "-4000-");
        for entry in [
            String::new(),
            "raw-".into(),
            "raw".into(),
            format!("raw-{ID}-"),
            format!("raw-{ID}x"),
            format!("raw-{upper}"),
            format!("raw-{other_version}"),
            format!("raw-{{{}}}", &ID[..34]),
            format!("RAW-{ID}"),
            format!("fle-{ID}"),
            format!("fle-{ID}-"),
            format!("fle-{ID}-."),
            format!("fle-{ID}-.."),
            format!("fle-{ID}x.."),
            format!("fle-{ID}-{}", "n".repeat(LONGEST_NAME + 1)),
            format!("xyz-{ID}"),
        ] {
            assert_eq!(parse(&entry), None, "{entry:?}");
        }
    }

    #[test]
    fn a_claim_is_cut_at_its_last_dot_and_only_there() {
        let claim = |suffix: &str| parse_claim(OsStr::new(&format!("fle-{ID}-a.12345{suffix}")));
        let (job, owner) = claim(".d1d8r8yxy6").unwrap();
        assert_eq!((job.name(), owner.to_string().as_str()), (Some(OsStr::new("a.12345")), "d1d8r8yxy6"));
        assert_eq!(claim(".4194303").unwrap().1, OwnerName::Pid(4_194_303));
        assert_eq!(claim("").unwrap().1, OwnerName::Pid(12345), "the file is then called `a`");
        for no_owner in
            [".0", ".007", ".", ".1d1d8r8yxy", ".D1D8R8YXY6", ".d1d8r8yxy", ".d1d8r8yxy66", ".99999999999", ".-1"]
        {
            assert!(claim(no_owner).is_none(), "{no_owner}");
        }
    }

    #[test]
    fn an_entry_means_the_job_however_its_name_is_spelled() {
        let is_meant = |asked: &str, listed: &str| {
            let entry = |name: &str| parse(&format!("fle-{ID}-{name}")).unwrap();
            JobRef::Entry(entry(asked)).means(&entry(listed))
        };
        let spellings = ["R\u{e9}sum\u{e9}", "Re\u{301}sume\u{301}", "r\u{e9}sume\u{301}", "RE\u{301}SUM\u{c9}"];
        for asked in spellings {
            assert!(spellings.iter().all(|listed| is_meant(asked, listed)), "{asked}");
            assert!(["Resume", "R\u{e8}sum\u{e8}", "R\u{e9}sum\u{e9}2"].iter().all(|other| !is_meant(asked, other)));
        }
        let data = parse(&format!("raw-{ID}")).unwrap();
        assert!(!JobRef::Entry(data.clone()).means(&parse(&format!("fle-{ID}-raw")).unwrap()));
        assert!(JobRef::Entry(data.clone()).means(&data));
    }

    #[test]
    fn what_was_meant_to_be_a_job_is_told_from_what_was_not() {
        for almost in ["raw-", "raw-x", "fle-report.txt", "FLE-x", "12-raw-x", "1700000000123-fle-"] {
            assert!(is_almost_job(OsStr::new(almost)), "{almost}");
        }
        for stranger in ["", "raw", "notes.txt", "-raw-x", "12raw-x", "12-", "123", "\u{e9}aw-x"] {
            assert!(!is_almost_job(OsStr::new(stranger)), "{stranger}");
        }
        for unowned in [format!("raw-{ID}"), format!("raw-{ID}.left-1"), format!("fle-{ID}-a.b")] {
            assert!(is_unowned(OsStr::new(&unowned)), "{unowned}");
        }
        assert!(!is_unowned(OsStr::new("raw-x.1")));
    }

    #[test]
    fn a_record_has_one_name_unmarked_and_one_marked() {
        for (number, is_settled) in [(1, false), (1, true), ((1 << 60) - 1, true)] {
            assert_eq!(parse_record(&record_entry(number, is_settled)), Some((number, is_settled)));
        }
        for no_record in ["", "01", "+1", "1.", ".settled", "1.settled.settled", "1152921504606846976", "notes.txt"] {
            assert_eq!(parse_record(OsStr::new(no_record)), None, "{no_record}");
        }
    }

    #[test]
    fn ids_rise_and_tell_their_time() {
        let before = unix_now().as_millis();
        let ids: Vec<_> = (0..10_000).map(|_| new_id().unwrap()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(sent_at(ids[0]).as_millis() >= before);
        assert!(ids.iter().all(|id| parse_id(id.hyphenated().to_string().as_bytes()) == Some(*id)));
    }

    #[test]
    fn a_due_time_has_thirteen_digits() {
        let job = Job::data(parse_id(ID.as_bytes()).unwrap());
        let entry = job.scheduled_entry(Due(7));
        assert_eq!(entry, *format!("0000000000007-raw-{ID}"));
        assert_eq!(parse_scheduled(&entry), Some((Due(7), job)));
        assert_eq!(Due::after(Duration::ZERO).unwrap(), None);
        assert!(matches!(Due::after(Duration::from_millis(LAST_DUE)), Err(Error::TooLate)));
    }
}
