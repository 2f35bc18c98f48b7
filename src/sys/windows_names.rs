//! Names and paths as the programs of Windows understand them.
//!
//! The system takes a name as it is. Win32, between it and nearly all programs, does not: `nul.txt` is a device there, a
//! dot or a space at the end is cut off, and a path may be too long. All of that ends where a path begins with `\\?\`.

use std::ffi::{OsStr, OsString};
use std::os::windows::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf, Prefix};

/// `MAX_PATH` less the NUL at the end: UTF-16 units of the longest path that every program can open.
const LONGEST_PATH: usize = 259;

/// Why programs could not open a file of that name by a plain path.
pub(crate) fn name_fault(name: &OsStr) -> Option<&'static str> {
    let bytes = name.as_encoded_bytes();
    if bytes.iter().any(|byte| *byte < b' ' || br#"<>:"/\|?*"#.contains(byte)) {
        return Some("on Windows a file's name can't hold a control character or one of < > : \" / \\ | ? *");
    }
    if bytes.ends_with(b".") || bytes.ends_with(b" ") {
        return Some("on Windows a file's name can't end in a dot or a space");
    }
    if is_device(name) {
        return Some("on Windows a device has this name, whatever follows its dot: no file can be called so");
    }
    None
}

/// `CON`, `nul.tar.gz`, `com1 .txt` and so on.
fn is_device(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ').to_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        port => port.strip_prefix("COM").or_else(|| port.strip_prefix("LPT")).is_some_and(|number| {
            matches!(number, "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³")
        }),
    }
}

/// The same path as programs can open it: plain where that means the same, and else with the prefix `\\?\`.
pub(crate) fn for_programs(path: PathBuf) -> PathBuf {
    let mut parts = path.components();
    let Some(Component::Prefix(prefix)) = parts.next() else { return path };
    let (plain, exact) = match prefix.kind() {
        Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) => {
            let drive = format!("{}:", char::from(letter));
            (OsString::from(&drive), OsString::from(format!(r"\\?\{drive}")))
        }
        Prefix::UNC(server, share) | Prefix::VerbatimUNC(server, share) => {
            let place = |start: &str| [OsStr::new(start), server, OsStr::new(r"\"), share].into_iter().collect();
            (place(r"\\"), place(r"\\?\UNC\"))
        }
        Prefix::Verbatim(_) | Prefix::DeviceNS(_) => return path,
    };
    let rest = parts.as_path();
    let is_plain = |part: Component<'_>| match part {
        Component::RootDir => true,
        Component::Normal(name) => name_fault(name).is_none(),
        Component::Prefix(_) | Component::CurDir | Component::ParentDir => false,
    };
    let length = plain.encode_wide().count() + rest.as_os_str().encode_wide().count();
    let start = if length <= LONGEST_PATH && rest.components().all(is_plain) { plain } else { exact };
    with_start(start, rest)
}

fn with_start(mut start: OsString, rest: &Path) -> PathBuf {
    start.push(rest);
    start.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_program_would_misunderstand_are_known() {
        for name in [
            "nul",
            "NUL",
            "Nul.txt",
            "nul.tar.gz",
            "nul .txt",
            "con",
            "prn.",
            "aux",
            "com1",
            "COM9.log",
            "lpt0",
            "com¹",
            "conin$",
            "CONOUT$.x",
            "end.",
            "end ",
            "...",
            "a:b",
            "a*",
            "a?",
            "a|b",
            "a<b",
            "a>b",
            "a\"b",
            "a\nb",
            "a\\b",
        ] {
            assert!(name_fault(OsStr::new(name)).is_some(), "{name:?}");
        }
        for name in [
            "null",
            "con1",
            "com",
            "com10",
            "lpt",
            ".nul",
            "a.nul",
            " nul",
            "a b",
            "ä",
            "x.y.z",
            "console",
            "auxiliary",
        ] {
            assert_eq!(name_fault(OsStr::new(name)), None, "{name:?}");
        }
    }

    #[test]
    fn a_path_has_the_prefix_where_it_needs_it_and_only_there() {
        let long = format!(r"\{}", "n".repeat(60)).repeat(4);
        for (given, handed) in [
            (r"C:\queue\a.txt", r"C:\queue\a.txt"),
            (r"\\?\C:\queue\a.txt", r"C:\queue\a.txt"),
            (r"\\server\share\queue\a.txt", r"\\server\share\queue\a.txt"),
            (r"\\?\UNC\server\share\queue\a.txt", r"\\server\share\queue\a.txt"),
            (r"C:\queue\nul", r"\\?\C:\queue\nul"),
            (r"C:\queue\end.", r"\\?\C:\queue\end."),
            (r"\\server\share\queue\nul", r"\\?\UNC\server\share\queue\nul"),
            (r"\\?\C:\queue.\a", r"\\?\C:\queue.\a"),
            (r"\\?\Volume{1}\queue\a", r"\\?\Volume{1}\queue\a"),
            (r"queue\a", r"queue\a"),
        ] {
            assert_eq!(for_programs(given.into()), Path::new(handed));
        }
        let path = format!(r"C:{long}\{}", "n".repeat(12));
        assert_eq!(path.len(), LONGEST_PATH);
        assert_eq!(for_programs(format!(r"\\?\{path}").into()), Path::new(&path));
        assert_eq!(for_programs(format!("{path}n").into()), Path::new(&format!(r"\\?\{path}n")));
    }
}
