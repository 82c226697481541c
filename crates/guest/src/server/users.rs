//! The users of the session: who they are, and the launchers of their commands.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::{Fault, FaultKind};
use bastide_wire::Quiet;
use rustix::process::Pid;
use tokio::sync::Mutex;

use super::blocking::blocking;
use super::call::fault;
use super::kill::kill_strays;
use super::pool::{NoSupervisor, Pool, Taken, read_packet, send_packet};
use crate::accounts::{Accounts, Identity, Nameless};
use crate::init::ToInit;
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
type Who = Option<Arc<Identity>>;

/// Whom commands run as, and who else there can be.
#[derive(Debug, Clone)]
pub(crate) struct Population {
    /// The default user.
    pub(crate) own: Identity,
    /// Its home.
    pub(crate) home: String,
    /// Why there is nobody but the default user, if so.
    pub(crate) only_own: Option<String>,
    /// Which group a number without a name is in.
    pub(crate) nameless: Nameless,
}

impl Population {
    /// Whether somebody who was asked for by `text` is the default user.
    fn is_own(&self, text: &str, who: &Identity) -> bool {
        // An engine gives a user all its groups, and the same one with another group is another.
        if self.nameless == Nameless::InRootsGroup && self.only_own.is_none() {
            return *who == self.own;
        }
        who.uid == self.own.uid && (!text.contains(':') || who.gid == self.own.gid)
    }
}

/// The users of the session.
#[derive(Debug)]
pub(crate) struct Users {
    /// Where launchers are asked for.
    init: Quiet,
    population: Population,
    /// Those that have run something, the latest last; the default user has no identity.
    pools: Mutex<Vec<(Who, Arc<Pool>)>>,
}

impl Users {
    /// The default user, whose launcher is up.
    pub(crate) fn new(init: Quiet, population: Population, own: Pool) -> Self {
        Self { init, population, pools: Mutex::new(vec![(None, Arc::new(own))]) }
    }

    /// Why there is nobody but the default user, if so.
    pub(crate) fn only_own(&self) -> Option<&str> {
        self.population.only_own.as_deref()
    }

    /// Who a user is; `None` for the default user.
    pub(crate) async fn find(&self, user: Option<&str>) -> Result<Who, Fault> {
        self.find_with_home(user).await.map(|(who, _)| who)
    }

    /// Who a user is, `None` for the default user; and where its home is.
    pub(crate) async fn find_with_home(&self, user: Option<&str>) -> Result<(Who, String), Fault> {
        let Population { home, only_own, nameless, .. } = &self.population;
        let Some(user) = user else { return Ok((None, home.clone())) };
        if user.is_empty() || user.len() > MAX_NAME || user.contains('\0') {
            return Err(Fault::new(FaultKind::Invalid, "the name of a user makes no sense"));
        }
        let (asked, nameless) = (user.to_owned(), *nameless);
        let find = move || {
            let accounts = Accounts::read();
            let who = accounts.identity(&asked, nameless)?;
            let home = accounts.home(who.uid).to_owned();
            Some((who, home))
        };
        let Some((who, home)) = blocking(find).await? else {
            return Err(Fault::new(FaultKind::Invalid, format!("there is no user {user}")));
        };
        if self.population.is_own(user, &who) {
            return Ok((None, home));
        }
        match only_own {
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
    ) -> Result<(Arc<Pool>, Taken), Fault> {
        let failed = |error: io::Error| fault("cannot start a process", &error);
        let mut pool = self.pool(who).await?;
        for _ in 0..2 {
            match pool.take().await {
                Ok(taken) => return Ok((pool, taken)),
                Err(NoSupervisor::Refused(error)) => return Err(failed(error)),
                Err(NoSupervisor::Launcher) => pool = self.replace(who, &pool).await?,
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
    pub(crate) async fn kill_strays(&self, supervisor: Pid, known: &[Pid]) {
        let pools = self.pools.lock().await;
        let launchers = pools.iter().map(|(_, pool)| pool).filter(|pool| pool.is_alive());
        let launchers: Vec<_> = launchers.map(|pool| pool.launcher()).collect();
        kill_strays(supervisor, &[&launchers, known].concat()).await;
    }

    async fn launch(&self, who: Option<&Arc<Identity>>) -> Result<Pool, Fault> {
        let failed = |error: io::Error| fault("cannot start a launcher", &error);
        let report = async {
            let (near, far) = StdStream::pair()?;
            let order = ToInit::Launch(who.map(|who| Identity::clone(who)));
            send_packet(&self.init, &packet::encode(&order)?, &[far.as_fd()]).await?;
            drop(far);
            let report = read_packet(&mut Quiet::new(near.try_clone()?)?).await?;
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
