//! The live sandbox a user holds.

use std::sync::Arc;

use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::receipt::Receipt;
use bastide_proto::{Exec, GuestPath, Request, Stdin};
use serde_bytes::ByteBuf;

use crate::backend::{Backend, Leash, Machine, SessionId};
use crate::link::Link;
use crate::{Command, Files, Input, Output, Process, Result};

/// A live sandbox: run commands in it, then [`delete`](Self::delete) it.
///
/// A session made with the default options ends with the process that made it, in whatever way that
/// process ends.
#[derive(Debug)]
pub struct Session {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) machine: Machine,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) root: GuestPath,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) policy: WorkspacePathPolicy,
    pub(crate) leash: Option<Leash>,
}

impl Session {
    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.machine.id
    }

    /// Where the workspace is inside.
    #[must_use]
    pub fn root(&self) -> &GuestPath {
        &self.root
    }

    /// What isolation and limits are really in force.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.machine.receipt
    }

    /// Starts a command; its output is read from the [`Process`] while it runs.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer. A program
    /// that cannot be executed is no error here: the process ends with a code of 126 or 127.
    pub async fn spawn(&self, command: Command) -> Result<Process> {
        let Command { argv, env, cwd, input, timeout } = command;
        let request = Request::Exec(Exec {
            argv: argv.into_iter().map(ByteBuf::from).collect(),
            env: self.environment(env),
            cwd: cwd.unwrap_or_else(|| self.root.clone()),
            stdin: if input == Input::None { Stdin::Null } else { Stdin::Stream },
            timeout,
        });
        let stream = self.link.open(request).await?;
        Ok(Process::new(stream, input, timeout))
    }

    /// Runs a command to its end and collects what it says.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn) and [`Process::next`].
    pub async fn exec(&self, command: Command) -> Result<Output> {
        self.spawn(command).await?.output().await
    }

    /// The files of the session, as its default user.
    #[must_use]
    pub fn files(&self) -> Files<'_> {
        Files::new(self.link.as_ref(), &self.policy, None)
    }

    /// The files of the session, as one of its users: a name or a number of the sandbox.
    #[must_use]
    pub fn files_as(&self, user: impl Into<String>) -> Files<'_> {
        Files::new(self.link.as_ref(), &self.policy, Some(user.into()))
    }

    /// Ends every process of the session and removes every trace of it.
    ///
    /// # Errors
    ///
    /// Fails if the backend cannot remove something; what is left carries the session's name.
    pub async fn delete(self) -> Result<()> {
        drop(self.link);
        let destroyed = self.backend.destroy(&self.machine).await;
        drop(self.leash);
        destroyed
    }

    /// The environment of one command: the session's, then the command's own.
    fn environment(&self, own: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(ByteBuf, ByteBuf)> {
        let mut all = self.env.clone();
        for (key, value) in own {
            all.retain(|(other, _)| *other != key);
            all.push((key, value));
        }
        all.into_iter().map(|(key, value)| (ByteBuf::from(key), ByteBuf::from(value))).collect()
    }
}
