//! What backends on this host have in common: wardens, and knowing processes again.

pub mod process;
pub mod words;
