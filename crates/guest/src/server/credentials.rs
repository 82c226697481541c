//! Doing things with files on behalf of somebody else.
//!
//! A call that is made for a user says so once; whatever it then does on another thread, that thread
//! does with the user's ids and nothing of the guest's own power over files. The kernel decides, as it
//! would for that user's own commands.

use std::future::Future;
use std::io;
use std::sync::Arc;

use rustix::process::Gid;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_thread_groups};

use crate::accounts::Identity;
use crate::jail::OVER_USERS;
use crate::sys::{set_file_gid, set_file_uid};

tokio::task_local! {
    static WHO: Arc<Identity>;
}

/// Does everything of a call as somebody, or as the guest itself.
pub(super) async fn with_credentials_of<T>(
    who: Option<Arc<Identity>>,
    call: impl Future<Output = T>,
) -> T {
    match who {
        Some(who) => WHO.scope(who, call).await,
        None => call.await,
    }
}

/// Whom this call acts for, if not for the session's own user.
pub(super) fn who() -> Option<Arc<Identity>> {
    WHO.try_with(Arc::clone).ok()
}

/// Does something as somebody, on a thread that ends with it: none is left that is somebody else, and
/// nothing has to be undone.
pub(super) fn act<T: Send>(who: &Identity, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let act = || {
        become_user(who)?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, act)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the guest failed at a file")))
    })
}

/// Takes the ids of a user for what this thread does with files.
fn become_user(who: &Identity) -> io::Result<()> {
    let own = capabilities(None)?;
    let groups: Vec<_> = who.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups)?;
    set_file_gid(who.gid)?;
    set_file_uid(who.uid)?;
    let effective = match who.uid {
        0 => own.permitted,
        _ => own.permitted.intersection(OVER_USERS),
    };
    Ok(set_capabilities(None, CapabilitySets { effective, ..own })?)
}

/// Does something with all the guest may do, on this thread alone, whoever the guest is.
pub(super) fn with_everything<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: own.permitted, ..own })?;
    let done = work();
    set_capabilities(None, own)?;
    done
}
