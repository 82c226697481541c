//! Files of a session as its default user, without a detour.

use bytes::Bytes;

use crate::{Content, ExtractOptions, FileInfo, Files, Result, Session, Watch};

impl Session {
    /// The files of the session, as its default user.
    #[must_use]
    pub fn files(&self) -> Files<'_> {
        let files = Files::new(self.link.as_ref(), &self.policy, None);
        files.recorded_by(self.events.as_ref())
    }

    /// The files of the session, as one of its users: a name or a number of the sandbox.
    #[must_use]
    pub fn files_as(&self, user: impl Into<String>) -> Files<'_> {
        let files = Files::new(self.link.as_ref(), &self.policy, Some(user.into()));
        files.recorded_by(self.events.as_ref())
    }

    /// Reads a whole file: [`Files::read`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read(&self, path: &str) -> Result<Bytes> {
        self.files().read(path).await
    }

    /// Reads the first bytes of a file: [`Files::read_bounded`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read_bounded(&self, path: &str, max_bytes: u64) -> Result<Bytes> {
        self.files().read_bounded(path, max_bytes).await
    }

    /// Writes a file: [`Files::write`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write(&self, path: &str, content: impl Into<Content<'_>>) -> Result<()> {
        self.files().write(path, content).await
    }

    /// Lists a folder: [`Files::ls`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn ls(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.files().ls(path).await
    }

    /// Describes a file: [`Files::stat`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.files().stat(path).await
    }

    /// Makes a folder: [`Files::mkdir`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn mkdir(&self, path: &str, parents: bool) -> Result<()> {
        self.files().mkdir(path, parents).await
    }

    /// Removes an entry: [`Files::rm`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn rm(&self, path: &str, recursive: bool) -> Result<()> {
        self.files().rm(path, recursive).await
    }

    /// Renames a file or a link: [`Files::mv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn mv(&self, source: &str, destination: &str) -> Result<()> {
        self.files().mv(source, destination).await
    }

    /// Whether two paths name the same file: [`Files::same_file`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn same_file(&self, left: &str, right: &str, follow: bool) -> Result<bool> {
        self.files().same_file(left, right, follow).await
    }

    /// Sets permission bits: [`Files::chmod`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        self.files().chmod(path, mode).await
    }

    /// Sets owner and group: [`Files::chown`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn chown(&self, path: &str, owner: Option<&str>, group: Option<&str>) -> Result<()> {
        self.files().chown(path, owner, group).await
    }

    /// Finds files by pattern: [`Files::glob`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        self.files().glob(pattern).await
    }

    /// Watches for changes: [`Files::watch`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<Watch> {
        self.files().watch(path, recursive).await
    }

    /// Writes an archive and unpacks it beside itself: [`Files::extract`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn extract(
        &self,
        path: &str,
        data: impl Into<Content<'_>>,
        options: ExtractOptions,
    ) -> Result<()> {
        self.files().extract(path, data, options).await
    }
}
