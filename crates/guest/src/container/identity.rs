//! Whom commands of a container run as.

use bastide_proto::boot::UserAndGroup;
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::accounts::Accounts;
use crate::jail::{Step, StepError};
use crate::sys::use_files_as;

/// A user of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) ids: UserAndGroup,
    /// The other groups it is in.
    groups: Vec<u32>,
    /// What the image calls it.
    pub(super) name: Option<String>,
    /// Whether this process may become somebody else at all.
    pub(super) many_users: bool,
}

impl Identity {
    /// Finds the user an image means: `user`, or `user:group`, each a name or a number. Where this
    /// process is nobody in particular already, it stays that.
    pub(super) fn of(text: Option<&str>) -> Result<Self, StepError> {
        let accounts = Accounts::read();
        let own = UserAndGroup { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        if own.uid != 0 {
            let name = accounts.user_name(own.uid).map(str::to_owned);
            return Ok(Self { ids: own, groups: Vec::new(), name, many_users: false });
        }
        let text = text.filter(|text| !text.is_empty()).unwrap_or("0");
        Self::find(&accounts, text).ok_or_else(|| {
            let step = format!("find the user {text} in the image's /etc/passwd and /etc/group");
            StepError::from_errno(&step, libc::ENOENT)
        })
    }

    fn find(accounts: &Accounts, text: &str) -> Option<Self> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let uid = accounts.user(user)?;
        let name = accounts.user_name(uid).map(str::to_owned);
        let (gid, groups) = match group {
            // As engines do: whoever names a group means that one alone.
            Some(group) => (accounts.group(group)?, Vec::new()),
            None => {
                let groups = name.as_deref().map(|name| accounts.groups_of(name));
                (accounts.first_group(uid).unwrap_or(0), groups.unwrap_or_default())
            }
        };
        Some(Self { ids: UserAndGroup { uid, gid }, groups, name, many_users: true })
    }

    pub(super) fn ids_of_kernel(&self) -> (Uid, Gid) {
        (Uid::from_raw(self.ids.uid), Gid::from_raw(self.ids.gid))
    }

    /// Becomes this user, for good.
    pub(super) fn become_it(&self) -> Result<(), StepError> {
        if !self.many_users {
            return Ok(());
        }
        self.join_groups()?;
        let (uid, gid) = self.ids_of_kernel();
        set_thread_res_gid(gid, gid, gid).step(|| "take the group of commands".to_owned())?;
        set_thread_res_uid(uid, uid, uid).step(|| "take the user of commands".to_owned())
    }

    /// Uses files as this user from now on, and stays root otherwise: whoever asks the guest for a file
    /// gets what a command would get.
    pub(super) fn use_files_as_it(&self) -> Result<(), StepError> {
        if !self.many_users || self.ids.uid == 0 {
            return Ok(());
        }
        self.join_groups()?;
        use_files_as(self.ids.uid, self.ids.gid).step(|| "use files as the user".to_owned())
    }

    fn join_groups(&self) -> Result<(), StepError> {
        let groups: Vec<_> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups).step(|| "take the groups of commands".to_owned())
    }
}
