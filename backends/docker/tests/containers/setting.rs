//! Where these trials run.

use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, Session};
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_testkit::engine::{self, images};
use bastide_testkit::suite::{Context, TrialError, with_probe};

/// A home for sessions, and the daemon they run on.
pub(crate) struct Setting {
    pub(crate) home: tempfile::TempDir,
    pub(crate) host: String,
}

impl Setting {
    /// A fresh home for sessions on the daemon at `host`.
    pub(crate) fn new(host: &str) -> std::io::Result<Self> {
        Ok(Self { home: tempfile::tempdir()?, host: host.to_owned() })
    }

    /// A fresh home for sessions on the daemon that was prepared.
    pub(crate) fn prepared() -> Result<Self, TrialError> {
        Ok(Self::new(&engine::for_tests()?)?)
    }

    pub(crate) fn backend(&self, options: DockerOptions) -> Result<DockerBackend, TrialError> {
        let address = EngineAddress::parse(&self.host, None)?;
        Ok(DockerBackend::new(self.home.path(), address, options)?)
    }

    pub(crate) fn client(&self, options: DockerOptions) -> Result<Client, TrialError> {
        Ok(Client::new(Arc::new(self.backend(options)?)))
    }

    /// A session from an image.
    pub(crate) async fn session(&self, options: DockerOptions) -> Result<Session, TrialError> {
        let client = self.client(options)?;
        Ok(client.create(&Manifest::default(), CreateOptions::default()).await?)
    }

    /// A session with the probe in it.
    pub(crate) async fn probed(&self) -> Result<Session, TrialError> {
        let client = self.client(base())?;
        let manifest = with_probe(Manifest::default())?;
        Ok(client.create(&manifest, CreateOptions::default()).await?)
    }

    /// Runs `docker` on the same daemon.
    pub(crate) fn docker(&self, arguments: &[&str]) -> std::io::Result<String> {
        engine::docker(&self.host, arguments)
    }

    /// For the runner, which clears away what trials left.
    pub(crate) fn context(&self) -> Context {
        let backend = self.backend(base()).map(Arc::new);
        #[expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]
        let backend = backend.expect("a home for sessions");
        Context { backend, full: std::env::var_os("BASTIDE_TEST_FULL").is_some() }
    }
}

/// What most of these trials start from.
pub(crate) fn base() -> DockerOptions {
    DockerOptions::new(images::BASE)
}

/// The container of a session, as the daemon knows it.
pub(crate) fn container(session: &Session) -> String {
    format!("bastide-{}", session.id())
}
