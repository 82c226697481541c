//! The users of the session: who they are, and the launchers of their commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::{Fault, FaultKind};
use bastide_wire::LazyWriteStream;
use rustix::process::Pid;
use tokio::sync::Mutex;

use super::blocking::blocking;
use super::call::fault;
use super::kill::kill_orphans;
use super::pool::{Pool, ReadySupervisor, SupervisorError, read_packet, send_packet};
use crate::accounts::{Accounts, Identity, UnnamedGroup};
use crate::init::InitRequest;
use crate::launcher::LauncherReport;
use crate::packet;

/// How many launchers there are at a time. The one that served longest ago gives way; what it started
/// lives on.
const MOST_LAUNCHERS: usize = 32;

/// How long a launcher may take to be ready.
const LAUNCH: Duration = Duration::from_secs(5);

/// How long a name of a user may be: longer than any system allows.
const MAX_NAME: usize = 256;

/// A user; the default one if none.
type CommandUser = Option<Arc<Identity>>;

/// Whom commands run as, and who else there can be.
#[derive(Debug, Clone)]
pub(crate) struct UserPolicy {
    /// The default user.
    pub(crate) own: Identity,
    /// Its home.
    pub(crate) home: String,
    /// Why there is nobody but the default user, if so.
    pub(crate) single_user_reason: Option<String>,
    /// Which group a number without a name is in.
    pub(crate) unnamed_group: UnnamedGroup,
}

impl UserPolicy {
    /// Whether somebody who was asked for by `text` is the default user.
    fn is_own(&self, text: &str, who: &Identity) -> bool {
        // An engine gives a user all its groups, and the same one with another group is another.
        if self.unnamed_group == UnnamedGroup::InRootsGroup && self.single_user_reason.is_none() {
            return *who == self.own;
        }
        who.uid == self.own.uid && (!text.contains(':') || who.gid == self.own.gid)
    }
}

/// The users of the session.
#[derive(Debug)]
pub(crate) struct Users {
    /// Where launchers are asked for.
    init: LazyWriteStream,
    user_policy: UserPolicy,
    /// Those that have run something, the latest last; the default user has no identity.
    pools: Mutex<Vec<(CommandUser, Arc<Pool>)>>,
    /// A process of ours that no command left behind.
    egress_listeners: Option<Pid>,
}

impl Users {
    /// The default user, whose launcher is up.
    pub(crate) fn new(
        init: LazyWriteStream,
        user_policy: UserPolicy,
        own: Pool,
        egress_listeners: Option<Pid>,
    ) -> Self {
        let pools = Mutex::new(vec![(None, Arc::new(own))]);
        Self { init, user_policy, pools, egress_listeners }
    }

    /// Why there is nobody but the default user, if so.
    pub(crate) fn single_user_reason(&self) -> Option<&str> {
        self.user_policy.single_user_reason.as_deref()
    }

    /// Who a user is; `None` for the default user.
    pub(crate) async fn find(&self, user: Option<&str>) -> Result<CommandUser, Fault> {
        self.find_with_home(user).await.map(|(who, _)| who)
    }

    /// Who a user is, `None` for the default user; and where its home is.
    pub(crate) async fn find_with_home(
        &self,
        user: Option<&str>,
    ) -> Result<(CommandUser, String), Fault> {
        let UserPolicy { home, single_user_reason, unnamed_group, .. } = &self.user_policy;
        let Some(user) = user else { return Ok((None, home.clone())) };
        if user.is_empty() || user.len() > MAX_NAME || user.contains('\0') {
            return Err(Fault::new(FaultKind::Invalid, "the name of a user makes no sense"));
        }
        let (asked, unnamed_group) = (user.to_owned(), *unnamed_group);
        let find = move || {
            let accounts = Accounts::read();
            let who = accounts.identity(&asked, unnamed_group)?;
            let home = accounts.home(who.uid).to_owned();
            Some((who, home))
        };
        let Some((who, home)) = blocking(find).await? else {
            return Err(Fault::new(FaultKind::Invalid, format!("there is no user {user}")));
        };
        if self.user_policy.is_own(user, &who) {
            return Ok((None, home));
        }
        match single_user_reason {
            Some(why) => {
                let message = format!("nothing can be done as {user}: {why}");
                Err(Fault::new(FaultKind::Unsupported, message))
            }
            None => Ok((Some(Arc::new(who)), home)),
        }
    }

