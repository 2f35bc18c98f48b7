//! What must hold of records, whatever the bytes of their files and what is said in them.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a panic is what a fuzz target reports")]
#![allow(clippy::wildcard_imports, reason = "as in a module of tests")]

use super::*;

/// Any bytes can be read as a record, and a record that is written is bounded, harmless, and read back.
pub fn history_records(bytes: &[u8]) {
    if let Some(found) = Record::parse(&String::from_utf8_lossy(bytes), false) {
        write(&found, usize::MAX);
    }
    let Some((numbers, text)) = bytes.split_first_chunk::<28>() else { return };
    let number = |begin: usize| u64::from_be_bytes(numbers[begin..begin + 8].try_into().unwrap());
    let given = |bit: u8| numbers[0] & bit != 0;
    let text = String::from_utf8_lossy(text);
    let reason = cut(&text, usize::from(numbers[1]) << 4);
    let record = Record {
        at: Duration::from_millis(number(8) >> 8),
        due: given(1).then(|| Due(number(16))),
        host: if given(2) { reason.chars().take(LONGEST_HOST).collect() } else { String::new() },
        pid: u32::from(numbers[2]),
        owner: given(4).then(|| OwnerName::Pid(u32::from(numbers[3]) + 1)),
        interruptions: u32::from(numbers[4]),
        why: Why {
            reason: given(8).then(|| reason.to_owned()),
            traceback: given(16).then(|| text[reason.len()..].to_owned()),
        },
        ..Record::new(u32::from(numbers[5]), Ended::ALL[usize::from(numbers[6] % 4)])
    };
    write(&record, usize::from(u16::from_be_bytes([numbers[24], numbers[25]])));
}

/// More characters than a machine's name has.
const LONGEST_HOST: usize = 255;

/// Writes a record and reads it back, and once more with nothing but its first bytes, as a power cut may leave it.
fn write(record: &Record, kept: usize) {
    let text = record.text();
    assert!(text.len() as u64 <= MOST_READ || record.host.len() > LONGEST_HOST, "more is written than is read");
    assert!(text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()), "a terminal may take harm");
    let found = Record::parse(&text, record.is_settled).unwrap();
    assert_eq!(found, as_written(record));
    if let Some(left) = Record::parse(cut(&text, kept), record.is_settled) {
        assert_eq!((left.attempt, left.ended, left.at), (found.attempt, found.ended, found.at));
        assert!(left.due.is_none() || left.due == found.due);
        assert!([0, found.pid].contains(&left.pid));
        assert!(left.owner.is_none() || left.owner == found.owner);
        assert!([0, found.interruptions].contains(&left.interruptions));
    }
}

fn as_written(record: &Record) -> Record {
    let end = Duration::from_secs(253_402_300_799); // of the year 9999
    let milliseconds = |time: Duration| u64::try_from(time.min(end).as_millis()).unwrap();
    Record {
        at: Duration::from_millis(milliseconds(record.at)),
        due: record.due.map(|due| Due(milliseconds(Duration::from_millis(due.0)))),
        host: printable(record.host.chars()),
        why: Why {
            reason: record.why.reason.as_deref().map(|reason| {
                let more = if reason.chars().count() > LONGEST_REASON { "..." } else { "" };
                printable(reason.chars().take(LONGEST_REASON).chain(more.chars()))
            }),
            traceback: record.why.traceback.as_deref().map(|traceback| {
                let before = traceback.chars().count().saturating_sub(LONGEST_TRACEBACK);
                let kept: String = traceback.chars().skip(before).collect();
                printable(if before > 0 { "...\n" } else { "" }.chars().chain(kept.trim_end().chars()))
            }),
        },
        ..record.clone()
    }
}

/// The first bytes of a text, without a part of a character.
fn cut(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}
