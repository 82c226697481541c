//! Folders that the host mounted something on.

use bastide_proto::files::FileOp;

use super::Files;
use super::files_error::{FilesError, is_missing};
use super::path::Target;
use crate::Result;
use crate::compat::raise;

impl Files<'_> {
    /// Lets files be in what the host has just mounted on a folder.
    pub(crate) async fn enter_mount(&self, path: &str) -> Result<()> {
        let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
        // Files of a session that an earlier version started cannot be in it.
        if self.link.protocol() < bastide_proto::USAGE_VERSION {
            return Ok(());
        }
        match self.quiet(FileOp::EnterMount { path: target.path.clone() }).await {
            // There is nothing to be in.
            Err(FilesError::Fault(fault)) if is_missing(&fault) => Ok(()),
            entered => entered.map_err(|failure| failure.into_write_error(self.policy, &target)),
        }
    }
}
