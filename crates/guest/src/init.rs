//! The first process inside a sandbox: builds the jail, starts guest and launcher, and from then on
//! only reaps. It has one thread for all its life, so it may fork.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use bastide_proto::boot::{
    BaseSpec, BootFailure, BootReport, BootSpec, Enforced, HostIds, Ids, Rung, SandboxReady,
};
use bastide_proto::warden::HOST_INIT;
use rustix::process::{Pid, PidfdFlags, pidfd_open, set_child_subreaper, setsid};
use serde::{Deserialize, Serialize};

use crate::accounts::Identity;
use crate::jail::{
    IdMap, SandboxSpec, StepContext, StepError, WallsReport, add_private, begin_root, finish_root,
    give_up_everything, give_up_unneeded, harden_init, join, leave_host, open_alone,
    raise_own_loopback, reduce_guest,
};
use crate::launcher::{CommandCgroups, LauncherSpec};
use crate::server::kill::end_session;
use crate::server::{self, Endpoints, ServerConfig};
use crate::sys::{Fork, block_signals, exit_now, fork, fork_into, ignore_sigchld};
use crate::warden::logs_of;
use crate::{egress_listeners, launcher, packet};

/// Everything init is given by the warden that forked it.
#[derive(Debug)]
pub(crate) struct InitArguments {
    /// The base of the sandbox.
    pub(crate) base_spec: BaseSpec,
    /// Who is who inside.
    pub(crate) ids: IdMap,
    /// The socket to the warden.
    pub(crate) warden: OwnedFd,
    /// Where the warden asks for connections to ports inside.
    pub(crate) port_channel: OwnedFd,
    /// Whether its root is the copy of a template.
    pub(crate) has_template: bool,
}

/// What the warden tells init once there is a session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The session's own part of the sandbox.
    pub(crate) session: BootSpec,
    /// What the groups of its commands enforce.
    pub(crate) enforced: Enforced,
    /// Whether the folder for what commands say comes along.
    pub(crate) has_logs: bool,
    /// Whether a count of OOM kills comes along.
    pub(crate) has_oom_events: bool,
    /// Whether the sandbox gets an egress namespace; the socket of the process in it comes along.
    pub(crate) has_egress: bool,
}

/// The descriptors that go with a [`Task`].
#[derive(Debug)]
pub(crate) struct SessionFds {
    /// Where later hosts connect.
    pub(crate) listener: UnixListener,
    /// The connection of the host that made the session.
    pub(crate) first: UnixStream,
    /// Held by init alone: it ends with the last process inside.
    pub(crate) lock: OwnedFd,
    /// The folder for what commands say, where the warden had to open it.
    pub(crate) logs: Option<OwnedFd>,
    /// Where the kernel counts OOM kills.
    pub(crate) oom_events: Option<OwnedFd>,
    /// Where the process in the egress namespace is asked for listening sockets.
    pub(crate) egress: Option<OwnedFd>,
    /// The groups that limit commands, for launchers to join.
    pub(crate) cgroup_procs: Vec<OwnedFd>,
}

impl SessionFds {
    /// All of them, in the order in which they are taken apart again.
    pub(crate) fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        let always = [self.listener.as_fd(), self.first.as_fd(), self.lock.as_fd()];
        let some = self.logs.iter().chain(&self.oom_events).chain(&self.egress);
        always.into_iter().chain(some.chain(&self.cgroup_procs).map(AsFd::as_fd)).collect()
    }

    /// What came with a task; `None` if something is missing.
    fn new(task: &Task, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (listener, first, lock) = (fds.next()?.into(), fds.next()?.into(), fds.next()?);
        let logs = if task.has_logs { Some(fds.next()?) } else { None };
        let oom_events = if task.has_oom_events { Some(fds.next()?) } else { None };
        let egress = if task.has_egress { Some(fds.next()?) } else { None };
        Some(Self { listener, first, lock, logs, oom_events, egress, cgroup_procs: fds.collect() })
    }
}

/// What the guest tells init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum InitRequest {
    /// That it is up, or why not; once, and first.
    Up(Result<WallsReport, BootFailure>),
    /// To start another launcher, on the socket that comes along, for this user or the default one.
    Launch(Option<Identity>),
    /// To hand out the namespaces of users and mounts on the socket that comes along, whose other end the warden has:
    /// nobody outside may look at a process inside, not even its own user.
    Namespaces,
    /// That the lease of the session ran out, and nothing went wrong.
    Over,
    /// That the time somebody gave the session is over.
    Expired,
}

