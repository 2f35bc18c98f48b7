//! What must hold of entry names, whatever their bytes.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a panic is what a fuzz target reports")]
#![allow(clippy::wildcard_imports, reason = "as in a module of tests")]

use std::os::unix::ffi::OsStrExt as _;

use super::*;

/// A name that parses is printed as it was, and a name that is printed parses as what it was printed from.
pub fn entry_names(bytes: &[u8]) {
    parse(OsStr::from_bytes(bytes));
    print(bytes);
}

fn parse(entry: &OsStr) {
    let job = Job::parse(entry);
    if let Some(job) = &job {
        assert_eq!(job.entry(), entry);
        assert!(is_almost_job(entry) && is_unowned(entry));
        assert!(JobRef::parse(entry).is_some_and(|named| named.means(job)));
    }
    if let Some(JobRef::Id(id)) = JobRef::parse(entry) {
        assert_eq!(entry, OsStr::new(&id.to_string()));
    }
    let scheduled = parse_scheduled(entry);
    if let Some((due, job)) = &scheduled {
        assert_eq!(job.scheduled_entry(*due), entry);
        assert!(is_almost_job(entry));
    }
    if let Some((job, owner)) = parse_claim(entry) {
        assert_eq!(job.claim_entry(owner), entry);
        assert!(!is_set_aside(entry));
    }
    let spare = Token::parse_spare(entry);
    if let Some(token) = spare {
        let name = token.spare(0);
        assert!(entry.as_bytes().starts_with(&name.as_bytes()[..name.len() - 1]));
    }
    if let Some(Temporary::Ours(writer)) = parse_temporary(entry) {
        assert_eq!(temporary(parse_id(&entry.as_bytes()[..ID_LENGTH]).unwrap(), writer), entry);
    }
    if let Some((number, is_settled)) = parse_record(entry) {
        assert_eq!(record_entry(number, is_settled), entry);
    }
    let meanings = [job.is_some(), scheduled.is_some(), spare.is_some()];
    assert!(meanings.iter().filter(|&&is_meant| is_meant).count() <= 1, "no name means two things");
}

/// The first bytes are an id, an owner and a time, the others a file's name.
fn print(bytes: &[u8]) {
    let Some((numbers, name)) = bytes.split_first_chunk::<26>() else { return };
    let number = |begin: usize| u64::from_be_bytes(numbers[begin..begin + 8].try_into().unwrap());
    let id = uuid::Builder::from_unix_timestamp_millis(number(0) >> 16, numbers[6..16].try_into().unwrap()).into_uuid();
    let letters: Vec<_> = numbers[16..].iter().map(|byte| b'a' + byte % 26).collect();
    let pid = u32::from_be_bytes(numbers[16..20].try_into().unwrap()) >> 1;
    let owners = [OwnerName::Token(Token::parse(&letters).unwrap()), OwnerName::Pid(pid.max(1))];
    let due = Due(number(18) % (LAST_DUE + 1));
    for job in Job::file(id, OsStr::from_bytes(name)).ok().into_iter().chain([Job::data(id)]) {
        assert_eq!(Job::parse(&job.entry()).as_ref(), Some(&job));
        assert_eq!(parse_scheduled(&job.scheduled_entry(due)), Some((due, job.clone())));
        assert!(job.scheduled_entry(due).len() <= 255, "no filesystem takes it");
        for owner in owners {
            assert_eq!(parse_claim(&job.claim_entry(owner)), Some((job.clone(), owner)));
            assert_eq!(parse_temporary(&temporary(id, owner)), Some(Temporary::Ours(owner)));
        }
        let aside = job.set_aside_entry(pid);
        assert!(is_set_aside(&aside) && parse_claim(&aside).is_none());
    }
    for is_settled in [false, true] {
        let record = (number(16) >> 4).max(1);
        assert_eq!(parse_record(&record_entry(record, is_settled)), Some((record, is_settled)));
    }
}
