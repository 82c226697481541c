//! What can be written on the command line.

pub(crate) mod command;
pub(crate) mod docker;
pub(crate) mod kubernetes;
pub(crate) mod lease;
pub(crate) mod mounts;
pub(crate) mod policy;
pub(crate) mod sbx;
pub(crate) mod session;
pub(crate) mod values;

use crate::commands::agent::AgentArgs;
use crate::commands::attach::AttachArgs;
use crate::commands::audit::AuditArgs;
use crate::commands::bisect::BisectArgs;
use crate::commands::checkpoint::CheckpointArgs;
use crate::commands::cp::CpArgs;
use crate::commands::create::CreateArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::docs::{CompletionsArgs, ManArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::files::FilesArgs;
use crate::commands::fork::ForkArgs;
use crate::commands::init::InitArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::kill::KillArgs;
use crate::commands::kubernetes::KubernetesTaskArgs;
use crate::commands::lease::LeaseArgs;
use crate::commands::log::LogArgs;
use crate::commands::ls::LsArgs;
use crate::commands::merge::MergeArgs;
use crate::commands::mounts::MountsArgs;
use crate::commands::net::NetArgs;
use crate::commands::port::PortArgs;
use crate::commands::ps::PsArgs;
use crate::commands::redo::RedoArgs;
use crate::commands::restore::RestoreArgs;
use crate::commands::resume::ResumeArgs;
use crate::commands::rm::RmArgs;
use crate::commands::run::RunArgs;
use crate::commands::sbx::SbxTaskArgs;
use crate::commands::shell::ShellArgs;
use crate::commands::snapshot::SnapshotArgs;
use crate::commands::stats::StatsArgs;
use crate::commands::stop::StopArgs;
use crate::commands::sweep::SweepArgs;
use crate::commands::undo::UndoArgs;

/// Give software agents a place to work
#[derive(Debug, clap::Parser)]
#[command(name = "bastide", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Task {
    Init(InitArgs),
    Run(RunArgs),
    Agent(AgentArgs),
    Create(CreateArgs),
    Exec(ExecArgs),
    Shell(ShellArgs),
    Ps(PsArgs),
    Attach(AttachArgs),
    Kill(KillArgs),
    Cp(CpArgs),
    Files(FilesArgs),
    Ls(LsArgs),
    Inspect(InspectArgs),
    Events(EventsArgs),
    Audit(AuditArgs),
    Port(PortArgs),
    Mounts(MountsArgs),
    Lease(LeaseArgs),
    Stats(StatsArgs),
    Net(NetArgs),
    Stop(StopArgs),
    Resume(ResumeArgs),
    Rm(RmArgs),
    Snapshot(SnapshotArgs),
    Checkpoint(CheckpointArgs),
    Log(LogArgs),
    Diff(DiffArgs),
    Undo(UndoArgs),
    Redo(RedoArgs),
    Restore(RestoreArgs),
    Fork(ForkArgs),
    Merge(MergeArgs),
    Bisect(BisectArgs),
    Sweep(SweepArgs),
    Sbx(SbxTaskArgs),
    Kubernetes(KubernetesTaskArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Whether a command line asks for JSON, as far as can be told from one that does not parse: what
/// follows `--` belongs to somebody else.
pub(crate) fn asks_for_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    args.take_while(|arg| arg != "--").any(|arg| arg == "--json")
}
