//! The protocol of pacchettino as a model, searched state by state: every interleaving of its system calls, with kills.
//!
//! Each module restates the rules of the protocol that it covers and has a switch for each; `tests/search.rs` searches
//! all states with all rules on, and finds what goes wrong with any one of them off. README.md says which function of
//! the queue each step stands for.
//!
//! Rules without a switch, and why:
//!
//! | rule | in a line | why |
//! | --- | --- | --- |
//! | 16, in part | Random state differs after a fork | Ids are not made here: a job has its name from the start. |
//! | 17 | Signals are looked at before a claim | It is about what a program's user sees; a claim put back is a retry here. |
//! | 18 | Flush the file, rename, flush the directory | What survives a power cut is the filesystem's; only what rule 11 says of it is here. |
//! | 19 | Bulk calls list first, then act | Each move of a bulk call is one requeue here. |
//! | 20 | Pause is looked at after claiming too | A claim put back is a retry here. |
//! | 22 | Windows: moves through a handle without sharing | The calls here are those of POSIX. |

pub mod claims;
pub mod history;
pub mod status;
pub mod temporaries;
pub mod wait;
