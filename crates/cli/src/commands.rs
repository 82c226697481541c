//! One file for each command.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod inspect;
pub(crate) mod kill;
pub(crate) mod ls;
pub(crate) mod mounts;
pub(crate) mod port;
pub(crate) mod ps;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod sbx;
pub(crate) mod shell;
pub(crate) mod snapshot;
pub(crate) mod stop;
pub(crate) mod sweep;