/// The life of init.
pub(crate) fn run(arguments: InitArguments) -> ! {
    block_signals();
    // With SIGCHLD ignored the kernel reaps the children itself.
    ignore_sigchld();
    let InitArguments { base_spec, ids, warden, port_channel, has_template } = arguments;
    if let Err(failure) = build_base(&base_spec, &ids, &warden, has_template) {
        drop(packet::send(&warden, &BootReport::Failed(failure), &[]));
        exit_now(1)
    }
    // A warden that is gone has no session any more, or never had one.
    let Ok(Some((task, fds))) = packet::receive::<Task>(&warden) else { exit_now(1) };
    let (Some(session_fds), Ok(to_warden)) = (SessionFds::new(&task, fds), warden.try_clone())
    else {
        exit_now(1)
    };
    let plan = SandboxSpec { base_spec, session: task.session };
    let context = InitContext { warden, port_channel, session_fds, has_template };
    // Only this process tells; those it forks let go of it.
    let mut to_warden = Some(to_warden);
    let started = boot_session(&plan, &ids, context, task.enforced, &mut to_warden);
    let Some(to_warden) = to_warden else { exit_now(1) };
    let reported = match &started {
        // The warden numbers processes differently; a descriptor means the same to both.
        Ok(StartedSandbox { ready, guest_fd, .. }) => {
            packet::send(&to_warden, &BootReport::Ready(ready.clone()), &[guest_fd.as_fd()])
        }
        Err(failure) => packet::send(&to_warden, &BootReport::Failed(failure.clone()), &[]),
    };
    drop(to_warden);
    let (Ok(StartedSandbox { to_guest, guest_fd, lock, cgroups, others, .. }), Ok(())) =
        (started, reported)
    else {
        exit_now(1)
    };
    drop(guest_fd);
    // The guest's socket closes when it ends. When the first process ends, the kernel ends every other
    // one inside: nothing outlives the guest.
    while let Ok(Some((word, mut sockets))) = packet::receive(&to_guest) {
        let (who, requests) = match (word, sockets.pop()) {
            (InitRequest::Launch(who), Some(requests)) => (who, requests),
            (InitRequest::Namespaces, Some(asker)) => {
                // Whoever asked sees the socket close.
                drop(send_namespaces(&asker));
                continue;
            }
            (InitRequest::Up(_) | InitRequest::Over | InitRequest::Expired, _) | (_, None) => {
                continue;
            }
        };
        match fork() {
            Ok(Fork::Child) => {
                drop((to_guest, lock, sockets));
                launcher::run(&plan, LauncherSpec { who, others }, &requests, cgroups)
            }
            // The guest sees its end of the socket close.
            Ok(Fork::Parent(_)) | Err(_) => {}
        }
    }
    if plan.base_spec.rung != Rung::Namespaces {
        end_session(rustix::process::getpid());
    }
    exit_now(0)
}

/// Hands out the namespaces of users and of mounts. Joining them takes what nobody inside has: to be, outside, who made
/// them.
fn send_namespaces(asker: &OwnedFd) -> std::io::Result<()> {
    let [users, mounts] = ["user", "mnt"].map(|kind| File::open(format!("/proc/self/ns/{kind}")));
    packet::send_now(asker, &packet::encode(&())?, &[users?.as_fd(), mounts?.as_fd()])
}

/// Builds the sandbox's base, once the warden has done its part from outside.
fn build_base(
    base_spec: &BaseSpec,
    ids: &IdMap,
    warden: &OwnedFd,
    has_template: bool,
) -> Result<(), BootFailure> {
    let binds = receive_binds(warden)?;
    if base_spec.rung != Rung::Namespaces {
        return prepare_without_namespaces(ids, &base_spec.rung).map_err(BootFailure::from);
    }
    ids.become_inside()?;
    give_up_unneeded()?;
    harden_init()?;
    if has_template {
        add_private(&base_spec.steps)?;
    } else {
        begin_root(&base_spec.steps, ids.are_shifted().then_some(binds))?;
        if ids.are_shifted() {
            // Whatever else is shown of the host, the warden hands over.
            leave_host()?;
        }
    }
    if base_spec.own_network {
        raise_own_loopback()?;
    }
    Ok(())
}

