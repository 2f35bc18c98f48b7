//! What a person should know of, in words. The core does not log: it hands these to whoever called it.

use std::fmt;

use uuid::Uuid;

/// One line for the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The line.
    pub text: String,
    /// The job that it is about, if it is about one.
    pub job: Option<Uuid>,
}

impl Notice {
    /// Names may hold anything; in a log a line stays one line, and does nothing to the terminal.
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        let escape = |letter: char| {
            if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() }
        };
        Self { text: text.as_ref().chars().map(escape).collect(), job: None }
    }

    /// The same, about a job.
    pub(crate) fn of(job: Uuid, text: impl AsRef<str>) -> Self {
        Self { job: Some(job), ..Self::new(text) }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
