//! What a person should know of, in words. The core does not log: it hands these to whoever called it.

use std::fmt;

/// One line for the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The line.
    pub text: String,
}

impl Notice {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