/// What is around a sandbox.
struct InitContext {
    warden: OwnedFd,
    port_channel: OwnedFd,
    session_fds: SessionFds,
    has_template: bool,
}

/// A sandbox whose processes are up.
struct StartedSandbox {
    ready: SandboxReady,
    to_guest: OwnedFd,
    guest_fd: OwnedFd,
    lock: OwnedFd,
    cgroups: CommandCgroups,
    /// The guest and the first launcher.
    others: Vec<Pid>,
}

/// Builds the session's part of the jail, and starts guest and launcher.
fn boot_session(
    plan: &SandboxSpec,
    ids: &IdMap,
    context: InitContext,
    enforced: Enforced,
    to_warden: &mut Option<OwnedFd>,
) -> Result<StartedSandbox, BootFailure> {
    let InitContext { warden, port_channel, session_fds, has_template } = context;
    let SessionFds { listener, first, lock, logs, oom_events, egress, cgroup_procs } = session_fds;
    let cgroups = CommandCgroups { cgroup_procs, enforced };
    let binds = receive_binds(&warden)?;
    let logs = match logs {
        Some(logs) => logs,
        None => open_alone(&logs_of(&plan.session))?,
    };
    if plan.base_spec.rung == Rung::Namespaces {
        finish_root(&plan.session.steps, ids.are_shifted().then_some(binds), has_template)?;
        if !ids.are_shifted() {
            leave_host()?;
        }
        rustix::system::sethostname(plan.session.hostname.as_bytes())
            .step(|| "set the host name".to_owned())?;
    }

    let pair = || UnixStream::pair().step(|| "make a pair of sockets".to_owned());
    // Before anything of the session runs, and with nothing of it.
    let egress = match egress {
        Some(orders) => {
            let (to_listeners, init) = pair()?;
            let step = || "make the egress namespace".to_owned();
            match fork_into(libc::CLONE_NEWNET).step(step)? {
                Fork::Child => {
                    drop((listener, first, lock, logs, oom_events, cgroups));
                    drop((warden, port_channel, to_warden.take(), to_listeners));
                    egress_listeners::run(&orders, init.into())
                }
                Fork::Parent(listeners) => {
                    drop((orders, init));
                    join_egress(listeners, &to_listeners)?;
                    Some(listeners)
                }
            }
        }
        None => None,
    };
    let (launcher, launcher_end) = pair()?;
    let (to_guest, init) = pair()?;
    let guest = match fork().step(|| "fork the guest".to_owned())? {
        Fork::Child => {
            drop((launcher_end, to_guest, lock, cgroups, to_warden.take()));
            let (warden, port_channel) = (Some(UnixStream::from(warden)), Some(port_channel));
            let first = Some(first);
            let endpoints = Endpoints {
                listener,
                first,
                launcher,
                init,
                warden,
                port_channel,
                logs,
                oom_events,
                egress_listeners: egress,
            };
            run_guest(plan, endpoints)
        }
        Fork::Parent(guest) => guest,
    };
    drop((launcher, init, listener, first, port_channel, logs, oom_events));
    let guest_fd = pidfd_open(guest, PidfdFlags::empty()).step(|| "watch the guest".to_owned())?;
    let launcher = match fork().step(|| "fork the launcher".to_owned())? {
        Fork::Child => {
            drop((to_guest, warden, guest_fd, lock, to_warden.take()));
            let others = [vec![guest], protected_pids(plan), Vec::from_iter(egress)].concat();
            let job = LauncherSpec { who: None, others };
            launcher::run(plan, job, &launcher_end.into(), cgroups)
        }
        Fork::Parent(launcher) => launcher,
    };
    drop(launcher_end);
    let to_guest = OwnedFd::from(to_guest);
    let InitRequest::Up(walls) = receive(&to_guest, "start the guest")? else {
        return Err(StepError::from_errno("start the guest", libc::EPROTO).into());
    };
    // The host's numbers of both are the warden's to fill in.
    let walls = walls?;
    let ready = SandboxReady {
        init_pid: 0,
        guest_pid: 0,
        uid: ids.on_host(),
        enforced: walls.enforced,
        landlock_abi: walls.landlock_abi,
        // As is this.
        image: None,
    };
    let others = [vec![guest, launcher], protected_pids(plan), Vec::from_iter(egress)].concat();
    Ok(StartedSandbox { ready, to_guest, guest_fd, lock, cgroups, others })
}

