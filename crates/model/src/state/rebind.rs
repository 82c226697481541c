//! Giving a stored state back what may only come from a program.

use std::collections::HashSet;

use super::SessionState;
use crate::Result;
use crate::error::raise;
use crate::manifest::Manifest;
use crate::registry::Registry;

impl SessionState {
    /// The state with the grants of `trusted`, if some of its own lost their paths of the host.
    ///
    /// # Errors
    ///
    /// `ValueError` if `trusted` is missing, or has no path of the host for one of them.
    pub fn rebind_path_grants(mut self, trusted: Option<&Manifest>) -> Result<Self> {
        if self.path_grants_to_rebind.is_empty() {
            return Ok(self);
        }
        let Some(trusted) = trusted else {
            return Err(raise::value_error(
                "Sandbox session state contains path grants that require a current trusted \
                 manifest before resume",
            ));
        };
        let grants = &trusted.extra_path_grants;
        let backed: HashSet<&str> = grants
            .iter()
            .filter(|grant| grant.host_path.is_some())
            .map(|grant| grant.path.as_str())
            .collect();
        let is_missing = |path: &&String| !backed.contains(path.as_str());
        let missing: Vec<&str> =
            self.path_grants_to_rebind.iter().filter(is_missing).map(String::as_str).collect();
        if !missing.is_empty() {
            return Err(raise::value_error(format!(
                "Sandbox session state requires current trusted host_path values for these path \
                 grants: {}",
                missing.join(", ")
            )));
        }
        self.manifest.extra_path_grants.clone_from(grants);
        self.path_grants_to_rebind.clear();
        Ok(self)
    }

    /// The state with the mounts of `trusted`, if its own lost their credentials.
    ///
    /// # Errors
    ///
    /// `ValueError` if `trusted` is missing; else as [`Manifest::with_mount_authority_of`], without
    /// details.
    pub fn rebind_mount_authority(
        mut self,
        trusted: Option<&Manifest>,
        backend: &str,
        registry: &Registry,
    ) -> Result<Self> {
        if !self.mount_authority_redacted {
            return Ok(self);
        }
        let credentials_in_play = self.manifest.holds_mount_authority()
            || trusted.is_some_and(Manifest::holds_mount_authority);
        let rebound = match trusted {
            Some(trusted) => self.manifest.with_mount_authority_of(trusted, backend, registry),
            None => Err(raise::value_error(
                "Sandbox session state contains redacted cloud mount credentials and requires a \
                 current trusted manifest before resume",
            )),
        };
        self.manifest = rebound.map_err(|error| error.redacted_if(credentials_in_play))?;
        self.mount_authority_redacted = false;
        self.mount_authority_rebound = true;
        Ok(self)
    }

    /// Checks that a session of this state may be resumed: its mounts are allowed where it ran, and
    /// nothing waits to be given back.
    ///
    /// # Errors
    ///
    /// `ValueError` that says what waits; `MountConfigError` for a mount that is refused, without
    /// details.
    pub fn check_resumable(&self) -> Result<()> {
        self.check_nothing_waits()
            .map_err(|error| error.redacted_if(self.manifest.holds_mount_authority()))
    }

    fn check_nothing_waits(&self) -> Result<()> {
        self.manifest.check_mount_boundaries(Some(self.type_name()))?;
        if self.mount_authority_redacted {
            return Err(raise::value_error(
                "Sandbox session state with cloud mount credentials cannot be resumed; resume \
                 through Runner with the current trusted manifest",
            ));
        }
        if !self.path_grants_to_rebind.is_empty() {
            return Err(raise::value_error(
                "Sandbox session state path grants must be rebound from a current trusted manifest \
                 before resume; resume through Runner with SandboxRunConfig.manifest",
            ));
        }
        Ok(())
    }
}
