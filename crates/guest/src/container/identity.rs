//! Whom commands of a container run as by default.

use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::set_thread_groups;

use crate::accounts::{Accounts, Identity, UnnamedGroup};
use crate::jail::{StepContext, StepError};
use crate::sys::{set_file_gid, set_file_uid};

/// The default user of a container.
#[derive(Debug, Clone)]
pub(super) struct DefaultUser {
    pub(super) who: Identity,
    /// What the image calls it.
    pub(super) name: Option<String>,
    /// Its home.
    pub(super) home: String,
    /// Whether this process may become somebody else at all.
    pub(super) many_users: bool,
}

impl DefaultUser {
    /// Finds the user an image means: `user`, or `user:group`, each a name or a number. Where this
    /// process is no root, it stays whoever it is.
    pub(super) fn of(text: Option<&str>) -> Result<Self, StepError> {
        let accounts = Accounts::read();
        let own = geteuid().as_raw();
        if own != 0 {
            let name = accounts.user_name(own).map(str::to_owned);
            let who = Identity { uid: own, gid: getegid().as_raw(), groups: Vec::new() };
            let home = accounts.home(own).to_owned();
            return Ok(Self { who, name, home, many_users: false });
        }
        let text = text.filter(|text| !text.is_empty()).unwrap_or("0");
        Self::find(&accounts, text).ok_or_else(|| {
            let step = format!("find the user {text} in the image's /etc/passwd and /etc/group");
            StepError::from_errno(&step, libc::ENOENT)
        })
    }

    fn find(accounts: &Accounts, text: &str) -> Option<Self> {
        let who = accounts.identity(text, UnnamedGroup::InRootsGroup)?;
        let name = accounts.user_name(who.uid).map(str::to_owned);
        let home = accounts.home(who.uid).to_owned();
        Some(Self { who, name, home, many_users: true })
    }

    pub(super) fn ids(&self) -> (Uid, Gid) {
        (Uid::from_raw(self.who.uid), Gid::from_raw(self.who.gid))
    }

    /// Uses files as this user from now on, and stays root otherwise: whoever asks the guest for a file
    /// gets what a command would get.
    pub(super) fn use_files(&self) -> Result<(), StepError> {
        if !self.many_users || self.who.uid == 0 {
            return Ok(());
        }
        let step = || "use files as the user of commands".to_owned();
        let groups: Vec<_> = self.who.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups).step(step)?;
        set_file_gid(self.who.gid).step(step)?;
        set_file_uid(self.who.uid).step(step)
    }
}
