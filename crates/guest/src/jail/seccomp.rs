//! The system calls a command may make.
//!
//! An allow-list: a call that is in none of the tables fails with `ENOSYS`, as on an older kernel, so
//! that programs take their fall-back; a call we know and refuse fails with `EPERM`. Nothing is ever
//! killed for a call.

mod filter;
mod program;
mod set_id;
mod table;

pub(crate) use filter::{
    FilterOptions, Processors, Protected, Shared, filter, first_filter, guest_filter, init_filter,
    listeners_filter,
};
pub(crate) use set_id::WriteTarget;
