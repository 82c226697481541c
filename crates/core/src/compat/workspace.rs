//! Steps of a session's life that the reference has calls for.

use std::path::Path;
use std::sync::Arc;

use bastide_model::{Manifest, PosixPath};
use futures::future::BoxFuture;
use serde_json::json;

use super::ReferenceSession;
use crate::{Materialized, Result, workspace};

/// How much of a manifest is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManifestPart {
    /// All of it, and the accounts before it.
    Whole,
    /// Only what is ephemeral.
    Ephemeral,
}

impl ReferenceSession<'_> {
    /// Lays out the session's manifest again, or a part of it.
    ///
    /// # Errors
    ///
    /// Fails with what the manifest fails with; what was laid out before that stays.
    pub async fn apply_manifest(self, part: ManifestPart) -> Result<Materialized> {
        let only_ephemeral = part == ManifestPart::Ephemeral;
        let data = || json!({"only_ephemeral": only_ephemeral});
        let scope = self.session.extension("apply_manifest", data);
        scope.record_unit(self.apply_unrecorded(part)).await
    }

    async fn apply_unrecorded(self, part: ManifestPart) -> Result<Materialized> {
        let session = self.session;
        let _turn = session.life.turn.lock().await;
        session.check_up()?;
        let manifest = session.manifest();
        let done = async {
            manifest.check_mount_boundaries(Some(session.life.state().type_name()))?;
            if part == ManifestPart::Whole {
                session.provision(&manifest).await?;
            }
            let only_ephemeral = part == ManifestPart::Ephemeral;
            workspace::apply(session, &manifest, only_ephemeral, session.life.on_progress()).await
        };
        done.await.map_err(|error| session.redacted_if(error))
    }

    /// Lays out the entries of another manifest in the workspace, beside what is there. Its paths of the
    /// host are relative to `base_dir`, and confined to it and the session's grants.
    ///
    /// # Errors
    ///
    /// As [`apply_manifest`](Self::apply_manifest); for paths of the host also if the session was made
    /// without a base folder.
    pub async fn apply_entries(self, manifest: &Manifest, base_dir: &Path) -> Result<Materialized> {
        let session = self.session;
        let data = || json!({"only_ephemeral": false});
        let scope = session.extension("apply_manifest", data);
        let work = async {
            let _turn = session.life.turn.lock().await;
            session.check_up()?;
            let sources = session.life.terms.sources.as_ref();
            let sources = sources.map(|sources| Arc::new(sources.based_at(base_dir)));
            let on_progress = session.life.on_progress();
            let done = workspace::apply_from(session, manifest, sources, on_progress).await;
            done.map_err(|error| session.redacted_if(error))
        };
        scope.record_unit(work).await
    }

    /// Mounts what the manifest of the session names and is not mounted yet. To be called when the rest of
    /// it is laid out: nothing of that may be written into a store.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be mounted; what this mounted before is not mounted then.
    pub async fn mount(self) -> Result<()> {
        let session = self.session;
        let scope = session.extension("mount", || json!({}));
        let work = async {
            let _turn = session.life.turn.lock().await;
            session.check_up()?;
            let manifest = session.manifest();
            let mounted = workspace::mounts::mount_all(session, &manifest).await;
            mounted.map_err(|error| session.redacted_if(error))
        };
        scope.record_unit(work).await
    }

    /// Makes the users and groups of another manifest.
    ///
    /// # Errors
    ///
    /// As [`provision_manifest_accounts`](Self::provision_manifest_accounts).
    pub async fn provision_accounts(self, manifest: &Manifest) -> Result<()> {
        let session = self.session;
        let scope = session.extension("provision_manifest_accounts", || json!({}));
        let work = async {
            let _turn = session.life.turn.lock().await;
            session.check_up()?;
            session.provision(manifest).await
        };
        scope.record_unit(work).await
    }

    /// Replaces what [`register_persist_workspace_skip_path`](Self::register_persist_workspace_skip_path)
    /// keeps out of snapshots, for a program that has the list.
    ///
    /// # Errors
    ///
    /// As there; nothing is replaced then.
    pub fn set_persist_workspace_skip_paths(self, paths: &[String]) -> Result<()> {
        let life = &self.session.life;
        let checked: Result<Vec<_>> = {
            let state = life.state();
            paths.iter().map(|path| state.manifest.snapshot_skip_path(path)).collect()
        };
        life.skip_only(checked?);
        Ok(())
    }

    /// Makes the users and groups of the manifest. Those that are there already are fine.
    ///
    /// # Errors
    ///
    /// Fails if the session can have no users of its own.
    pub async fn provision_manifest_accounts(self) -> Result<()> {
        let session = self.session;
        let scope = session.extension("provision_manifest_accounts", || json!({}));
        let work = async {
            let _turn = session.life.turn.lock().await;
            session.check_up()?;
            let manifest = session.manifest();
            session.provision(&manifest).await
        };
        scope.record_unit(work).await
    }

    /// Keeps a path of the workspace, with all that is below it, out of snapshots taken by this object.
    /// Returns the path as it is kept.
    ///
    /// # Errors
    ///
    /// `ValueError` for the workspace itself, `MountConfigError` where a mount is in the way,
    /// `InvalidManifestPathError` for a path outside.
    pub fn register_persist_workspace_skip_path(self, path: &str) -> Result<PosixPath> {
        let life = &self.session.life;
        let path = life.state().manifest.snapshot_skip_path(path)?;
        life.skip(path.clone());
        Ok(path)
    }

    /// Has something done before the session is saved by [`Session::close`](crate::Session::close). All
    /// hooks run, in the order they were registered; if one fails, nothing is saved any more by closing.
    /// Registering another one later has all of them run again.
    pub fn register_pre_stop_hook(
        self,
        hook: impl Fn() -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
    ) {
        self.session.life.hooks.register(Arc::new(hook));
    }
}
