//! What a place to run agents in has to do.

use async_trait::async_trait;
use bastide::Result;

use crate::agents::Agent;
use crate::stream::Listener;
use crate::types::{CommandResult, RunArtifacts, RunConfig, RunSession};

/// A place to run agents in: the reference's four verbs. [`Sandbox`](crate::Sandbox) is one over any
/// backend of sessions; a program can bring its own.
#[async_trait]
pub trait RunBackend: std::fmt::Debug + Send + Sync {
    /// The word results name this backend by.
    fn id(&self) -> &str;

    /// The sandbox's name, if it is to have a certain one.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Whether a variable that an agent needs is there without the run's own environment having it.
    fn provides(&self, variable: &str) -> bool {
        let _ = variable;
        false
    }

    /// Whether what runs in a prepared session is kept from everything else, so that an agent needs no
    /// sandbox and no questions of its own.
    fn confines(&self, session: &RunSession) -> bool {
        let _ = session;
        false
    }

    /// Makes a workspace and a sandbox ready.
    ///
    /// # Errors
    ///
    /// If that cannot be done; then nothing is left of it.
    async fn prepare(&self, agent: &Agent, config: &RunConfig) -> Result<RunSession>;

    /// Runs a command in the sandbox to its end. A command that fails is no error.
    ///
    /// # Errors
    ///
    /// If the sandbox is lost.
    async fn run(
        &self,
        session: &RunSession,
        command: &[String],
        config: &RunConfig,
        listener: &mut Listener<'_>,
    ) -> Result<CommandResult>;

    /// Collects what the agent did. Nothing of the workspace is run for that.
    ///
    /// # Errors
    ///
    /// If the workspace cannot be looked through.
    async fn collect(&self, session: &RunSession, config: &RunConfig) -> Result<RunArtifacts>;

    /// Ends and removes what is not to stay. It is called whatever happened before, and once.
    ///
    /// # Errors
    ///
    /// If something cannot be removed.
    async fn cleanup(&self, session: &RunSession) -> Result<()>;
}