/// Joins the sandbox's network to the egress namespace of a process, which then sets up its end.
fn join_egress(listeners: Pid, to_listeners: &UnixStream) -> Result<(), BootFailure> {
    join(listeners)?;
    let step = "set the egress namespace up";
    packet::send(to_listeners, &(), &[]).step(|| step.to_owned())?;
    let to_listeners = to_listeners.try_clone().step(|| step.to_owned())?;
    receive::<Result<(), BootFailure>>(&to_listeners.into(), step)?
}

/// The other processes of ours that commands could name: this one, and the warden where they see the host's.
fn protected_pids(plan: &SandboxSpec) -> Vec<Pid> {
    if plan.base_spec.rung == Rung::Namespaces {
        return vec![Pid::INIT];
    }
    [Some(rustix::process::getpid()), rustix::process::getppid()].into_iter().flatten().collect()
}

/// Becomes the one all others descend from, where the kernel has no other name for that.
fn prepare_without_namespaces(ids: &IdMap, rung: &Rung) -> Result<(), StepError> {
    let own = rustix::process::getpid();
    set_child_subreaper(Some(own)).step(|| "look after processes".to_owned())?;
    // Whoever clears away what nobody looks after knows it by this.
    rustix::thread::set_name(HOST_INIT).step(|| "take a name".to_owned())?;
    rustix::process::chdir("/").step(|| "leave the session's folder".to_owned())?;
    if *rung == Rung::Unconfined {
        return ids.become_inside();
    }
    give_up_everything()?;
    ids.become_inside()?;
    harden_init()
}

/// The warden's word that the maps are written, with the mounts it copied. The last packet has none.
fn receive_binds(warden: &OwnedFd) -> Result<Vec<OwnedFd>, StepError> {
    let mut binds = Vec::new();
    loop {
        let received = packet::receive::<()>(warden).step(|| "hear from the warden".to_owned())?;
        match received {
            Some(((), fds)) if fds.is_empty() => return Ok(binds),
            Some(((), fds)) => binds.extend(fds),
            // The warden failed at its part and has said so itself.
            None => exit_now(1),
        }
    }
}

fn receive<T: serde::de::DeserializeOwned>(from: &OwnedFd, step: &str) -> Result<T, StepError> {
    match packet::receive(from) {
        Ok(Some((message, _))) => Ok(message),
        Ok(None) => {
            Err(rustix::io::Errno::PIPE).step(|| format!("{step}, which ended without a word"))
        }
        Err(error) => Err(error).step(|| step.to_owned()),
    }
}

/// Whether the one user inside stands for root, who writes to files whatever their permissions say, and could not do that
/// inside.
fn is_host_root(ids: &Ids) -> bool {
    match ids {
        Ids::Range { only, .. } => only.is_some(),
        Ids::Own { outside, .. } => outside.uid == 0,
        Ids::Host(HostIds::Caller) => rustix::process::geteuid().is_root(),
        Ids::Host(_) | Ids::Subordinate { .. } => false,
    }
}

fn run_guest(plan: &SandboxSpec, endpoints: Endpoints) -> ! {
    // A group of its own, so that no signal to somebody's group reaches it.
    let alone = setsid().step(|| "start a session of processes".to_owned());
    let reduced = alone.and_then(|_| match plan.base_spec.rung {
        Rung::Unconfined => Ok(()),
        Rung::Namespaces | Rung::Landlock(_) => {
            reduce_guest(plan.session.single_user_reason.is_none())
        }
    });
    let served = match reduced {
        Ok(()) => {
            let overrides_modes = is_host_root(&plan.base_spec.ids);
            let served = ServerConfig { overrides_modes, ..(&plan.session).into() };
            server::run(&served, endpoints)
        }
        Err(error) => Err(server::give_up(&endpoints.init, error)),
    };
    exit_now(i32::from(served.is_err()))
}