    /// A supervisor for a command of a user. A launcher that is gone or stands still is replaced, once.
    pub(crate) async fn take(
        &self,
        who: Option<&Arc<Identity>>,
    ) -> Result<(Arc<Pool>, ReadySupervisor), Fault> {
        let failed = |error: io::Error| fault("cannot start a process", &error);
        let mut pool = self.pool(who).await?;
        for _ in 0..2 {
            match pool.take().await {
                Ok(taken) => return Ok((pool, taken)),
                Err(SupervisorError::Refused(error)) => return Err(failed(error)),
                Err(SupervisorError::Launcher) => pool = self.replace(who, &pool).await?,
            }
        }
        Err(failed(io::ErrorKind::TimedOut.into()))
    }

    /// Ends a launcher that is of no use, and starts another; unless somebody else did before.
    async fn replace(
        &self,
        who: Option<&Arc<Identity>>,
        old: &Arc<Pool>,
    ) -> Result<Arc<Pool>, Fault> {
        self.pools.lock().await.retain(|(_, pool)| !Arc::ptr_eq(pool, old));
        // What it started lives on.
        old.end_launcher();
        self.pool(who).await
    }

    /// The supervisors that run a user's commands. The first time this has to wait for a launcher.
    async fn pool(&self, who: Option<&Arc<Identity>>) -> Result<Arc<Pool>, Fault> {
        let mut pools = self.pools.lock().await;
        let at = pools.iter().position(|(known, _)| known.as_ref() == who);
        let found = at.map(|at| pools.remove(at)).filter(|(_, pool)| pool.is_alive());
        let (who, pool) = match found {
            Some(found) => found,
            None => (who.map(Arc::clone), Arc::new(self.launch(who).await?)),
        };
        pools.push((who, Arc::clone(&pool)));
        if pools.len() > MOST_LAUNCHERS {
            pools.remove(0);
        }
        Ok(pool)
    }

    /// Ends what a supervisor left behind that was killed from inside; `known` are all the others. No
    /// launcher is started meanwhile: it would look like one of those left behind.
    pub(crate) async fn kill_orphans(&self, supervisor: Pid, known: &[Pid]) {
        let pools = self.pools.lock().await;
        let launchers = pools.iter().map(|(_, pool)| pool).filter(|pool| pool.is_alive());
        let launchers = launchers.map(|pool| pool.launcher());
        let ours: Vec<_> = launchers.chain(self.egress_listeners).collect();
        kill_orphans(supervisor, &[&ours, known].concat()).await;
    }

    /// Passes a socket of the warden's on to init, which answers there.
    pub(crate) async fn pass_on_namespaces(&self, asker: &OwnedFd) -> io::Result<()> {
        send_packet(&self.init, &packet::encode(&InitRequest::Namespaces)?, &[asker.as_fd()]).await
    }

    async fn launch(&self, who: Option<&Arc<Identity>>) -> Result<Pool, Fault> {
        let failed = |error: io::Error| fault("cannot start a launcher", &error);
        let report = async {
            let (near, far) = StdStream::pair()?;
            let order = InitRequest::Launch(who.map(|who| Identity::clone(who)));
            send_packet(&self.init, &packet::encode(&order)?, &[far.as_fd()]).await?;
            drop(far);
            let report = read_packet(&mut LazyWriteStream::new(near.try_clone()?)?).await?;
            let report: LauncherReport =
                bastide_proto::decode(&report).map_err(io::Error::other)?;
            near.set_nonblocking(false)?;
            Ok((near, report))
        };
        let late = || failed(io::ErrorKind::TimedOut.into());
        let report = tokio::time::timeout(LAUNCH, report).await.map_err(|_| late())?;
        let (launcher, report) = report.map_err(failed)?;
        let launched = report.map_err(|failure| {
            let error = io::Error::from_raw_os_error(failure.errno);
            // An id that is not in the sandbox's range.
            let kind = match failure.errno {
                libc::EINVAL => FaultKind::Invalid,
                _ => FaultKind::Denied,
            };
            let message = format!("cannot {}: {error}", failure.step);
            Fault { errno: Some(failure.errno), ..Fault::new(kind, message) }
        })?;
        let pid = Pid::from_raw(launched.pid);
        let pid = pid.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        Pool::new(launcher, pid).map_err(failed)
    }
}
